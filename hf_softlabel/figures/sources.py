"""What a figure is drawn from: a run directory, or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ..data.errors import VotesError, some
from ..metrics.arrays import human, model
from ..predictions import read_predictions


class Source(NamedTuple):
    """Predictions on examples and what people voted there.

    Args:
        name: what the legend says; a delivery's name gives it that delivery's look.
        predictions: (N, C), probabilities or, with `from_logits`, logits.
        votes: (N, C), counts or distributions.
        label: (N,), the gold labels, which only `target="hard"` needs.
    """

    name: str
    predictions: Any
    votes: Any
    from_logits: bool = False
    label: Any = None


def read_source(source: str | Path | Source | Sequence) -> Source:
    """A run directory, a [`Source`] or a tuple of its fields -> a checked [`Source`]."""
    read = _read_run(Path(source)) if isinstance(source, (str, Path)) else Source(*source)
    p, q = _checked(human(read.votes), read.name), model(read.predictions, read.from_logits)
    if p.shape != q.shape:
        raise VotesError(f"{read.name}: predictions {q.shape} and votes {p.shape} must have one shape.")
    wrong = np.flatnonzero(~np.isfinite(q).all(-1))
    if len(wrong):
        raise VotesError(f"{read.name}: predictions of row(s) {some(wrong)} are not finite. Leave these examples out.")
    return read


def read_sources(sources: Sequence[str | Path | Source | Sequence]) -> list[Source]:
    """As `read_source`, for a picture of several; runs of one delivery and seed are told apart by their folders."""
    if not sources:
        raise VotesError("There is nothing to draw: give a run directory, or (name, predictions, votes).")
    read = [read_source(source) for source in sources]
    names = [source.name for source in read]
    return [
        item._replace(name=f"{item.name}, {Path(source).resolve().name}")
        if isinstance(source, (str, Path)) and names.count(item.name) > 1
        else item
        for source, item in zip(sources, read, strict=True)
    ]


def read_votes(source: Any, name: str = "votes") -> np.ndarray:
    """The annotators' distributions (N, C) of a run directory, or of votes (N, C)."""
    if isinstance(source, (str, Path)):
        return human(read_source(source).votes)
    return _checked(human(source), name)


def _checked(p: np.ndarray, name: str) -> np.ndarray:
    if not len(p) or p.shape[1] < 2:
        raise VotesError(
            f"{name}: votes of shape {p.shape} cannot be drawn: at least 1 example and 2 classes are needed."
        )
    wrong = np.flatnonzero(~np.isfinite(p).all(-1))
    if len(wrong):
        raise VotesError(f"{name}: row(s) {some(wrong)} have no votes, or votes that are not finite. Leave them out.")
    return p


def _read_run(run: Path) -> Source:
    read = read_predictions(run)
    if read.votes is None:
        raise VotesError(f"{run} has no column `votes`, as a run's predictions have.")
    # They are negative where there is none.
    label = None if read.label is None or (read.label < 0).all() else read.label
    return Source(run_name(run), read.values, read.votes, read.from_logits, label)


def run_name(run: str | Path) -> str:
    """'sls, seed 3' from the run's config.yaml, or the folder's name."""
    run = Path(run)
    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        return f"{config['delivery']}, seed {config['seed']}"
    except (FileNotFoundError, KeyError, TypeError):
        return run.resolve().name
