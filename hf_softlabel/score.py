"""`hf-softlabel score`: anybody's predictions against votes, every score beside what it is to be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset

from .conformal import VoteCoverage
from .data.errors import VotesError, some
from .data.load import load_votes
from .data.votes import check_votes, class_names, dense_votes, gold_labels
from .metrics import (
    VoteScores,
    bootstrap_scores,
    calibrated_reference,
    difference_interval,
    interval,
    references,
)
from .metrics.arrays import human, log_model
from .metrics.bootstrap import RESAMPLES
from .metrics.reference import HARD_ERRORS
from .predictions import Predictions, read_predictions
from .scaling import Scaling


@dataclass(frozen=True)
class VotesSource:
    """Where votes are: what [`load_votes`] takes, and perhaps the one split whose examples are scored."""

    data: str
    subset: str | None = None
    sources: str | None = None
    split: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> dict[str, Dataset]:
        """All splits."""
        splits = load_votes(self.data, self.subset, sources=self.sources, **self.options)
        if self.split is not None and self.split not in splits:
            raise VotesError(f"{self.data} has no split {self.split!r}, only {', '.join(splits)}.")
        return dict(splits)


@dataclass(frozen=True)
class Examples:
    """The votes (N, C) and gold labels (N,) on the examples to score.

    Args:
        available: how many examples have votes, scored or not.
        train_mean: (C,), the mean distribution of the training votes, if known.
    """

    votes: np.ndarray
    gold_label: np.ndarray | None
    names: list[str]
    available: int
    train_mean: np.ndarray | None


@dataclass(frozen=True)
class Score:
    """A score, its 95% interval, and for a calibration error that of a calibrated model; NaN with the reason."""

    value: float
    interval: tuple[float, float] | None = None
    calibrated: float | None = None
    undefined: str | None = None


@dataclass(frozen=True)
class Scored:
    """Every score of one or several predictions on the same examples, in the same order.

    Args:
        scores: {score: Score} for each predictions.
        differences: {score: Score} for each predictions but the first: its difference from the first.
        references: {reference: {score: value}}.
        hard_label: `gold` or `majority`, what accuracy and the hard ECEs are against.
        coverage: what vote-coverage sets hold of the votes, for each predictions, if sets were given.
    """

    predictions: list[Predictions]
    examples: Examples
    scores: list[dict[str, Score]]
    differences: list[dict[str, Score]]
    references: dict[str, dict[str, float]]
    hard_label: str
    resamples: int
    coverage: list[dict[str, Any]] = field(default_factory=list)


def score_predictions(
    paths: Sequence[str | Path],
    votes: VotesSource | None = None,
    train_votes: VotesSource | None = None,
    scalings: Sequence[Scaling] = (),
    sets: VoteCoverage | None = None,
    ordinal: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: bool = False,
    **reading: Any,
) -> Scored:
    """Score the predictions of one or several files or run directories on the same examples.

    Args:
        votes: by default the votes that the first file itself holds, as run directories do.
        train_votes: votes whose mean distribution is the reference `train_mean`; by default the split `train` of
            `votes` if no scored example is in it, or what a run directory says.
        scalings: one for all predictions, or one for each.
        sets: vote-coverage sets to measure, of the predictions before any scaling.
        ordinal: the classes are steps of a scale.
        resamples: of the bootstrap; 0 for no intervals.
        reading: of [`read_predictions`].
    """
    files, examples = read_with_votes(paths, votes, **reading)
    if train_votes is not None:
        examples = replace(examples, train_mean=_train_mean(train_votes, examples.names))
    coverage = [sets.measure(file.values, examples.votes, file.from_logits) for file in files if sets is not None]
    if scalings:
        each = list(scalings) * len(files) if len(scalings) == 1 else list(scalings)
        if len(each) != len(files):
            raise VotesError(f"{len(scalings)} scalings for {len(files)} predictions: give one, or one for each.")
        files = [scaled(file, scaling) for file, scaling in zip(files, each, strict=True)]
    return replace(score_files(files, examples, ordinal, resamples, seed, progress), coverage=coverage)


def read_with_votes(
    paths: Sequence[str | Path], votes: VotesSource | None = None, **reading: Any
) -> tuple[list[Predictions], Examples]:
    """The predictions of all files in the order of the first one's examples, and the votes on these."""
    splits = None if votes is None else votes.load()
    names = None if splits is None else class_names(next(iter(splits.values())))
    files = _named_apart([read_predictions(path, names, **reading) for path in paths])
    first = files[0]
    examples = _own_votes(first) if splits is None else _votes_on(first, splits, votes)
    if examples.votes.shape != first.values.shape:
        raise VotesError(
            f"{first.name} predicts {first.values.shape[1]} classes, but the votes have {examples.votes.shape[1]}."
        )
    return [first, *(_on_the_same(file, first) for file in files[1:])], examples


