"""Run the cells of a grid on this machine, several at once.

Each cell is a process of its own, which holds the cell's lock (see [`cell_lock`]). So a grid that is started again
after it was killed finds the cells that still run and waits for them, and two calls share the work.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cell_lock
from .grid import Cell, Grid, cell_command, cell_environment, is_done, log_file
from .progress_view import GridView, failure_report

POLL_SECONDS = 0.2
# From SIGTERM to SIGKILL when the grid is stopped.
GRACE_SECONDS = 15
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How launchers, which then end with 1 themselves, say that one of their processes was killed. SIGTERM is what torch's
# sends to the others when one has failed by itself.
KILLED_BELOW = re.compile(rb"exitcode\s*: -(?!15\b)\d+|died with <Signals\.(?!SIGTERM\b)\w+")


@dataclass
class _Running:
    cell: Cell
    process: subprocess.Popen
    lock: int
    slot: int
    log_start: int


@dataclass
class LocalRun:
    """A grid that runs here.

    Args:
        jobs: cells at once.
        launcher: words before `-m hf_softlabel`, such as `accelerate launch --num_processes 4`.
        retries: how often a cell that was killed is started again.
    """

    grid: Grid
    jobs: int
    launcher: Sequence[str] = ()
    retries: int = 2
    waiting: list[Cell] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    elsewhere: list[Cell] = field(default_factory=list)  # a process that this call did not start has the lock
    failed: dict[str, str] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)

    def run(self) -> int:
        """Run every cell that is not done; returns the exit code."""
        self.began = time.time()
        self.devices = visible_devices()
        self.waiting = [cell for cell in self.grid.cells if not is_done(cell)]
        before = {number: signal.signal(number, self._on_signal) for number in STOPPING}
        view = GridView(self.grid, self.jobs)
        try:
            while self.waiting or self.running or self.elsewhere:
                self._collect()
                # Before they start again, so that the view says that they were cut off.
                view.update(self._states(), self.failed)
                self._start_cells()
                view.update(self._states(), self.failed)
                if self.signals:
                    break
                if self.running or self.elsewhere:
                    time.sleep(POLL_SECONDS)
            view.update(self._states(), self.failed)
        finally:
            # Also when the terminal is gone: no cell may go on without anyone knowing.
            self._stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.signals:
            left = f"; {len(self.elsewhere)} that another call started still run" if self.elsewhere else ""
            view.close(f"stopped{left}. The same command goes on where it was.", self._states())
            return 128 + self.signals[0]
        view.close()
        if hint := offline_hint(self.grid):
            print(hint)
        if self.failed:
            print(failure_report(self.grid, self.failed), flush=True)
        return 1 if self.failed else 0

    def _on_signal(self, number: int, frame: object) -> None:
        # Only noted: an exception here could come between starting a process and remembering it.
        self.signals.append(number)

    def _states(self) -> dict[str, str]:
        """The state of every cell, by name."""
        states = dict.fromkeys((cell.name for cell in self.grid.cells), "finished")
        states |= dict.fromkeys((cell.name for cell in self.waiting), "waiting")
        states |= dict.fromkeys((one.cell.name for one in self.running), "running")
        states |= dict.fromkeys((cell.name for cell in self.elsewhere), "found")
        return states | dict.fromkeys(self.failed, "failed")

    def _collect(self) -> None:
        """See which cells have ended."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            code, cell = one.process.returncode, one.cell
            if not is_done(cell):
                if not self._was_killed(one, code):
                    self.failed[cell.name] = f"failed with exit code {code}"
                    cell_lock.write_note(one.lock, {"failed": code, "time": time.time()})
                elif self.starts[cell.name] > self.retries:
                    self.failed[cell.name] = f"was killed {self.starts[cell.name]} times"
                else:
                    self.waiting.insert(0, cell)
            os.close(one.lock)
        for cell in list(self.elsewhere):
            if not cell_lock.is_held(self._lock_path(cell)):
                self.elsewhere.remove(cell)
                if not is_done(cell):
                    self.waiting.insert(0, cell)

    def _was_killed(self, one: _Running, code: int) -> bool:
        """Whether a cell was cut off from outside, rather than failed by itself."""
        if code < 0 or code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
            return True
        if not self.launcher:
            return False
        with log_file(self.grid, one.cell).open("rb") as log:
            log.seek(one.log_start)
            return KILLED_BELOW.search(log.read()) is not None

    def _start_cells(self) -> None:
        for cell in list(self.waiting):
            slot = self._free_slot()
            if slot is None or self.signals:
                return
            self.waiting.remove(cell)
            lock = cell_lock.take(self._lock_path(cell))
            if lock is None:
                self.elsewhere.append(cell)
                continue
            note = cell_lock.read_note(self._lock_path(cell))
            if is_done(cell):
                os.close(lock)
            elif "failed" in note and note["time"] > self.began:
                # Another call that shares the work has just seen it fail.
                self.failed[cell.name] = f"failed with exit code {note['failed']} in another call"
                os.close(lock)
            else:
                self.running.append(self._start(cell, lock, slot))

    def _start(self, cell: Cell, lock: int, slot: int) -> _Running:
        devices = self._devices_of(slot)
        note = {"grid": os.getpid(), "host": socket.gethostname(), "devices": devices}
        cell_lock.write_note(lock, note)
        log_file(self.grid, cell, ".progress.json").unlink(missing_ok=True)
        self.starts[cell.name] = self.starts.get(cell.name, 0) + 1
        command = cell_command(cell, launcher_words(self.launcher, self.jobs))
        environment = {
            **job_environment(self.jobs, self.launcher, devices),
            **cell_environment(self.grid, cell),
            cell_lock.VARIABLE: str(self._lock_path(cell)),
        }
        with log_file(self.grid, cell).open("ab") as log:
            start = log.tell()
            log.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                # Ctrl-C is for the grid, which then stops its cells.
                start_new_session=True,
            )
        return _Running(cell, process, lock, slot, start)

    def _lock_path(self, cell: Cell) -> Path:
        return log_file(self.grid, cell, ".lock")

    def _devices_of(self, slot: int) -> list[str]:
        """The GPUs of one of the jobs that run at once.

        One process has one GPU: with several, Trainer would share out each batch and so enlarge it.
        """
        share = max(1, len(self.devices) // self.jobs) if self.launcher else 1
        return [self.devices[(slot * share + i) % len(self.devices)] for i in range(share)] if self.devices else []

    def _free_slot(self) -> int | None:
        """A place for one more cell, None when all are taken.

        Cells that a killed grid left behind take a place. Those of a grid that lives do so only by their GPUs: who
        starts a second call wants more cells at once.
        """
        notes = [cell_lock.read_note(self._lock_path(cell)) for cell in self.elsewhere]
        here = [note for note in notes if note.get("host") == socket.gethostname()]
        # Of this call itself: processes that lived on when their launcher was killed.
        left = sum(note["grid"] == os.getpid() or not _lives(note["grid"]) for note in here)
        if len(self.running) + left >= self.jobs:
            return None
        taken = {device for note in here for device in note["devices"]}
        slots = set(range(self.jobs)) - {one.slot for one in self.running}
        return next((slot for slot in sorted(slots) if not taken & set(self._devices_of(slot))), None)

    def _stop(self) -> None:
        """End what still runs; a second signal makes it at once."""
        for one in self.running:
            _signal_group(one.process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(one.process.poll() is None for one in self.running):
            if time.monotonic() > deadline or len(self.signals) > 1:
                for one in self.running:
                    _signal_group(one.process, signal.SIGKILL)
                    one.process.wait()
            time.sleep(POLL_SECONDS / 4)
        for one in self.running:
            os.close(one.lock)
            self.waiting.append(one.cell)
        self.running = []


def offline_hint(grid: Grid) -> str | None:
    """How to send what cells tracked offline: each said so at its end, where nobody reads it."""
    logs = [log_file(grid, cell) for cell in grid.cells]
    offline = sum(b"wandb sync " in log.read_bytes() for log in logs if log.exists())
    if not offline:
        return None
    where = shlex.quote(str(logs[0].parent))
    return (
        f"{offline} cell{'s were' if offline > 1 else ' was'} tracked offline. To send to W&B: "
        f"grep -ho 'wandb sync .*' {where}/*.log | sort -u | sh"
    )


def _signal_group(process: subprocess.Popen, number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def visible_devices() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        named.split(",") if named and torch.cuda.device_count() else list(map(str, range(torch.cuda.device_count())))
    )


def default_jobs(cells: int, launcher: Sequence[str] = ()) -> int:
    """Cells at once: one on each GPU, or on each core without a GPU; one when a launcher shares them out itself."""
    return 1 if launcher else max(1, min(cells, len(visible_devices()) or cores()))


def job_environment(jobs: int, launcher: Sequence[str] = (), devices: Sequence[str] = ()) -> dict[str, str]:
    """The environment of one of several jobs: its share of threads and GPUs."""
    environment = dict(os.environ)
    if not launcher:
        # Launchers know how many processes they start, and divide the threads themselves.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return environment


def launcher_words(launcher: Sequence[str], jobs: int) -> list[str]:
    """A launcher that can run beside others: each `accelerate launch` needs a port of its own."""
    words = list(launcher)
    if jobs > 1 and "launch" in words and not any(word.startswith("--main_process_port") for word in words):
        words[words.index("launch") + 1 : words.index("launch") + 1] = ["--main_process_port", "0"]
    return words
