"""Two processes measure their shares of 13 examples, and both know what one process would have found."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from preloaded import python

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("diagnostics_processes.py"))
CONFIG = str(Path(__file__).parents[2] / "recipes" / "accelerate_configs" / "cpu2.yaml")


def run(command: list[str], out: Path, processes: int) -> list[dict]:
    out.mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(20000 + (os.getpid() + 13) % 20000)}
    done = subprocess.run([python(), *command, SCRIPT, str(out)], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"found-{rank}.json").read_text()) for rank in range(processes)]


def flat(values: dict, prefix: str = "") -> dict[str, float]:
    found = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def test_diagnostics_of_two_processes_are_those_of_one(tmp_path):
    (one,) = run([], tmp_path / "one", 1)
    launch = ["-m", "accelerate.commands.launch", "--config_file", CONFIG]
    two = run(launch, tmp_path / "two", 2)
    assert one.pop("world_size") == 1 and [found.pop("world_size") for found in two] == [2, 2]
    assert one["hessian"]["examples"] == 13
    expected = flat(one)
    for found in two:
        found = flat(found)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            # Sums in another order, float32.
            close = value if isinstance(value, (str, bool)) else pytest.approx(value, rel=2e-3, abs=1e-6)
            assert found[name] == close, name
