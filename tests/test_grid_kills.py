"""Grids survive SIGKILL: of a worker, of the grid, of one of a launcher's processes; and two calls share the work."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from grid_calls import RECIPES, SLS, checkpointed, digest, end, kill_what_is_left, start, starts, wait_for, workers
from preloaded import python

from hf_softlabel.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each test has a working folder of its own, and leaves no process behind."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    kill_what_is_left()


@pytest.fixture
def uninterrupted():
    """The label stream of a run that was not interrupted, in one process."""

    def train(seed: int) -> str:
        options = yaml.safe_load(SLS)
        words = [f"--{key}={value}" for key, value in options["options"].items()]
        words += ["--delivery=sls", f"--seed={seed}", f"--output_dir=alone/{seed}", "--disable_tqdm=true"]
        assert main(["train", options["recipe"], *words]) == 0
        return digest(str(seed), "alone")

    return train


def test_it_survives_sigkill_of_a_worker_and_of_itself_and_two_calls_share_the_rest(uninterrupted):
    first = start(SLS, "--jobs", "1", executable=sys.executable)  # preloaded processes cannot be stopped
    wait_for(lambda: checkpointed("sls-seed0"), first)
    [worker] = workers("sls-seed0")
    os.kill(worker, signal.SIGKILL)
    [second_worker] = wait_for(lambda: [pid for pid in workers("sls-seed0") if pid != worker], first)
    os.kill(second_worker, signal.SIGSTOP)  # so that it is still there when the next calls come
    first.kill()
    assert "cut off   sls-seed0" in end(first)[1]
    calls = [start(SLS, "--jobs", "2"), start(SLS, "--jobs", "2")]
    for call in calls:
        assert any("found     sls-seed0" in line for line in call.stdout)
    os.kill(second_worker, signal.SIGCONT)
    answers = [end(call) for call in calls]
    assert [code for code, _ in answers] == [0, 0], answers
    # Once and once more after SIGKILL; the other once, though two calls wanted it.
    assert (starts("sls-seed0"), starts("sls-seed1")) == (2, 1)
    assert "Resuming from" in Path("runs/g/logs/sls-seed0.log").read_text()
    assert [digest("sls-seed0"), digest("sls-seed1")] == [uninterrupted(0), uninterrupted(1)]


def test_a_cell_that_is_killed_each_time_is_given_up():
    process = start(SLS.replace("[0, 1]", "[0]"), "--retries", "1")
    [first] = wait_for(lambda: workers("sls-seed0"), process)
    os.kill(first, signal.SIGKILL)
    [second] = wait_for(lambda: [pid for pid in workers("sls-seed0") if pid != first], process)
    os.kill(second, signal.SIGKILL)
    code, said = end(process)
    assert code == 1 and "sls-seed0 was killed 2 times" in said and starts("sls-seed0") == 2


def test_a_launcher_runs_two_processes_and_a_killed_one_is_started_again(uninterrupted):
    config = RECIPES / "accelerate_configs" / "cpu2.yaml"
    launcher = f"{python()} -m accelerate.commands.launch --main_process_port 0 --config_file {config}"
    text = SLS.replace("[0, 1]", "[0]").replace("batch_size: 8", "batch_size: 4")
    process = start(text, "--launcher", launcher)
    wait_for(lambda: checkpointed("sls-seed0"), process)
    ranks = [pid for pid in workers("sls-seed0") if b"accelerate" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    code, said = end(process)
    assert code == 0 and "cut off   sls-seed0" in said and starts("sls-seed0") == 2, said
    metrics = json.loads(Path("runs/g/sls-seed0/metrics.json").read_text())
    assert metrics["world_size"] == 2 and metrics["ledger_digest"] == uninterrupted(0)
