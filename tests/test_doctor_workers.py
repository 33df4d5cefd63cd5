"""The doctor and processes: epochs that workers do not see, and launches that come up with fewer than asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from doctor_trainers import Resampling, hard, stock, tokenised, wrong
from preloaded import python
from transformers import TrainerCallback

from hf_softlabel.doctor import examine_trainer
from hf_softlabel.doctor_checks import asked_processes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tokens(texts):
    return tokenised(texts)


@pytest.mark.parametrize(
    ("how", "workers", "persistent", "expected"),
    [
        ("epoch", 1, True, ["wrong epoch_not_seen"]),
        ("epoch", 1, False, []),
        ("epoch", 0, False, []),
        ("own", 1, False, ["wrong epoch_not_seen"]),
        ("global", 1, True, ["note random_labels"]),
        ("constant", 1, True, []),
    ],
)
def test_an_epoch_that_workers_do_not_see(tmp_path, tokens, how, workers, persistent, expected):
    options = {"dataloader_num_workers": workers, "dataloader_persistent_workers": persistent}
    dataset = Resampling(tokens["train"], how)
    found = examine_trainer(stock(tmp_path, dataset, **options))
    assert [f"{f.severity} {f.name}" for f in found] == expected
    assert dataset.epoch == 0


def test_a_note_does_not_end_the_search(tmp_path, tokens):
    class Dated(Resampling):
        def __getitem__(self, i: int) -> dict:
            return {**super().__getitem__(i), "date": [2026, 1, 2 + i]}

    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    found = examine_trainer(stock(tmp_path, Dated(tokens["train"], "epoch"), **options))
    assert [f"{f.severity} {f.name}" for f in found] == ["wrong epoch_not_seen", "note votes_dropped"]


def test_a_transform_whose_epoch_a_callback_sets(tmp_path, tokens):
    now = {"epoch": 0}

    class Tell(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            now["epoch"] = int(state.epoch)

    def draw(batch):
        batch["labels"] = [
            int(np.random.default_rng((now["epoch"], *map(int, ids))).integers(3)) for ids in batch["input_ids"]
        ]
        return batch

    train = tokens["train"].select_columns(["input_ids", "attention_mask"]).with_transform(draw)
    options = {"dataloader_num_workers": 1, "callbacks": [Tell()]}
    assert wrong(examine_trainer(stock(tmp_path, train, dataloader_persistent_workers=True, **options))) == [
        "epoch_not_seen"
    ]
    assert examine_trainer(stock(tmp_path, train, **options)) == []


TWO_PROCESSES = """
import json, os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from doctor_trainers import Resampling, distributions, stock
from hf_softlabel import examine_trainer, load_model, tokenize_votes
from hf_softlabel.data.synthetic import TONES, load_synthetic

data = load_synthetic("text", size=60)
tokens = tokenize_votes(data, load_model("synthetic-bert", TONES, task="text")[1]).add_column("p", distributions(data))
report = []
for how in ("epoch", "constant"):
    trainer = stock(Path("."), Resampling(tokens, how))
    report.append([trainer.args.world_size, *(finding.name for finding in examine_trainer(trainer))])
if os.environ["RANK"] == "0":
    print(json.dumps(report))
"""


@pytest.mark.slow
def test_an_epoch_that_a_data_set_is_not_told_on_two_processes(tmp_path):
    (tmp_path / "script.py").write_text(TWO_PROCESSES.format(tests=str(ROOT / "tests")))
    start = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(start, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert json.loads(done.stdout.splitlines()[-1]) == [[2, "epoch_not_told"], [2]], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (["--cpu", "--num_processes", "2"], ["fewer_processes"]),
        (["--config_file", "cpu.yaml"], ["fewer_processes"]),
        (["--config_file", str(ROOT / "recipes/accelerate_configs/cpu2.yaml")], []),
    ],
)
def test_a_launch_with_fewer_processes_than_asked_for(tmp_path, launcher, expected):
    (tmp_path / "cpu.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 2\n"
        "machine_rank: 0\nmixed_precision: 'no'\nuse_cpu: true\n"
    )
    words = ["-m", "hf_softlabel", "doctor", str(ROOT / "recipes/synthetic/text.yaml"), "--json"]
    # The doctor reads the command of the process that started it.
    start = [sys.executable, "-m", "accelerate.commands.launch", *launcher]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([*start, *words], capture_output=True, text=True, cwd=tmp_path, env=environment)
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert [f["name"] for f in report["findings"] if f["severity"] == "wrong"] == expected
    assert (done.returncode != 0) == bool(expected), done.stderr


def test_the_world_size_that_the_environment_asks_for(tmp_path, tokens, monkeypatch):
    assert asked_processes() is None
    trainer = stock(tmp_path, hard(tokens["train"]))
    monkeypatch.setenv("WORLD_SIZE", "2")
    (finding,) = examine_trainer(trainer)
    assert (finding.name, finding.where) == ("fewer_processes", "the environment variable WORLD_SIZE")
