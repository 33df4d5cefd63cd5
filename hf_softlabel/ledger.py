"""The ledger: a digest of every (epoch, example, label) that a run has trained on.

Two runs with one digest saw the same labels, whatever the order, the number of processes or the interruptions. A run
on several processes repeats a few examples at an epoch's end so that all processes get equal batches; an entry that
is already in the epoch's ledger is not counted again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .hashing import hash64

LEDGER_NAME = "ledger.npz"
_MASK64 = (1 << 64) - 1


def entry_hashes(epoch: int, example_id: Tensor, target: Tensor) -> Tensor:
    """(N,) int64, one hash for each (epoch, example_id, target); target is (N,) labels or (N, C) distributions."""
    if target.is_floating_point():
        # In steps of 2**-20, so that the last bits of a division do not make two equal targets differ.
        steps = (target.double() * 2**20).round().long()
        classes = torch.arange(target.shape[-1], device=target.device)
        target = hash64("target", classes, steps).sum(-1)
    return hash64("ledger", epoch, example_id, target)


class Ledger:
    """Collects entry hashes on the device while an epoch runs, and folds them into one sum when the next one begins.

    Args:
        gather: takes this process's array and returns those of all processes, in one list. Called on every process.
    """

    def __init__(self, gather: Callable[[np.ndarray], list[np.ndarray]] | None = None):
        self._gather = gather or (lambda array: [array])
        self._epoch = 0
        self._total = 0  # of the epochs before this one
        self._before = np.zeros(0, np.int64)  # this epoch's entries before a resume; the same on every process
        self._pending: list[Tensor] = []

    def record(self, epoch: int, example_id: Tensor, target: Tensor) -> None:
        """Note a batch. Does not wait for the device."""
        self._pending.append(entry_hashes(epoch, example_id, target))

    def _epoch_entries(self) -> np.ndarray:
        mine = torch.cat(self._pending).cpu().numpy() if self._pending else np.zeros(0, np.int64)
        return np.unique(np.concatenate([self._before, *self._gather(mine)]))

    def _total_with(self, entries: np.ndarray) -> int:
        return (self._total + int(entries.astype(np.uint64).sum(dtype=np.uint64))) & _MASK64

    def begin_epoch(self, epoch: int) -> None:
        """Fold the epoch before into the total, unless a resume goes on with the same epoch. A collective call."""
        if epoch != self._epoch:
            self._total = self._total_with(self._epoch_entries())
            self._epoch, self._before, self._pending = epoch, np.zeros(0, np.int64), []

    def digest(self) -> str:
        """16 hexadecimal digits over everything recorded so far. A collective call."""
        return f"{self._total_with(self._epoch_entries()):016x}"

    def save(self, folder: str | Path, write: bool = True) -> None:
        """Write the ledger into a checkpoint (on the one process that has `write`). A collective call."""
        entries = self._epoch_entries()
        if write:
            np.savez_compressed(
                Path(folder) / LEDGER_NAME, epoch=self._epoch, total=np.uint64(self._total), entries=entries
            )

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint's ledger."""
        with np.load(Path(folder) / LEDGER_NAME) as saved:
            self._epoch, self._total = int(saved["epoch"]), int(saved["total"])
            self._before, self._pending = saved["entries"], []
