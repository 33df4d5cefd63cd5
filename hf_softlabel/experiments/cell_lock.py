"""One set of processes for each cell, whatever is killed: a lock that lives as long as any of them does.

The grid takes the lock file's `flock` for itself alone, to see that no process of the cell is left, and then shares
it: with the process that it starts, which inherits the file, and with every process that joins by the file's name.
The last is for launchers: `accelerate launch` does not hand open files on to the processes that do the work, and they
live on when it is killed. The kernel frees the lock with the last of them, so that a lock is never left over.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

# Names the lock file to the processes of a cell.
VARIABLE = "HF_SOFTLABEL_LOCK"


def take(path: Path) -> int | None:
    """The open lock file, or None while some process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # This drops the first lock for an instant, in which another grid may have taken it.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def is_held(path: Path) -> bool:
    """Whether some process has the lock; leaves no file where there was none."""
    if not path.exists():
        return False
    file = take(path)
    if file is not None:
        os.close(file)
    return file is None


def join() -> None:
    """Share the lock that the environment names until this process ends."""
    path = os.environ.get(VARIABLE)
    if path:
        # Never closed: the kernel does it, even after SIGKILL.
        fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_SH)


def write_note(file: int, note: dict[str, Any]) -> None:
    """Leave word of who holds the lock, or of how the cell ended."""
    text = json.dumps(note).encode()
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))


def read_note(path: Path) -> dict[str, Any]:
    """The last note; nothing if it is half-written."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
