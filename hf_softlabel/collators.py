"""From rows to a batch: the model's inputs by any collator, and beside them the votes.

A batch has the inputs and `votes` (N, C; int64 counts or float32 probabilities), `example_id` (N,) and `gold_label`
(N,), -1 where the source has none. Labels are not drawn here: the collator runs in worker processes, which do not know
the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    DataCollatorForMultipleChoice,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    default_data_collator,
)

from .data.errors import VotesError
from .data.images import PixelCollator
from .data.votes import votes_array

VOTE_COLUMNS = ("votes", "example_id", "gold_label")


@dataclass
class ChoiceCollator:
    """Pad examples of several choices: (N, choices, length). Stock, but for not needing a label."""

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = DataCollatorForMultipleChoice(self.tokenizer)([{**row, "label": 0} for row in features])
        del batch["labels"]
        return batch


@dataclass
class VotesCollator:
    """Collate the votes by the contract and everything else by `inputs`.

    Args:
        num_classes: C, for checking; without it, of the batch. The sparse form needs it.
        inputs: any collator for the model's inputs, e.g. `DataCollatorWithPadding(tokenizer)`.
    """

    num_classes: int | None = None
    inputs: Callable[[list[dict[str, Any]]], Mapping[str, Any]] = default_data_collator

    def __call__(self, features: list[dict[str, Any]] | dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if isinstance(features, Mapping):
            # An image store hands over a whole batch at once, checked when it was made. One of the user's own need
            # not know of gold labels.
            return {"gold_label": torch.full_like(features["example_id"], -1), **features}
        missing = [name for name in ("votes", "example_id") if name not in features[0]]
        if missing:
            raise VotesError(f"The rows have no {' and '.join(missing)}, only: {', '.join(features[0])}.")
        ids = [int(row["example_id"]) for row in features]
        votes = _votes([row["votes"] for row in features], self.num_classes, ids)
        gold = [row.get("gold_label", row.get("label")) for row in features]
        rest = [{k: v for k, v in row.items() if k not in (*VOTE_COLUMNS, "label")} for row in features]
        batch = dict(self.inputs(rest))
        batch["votes"] = votes
        batch["example_id"] = torch.tensor(ids)
        batch["gold_label"] = torch.tensor([-1 if label is None else int(label) for label in gold])
        return batch


def _votes(rows: list[Any], num_classes: int | None, ids: list[int]) -> torch.Tensor:
    if num_classes is None:
        if isinstance(rows[0], Mapping):
            raise VotesError("Sparse votes do not say how many classes there are: use VotesCollator(num_classes).")
        num_classes = len(rows[0])
    if not isinstance(rows[0], Mapping):
        rows = [None if row is None else np.asarray(row) for row in rows]
    try:
        votes = torch.from_numpy(votes_array(rows, num_classes))
    except VotesError as error:
        raise VotesError(f"{error} (rows of the batch with the example ids {ids})") from None
    return votes.float() if votes.is_floating_point() else votes


def input_collator(processing_class: Any, choices: bool, pixels: bool) -> Callable:
    """The collator for the model's inputs: of texts, of several choices, of a stream's images, or of tensors."""
    if pixels:
        return PixelCollator(processing_class.size["height"])
    if isinstance(processing_class, PreTrainedTokenizerBase):
        return ChoiceCollator(processing_class) if choices else DataCollatorWithPadding(processing_class)
    return default_data_collator


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The order in which to evaluate texts: those alike in length share a batch, what needs most memory comes first.

    The stock sampler groups texts for evaluation as it does for training, shuffled and only roughly: of large batches
    and small data sets more than half was padding.
    """
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])
