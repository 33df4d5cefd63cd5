"""Split votes by who gave them: people whose votes are learnt from, and other people who judge the same items."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers.utils import logging

from ..hashing import hash64
from .errors import VotesError
from .votes import class_names, with_votes

logger = logging.get_logger(__name__)


def split_annotators(dataset: Dataset, eval_annotators: float, seed: int = 0) -> DatasetDict:
    """`train` and `eval` with the same items, and on each the votes of different people.

    Everybody is on one side with all of their votes, so that nobody's habits are learnt and then scored against. Items
    that have no vote left on one side are in neither split.

    Args:
        dataset: votes with `annotator_ids` and `annotations`, as [`votes_from_annotations`] makes them.
        eval_annotators: the share of the annotators whose votes are the eval split.
        seed: decides who they are.
    """
    if missing := [name for name in ("annotator_ids", "annotations") if name not in dataset.column_names]:
        raise VotesError(
            f"eval_annotators splits votes by who gave them, but the data have no {' and '.join(missing)}. They come "
            "from long tables with an annotator column; without them use eval_fraction."
        )
    columns = dataset.with_format("arrow")[:]
    who, annotations = (columns[name].combine_chunks() for name in ("annotator_ids", "annotations"))
    people, person = np.unique(who.flatten().to_numpy(zero_copy_only=False), return_inverse=True)
    held_out = round(len(people) * eval_annotators)
    if not 0 < held_out < len(people):
        raise VotesError(
            f"eval_annotators={eval_annotators} of {len(people)} annotators leaves nobody on one side: choose another "
            "share between 0 and 1."
        )
    order = hash64("annotators", seed, torch.arange(len(people))).argsort().numpy()
    judges = np.zeros(len(people), bool)
    judges[order[:held_out]] = True
    item = np.repeat(np.arange(len(dataset)), who.value_lengths().to_numpy())
    classes = len(class_names(dataset))
    votes = np.zeros((2, len(dataset), classes), np.int64)
    np.add.at(votes, (judges[person].astype(int), item, annotations.flatten().to_numpy()), 1)
    both = np.flatnonzero((votes.sum(-1) > 0).all(0))
    if not len(both):
        raise VotesError("No item has votes on both sides: choose another share of annotators, or another split_seed.")
    if len(both) < len(dataset):
        logger.warning(
            "%d of %d items have votes on one side only and are left out.", len(dataset) - len(both), len(dataset)
        )
    # Who voted what on both sides would contradict each side's votes.
    kept = dataset.remove_columns(["annotator_ids", "annotations"]).select(both)
    return DatasetDict(train=with_votes(kept, votes[0, both]), eval=with_votes(kept, votes[1, both]))
