"""What a grid would cost, before it is run: which cells are left, and how long they take on this machine."""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import last_whole_checkpoint
from ..config import resolved
from ..data.errors import VotesError
from . import cell_lock
from .grid import Cell, Grid, cell_command, cell_configs, cell_environment, is_done, log_file
from .launch import job_environment, launcher_words, visible_devices
from .progress_view import clock, last_lines, read_progress

PROBE_SECONDS = 20
# Steps after which a probe knows enough; the first ones are slower.
PROBE_STEPS = 30
START_SECONDS = 300
# Runs that differ in these only take equally long for a step.
SAME_PACE = {
    *("seed", "data_seed", "delivery_seed", "split_seed", "subsample_seed", "delivery", "resample_every"),
    *("label_smoothing_epsilon", "prior_strength", "mixup_alpha", "mixup_targets", "votes_per_example", "subsample"),
    *("learning_rate", "weight_decay", "num_train_epochs", "max_steps", "lr_scheduler_type", "warmup_steps"),
    *("output_dir", "run_name", "report_to", "project", "disable_tqdm"),
}


@dataclass(frozen=True)
class Pace:
    """How fast cells of one kind train, and where that is known from."""

    seconds_per_step: float
    steps_per_epoch: float
    start_seconds: float
    known_from: str


def dry_run(grid: Grid, jobs: int, launcher: Sequence[str] = ()) -> str:
    """List the cells with an estimate of what is left to do; writes nothing below the grid's `output_dir`."""
    configs = {cell.name: cell_configs(cell) for cell in grid.cells}
    kinds = {cell.name: _kind(configs[cell.name]) for cell in grid.cells}
    left = [cell for cell in grid.cells if not is_done(cell)]
    paces: dict[str, Pace] = {}
    untimed: dict[str, str] = {}
    for cell in left:
        kind = kinds[cell.name]
        if kind not in paces and kind not in untimed:
            alike = [other for other in grid.cells if kinds[other.name] == kind]
            try:
                paces[kind] = _pace_of_finished(alike) or _probe(grid, cell, jobs, launcher)
            except VotesError as error:
                # A model that cannot be downloaded here: the other cells' cost is still worth knowing.
                untimed[kind] = str(error)
    rows, seconds = [], []
    for cell in grid.cells:
        state, steps_done = _state(grid, cell)
        row = f"  {cell.name:{max(len(cell.name) for cell in grid.cells)}}  {state:20}"
        if cell in left and kinds[cell.name] in untimed:
            row += f"{'not timed':>24}"
        elif cell in left:
            pace, training = paces[kinds[cell.name]], configs[cell.name][2]
            steps = training.max_steps
            if steps <= 0:
                steps = math.ceil(training.num_train_epochs * pace.steps_per_epoch)
            seconds.append(pace.start_seconds + pace.seconds_per_step * max(0, steps - steps_done))
            row += f"{steps - steps_done:>8} steps  {clock(seconds[-1]):>8}"
        rows.append(row.rstrip())
    lines = [f"{grid.name}: {len(grid.cells)} cells, {len(left)} to run, in {grid.output_dir}", *rows]
    if seconds:
        known = dict.fromkeys(pace.known_from for pace in paces.values())
        lines += [
            f"{clock(sum(seconds))} if run one after another, {clock(makespan(seconds, jobs))} with --jobs {jobs}",
            *(f"estimated from {text}" for text in known),
        ]
    if untimed:
        lines += [f"without the {len(left) - len(seconds)} cells that were not timed:", *untimed.values()]
    return "\n".join(lines)


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """When the last cell ends if each goes to the job that is free first, in their order."""
    free = [0.0] * jobs
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def _kind(configs: tuple[Any, ...]) -> str:
    """Cells with the same answer train at the same pace."""
    values = {key: value for key, value in resolved(*configs).items() if key not in SAME_PACE}
    # Mixup is the one delivery whose steps are others: it mixes inputs too.
    return json.dumps([values, configs[2].delivery == "mixup"], sort_keys=True)


