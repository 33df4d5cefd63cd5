"""Gathered scores are exact on any number of processes: 13 examples on two give what they give on one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gathered_scores import Table, data
from preloaded import python

from hf_softlabel.data.votes import dense_votes
from hf_softlabel.metrics import score_votes
from hf_softlabel.metrics.summary import NAMES

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("gathered_scores.py"))
CONFIG = str(Path(__file__).parents[2] / "recipes" / "accelerate_configs" / "cpu2.yaml")
ONE = []
TWO = ["-m", "accelerate.commands.launch", "--config_file", CONFIG]


def run(command: list[str], out: Path, *options: str) -> dict:
    out.mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(20000 + (os.getpid() + 7) % 20000)}
    done = subprocess.run(
        [python(), *command, SCRIPT, str(out), *options], env=env, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "found.json").read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict:
    return run(TWO, tmp_path_factory.mktemp("runs") / "two", "--evaluate_first")


def test_thirteen_examples_on_two_processes_score_as_on_one(tmp_path, two):
    one = run(ONE, tmp_path / "one", "--evaluate_first")
    assert (one["world_size"], two["world_size"]) == (1, 2)
    logits, examples = Table().logits.weight.detach().numpy(), data()
    expected = score_votes(logits, dense_votes(examples), np.array(examples["label"][:]), from_logits=True)
    assert expected.keys() == NAMES.keys() - {"wasserstein"}
    for name, value in expected.items():
        # Exactly equal: no example is lost or counted twice, and all scores are of the float32 logits.
        assert one["before"][f"eval_{name}"] == two["before"][f"eval_{name}"] == pytest.approx(value, abs=1e-15), name
    assert one["before"]["eval_loss"] == two["before"]["eval_loss"] == pytest.approx(expected["soft_nll"], abs=1e-15)


def test_the_best_checkpoint_of_two_processes_is_the_one_with_the_least_soft_nll(two):
    *during, after = two["history"]
    assert len(set(during)) == 2
    assert two["best_metric"] == min(during)
    assert two["best_step"] == 1 + during.index(min(during))
    # It was loaded at the end, and is scored as it was.
    assert after == two["after"]["eval_soft_nll"] == pytest.approx(min(during), abs=1e-12)


def test_an_evaluation_before_the_training_does_not_keep_the_processes_apart(tmp_path, two):
    """transformers 5.22 then trains without DDP, each process on its own examples only."""
    other = run(TWO, tmp_path / "two")
    assert other["weights"] == two["weights"]
    assert other["history"] == two["history"]
