"""`hf-softlabel grid` in real processes, for tests that watch it, stop it and kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from preloaded import python

RECIPES = Path(__file__).parents[1] / "recipes"
# Three training epochs of 40 steps, each with a checkpoint at every tenth.
GRID = f"""
recipe: {RECIPES / "synthetic" / "text.yaml"}
options:
  use_cpu: true
  train_size: 320
  num_train_epochs: 3
  per_device_train_batch_size: 8
  save_strategy: steps
  save_steps: 10
  eval_strategy: "no"
  load_best_model_at_end: false
"""
STARTED: list[subprocess.Popen] = []
SLS = GRID + "axes: {delivery: [sls], seed: [0, 1]}\n"


def start(text: str, *words: str, name: str = "g", executable: str = "") -> subprocess.Popen:
    """`hf-softlabel grid` on a grid with this text, in the working folder."""
    Path(f"{name}.yaml").write_text(text)
    process = subprocess.Popen(
        [executable or python(), "-m", "hf_softlabel", "grid", f"{name}.yaml", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    STARTED.append(process)
    return process


def kill_what_is_left() -> None:
    """End what a failed test has left running in the working folder."""
    while STARTED:
        STARTED.pop().kill()
    for pid in workers(""):
        os.kill(pid, signal.SIGKILL)


def end(process: subprocess.Popen) -> tuple[int, str]:
    said, _ = process.communicate(timeout=400)
    return process.returncode, said


def wait_for(what, process: subprocess.Popen):
    """The first true answer, while the process lives."""
    for _ in range(8000):
        assert process.poll() is None, process.stdout.read()
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come")


def checkpointed(cell: str, runs: str = "runs/g") -> bool:
    return any(Path(runs, cell).glob("checkpoint-*/manifest.json"))


def workers(text: str) -> list[int]:
    """The processes that train cells of the working folder and have this text in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, cwd = (folder / "cmdline").read_bytes().decode(), os.readlink(folder / "cwd")
        except OSError:
            continue
        if cwd == os.getcwd() and "hf_softlabel\0train" in command and text in command:
            found.append(int(folder.name))
    return sorted(found)


def starts(cell: str, runs: str = "runs/g") -> int:
    """How often a cell was started."""
    log = Path(runs, "logs", f"{cell}.log").read_text()
    return sum(line.startswith("== ") and " train " in line for line in log.splitlines())


def digest(cell: str, runs: str = "runs/g") -> str:
    assert Path(runs, cell, "DONE").exists()
    return json.loads(Path(runs, cell, "metrics.json").read_text())["ledger_digest"]
