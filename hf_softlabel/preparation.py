"""From a data set of votes to what a trainer's data loader reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from datasets import Dataset, Image, List
from datasets import IterableDataset as StreamingDataset
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import is_peft_available

from .data.errors import VotesError
from .data.images import IMAGE_COLUMNS, VotesImages, stream_images
from .data.text import DEFAULT_MAX_LENGTH, text_columns_of, tokenize_votes
from .data.votes import (
    check_dataset,
    check_example_ids,
    check_votes,
    class_names,
    dense_votes,
    example_ids,
    votes_chunks,
    votes_fingerprint,
    with_votes_of,
)
from .delivery import Delivery, shuffled_rows


def prepare_dataset(
    dataset: Any, processing_class: Any, split: str, delivery: Delivery | None = None, max_length: int | None = None
) -> tuple[Any, int]:
    """Check a split and bring it to model inputs.

    Args:
        dataset: a `datasets.Dataset` or stream by the votes contract, a [`VotesImages`], or any torch data set whose
            rows have `votes` and `example_id` (checked batch by batch, in the collator).
        processing_class: tokenizer or image processor for raw texts or images.
        split: its name, for messages.
        delivery: given for the training split, whose votes it must be able to use.
        max_length: texts are cut at so many tokens.

    Returns:
        The data set and its number of classes.
    """
    try:
        return _prepare(dataset, processing_class, delivery, max_length)
    except VotesError as error:
        raise VotesError(f"In the {split} split: {error}") from None


def _prepare(
    dataset: Any, processing_class: Any, delivery: Delivery | None, max_length: int | None
) -> tuple[Any, int]:
    need_counts = delivery is not None and delivery.needs_counts
    shuffled = delivery is not None and delivery.name == "shuffled_sls"
    if isinstance(dataset, StreamingDataset):
        if shuffled:
            raise VotesError("shuffled_sls permutes the votes of the whole data set and cannot be streamed.")
        classes = len(class_names(dataset))
        return _to_inputs(dataset, processing_class, max_length), classes
    if isinstance(dataset, VotesImages):
        if len(dataset) == 0:
            raise VotesError("The data set is empty: there is no example to use.")
        votes = dataset.column("votes").numpy()
        check_votes(votes)
        check_example_ids(dataset.column("example_id").numpy())
        if need_counts and votes.dtype.kind == "f":
            raise VotesError("Integer vote counts are needed, but the votes are probabilities.")
        if shuffled:
            dataset = dataset.with_votes(dataset.column("votes")[shuffled_rows(len(dataset), delivery.seed)])
        return dataset, votes.shape[1]
    if isinstance(dataset, Dataset):
        classes = check_dataset(dataset, need_counts)
        if shuffled:
            dataset = with_votes_of(dataset, shuffled_rows(len(dataset), delivery.seed).numpy())
        return _to_inputs(dataset, processing_class, max_length), classes
    if shuffled:
        raise VotesError(f"shuffled_sls needs a datasets.Dataset or VotesImages, not a {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise VotesError("The data set is empty: there is no example to use.")
    row = dataset[0]
    if "votes" not in row:
        raise VotesError(f"The rows have no `votes`, only: {', '.join(row)}.")
    if isinstance(row["votes"], Mapping):
        raise VotesError("Sparse votes need a datasets.Dataset, whose features say how many classes there are.")
    return dataset, len(row["votes"])


def votes_and_ids(dataset: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """(N, C) votes and (N,) ids of a prepared data set, None for one that can only be read row by row."""
    if isinstance(dataset, VotesImages):
        return dataset.column("votes").numpy(), dataset.column("example_id").numpy()
    if isinstance(dataset, Dataset):
        return dense_votes(dataset), example_ids(dataset)
    return None


def dataset_fingerprint(dataset: Any) -> str | None:
    """Of the votes of a data set, see [`votes_fingerprint`]; None for one that can only be read row by row."""
    if isinstance(dataset, Dataset):
        ids = example_ids(dataset)
        return votes_fingerprint((votes, ids[rows]) for rows, votes in votes_chunks(dataset))
    known = votes_and_ids(dataset)
    return None if known is None else votes_fingerprint([known])


def raw_text_columns(dataset: Any, processing_class: Any) -> list[str] | None:
    """The one or two columns of texts that are to be tokenised; None for tokens, choices, images, what is wrong."""
    raw = isinstance(dataset, (Dataset, StreamingDataset)) and "input_ids" not in (dataset.column_names or ())
    if not raw or not isinstance(processing_class, PreTrainedTokenizerBase):
        return None
    try:
        columns = list(text_columns_of(dataset.column_names or ()))
    except VotesError:  # which [`prepare_dataset`] says, with the split
        return None
    return columns if len(columns) <= 2 else None


def _to_inputs(dataset: Dataset | StreamingDataset, processing_class: Any, max_length: int | None) -> Any:
    columns = dataset.column_names
    if isinstance(processing_class, PreTrainedTokenizerBase) and "input_ids" not in columns:
        return tokenize_votes(dataset, processing_class, max_length)
    image_columns = [name for name in IMAGE_COLUMNS if name in columns]
    if image_columns and "pixel_values" not in columns:
        if processing_class is None:
            raise VotesError(
                "Raw images need an image processor as processing_class, or a VotesImages and an image_transform."
            )
        if isinstance(dataset, StreamingDataset):
            return stream_images(dataset)
        return VotesImages.from_dataset(dataset, processing_class.size["height"])
    return dataset


def holds_pixels(dataset: Any) -> bool:
    """Whether a prepared data set gives images as bytes, which the trainer augments and normalises."""
    if isinstance(dataset, StreamingDataset):
        return isinstance(dataset.features.get("pixel_values"), Image)
    return isinstance(dataset, VotesImages)


def holds_choices(dataset: Any) -> bool:
    """Whether a prepared data set has several token sequences in each example."""
    tokens = dataset.features.get("input_ids") if isinstance(dataset, (Dataset, StreamingDataset)) else None
    return isinstance(tokens, List) and isinstance(tokens.feature, List)


def longest_input(model: nn.Module | None, tokenizer: Any) -> int | None:
    """How many tokens a model takes: fewer than its tokenizer says, if it has fewer positions."""
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not positions or positions < 1:
        return None
    return min(positions, tokenizer.model_max_length, DEFAULT_MAX_LENGTH)


def scores_choices(model: nn.Module) -> bool:
    """Whether a model, under a PEFT wrapper or not, scores several choices of one example with one output each."""
    base = model.get_base_model() if isinstance(model, peft_types()) else model
    return type(base).__name__.endswith("ForMultipleChoice")


def peft_types() -> tuple[type, ...]:
    """What `isinstance` takes for a PEFT wrapper; nothing is one where PEFT is not installed."""
    if not is_peft_available():
        return ()
    from peft import PeftModel

    return (PeftModel,)


def check_model_classes(model: nn.Module, num_classes: int) -> None:
    """Raise [`VotesError`] when a model's labels are not the votes' classes.

    A multiple-choice model scores each choice with one output and takes any number of choices.
    """
    labels = getattr(getattr(model, "config", None), "num_labels", None)
    if scores_choices(model):
        return
    if labels is not None and labels != num_classes:
        raise VotesError(
            f"The votes have {num_classes} classes, but the model has {labels} labels. "
            f"Load it with num_labels={num_classes}."
        )
