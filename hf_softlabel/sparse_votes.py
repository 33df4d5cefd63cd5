"""Votes on many classes, each vote kept once: memory and time go with the number of votes, not of classes.

A million examples with 5 votes each on 1,000 classes are 8 GB as (N, C) counts, and 28 MB here. The labels are those
that the dense votes give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .data.errors import VotesError, some
from .delivery import multipass_position, sls_bits
from .hashing import SIZE_LIMIT, below

_BLOCK = 1 << 16


@dataclass(frozen=True)
class SparseVotes:
    """The votes of N examples.

    Args:
        labels: (V,) int32, the class of every vote: example after example, in each in the order of the classes.
        offsets: (N + 1,) int64, where each example's votes begin, and where the last one's end.
    """

    labels: Tensor
    offsets: Tensor

    @classmethod
    def from_dense(cls, votes: Tensor) -> SparseVotes:
        """(N, C) counts -> the same votes."""
        if votes.is_floating_point():
            raise VotesError("Probabilities are not a number of votes: sparse votes are made of integer counts.")
        rows, classes = votes.nonzero(as_tuple=True)
        return cls._from_entries(rows.numpy(), classes.numpy(), votes[rows, classes].numpy(), *votes.shape)

    @classmethod
    def from_rows(
        cls, labels: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], num_classes: int
    ) -> SparseVotes:
        """From the sparse form of the votes contract: for each example its classes and how many votes each has."""
        lengths = [np.fromiter(map(len, column), np.int64, len(column)) for column in (labels, counts)]
        wrong = np.flatnonzero(lengths[0] != lengths[1])
        if len(wrong):
            raise VotesError(f"`votes.labels` and `votes.counts` differ in length in rows {some(wrong)}.")
        classes, numbers = (np.array([x for row in column for x in row], np.int64) for column in (labels, counts))
        return cls._from_entries(
            np.repeat(np.arange(len(labels)), lengths[0]), classes, numbers, len(labels), num_classes
        )

    @classmethod
    def _from_entries(cls, rows: np.ndarray, classes: np.ndarray, counts: np.ndarray, n: int, num_classes: int):
        """From entries (E,): the example, the class and the number of votes of each."""
        for wrong, what in (
            ((classes < 0) | (classes >= num_classes), f"a label outside of 0..{num_classes - 1}"),
            (counts < 0, "a negative count"),
        ):
            if wrong.any():
                raise VotesError(f"`votes` has {what} in rows {some(np.unique(rows[wrong]))}: mend or remove them.")
        order = np.lexsort((classes, rows))
        m = np.bincount(rows, weights=counts, minlength=n)
        if (m == 0).any():
            raise VotesError(f"Nobody voted on the examples of rows {some(np.flatnonzero(m == 0))}: remove them.")
        if (m >= SIZE_LIMIT).any():
            raise VotesError(f"{SIZE_LIMIT} votes or more in rows {some(np.flatnonzero(m >= SIZE_LIMIT))}: mend them.")
        labels = np.repeat(classes[order].astype(np.int32), counts[order])
        return cls(torch.from_numpy(labels), torch.from_numpy(np.concatenate(([0], m.astype(np.int64).cumsum()))))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sls_label(self, example_id: Tensor, epoch: int, seed: int, resample_every: int = 1) -> Tensor:
        """(N,) int64, see [`delivery.sls_label`]."""
        return self._votes_at(example_id, lambda ids, m: below(sls_bits(ids, epoch, seed, resample_every), m))

    def multipass_label(self, example_id: Tensor, epoch: int, seed: int) -> Tensor:
        """(N,) int64, see [`delivery.multipass_label`]."""
        return self._votes_at(example_id, lambda ids, m: multipass_position(m, ids, epoch, seed))

    def _votes_at(self, example_id: Tensor, position: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The votes (N,) at `position(example_id, m)` of examples with m; by blocks that fit a processor's cache."""
        if len(example_id) != len(self):
            raise VotesError(f"There are {len(example_id)} example ids for the votes on {len(self)} examples.")
        chosen = torch.empty(len(self), dtype=torch.int64, device=self.labels.device)
        for start in range(0, len(self), _BLOCK):
            offsets = self.offsets[start : start + _BLOCK + 1]
            block = slice(start, start + len(offsets) - 1)
            chosen[block] = self.labels[offsets[:-1] + position(example_id[block], offsets.diff())]
        return chosen
