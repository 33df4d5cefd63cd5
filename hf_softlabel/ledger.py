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


def target_words(target: Tensor) -> Tensor:
    """(N,) int64: labels (N,) as they are, and a hash of distributions (N, C)."""
    if not target.is_floating_point():
        return target
    # In steps of 2**-20, so that the last bits of a division do not make two equal targets differ.
    steps = (target.double() * 2**20).round().long()
    return hash64("target", torch.arange(target.shape[-1], device=target.device), steps).sum(-1)


class Ledger:
    """Collects labels on the device while an epoch runs, and folds their hashes into one sum when the next one begins.

    Hashing a batch takes as many small operations as hashing a whole epoch, so that it waits for the epoch's end.

    Args:
        gather: takes this process's array and returns those of all processes, in one list. Called on every process.
    """

    def __init__(self, gather: Callable[[np.ndarray], list[np.ndarray]] | None = None):
        self._gather = gather or (lambda array: [array])
        self._epoch = 0
        self._total = 0  # of the epochs before this one
        self._before = np.zeros(0, np.int64)  # this epoch's entries before a resume; the same on every process
        self._pending: list[tuple[Tensor, Tensor]] = []

    def record(self, example_id: Tensor, target: Tensor) -> None:
        """Note a batch of this epoch: labels (N,) or distributions (N, C). Does not wait for the device."""
        # A copy: on a CPU a worker's own tensor is an open file until it is freed, and a process may have 1,024.
        self._pending.append((example_id.clone(), target_words(target)))

    def _own_entries(self) -> np.ndarray:
        """One hash for each (epoch, example_id, target) that this process has recorded in this epoch."""
        if not self._pending:
            return np.zeros(0, np.int64)
        example_id, target = (torch.cat(column) for column in zip(*self._pending, strict=True))
        return hash64("ledger", self._epoch, example_id, target).cpu().numpy()

    def _epoch_entries(self) -> np.ndarray:
        return np.unique(np.concatenate([self._before, *self._gather(self._own_entries())]))

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
