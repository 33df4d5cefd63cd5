"""The label stream in real processes: two of them, persistent workers, accumulation, and SIGKILL in mid-epoch.

One recipe is run in five ways by the command line, as a user would. 601 training examples in batches of 8 leave a
ragged tail, which two processes fill up by repeating examples.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from preloaded import python

from hf_softlabel.checkpoint import last_whole_checkpoint
from hf_softlabel.metrics import score_votes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "synthetic" / "text.yaml"
STEPS_PER_EPOCH = 76  # of 601 examples in batches of 8
TRAIN = [
    *["train", str(RECIPE), "--use_cpu", "--delivery", "multipass", "--seed", "3", "--num_train_epochs", "3"],
    *["--train_size", "601", "--eval_fraction", "0.1985", "--logging_strategy", "steps", "--logging_steps", "1"],
    *["--eval_strategy", "no", "--load_best_model_at_end", "false", "--save_strategy", "steps", "--save_steps", "10"],
    # Adam divides by gradients near zero and so blows up differences in the last bit.
    *["--save_total_limit", "2", "--optim", "sgd", "--learning_rate", "0.05"],
]
ONE = ["-m", "hf_softlabel"]
CONFIG = str(ROOT / "recipes" / "accelerate_configs" / "cpu2.yaml")
TWO = ["-m", "accelerate.commands.launch", "--config_file", CONFIG, "-m", "hf_softlabel"]


def start(command: list[str], out: Path, executable: str = "") -> subprocess.Popen:
    # A port of its own, so that tests can run beside each other.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    log = (out.parent / f"{out.name}.log").open("a")
    return subprocess.Popen(
        [executable or python(), *command, "--output_dir", str(out)],
        env=env,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def finish(command: list[str], out: Path) -> dict:
    process = start(command, out)
    assert process.wait(timeout=400) == 0, (out.parent / f"{out.name}.log").read_text()[-3000:]
    assert (out / "DONE").exists()
    return json.loads((out / "metrics.json").read_text())


def processes(out: Path) -> list[int]:
    """Those that have this folder in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(out) in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_in_mid_epoch(command: list[str], out: Path) -> int:
    """SIGKILL every process of a run somewhere in the second epoch; returns the last whole checkpoint's step."""
    process = start(command, out, sys.executable)  # a preloaded one may live for a moment longer
    try:
        for _ in range(4000):
            assert process.poll() is None, (out.parent / f"{out.name}.log").read_text()[-3000:]
            steps = [int(p.name.split("-")[1]) for p in out.glob("checkpoint-*") if (p / "manifest.json").exists()]
            if max(steps, default=0) >= STEPS_PER_EPOCH + 4:
                break
            time.sleep(0.05)
    finally:
        # Workers of `accelerate launch` are in groups of their own, and live on.
        while pids := processes(out):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()
    assert not (out / "DONE").exists() and not (out / "metrics.json").exists()
    return int(last_whole_checkpoint(out).name.split("-")[1])


def losses(out: Path) -> np.ndarray:
    """The training loss of each step."""
    last = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return np.array([line["loss"] for line in history if "loss" in line])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def one(runs):
    """The run that all others must equal: one process, batches of 8."""
    metrics = finish([*ONE, *TRAIN, "--per_device_train_batch_size", "8"], runs / "one")
    assert metrics["world_size"] == 1 and metrics["steps"] == 3 * STEPS_PER_EPOCH
    return metrics


def test_accumulation_and_persistent_workers_change_nothing(one, runs):
    options = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"]
    workers = ["--dataloader_num_workers", "2", "--dataloader_persistent_workers"]
    metrics = finish([*ONE, *TRAIN, *options, *workers], runs / "accumulated")
    assert metrics["ledger_digest"] == one["ledger_digest"]
    # The tail of 601 = 75 * 8 + 1 is a batch of one either way.
    np.testing.assert_allclose(losses(runs / "accumulated"), losses(runs / "one"), rtol=1e-4)


