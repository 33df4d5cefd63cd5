"""The splits of a recipe: what is trained on, what is held out, and what is kept for calibration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .config import DataConfig
from .data.annotators import split_annotators
from .data.errors import VotesError
from .data.load import load_votes
from .data.votes import split_stream, split_votes, subsample_votes
from .preparation import dataset_fingerprint


class Splits(NamedTuple):
    """`eval` always has the full votes; `calibration`, if any, is a part of `train` that is not trained on."""

    train: Any
    eval: Any
    calibration: Any = None


def load_splits(config: DataConfig, seed: int) -> Splits:
    """The splits of a recipe, the training split subsampled if it says so."""
    options = {
        "label_columns": config.label_columns,
        "item": config.item_column,
        "label": config.label_column,
        "annotator": config.annotator_column,
        "names": config.class_names,
    }
    data = load_votes(
        config.dataset,
        config.subset,
        sources=config.sources,
        revision=config.revision,
        streaming=config.streaming,
        **{key: value for key, value in options.items() if value is not None},
    )
    if "train" not in data:
        raise VotesError(f"There is no split 'train' among: {', '.join(data)}.")
    split_seed = seed if config.split_seed is None else config.split_seed
    if config.eval_annotators is not None:
        for key in ("eval_split", "streaming"):
            if getattr(config, key):
                raise VotesError(f"eval_annotators scores the training items themselves: leave out {key}.")
        splits = split_annotators(data["train"], config.eval_annotators, split_seed)
    elif config.eval_split is not None:
        if config.eval_split not in data:
            raise VotesError(f"There is no split {config.eval_split!r} (eval_split) among: {', '.join(data)}.")
        splits = {"train": data["train"], "eval": data[config.eval_split]}
    elif config.streaming:
        splits = split_stream(data["train"], config.eval_fraction, split_seed)
    else:
        splits = split_votes(data["train"], config.eval_fraction, split_seed)
    train, held_out = splits["train"], splits["eval"]
    if config.streaming:
        for key in ("train_size", "votes_per_example", "calibration_fraction"):
            if getattr(config, key):
                raise VotesError(f"{key} needs the whole data set: leave it out or set streaming: false.")
        return Splits(train.shuffle(seed=seed, buffer_size=config.shuffle_buffer), held_out)
    if config.train_size is not None:
        if not 0 < config.train_size <= len(train):
            raise VotesError(f"train_size={config.train_size}, but the training split has {len(train)} examples.")
        if config.train_size < len(train):
            train = split_votes(train, config.train_size / len(train), split_seed)["eval"]
            if config.eval_annotators is not None:
                held_out = held_out.select(np.flatnonzero(np.isin(held_out["example_id"][:], train["example_id"][:])))
    if config.votes_per_example is not None:
        subsample_seed = seed if config.subsample_seed is None else config.subsample_seed
        train = subsample_votes(
            train, config.votes_per_example, subsample_seed, config.subsample == "without_replacement"
        )
    if not config.calibration_fraction:
        return Splits(train, held_out)
    # After the subsampling: who has few votes to train on has few to calibrate on.
    parts = split_votes(train, config.calibration_fraction, split_seed)
    return Splits(parts["train"], held_out, parts["eval"])


def fingerprint(splits: Splits) -> str | None:
    """Of the votes of all splits; None for streams."""
    known = [dataset_fingerprint(split) for split in splits if split is not None]
    return None if None in known else "-".join(known)
