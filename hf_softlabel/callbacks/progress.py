"""How far a run is, in a small file that a grid's live view reads."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from transformers import TrainerCallback

from ..checkpoint import write_text_atomically

# Names the file; a grid sets it for each of its cells.
VARIABLE = "HF_SOFTLABEL_PROGRESS"
INTERVAL_SECONDS = 1.0


class ProgressFileCallback(TrainerCallback):
    """Writes the epoch and step that training has reached, at most about once a second.

    The file holds `epoch`, `epochs`, `step`, `steps`, `time`, and, to reckon the speed from, `start_step` and
    `start_time`: where and when this process began, which for a resumed run is not at the first step.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.start: dict[str, float] = {}
        self.written = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = {"start_step": state.global_step, "start_time": time.time()}
        self._write(args, state)

    def on_step_end(self, args, state, control, **kwargs):
        if time.time() >= self.written + INTERVAL_SECONDS:
            self._write(args, state)

    def on_train_end(self, args, state, control, **kwargs):
        self._write(args, state)

    def _write(self, args, state) -> None:
        if not state.is_world_process_zero:
            return
        self.written = time.time()
        epochs = args.num_train_epochs if args.max_steps <= 0 else state.num_train_epochs
        progress = {
            "epoch": state.epoch or 0.0,
            "epochs": epochs,
            "step": state.global_step,
            "steps": state.max_steps,
            "time": self.written,
            **self.start,
        }
        # A view that cannot be shown is no reason to lose the run.
        with contextlib.suppress(OSError):
            write_text_atomically(self.path, json.dumps(progress))


def progress_callbacks() -> list[TrainerCallback]:
    """The callback above, when the environment names a file for it."""
    path = os.environ.get(VARIABLE)
    return [ProgressFileCallback(path)] if path else []