def test_killed_in_mid_epoch_and_resumed_one_process_ends_in_the_same_place(one, runs):
    command = [*ONE, *TRAIN, "--per_device_train_batch_size", "8"]
    step = kill_in_mid_epoch(command, runs / "killed")
    assert step % STEPS_PER_EPOCH != 0
    metrics = finish(command, runs / "killed")
    assert f"Resuming from {runs / 'killed' / f'checkpoint-{step}'}" in (runs / "killed.log").read_text()
    assert metrics["ledger_digest"] == one["ledger_digest"]
    np.testing.assert_allclose(losses(runs / "killed"), losses(runs / "one"), rtol=1e-5)
    assert metrics["soft_nll"] == pytest.approx(one["soft_nll"], rel=1e-5)


def test_two_processes_killed_and_resumed_see_the_labels_of_one(one, runs):
    out = runs / "two"
    command = [*TWO, *TRAIN, "--per_device_train_batch_size", "4"]
    kill_in_mid_epoch(command, out)

    # One process with the same total batch may not go on where two stopped.
    process = start([*ONE, *TRAIN, "--per_device_train_batch_size", "8"], out)
    assert process.wait(timeout=400) == 2
    refusal = (runs / "two.log").read_text()
    assert "per_device_train_batch_size" in refusal.splitlines()[-1] and "Traceback" not in refusal.splitlines()[-1]

    metrics = finish(command, out)
    assert metrics["world_size"] == 2
    assert metrics["ledger_digest"] == one["ledger_digest"]
    # Until the tail, for which two processes repeat examples, the losses are those of one process.
    np.testing.assert_allclose(losses(out)[:75], losses(runs / "one")[:75], rtol=1e-4)

    # Gathered scores are exact: 397 held-out examples do not divide by two.
    table = pq.read_table(out / "predictions.parquet").to_pydict()
    assert len(set(table["example_id"])) == len(table["example_id"]) == 397 == metrics["eval_examples"]
    scores = score_votes(np.array(table["logits"]), np.array(table["votes"]), np.array(table["label"]), True)
    assert metrics["soft_nll"] == pytest.approx(scores["soft_nll"], rel=1e-6)


def test_a_resume_on_another_number_of_processes_is_refused_by_the_checkpoint(runs, one):
    """Same recipe, same batch size per device, another world size: only the checkpoint knows."""
    command = [*TWO, *TRAIN, "--per_device_train_batch_size", "8"]
    for name in ("DONE", "metrics.json"):
        (runs / "one" / name).rename(runs / "one" / f"{name}.hidden")
    try:
        assert start(command, runs / "one").wait(timeout=400) != 0
    finally:
        for name in ("DONE", "metrics.json"):
            (runs / "one" / f"{name}.hidden").rename(runs / "one" / name)
    assert "world_size: 1 then, 2 now" in (runs / "one.log").read_text()


def test_two_processes_score_the_very_model_that_they_save(runs):
    """Batch norm's statistics differ between the processes until they are aligned for the evaluation."""
    recipe = str(ROOT / "recipes" / "synthetic" / "sls.yaml")
    options = ["--use_cpu", "--num_train_epochs", "2", "--per_device_train_batch_size", "16", "--train_size", "200"]
    options += ["--diagnostics", "uncertainty", "--diagnostics_every", "1", "--save_total_limit", "5"]
    metrics = finish([*TWO, "train", recipe, *options], runs / "vision")
    assert metrics["world_size"] == 2
    history = [json.loads(line) for line in (runs / "vision" / "history.jsonl").read_text().splitlines()]
    best = next(line for line in history if line["step"] == metrics["best_step"])
    # The final scores are of the best checkpoint, loaded again from disk.
    assert metrics["soft_nll"] == pytest.approx(best["soft_nll"], rel=1e-5)
    # So are the diagnostics at the end of an epoch, before its evaluation.
    last = max((runs / "vision").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    logged = json.loads((last / "trainer_state.json").read_text())["log_history"]
    measured = [line["eval_uncertainty/soft_nll"] for line in logged if "eval_uncertainty/soft_nll" in line]
    evaluated = [line["eval_soft_nll"] for line in logged if "eval_soft_nll" in line]
    assert len(measured) == len(evaluated) == 2 and measured == pytest.approx(evaluated, rel=1e-5)
