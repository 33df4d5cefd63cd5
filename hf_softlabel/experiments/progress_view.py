"""What a user sees of a running grid: on a terminal one block that is drawn anew, elsewhere a line per event."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from .grid import Grid, log_file

# On a terminal it is drawn so often, at most.
DRAW_SECONDS = 0.5
STATES = ("finished", "running", "waiting", "failed")
TAIL_LINES = 10
BAR = 24


class GridView:
    """Shows the states of a grid's cells; any executor can feed it.

    Args:
        jobs: cells at once, to reckon the remaining time with.
    """

    def __init__(self, grid: Grid, jobs: int = 1, stream: TextIO | None = None):
        self.grid, self.jobs = grid, max(1, jobs)
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.states: dict[str, str] | None = None
        self.started: dict[str, float] = {}
        self.seconds: list[float] = []  # of the cells that finished in this call
        self.began = time.time()
        self.drawn: list[str] = []
        self.drawn_at = 0.0

    def update(self, states: Mapping[str, str], failures: Mapping[str, str] | None = None) -> None:
        """Show the states, by the cells' names, and say what has changed.

        Args:
            states: of [`STATES`], or `found` for a cell that runs, but was not started by this call.
            failures: what happened to the failed cells.
        """
        now = time.time()
        if self.states is None:
            done = sum(state == "finished" for state in states.values())
            already = f", {done} finished already" if done else ""
            self.say(f"{self.grid.name}: {_cells(len(states))}{already}, in {self.grid.output_dir}")
            self.states = {name: state if state == "finished" else "waiting" for name, state in states.items()}
        for name, state in states.items():
            before = self.states[name]
            if state != before:
                self.states[name] = state
                self._event(name, before, state, (failures or {}).get(name, "failed"), now)
        if self.live and now >= self.drawn_at + DRAW_SECONDS:
            self._draw(self._block(now))

    def say(self, text: str) -> None:
        """Print a line above the block."""
        self._write(self._erasing() + text + "\n")
        self.drawn, self.drawn_at = [], 0.0

    def close(self, text: str | None = None, states: Mapping[str, str] | None = None) -> None:
        """Take the block away and say how it ended; in which states, if not those shown last."""
        counts = _counts(states or self.states or {})
        said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
        ended = f"{self.grid.name}: {said} after {clock(time.time() - self.began)}"
        # The terminal may be what has gone.
        with contextlib.suppress(OSError):
            self.say(f"{ended}; {text}" if text else ended)

    def _event(self, name: str, before: str, state: str, failure: str, now: float) -> None:
        if state == "found":
            self.started[name] = now
            self.say(f"  found     {name}: another call started it, and it still runs")
        elif state == "running":
            self.started[name] = now
            if not self.live:
                self.say(f"  started   {name}")
        elif state == "finished":
            took = now - self.started.get(name, now)
            self.seconds += [took] if name in self.started else []
            done = sum(s == "finished" for s in self.states.values())
            self.say(f"  finished  {name} in {clock(took)} ({done} of {len(self.states)})")
        elif state == "failed":
            self.say(f"  failed    {name}: {failure}")
        else:
            self.say(f"  cut off   {name}: it will be started again")

    def _block(self, now: float) -> list[str]:
        """The overall bar, and a line for each running cell."""
        width, height = shutil.get_terminal_size()
        running = [name for name, state in self.states.items() if state in ("running", "found")]
        progress = {name: self._progress(name) for name in running}
        counts = _counts(self.states)
        share = (counts["finished"] + sum(map(_share, progress.values()))) / len(self.states)
        left = self._seconds_left(progress, counts["waiting"], now)
        said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
        lines = [f"{_bar(share)} {share:4.0%}  {said}" + (f", {clock(left)} left" if left is not None else "")]
        longest = max(map(len, running), default=0)
        for name in running[: max(1, height - 3)]:
            lines.append(f"  {name:{longest}}  {_running(progress[name])}")
        if len(running) > len(lines) - 1:
            lines.append(f"  and {len(running) - len(lines) + 1} more")
        return [line[: width - 1] for line in lines]

    def _progress(self, name: str) -> dict[str, Any] | None:
        """What the cell's process wrote last; None before its first step."""
        cell = next(cell for cell in self.grid.cells if cell.name == name)
        return read_progress(log_file(self.grid, cell, ".progress.json"))

    def _seconds_left(self, progress: Mapping[str, Any], waiting: int, now: float) -> float | None:
        """An estimate from the cells that ran in this call; None as long as it would be a guess."""
        elapsed = {name: now - self.started[name] for name in progress}
        known = {name: left for name, one in progress.items() if (left := seconds_left(one)) is not None}
        whole = self.seconds or [elapsed[name] + left for name, left in known.items()]
        if not whole:
            return None
        mean = sum(whole) / len(whole)
        lefts = [known.get(name, max(0.0, mean - elapsed[name])) for name in progress]
        at_once = max(1, min(self.jobs, len(lefts) + waiting))
        return max([(sum(lefts) + mean * waiting) / at_once, *lefts])

    def _draw(self, lines: list[str]) -> None:
        self._write(self._erasing() + "".join(f"{line}\n" for line in lines))
        self.drawn, self.drawn_at = lines, time.time()

    def _erasing(self) -> str:
        """Go up to the block's first line and clear from there."""
        return f"\x1b[{len(self.drawn)}A\x1b[J" if self.drawn else ""

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def read_progress(path: Path) -> dict[str, Any] | None:
    """The contents of a progress file (see [`hf_softlabel.callbacks.progress`]), None when there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def seconds_left(progress: Mapping[str, Any] | None) -> float | None:
    """How long a run's remaining steps take at its speed so far."""
    if progress is None or progress["step"] == progress["start_step"]:
        return None
    pace = (progress["time"] - progress["start_time"]) / (progress["step"] - progress["start_step"])
    return pace * (progress["steps"] - progress["step"])


def failure_report(grid: Grid, failures: Mapping[str, str]) -> str:
    """What happened to each failed cell, with the last lines of its log."""
    parts = [f"{_cells(len(failures))} of {len(grid.cells)} failed:"]
    for cell in grid.cells:
        if cell.name in failures:
            log = log_file(grid, cell)
            parts.append(f"\n{cell.name} {failures[cell.name]}; the end of {log}:")
            parts += [f"  | {line}" for line in last_lines(log)]
    return "\n".join(parts)


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """The last lines of a log that are not empty; of a progress bar, which overwrites itself, what was seen last."""
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 64_000))
        text = file.read().decode("utf-8", "replace")
        lines = [re.split(r"\r(?=.)", line)[-1].rstrip() for line in text.split("\n")]
        return [line for line in lines if line][-count:]
    return []


def clock(seconds: float) -> str:
    """`0:42`, `12:05`, `3:07:30`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _counts(states: Mapping[str, str]) -> dict[str, int]:
    found = ["running" if state == "found" else state for state in states.values()]
    return {state: found.count(state) for state in STATES}


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"


def _share(progress: Mapping[str, Any] | None) -> float:
    return progress["step"] / progress["steps"] if progress and progress["steps"] else 0.0


def _bar(share: float) -> str:
    filled = int(share * BAR)
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def _running(progress: Mapping[str, Any] | None) -> str:
    if progress is None:
        return "starting"
    if progress["step"] >= progress["steps"]:
        return "trained; measuring"
    left = seconds_left(progress)
    return f"epoch {progress['epoch']:.1f} of {progress['epochs']:g}" + (
        f", {clock(left)} left" if left is not None else ""
    )