def _named_apart(files: list[Predictions]) -> list[Predictions]:
    """Each file's name as short as tells it from the others."""
    parts = [Path(file.name).parts for file in files]
    length = max(map(len, parts))
    depth = next((k for k in range(1, length) if len({p[-k:] for p in parts}) == len(parts)), length)
    return [replace(file, name=str(Path(*p[-depth:]))) for file, p in zip(files, parts, strict=True)]


def _own_votes(file: Predictions) -> Examples:
    if file.votes is None:
        raise VotesError(f"{file.name} does not hold the votes too: say where they are with --votes.")
    names = file.names or [str(k) for k in range(file.values.shape[1])]
    check_votes(file.votes, file.values.shape[1])
    return Examples(file.votes, file.label, names, len(file), file.train_mean)


def _votes_on(file: Predictions, splits: dict[str, Dataset], source: VotesSource) -> Examples:
    scored = splits if source.split is None else {source.split: splits[source.split]}
    ids = np.concatenate([_split_ids(file, split, source) for split in scored.values()])
    rows = _match(file, ids, source.data if source.split is None else f"{source.data} ({source.split})")
    votes = np.concatenate([dense_votes(split) for split in scored.values()])
    gold = np.concatenate([gold_labels(split) for split in scored.values()])
    of_train = np.concatenate([np.full(len(split), name == "train") for name, split in scored.items()])
    train_mean = file.train_mean
    if "train" in splits and not of_train[rows].any():
        train_mean = human(dense_votes(splits["train"])).mean(0)
    names = class_names(next(iter(splits.values())))
    return Examples(votes[rows], gold[rows], names, len(ids), train_mean)


def _split_ids(file: Predictions, split: Dataset, source: VotesSource) -> np.ndarray:
    """The ids of a split's examples, in the column that has those of the predictions."""
    name = file.id_column
    if name not in split.column_names and name == source.options.get("item"):
        name = "example_id"  # what a long table's items have become if they are integers
    if name not in split.column_names:
        raise VotesError(
            f"The ids of {file.name} are in `{name}`, which {source.data} does not have; it has "
            f"{', '.join(split.column_names)}. Say --id_column for a column that both have, or rename one."
        )
    return np.asarray(split.with_format("numpy")[name][:])


def _train_mean(source: VotesSource, names: list[str]) -> np.ndarray:
    splits = source.load()
    if "train" in splits:
        splits = {"train": splits["train"]}
    for split in splits.values():
        if class_names(split) != names:
            raise VotesError(f"{source.data} has other classes than the votes: {', '.join(class_names(split))}.")
    return human(np.concatenate([dense_votes(split) for split in splits.values()])).mean(0)


def _match(predictions: Predictions, ids: np.ndarray, what: str) -> np.ndarray:
    """The rows among `ids` (M,) of the predicted examples, in the predictions' order."""
    wanted = pd.Index(predictions.ids)
    here = pd.Index(ids)
    if here.dtype.kind == "f":
        raise VotesError(
            f"{what}: the ids must be integers or strings, not numbers with decimals, as {some(here[:3])}."
        )
    if len({pd.api.types.is_numeric_dtype(index.dtype) for index in (wanted, here)}) > 1:
        # An id that a CSV wrote as 17 and a table as "17".
        wanted, here = wanted.astype(str), here.astype(str)
    if here.has_duplicates:
        raise VotesError(f"{what}: these ids occur more than once: {some(here[here.duplicated()].unique())}.")
    rows = here.get_indexer(wanted)
    missing = predictions.ids[rows < 0]
    if len(missing):
        raise VotesError(
            f"{predictions.name} has predictions on {len(missing)} example(s) that {what} does not have: "
            f"{some(missing)}. Is the id column the right one (--id_column)? Its first ids are {some(here[:3])}."
        )
    return rows


