"""Resuming in one process: which checkpoint, with which settings, and that the labels go on where they stopped."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_softlabel import SoftLabelConfig, VotesError, VotesTrainer, load_model, split_votes
from hf_softlabel.checkpoint import flaw
from hf_softlabel.data.synthetic import TONES, load_synthetic

DATA = split_votes(load_synthetic("text", size=60), seed=0)  # 48 training examples: 6 steps an epoch


class StopAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def make(out: Path, stop: int | None = None, train=DATA["train"], **options) -> VotesTrainer:
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    defaults = {
        "output_dir": str(out),
        "delivery": "multipass",
        "num_train_epochs": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "save_strategy": "steps",
        "save_steps": 2,
        "logging_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
        "seed": 0,
    }
    return VotesTrainer(
        model=model,
        args=SoftLabelConfig(**{**defaults, **options}),
        train_dataset=train,
        eval_dataset=DATA["eval"],
        processing_class=tokenizer,
        callbacks=[StopAt(stop)] if stop else None,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without interruption."""
    trainer = make(tmp_path_factory.mktemp("whole"))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The directory of a run that stopped at step 9 of 24, in the middle of the second epoch."""
    out = tmp_path_factory.mktemp("stopped")
    make(out, stop=9).train()
    return out


@pytest.fixture
def half(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def flat(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_a_run_stopped_in_mid_epoch_goes_on_with_the_same_labels_to_the_same_weights(whole, half):
    resumed = make(half)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 24
    assert resumed.ledger.digest() == whole.ledger.digest()
    torch.testing.assert_close(flat(resumed), flat(whole), rtol=1e-6, atol=1e-7)


def test_a_stream_stopped_in_its_second_pass_goes_on_there(tmp_path, whole):
    options = {"train": DATA["train"].to_iterable_dataset().shuffle(seed=0, buffer_size=20), "max_steps": 24}
    make(tmp_path, stop=9, **options).train()
    resumed = make(tmp_path, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed._initial_global_step == 8 and resumed.state.global_step == 24
    # Four passes over the same examples, in whatever order: the labels of four epochs.
    assert resumed.ledger.digest() == whole.ledger.digest()
    straight = make(tmp_path / "straight", **options)
    straight.train()
    torch.testing.assert_close(flat(resumed), flat(straight), rtol=1e-6, atol=1e-7)


def test_only_what_was_seen_before_the_stop_is_in_its_ledger(whole, half):
    stopped = make(half)
    stopped.ledger.load(half / "checkpoint-8")
    assert stopped.ledger.digest() != whole.ledger.digest()


def spoil_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def spoil_weights(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])


def spoil_optimizer(checkpoint: Path) -> None:
    (checkpoint / "optimizer.pt").unlink()


@pytest.mark.parametrize("spoil", [spoil_manifest, spoil_weights, spoil_optimizer])
def test_a_checkpoint_cut_off_while_it_was_written_is_skipped_for_the_last_whole_one(whole, half, caplog, spoil):
    spoil(half / "checkpoint-8")
    resumed = make(half)
    with caplog.at_level(logging.WARNING, logger="hf_softlabel"):
        resumed.train(resume_from_checkpoint=True)
    assert "Skipping" in caplog.text and "checkpoint-8" in caplog.text
    assert resumed._initial_global_step == 6
    assert resumed.ledger.digest() == whole.ledger.digest()


def test_a_cut_off_checkpoint_that_is_named_is_refused(half):
    spoil_weights(half / "checkpoint-8")
    with pytest.raises(VotesError, match=r"checkpoint-8: model.safetensors has 100 bytes"):
        make(half).train(resume_from_checkpoint=str(half / "checkpoint-8"))


def test_without_a_whole_checkpoint_there_is_nothing_to_resume(half):
    for checkpoint in half.glob("checkpoint-*"):
        spoil_manifest(checkpoint)
    with pytest.raises(VotesError, match="no whole checkpoint"):
        make(half).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size: 8 then, 4 now"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps: 1 then, 2 now"),
        ({"delivery": "sls"}, "delivery: 'multipass' then, 'sls' now"),
        ({"delivery_seed": 5}, "delivery_seed: 0 then, 5 now"),
        ({"train": DATA["train"].select(range(47)).add_item(DATA["eval"][0])}, "train_votes: "),
    ],
)
def test_another_batch_size_or_delivery_is_refused_unless_it_is_allowed(half, options, message):
    with pytest.raises(VotesError, match=message):
        make(half, **options).train(resume_from_checkpoint=True)
    allowed = make(half, allow_changed_resume=True, **options)
    allowed.train(resume_from_checkpoint=True)
    assert allowed.state.global_step > 9


def test_a_checkpoint_of_the_model_alone_cannot_be_resumed(tmp_path):
    make(tmp_path, stop=4, save_only_model=True).train()
    with pytest.raises(VotesError, match="holds only the model"):
        make(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    with pytest.raises(VotesError, match="no whole checkpoint"):
        make(tmp_path).train(resume_from_checkpoint=True)


def test_another_world_size_is_refused(half):
    path = half / "checkpoint-8" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["world_size"] = 2
    path.write_text(json.dumps(manifest))
    with pytest.raises(VotesError, match="world_size: 2 then, 1 now"):
        make(half).train(resume_from_checkpoint=True)


def test_older_checkpoints_go_only_when_the_new_one_is_whole(tmp_path, monkeypatch):
    import hf_softlabel.trainer as module

    def killed(*args):
        raise KeyboardInterrupt

    trainer = make(tmp_path / "run", save_total_limit=1, stop=4)
    monkeypatch.setattr(module, "write_manifest", _once_then(module.write_manifest, killed))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    resumed = make(tmp_path / "run", save_total_limit=1)
    monkeypatch.undo()
    resumed.train(resume_from_checkpoint=True)
    assert resumed._initial_global_step == 2
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-24"]


def test_a_whole_checkpoint_that_is_being_written_over_is_not_whole(half, monkeypatch):
    def killed(self, folder):
        raise KeyboardInterrupt

    trainer = make(half)
    monkeypatch.setattr(VotesTrainer, "_save_optimizer_and_scheduler", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(resume_from_checkpoint=str(half / "checkpoint-4"))
    assert flaw(half / "checkpoint-4") is None and flaw(half / "checkpoint-8") is None
    assert "not finished" in flaw(half / "checkpoint-6")


def _once_then(first, second):
    calls = []

    def call(*args):
        calls.append(args)
        return (first if len(calls) == 1 else second)(*args)

    return call
