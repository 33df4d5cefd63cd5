"""The sparse-target diagnostic: does a delivery gain where K votes miss the annotators' distribution?

For each example the distance between its sparse target and its full distribution is set against the gain of a
delivery over soft labels, soft NLL(soft) - soft NLL(delivery), both measured against the full votes. On the training
split the sparse target is what the model was trained on. The eval split is a placebo: its sparse targets are drawn in
the same way but no model has seen them, so what correlates there is ambiguity, not the target's error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from ..data.errors import VotesError
from ..data.votes import subsampled_votes
from ..diagnostics.batches import high_disagreement
from ..metrics import js_distance, soft_nll
from ..metrics.arrays import human
from .runs import Run

BINS = 5
SLICE = 0.1


class SparseExamples(NamedTuple):
    """One seed's N examples: distances of the sparse target from the full votes, the gain over soft labels, and
    whether an example is of the high-disagreement slice; each (N,)."""

    js: np.ndarray
    l1: np.ndarray
    gain: np.ndarray
    high: np.ndarray


class SparseBins(NamedTuple):
    """Per bin (B,) of the distance: its mean, the number of examples of all seeds, and the mean gain (S, B) of each
    seed, NaN where a seed has no example there."""

    distance: np.ndarray
    count: np.ndarray
    gain: np.ndarray


@dataclass(frozen=True)
class SparseTarget:
    """The diagnostic of one method at K votes, of several seeds, on the `train` or the `eval` split."""

    method: str
    k: int
    split: str
    seeds: dict[int, SparseExamples]

    def correlations(self, measure: str = "js") -> dict[int, float]:
        """Spearman's correlation of distance (`js` or `l1`) and gain, by seed; NaN where one of them is constant."""
        return {seed: correlation(getattr(examples, measure), examples.gain) for seed, examples in self.seeds.items()}

    def bins(self, measure: str = "js", high_only: bool = False) -> SparseBins:
        """The gain by bins of the distance, those of all seeds together."""
        chosen = [(e, e.high if high_only else np.ones(len(e.gain), bool)) for e in self.seeds.values()]
        return gain_bins([getattr(e, measure)[rows] for e, rows in chosen], [e.gain[rows] for e, rows in chosen])


def sparse_examples(votes: np.ndarray, full: np.ndarray, soft: np.ndarray, other: np.ndarray) -> SparseExamples:
    """From sparse and full votes (N, C) and the logits (N, C) of the soft-label model and of another."""
    p, sparse = human(full), human(votes)
    loss = [soft_nll(logits, full, from_logits=True, per_example=True) for logits in (soft, other)]
    high = np.zeros(len(p), bool)
    high[high_disagreement(full, SLICE).rows] = True
    return SparseExamples(
        js_distance(sparse, p, per_example=True), np.abs(sparse - p).sum(-1), loss[0] - loss[1], high
    )


def correlation(distance: np.ndarray, gain: np.ndarray) -> float:
    if len(distance) < 3 or np.ptp(distance) == 0 or np.ptp(gain) == 0:
        return float("nan")
    return float(spearmanr(distance, gain).statistic)


def gain_bins(distances: list[np.ndarray], gains: list[np.ndarray], bins: int = BINS) -> SparseBins:
    """Mean gain by bins of the distance, for each seed.

    Targets without an error are a bin of their own: there are many of them where people agree. The others are parted
    at the quantiles of all seeds' distances, so that a bin means the same in each.
    """
    every = np.concatenate(distances)
    missed = every[every > 0]
    if not len(missed):
        return SparseBins(np.zeros(1), np.array([len(every)]), np.array([[gain.mean()] for gain in gains]))
    edges = np.unique(np.quantile(missed, np.linspace(0, 1, bins + 1)[1:-1]))
    places = [np.where(d > 0, 1 + np.searchsorted(edges, d, side="left"), 0) for d in distances]
    size = len(edges) + 2
    count = sum(np.bincount(place, minlength=size) for place in places)
    filled = np.flatnonzero(count)
    total = sum(np.bincount(place, d, size) for place, d in zip(places, distances, strict=True))
    with np.errstate(invalid="ignore"):
        gain = np.array(
            [
                np.bincount(place, g, size) / np.bincount(place, minlength=size)
                for place, g in zip(places, gains, strict=True)
            ]
        )
    return SparseBins(total[filled] / count[filled], count[filled], gain[:, filled])


def sparse_target(soft: dict[int, Run], other: dict[int, Run], split: str = "train") -> SparseTarget | None:
    """The diagnostic of the seeds that both methods have; None if there is none.

    Args:
        soft, other: runs at the same K, by seed.
    """
    seeds = {}
    for seed in sorted(soft.keys() & other.keys()):
        pair = (soft[seed], other[seed])
        read = _read_train(*pair) if split == "train" else _read_eval(*pair)
        if read is not None:
            seeds[seed] = sparse_examples(*read)
    if not seeds:
        return None
    run = next(iter(other.values()))
    return SparseTarget(run.method, run.votes_per_example, split, seeds)


def _read_train(soft: Run, other: Run) -> tuple[np.ndarray, ...] | None:
    """Sparse votes, full votes and both models' logits on the training split; None if a run has not kept them."""
    paths = [run.path / "train_predictions.parquet" for run in (soft, other)]
    if not all(path.exists() for path in paths):
        return None
    columns = [_columns(path) for path in paths]
    mine, theirs = ({name: x[np.argsort(c["example_id"])] for name, x in c.items()} for c in columns)
    if not all(np.array_equal(mine[name], theirs[name]) for name in ("example_id", "votes", "full_votes")):
        raise VotesError(
            f"{soft.path} and {other.path} were not trained on the same sparse votes: they cannot be paired."
        )
    return mine["votes"], mine["full_votes"], mine["logits"], theirs["logits"]


def _columns(path: Path) -> dict[str, np.ndarray]:
    """`example_id` (N,) and the matrices (N, C) of a file of training predictions."""
    table = pq.read_table(path)
    rows = table.num_rows
    return {
        "example_id": table["example_id"].to_numpy(),
        **{
            name: table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(rows, -1)
            for name in ("votes", "full_votes", "logits")
        },
    }


def _read_eval(soft: Run, other: Run) -> tuple[np.ndarray, ...] | None:
    if not (soft.has_predictions and other.has_predictions):
        return None
    mine, theirs = soft.predictions(), other.predictions()
    if mine.votes is None or not np.array_equal(mine.ids, theirs.ids):
        return None
    config = soft.config
    seed = soft.seed if config.get("subsample_seed") is None else config["subsample_seed"]
    without = config.get("subsample") == "without_replacement"
    drawn = subsampled_votes(mine.votes.copy(), mine.ids.copy(), soft.votes_per_example, seed, without)
    return drawn, mine.votes, mine.values, theirs.values
