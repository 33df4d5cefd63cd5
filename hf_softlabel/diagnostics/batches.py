"""Batches for the diagnostics from a trainer's data sets: each process its share, no example twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from datasets import IterableDataset as StreamingDataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from ..data.errors import VotesError
from ..delivery import distribution
from ..metrics import entropy

if TYPE_CHECKING:
    from ..trainer import VotesTrainer


def check_in_memory(dataset: Any, split: str) -> None:
    """Raise [`VotesError`] unless a split is one data set of known length, which diagnostics go through repeatedly."""
    kind = "missing" if dataset is None else "several data sets" if isinstance(dataset, dict) else None
    kind = "a stream" if isinstance(dataset, StreamingDataset) else kind
    if kind is not None:
        raise VotesError(f"Diagnostics need one {split} data set in memory, and this one is {kind}.")


class TrainerBatches:
    """(inputs, p) of a data set of votes, as the trainer would evaluate it; can be gone through again and again.

    Of several processes each has every n-th example. (A prepared data loader would fill up the last batch with
    examples that were there before, which a sum over processes would count twice.)

    Args:
        dataset: prepared, as `trainer.eval_dataset` is.
        rows: these examples only.
        shard: whether to share the examples among the processes.
        gradients: whether there will be gradients, for which activations are kept: batches are then no larger than in
            training. (Those of an evaluation may be: by default they are four times as large.)
    """

    def __init__(
        self,
        trainer: VotesTrainer,
        dataset: Any,
        rows: list[int] | None = None,
        shard: bool = False,
        batch_size: int | None = None,
        gradients: bool = False,
    ):
        args = trainer.args
        usual = min(args.train_batch_size, args.eval_batch_size) if gradients else args.eval_batch_size
        if isinstance(dataset, Dataset):
            dataset = trainer._remove_unused_columns(dataset, description="diagnostics")
        rows = list(range(len(dataset))) if rows is None else list(rows)
        if shard:
            rows = rows[args.process_index :: args.world_size]
        self.trainer = trainer
        self.examples = len(rows)
        self.loader = DataLoader(
            Subset(dataset, rows), batch_size=batch_size or usual, collate_fn=trainer.data_collator
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        model: nn.Module = self.trainer.model
        for batch in self.loader:
            batch = self.trainer._prepare_inputs(batch)
            yield self.trainer.model_inputs(model, batch), distribution(batch["votes"]).to(torch.float32)


@dataclass(frozen=True)
class Slice:
    """The examples that annotators disagree on most: `rows`, by the entropy of their votes.

    It has all examples whose entropy is at least `threshold`, the (1 - share)-quantile, and so more than the share of
    them where many tie.
    """

    share: float
    threshold: float
    rows: list[int]


def high_disagreement(votes: np.ndarray, share: float = 0.1) -> Slice:
    """Votes (N, C) -> the slice with the largest entropies."""
    if not 0 < share <= 1:
        raise VotesError(f"The slice's share must be above 0 and at most 1, not {share}.")
    # Rounding keeps votes that are equal but for the order of classes together.
    spread = entropy(votes).round(12)
    threshold = float(np.quantile(spread, 1 - share, method="higher"))
    return Slice(share, threshold, np.flatnonzero(spread >= threshold).tolist())