def _on_the_same(file: Predictions, first: Predictions) -> Predictions:
    """The predictions in the order of the first's examples, which must be the same."""
    if file.values.shape[1] != first.values.shape[1]:
        raise VotesError(f"{file.name} predicts {file.values.shape[1]} classes, {first.name} {first.values.shape[1]}.")
    if file.id_column != first.id_column:
        raise VotesError(
            f"The ids of {file.name} are in `{file.id_column}`, those of {first.name} in `{first.id_column}`. "
            "Say --id_column for a column that both have, or rename one."
        )
    if None not in (file.names, first.names) and file.names != first.names:
        raise VotesError(
            f"{file.name} has the classes {', '.join(file.names)}, {first.name} {', '.join(first.names)}: say --votes."
        )
    rows = _match(first, file.ids, file.name)
    if len(file) > len(first):
        more = np.delete(file.ids, rows)
        raise VotesError(
            f"{file.name} has {len(more)} example(s) that {first.name} does not have: {some(more)}. "
            "A difference needs the same examples in both: leave these out."
        )
    file = file.take(rows)
    if file.votes is not None and first.votes is not None:
        other = first.ids[(human(file.votes) != human(first.votes)).any(-1)]
        if len(other):
            raise VotesError(
                f"{file.name} and {first.name} hold different votes on {len(other)} example(s): {some(other)}. "
                "Say with --votes which to score against."
            )
    return file


def scaled(file: Predictions, scaling: Scaling) -> Predictions:
    """Calibrated predictions, as logits."""
    if scaling.bias is None:
        # A temperature is the same for logits and log probabilities; of probability 0 nothing is left to scale.
        values = log_model(file.values, file.from_logits) * scaling.scale
    elif scaling.from_logits != file.from_logits:
        kinds = ("probabilities", "logits")
        raise VotesError(
            f"The scaling was fitted on {kinds[scaling.from_logits]}, but {file.name} holds {kinds[file.from_logits]}."
        )
    else:
        values = scaling(file.values)
    return replace(file, values=values, from_logits=True)


def score_files(
    files: list[Predictions],
    examples: Examples,
    ordinal: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: bool = False,
) -> Scored:
    """Score predictions that are on `examples`, in their order."""
    votes, gold = examples.votes, examples.gold_label
    tables = [VoteScores(file.values, votes, gold, file.from_logits, ordinal) for file in files]
    values = [table.scores() for table in tables]
    # One example has no spread to resample.
    resamples = resamples if len(votes) > 1 else 0
    draws = bootstrap_scores(tables, resamples, seed, progress) if resamples else None
    scores, differences = [], []
    for i, (file, table, found) in enumerate(zip(files, tables, values, strict=True)):
        calibrated = calibrated_reference(file.values, votes, file.from_logits)
        if table.hard_label == "majority":
            # A label drawn from the prediction is no majority of many.
            calibrated = {name: value for name, value in calibrated.items() if name not in HARD_ERRORS}
        scores.append(
            {
                name: Score(
                    value,
                    interval(name, value, draws[i][name]) if draws else None,
                    calibrated.get(name),
                    table.undefined.get(name),
                )
                for name, value in found.items()
            }
        )
        if i:
            differences.append({})
            for name, value in found.items():
                pair = values[0][name], value
                with np.errstate(invalid="ignore"):  # infinite in both
                    gap = value - values[0][name]
                ends = difference_interval(name, pair, (draws[0][name], draws[i][name])) if draws else None
                reason = table.undefined.get(name) or tables[0].undefined.get(name) or "infinite in both"
                differences[-1][name] = Score(gap, ends, undefined=reason if np.isnan(gap) else None)
    compared = references(votes, examples.train_mean, gold, ordinal)
    return Scored(files, examples, scores, differences, compared, tables[0].hard_label, resamples)
