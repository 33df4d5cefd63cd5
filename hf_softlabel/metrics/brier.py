"""The soft Brier score's parts, by isotonic regression. p is human, q is the model."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from .arrays import NO_NUMBERS, human, log_model_and_model, row_chunks, undefined

PARTS = ("miscalibration", "discrimination", "uncertainty")


def brier_decomposition(predictions: Any, votes: Any, from_logits: bool = False) -> dict[str, float]:
    """The soft Brier score's CORP parts (Dimitriadis et al. 2021), summed over classes.

    Each class's q_k is recalibrated by isotonic regression of the annotators' p_k on it:
    - `miscalibration`: the score less that of the recalibrated predictions (reliability);
    - `discrimination`: by how much these are better than always predicting the mean of p (resolution);
    - `uncertainty`: the score of that mean.
    soft Brier = miscalibration - discrimination + uncertainty, and no part is negative. Binned decompositions leave a
    remainder. NaN of no examples.
    """
    columns = ClassColumns(np.shape(predictions))
    for rows, raw, people in row_chunks(predictions, votes):
        p, (log_q, q) = human(people), log_model_and_model(raw, from_logits, rows.start)
        columns.fill(rows, log_q, p, np.square(q - p))
    curves = BrierCurves(columns)
    if not curves.defined:
        undefined(NO_NUMBERS)
    return curves.parts()


class ClassColumns:
    """log q and p (C, N), to be filled by chunks of rows: a class per row, whose examples lie one after another.

    `score` (C,) is the sum of (q - p)^2 over the examples.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.log_q, self.p = np.empty(shape[::-1]), np.empty(shape[::-1])
        self.score = np.zeros(shape[1:])

    def fill(self, rows: slice, log_q: np.ndarray, p: np.ndarray, squares: np.ndarray) -> None:
        self.log_q[:, rows], self.p[:, rows] = log_q.T, p.T
        self.score += squares.sum(0)


class BrierCurves:
    """log q and p by class: the parts of the examples, or of any resample by its weights (N,).

    A weight is how many copies of an example the resample has; by default one. Classes are sorted once, for the first
    resample; the examples themselves need no sorting.
    """

    def __init__(self, columns: ClassColumns):
        self.log_q, self.p, self.score = columns.log_q, columns.p, columns.score
        self.examples = self.p.shape[1]
        # The smallest of numbers with a NaN is NaN.
        self.defined = bool(self.examples) and not np.isnan([self.log_q.min(), self.p.min()]).any()
        # Recalibration takes all mass from a class that nobody voted for: with 100,000 classes these are most.
        self.voted = self.p.any(-1)

    @cached_property
    def curves(self) -> list[_ClassCurve]:
        return [_ClassCurve(self.log_q[k], self.p[k]) for k in np.flatnonzero(self.voted)]

    @cached_property
    def unvoted(self) -> np.ndarray:
        """The mass (N,) on classes without votes, squared."""
        return np.exp(2 * self.log_q[~self.voted]).sum(0)

    def parts(self, weights: np.ndarray | None = None) -> dict[str, float]:
        if not self.defined:
            return dict.fromkeys(PARTS, float("nan"))
        if weights is None:
            parts = sum(
                _parts(self.score[k], p.sum(), p @ p, *pooled(self.log_q[k], p))
                for k, p in enumerate(self.p)
                if self.voted[k]
            )
            parts[0] += self.score[~self.voted].sum()
            total = self.examples
        else:
            parts = sum(curve.parts(weights) for curve in self.curves)
            parts[0] += weights @ self.unvoted
            total = weights.sum()
        return dict(zip(PARTS, (parts / total).tolist(), strict=True))


class _ClassCurve:
    """One class's log q_k and p_k (N,), sorted."""

    def __init__(self, log_q: np.ndarray, p: np.ndarray):
        self.order, self.starts = _ranked(_surprisal(log_q))
        self.p = p
        self.squares = np.square(np.exp(log_q) - p)

    def parts(self, weights: np.ndarray) -> np.ndarray:
        wp = weights * self.p
        mass, votes = (np.add.reduceat(x[self.order], self.starts) for x in (weights, wp))
        there = mass > 0
        return _parts(weights @ self.squares, wp.sum(), wp @ self.p, mass[there], votes[there])


def _parts(score: float, total: float, square: float, mass: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """Miscalibration, discrimination and uncertainty of a class, times the sum of weights.

    `score`, `total` and `square` are the sums of (q - p)^2, p and p^2; `mass` and `votes` those of 1 and p at each q,
    the largest first.
    """
    recalibrated = isotonic_regression(votes / mass, weights=mass, increasing=False).x
    best = square + recalibrated @ (mass * recalibrated - 2 * votes)
    constant = square - total**2 / mass.sum()
    # Differences of equal numbers may round to -1e-17.
    return np.maximum([score - best, constant - best, constant], 0)


def _surprisal(log_q: np.ndarray) -> np.ndarray:
    # Equal q must be recalibrated alike. Rounding keeps those together that differ in the last bits; of the
    # logarithm, so that tiny probabilities keep their ranks.
    return -log_q.round(12)


def _ranked(surprisal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of values, and where in it another value begins."""
    order = surprisal.argsort()
    ranked = surprisal[order]
    return order, np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))


def pooled(log_q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mass and votes of examples (N,) at each q, the largest first; few of them, but with the same recalibration.

    Isotonic regression is the slope of the least concave majorant of the votes, cumulated over examples (Barlow et
    al. 1972). It bends at few examples. Those between two bends are recalibrated alike, in whatever order, and need
    no sorting: buckets of neighbours show that the majorant is far above their votes.
    """
    surprisal = _surprisal(log_q)
    bucket = _buckets(surprisal)
    mass, votes = np.bincount(bucket), np.bincount(bucket, p)
    number = np.flatnonzero(mass)
    mass, votes = mass[number].astype(np.float64), votes[number]
    slope = isotonic_regression(votes / mass, weights=mass, increasing=False).x
    # By how much the majorant of buckets is above their votes where each bucket begins. In it, the votes rise most if
    # those who gave all theirs to the class come first, and then are votes * (1 - slope) nearer. Only if they can
    # reach it (1e-6 for rounding) the majorant of examples may bend there, and they are told apart.
    gap = np.cumsum(mass * slope - votes)
    gap = np.concatenate(([0.0], gap[:-1]))
    bends = gap <= votes * (1 - slope) + 1e-6
    may_bend = np.zeros(number[-1] + 1, bool)
    may_bend[number[bends]] = True
    rows = np.flatnonzero(may_bend[bucket])
    order, starts = _ranked(surprisal[rows])
    rows = rows[order]
    # Buckets and examples in one line.
    place = np.concatenate((number[~bends], bucket[rows[starts]])).argsort(kind="stable")
    mass = np.concatenate((mass[~bends], np.diff(starts, append=len(rows))))
    votes = np.concatenate((votes[~bends], np.add.reduceat(p[rows], starts)))
    return mass[place], votes[place]


def _buckets(surprisal: np.ndarray) -> np.ndarray:
    """Whole numbers (N,) from 0 that never fall as surprisals grow: about one for six examples."""
    # A float's first bits, as a whole number, grow like its logarithm: narrow buckets for q near 1, wider ones for
    # the tail. Its bounds, 2^-8 and 2^12, only keep the buckets few.
    bits = (surprisal.clip(0, 2.0**12) + 2.0**-8).view(np.int64)
    bits >>= 52 - max(0, len(surprisal).bit_length() - 5)
    bits -= bits.min()
    return bits
