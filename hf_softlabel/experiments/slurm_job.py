"""What a Slurm job of a grid does: it trains its cell, and is requeued when Slurm announces its end.

submitit loads this in every job beside the process that trains, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..checkpoint import last_whole_checkpoint
from . import cell_lock

# From SIGTERM to SIGKILL, for launchers to stop their processes; Slurm's warning comes 90 s before the end.
GRACE_SECONDS = 15


@dataclass
class CellJob:
    """Trains one cell; submitit calls it, and `checkpoint` when the job nears its time limit or is preempted.

    Attributes:
        command: the words that train the cell.
        environment: what they find in the environment besides what the job has.
        log: the file to which their output is appended.
        progress: the file in which they say how far they are.
        lock: the cell's lock file.
        run: the cell's run directory.
        retries: how often the cell may be cut off in a row without reaching another checkpoint.
        launched: whether a launcher starts the processes.
        reached: the checkpoint that it goes on from.
        idle: how often it was cut off since it reached that.
    """

    command: list[str]
    environment: dict[str, str]
    log: Path
    progress: Path
    lock: Path
    run: Path
    retries: int
    launched: bool
    reached: str | None = None
    idle: int = 0
    _process: subprocess.Popen | None = field(default=None, init=False, repr=False)
    _ending: bool = field(default=False, init=False, repr=False)

    def __call__(self) -> None:
        signal.signal(signal.SIGTERM, self._end_is_near)
        # Processes of a job may live a little longer than the job that was requeued.
        while (lock := cell_lock.take(self.lock)) is None:
            time.sleep(1)
        note = {"slurm": os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID"))}
        cell_lock.write_note(lock, note)
        while True:
            start = self.log.stat().st_size if self.log.exists() else 0
            code = self._train(lock)
            if not self._was_killed(code, start):
                break
            if not self._may_go_on():
                self._say(f"given up: it was killed {self.idle} times without reaching another checkpoint")
                break
            self._say("was killed and goes on")
        if code:
            cell_lock.write_note(lock, {**note, "failed": code, "time": time.time()})
            raise RuntimeError(f"training ended with exit code {code}: see {self.log}")

    def checkpoint(self) -> Any:
        """Stop training, and say what the requeued job has to do: the same. None means that it is not requeued."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        if not self._may_go_on():
            self._say(f"not requeued: it was cut off {self.idle} times without reaching another checkpoint")
            return None
        self._say(f"requeued by Slurm, to go on from {self.reached or 'the beginning'}")
        return DelayedSubmission(replace(self))

    def _may_go_on(self) -> bool:
        """Count that training was cut off; False when that happened too often without getting further."""
        checkpoint = last_whole_checkpoint(self.run)
        reached = checkpoint.name if checkpoint else None
        self.idle = self.idle + 1 if reached == self.reached else 0
        self.reached = reached
        return self.idle <= self.retries

    def _train(self, lock: int) -> int:
        """Train until it ends or is stopped; returns the exit code."""
        from submitit import JobEnvironment

        self.progress.unlink(missing_ok=True)
        # Slurm sends its warning to all processes of a job, and would so end those that do not know it. Blocked
        # here, it is blocked in what is started, and submitit's handler gets it a moment later.
        warning = {signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]}
        signal.pthread_sigmask(signal.SIG_BLOCK, warning)
        try:
            with self.log.open("ab") as log:
                log.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(self.command)}\n".encode())
                log.flush()
                self._process = subprocess.Popen(
                    self.command,
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, warning)
        # Not wait(), which holds a lock that the handler of a signal would need.
        while self._process.poll() is None:
            time.sleep(0.2)
        if self._process.returncode < 0:
            time.sleep(1)  # SIGTERM for the whole job may reach this process last
        while self._process.returncode and self._ending:
            # What is next is Slurm's to say: its warning, on which submitit requeues the job, or the end.
            signal.pause()
        return self._process.returncode

    def _end_is_near(self, number: int, frame: Any) -> None:
        self._ending = True

    def _stop(self) -> None:
        """End the cell's processes; called by the handler of a signal, at any moment of `_train`."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.killpg(self._process.pid, signal.SIGTERM)
            end = time.monotonic() + GRACE_SECONDS
            # WNOWAIT leaves the exit code for poll(), which may be what was interrupted.
            while not os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if time.monotonic() > end:
                    break
                time.sleep(0.1)
            os.killpg(self._process.pid, signal.SIGKILL)

    def _was_killed(self, code: int, start: int) -> bool:
        """Whether training was cut off from outside; `start` is where its output begins in the log."""
        if code < 0 or code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
            return True
        if not code or not self.launched:
            return False
        from .launch import KILLED_BELOW  # here, because it imports all that training does

        return KILLED_BELOW.search(self.log.read_bytes()[start:]) is not None

    def _say(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"hf-softlabel: {text}\n")
