"""Checkpoints: which are whole, which one a run goes on from, and what must not have changed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hf_softlabel.checkpoint import (
    MANIFEST_NAME,
    flaw,
    last_whole_checkpoint,
    refuse_changes,
    write_manifest,
    write_text_atomically,
)
from hf_softlabel.data.errors import VotesError

SETTINGS = {"world_size": 2, "delivery": "sls", "per_device_train_batch_size": 32}


def checkpoint(folder: Path, whole: bool = True) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    (folder / "inner" / "state.json").write_text("{}")
    if whole:
        write_manifest(folder, SETTINGS, {"epoch": 0, "step": 0})
    return folder


def test_a_manifest_lists_every_file_with_its_size(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    files = {"inner/state.json": 2, "model.safetensors": 100}
    assert manifest == {"settings": SETTINGS, "progress": {"epoch": 0, "step": 0}, "resumable": True, "files": files}
    assert flaw(folder) is None
    # Written again it does not list itself.
    write_manifest(folder, SETTINGS, {"epoch": 0, "step": 0})
    assert flaw(folder) is None
    assert json.loads((folder / MANIFEST_NAME).read_text()) == manifest


def test_a_checkpoint_without_manifest_was_cut_off(tmp_path):
    assert "has no manifest.json" in flaw(checkpoint(tmp_path / "checkpoint-1", whole=False))


def test_a_truncated_file_is_named_with_both_sizes(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    (folder / "model.safetensors").write_bytes(b"x" * 60)
    assert flaw(folder) == "model.safetensors has 60 bytes instead of 100"


def test_a_missing_file_is_named(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    (folder / "inner" / "state.json").unlink()
    assert flaw(folder) == "inner/state.json is missing"


@pytest.mark.parametrize("content", [b"", b'{"files": {"a"', b"[1]", b"{}", b"null", b'{"files": ["a"]}', b"\xff\xfe"])
def test_an_unreadable_manifest_is_a_flaw(tmp_path, content):
    folder = checkpoint(tmp_path / "checkpoint-1")
    (folder / MANIFEST_NAME).write_bytes(content)
    assert flaw(folder) == "its manifest.json cannot be read"


def test_files_added_later_do_no_harm(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    (folder / "note.txt").write_text("mine")
    assert flaw(folder) is None


def test_checkpoints_are_ordered_by_number_not_by_name(tmp_path):
    for step in (100, 20, 9):
        checkpoint(tmp_path / f"checkpoint-{step}")
    assert last_whole_checkpoint(tmp_path).name == "checkpoint-100"


def test_newer_checkpoints_that_are_not_whole_are_skipped_with_a_warning(tmp_path, caplog):
    checkpoint(tmp_path / "checkpoint-20")
    checkpoint(tmp_path / "checkpoint-100", whole=False)
    (checkpoint(tmp_path / "checkpoint-40") / "model.safetensors").unlink()
    with caplog.at_level(logging.WARNING, logger="hf_softlabel.checkpoint"):
        assert last_whole_checkpoint(str(tmp_path)).name == "checkpoint-20"
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "checkpoint-100: it has no manifest.json" in messages[0]
    assert "checkpoint-40: model.safetensors is missing" in messages[1]


def test_other_folders_and_missing_ones_hold_no_checkpoint(tmp_path):
    for name in ("checkpoint-", "checkpoint-best", "my-checkpoint-3", "checkpoint-3-old"):
        checkpoint(tmp_path / name)
    assert last_whole_checkpoint(tmp_path) is None
    assert last_whole_checkpoint(tmp_path / "nothing") is None


def test_the_same_settings_may_resume(tmp_path):
    refuse_changes(checkpoint(tmp_path / "checkpoint-1"), dict(SETTINGS))


def test_changed_settings_are_refused_with_key_then_and_now(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    with pytest.raises(VotesError) as error:
        refuse_changes(folder, {**SETTINGS, "world_size": 4, "delivery": "soft", "resample_every": 2})
    message = str(error.value)
    assert str(folder) in message
    for change in (
        "world_size: 2 then, 4 now",
        "delivery: 'sls' then, 'soft' now",
        "resample_every: None then, 2 now",
    ):
        assert change in message
    assert "per_device_train_batch_size" not in message
    assert "allow_changed_resume" in message


def test_writing_atomically_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "DONE"
    write_text_atomically(path, "old, and longer")
    write_text_atomically(path, "neu: ß")
    assert path.read_text(encoding="utf-8") == "neu: ß"
    assert [p.name for p in tmp_path.iterdir()] == ["DONE"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "DONE"
    write_text_atomically(path, "old")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("hf_softlabel.checkpoint.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
