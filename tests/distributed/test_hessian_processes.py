"""The Hessian of examples on two processes, unevenly shared, is that of all of them on one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from preloaded import python

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("hessian_processes.py"))
CONFIG = str(Path(__file__).parents[2] / "recipes" / "accelerate_configs" / "cpu2.yaml")
ONE = []
TWO = ["-m", "accelerate.commands.launch", "--config_file", CONFIG]


def run(command: list[str], out: Path) -> list[dict]:
    """What each process found."""
    out.mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(20000 + (os.getpid() + 11) % 20000)}
    done = subprocess.run([python(), *command, SCRIPT, str(out)], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(path.read_text()) for path in sorted(out.glob("found*.json"))]


def test_two_processes_find_the_hessian_of_all_examples(tmp_path):
    [one], two = run(ONE, tmp_path / "one"), run(TWO, tmp_path / "two")
    assert (one["world_size"], [each["world_size"] for each in two]) == (1, [2, 2])
    # Both processes have made the same decisions on the same numbers.
    assert two[0]["summary"] == two[1]["summary"]
    assert one["summary"]["examples"] == 13
    assert one["summary"]["trace_converged"] and one["summary"]["lambda_max_converged"]
    for name, value in one["summary"].items():
        # The errors are small differences of large numbers, so that a batch's rounding is seen in them.
        tolerance = 1e-3 if name.endswith("error") else 1e-5
        expected = pytest.approx(value, rel=tolerance) if isinstance(value, float) else value
        assert two[0]["summary"][name] == expected, name