def _state(grid: Grid, cell: Cell) -> tuple[str, int]:
    """A cell's state in words, and the steps that it need not do again."""
    if is_done(cell):
        return "done", 0
    checkpoint = last_whole_checkpoint(cell.output_dir)
    steps = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    if cell_lock.is_held(log_file(grid, cell, ".lock")):
        return "running", steps
    if checkpoint:
        return f"cut off at step {steps}", steps
    return ("cut off" if cell.output_dir.exists() else "to do"), 0


def _pace_of_finished(cells: Sequence[Cell]) -> Pace | None:
    """The mean pace of finished cells; resumed ones have no time of the whole."""
    found = []
    for cell in cells:
        if is_done(cell):
            metrics = json.loads((cell.output_dir / "metrics.json").read_text(encoding="utf-8"))
            if metrics["train_seconds"] is not None and metrics["steps"]:
                found.append(metrics)
    if not found:
        return None
    seconds = sum(metrics["train_seconds"] for metrics in found) / sum(metrics["steps"] for metrics in found)
    which = "a finished cell" if len(found) == 1 else f"{len(found)} finished cells"
    return Pace(
        seconds,
        found[0]["steps"] / found[0]["epochs"],
        0.0,
        f"{which} of the same kind: training with its evaluations, without the seconds to start",
    )


def _probe(grid: Grid, cell: Cell, jobs: int, launcher: Sequence[str]) -> Pace:
    """Train the first steps of a cell in a temporary folder."""
    print(f"timing the first steps of {cell.name} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="hf_softlabel-", ignore_cleanup_errors=True) as folder:
        elsewhere = dataclasses.replace(grid, output_dir=Path(folder))
        options = {**cell.options, "report_to": "none", "push_to_hub": False, "save_strategy": "no"}
        # Without checkpoints there is no best one to load.
        options["load_best_model_at_end"] = False
        probe = dataclasses.replace(cell, options=options, output_dir=Path(folder) / "run")
        log, progress_file = log_file(elsewhere, probe), log_file(elsewhere, probe, ".progress.json")
        log.parent.mkdir()
        devices = () if launcher else visible_devices()[:1]
        began = time.time()
        with log.open("wb") as file:
            process = subprocess.Popen(
                cell_command(probe, launcher_words(launcher, jobs)),
                env={**job_environment(jobs, launcher, devices), **cell_environment(elsewhere, probe)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            seen = _watch(process, progress_file, began)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        if seen is None:
            end = "\n".join(f"  | {line}" for line in last_lines(log))
            raise VotesError(f"{cell.name} could not be timed: it took no step. The end of its log:\n{end}")
    steps = seen["step"] - seen["start_step"]
    return Pace(
        (seen["time"] - seen["start_time"]) / steps,
        # With max_steps the epochs are not those of the recipe, but then the steps are known anyway.
        seen["steps"] / seen["epochs"],
        seen["start_time"] - began,
        f"the first {steps} steps of {cell.name}, which ran alone"
        + f"; {' and '.join(_left_out(cell, seen))} are not counted",
    )


def _left_out(cell: Cell, seen: dict[str, Any]) -> list[str]:
    """What a cell does besides, and a probe has not."""
    left = ["checkpoints"] if seen["epoch"] > 1 else ["evaluations", "checkpoints"]
    return [*left, "diagnostics"] if cell_configs(cell)[2].diagnostics else left


def _watch(process: subprocess.Popen, progress_file: Path, began: float) -> dict[str, Any] | None:
    """What a probe reported when it had trained for long enough, or had ended; None when it took no step."""
    seen = None
    while process.poll() is None:
        seen = read_progress(progress_file)
        now = time.time()
        if seen is None or seen["step"] == 0:
            # Importing, downloading, tokenising: not what is timed.
            if now > began + START_SECONDS:
                return None
        elif now > seen["start_time"] + PROBE_SECONDS or (seen["step"] >= PROBE_STEPS and seen["epoch"] > 1):
            break
        time.sleep(0.1)
    seen = read_progress(progress_file)
    return seen if seen is not None and seen["step"] else None
