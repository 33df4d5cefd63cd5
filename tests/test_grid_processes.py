"""Grids in real processes: cells that fail, that are done already, and signals that stop them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from grid_calls import GRID, SLS, digest, end, kill_what_is_left, start, starts, wait_for, workers

from hf_softlabel.experiments import cell_lock
from hf_softlabel.experiments.grid import read_grid

pytestmark = pytest.mark.slow

# The model takes fewer tokens, which shows when it is loaded.
FAILS = GRID + "axes: [{delivery: [sls], seed: [0, 1]}, {delivery: [soft], max_length: [9999]}]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each test has a working folder of its own, and leaves no process behind."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    kill_what_is_left()


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """A folder in which a grid ran, of two cells and one that fails by itself; what it said is in `said`."""
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, said = end(start(FAILS, "--jobs", "2"))
        assert code == 1, said
        (folder / "said").write_text(said)
    return folder


def test_a_cell_that_fails_does_not_stop_the_others_and_is_reported(ran, monkeypatch):
    monkeypatch.chdir(ran)
    said = Path("said").read_text()
    report = said[said.index("1 cell of 3 failed:") :]
    assert "soft-max_length9999 failed with exit code 2; the end of runs/g/logs/soft-max_length9999.log" in report
    assert "  | hf-softlabel: error: max_length is 9999" in report
    assert starts("soft-max_length9999") == 1  # it would fail again
    assert "g: 2 finished, 1 failed after" in said
    assert [cell["name"] for cell in json.loads(Path("runs/g/grid.json").read_text())["cells"]] == [
        *["sls-seed0", "sls-seed1", "soft-max_length9999"]
    ]
    progress = json.loads(Path("runs/g/logs/sls-seed0.progress.json").read_text())
    assert (progress["step"], progress["steps"], progress["epoch"], progress["epochs"]) == (120, 120, 3, 3)
    assert "hf_softlabel train" in Path("runs/g/logs/sls-seed0.log").read_text()


def test_what_is_done_is_not_run_again_and_more_cells_are_added(ran, monkeypatch):
    monkeypatch.chdir(ran)
    done = Path("runs/g/sls-seed1/DONE")
    before = done.stat().st_mtime_ns
    code, said = end(start(SLS.replace("[0, 1]", "[0, 1, 2]")))
    assert code == 0 and "3 cells, 2 finished already" in said
    assert starts("sls-seed0") == starts("sls-seed1") == starts("sls-seed2") == 1
    assert done.stat().st_mtime_ns == before and digest("sls-seed2") != digest("sls-seed1")


@pytest.mark.parametrize("number, jobs", [(signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1)])
def test_a_signal_stops_the_cells_too(number, jobs):
    process = start(SLS, "--jobs", str(jobs))
    wait_for(lambda: len(workers("")) == jobs, process)
    process.send_signal(number)
    code, said = end(process)
    assert code == 128 + number and "2 waiting" in said and "The same command goes on where it was" in said
    assert workers("") == []
    grid = read_grid("g.yaml")
    assert not any(cell_lock.is_held(Path("runs/g/logs", f"{cell.name}.lock")) for cell in grid.cells)


def test_a_dry_run_times_a_cell_and_leaves_nothing_behind(folder):
    code, said = end(start(SLS, "--dry-run", "--jobs", "2"))
    assert code == 0 and workers("") == []
    lines = said.splitlines()
    assert "g: 2 cells, 2 to run, in runs/g" in lines
    assert sum("to do" in line and " 120 steps " in line for line in lines) == 2
    assert lines[-1].startswith("estimated from the first ") and " steps of sls-seed0" in lines[-1]
    assert [path.name for path in folder.iterdir()] == ["g.yaml"]
