"""The soft Brier score's parts, by isotonic regression. p is human, q is the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from .arrays import NO_NUMBERS, human, log_model, row_chunks, undefined

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
        columns.fill(rows, log_model(raw, from_logits, rows.start), human(people))
    curves = BrierCurves(columns)
    if not curves.defined:
        undefined(NO_NUMBERS)
    return curves.parts()


class ClassColumns:
    """log q and p (C, N), to be filled by chunks of rows: a class per row, whose examples lie one after another."""

    def __init__(self, shape: tuple[int, ...]):
        self.log_q, self.p = np.empty(shape[::-1]), np.empty(shape[::-1])

    def fill(self, rows: slice, log_q: np.ndarray, p: np.ndarray) -> None:
        self.log_q[:, rows], self.p[:, rows] = log_q.T, p.T


class BrierCurves:
    """log q and p, sorted once by class: the parts of any resample follow from its weights (N,).

    A weight is how many copies of an example the resample has; by default one.
    """

    def __init__(self, columns: ClassColumns):
        log_q, p = columns.log_q, columns.p
        self.examples = p.shape[1]
        self.defined = bool(self.examples) and not (np.isnan(log_q).any() or np.isnan(p).any())
        voted = p.any(-1)
        self.curves = [_ClassCurve(log_q[k], p[k]) for k in np.flatnonzero(voted)] if self.defined else []
        # Recalibration takes all mass from a class that nobody voted for: with 100,000 classes these are most.
        self.unvoted = np.exp(2 * log_q[~voted]).sum(0)

    def parts(self, weights: np.ndarray | None = None) -> dict[str, float]:
        if not self.defined:
            return dict.fromkeys(PARTS, float("nan"))
        parts = sum(curve.parts(weights) for curve in self.curves)
        parts[0] += self.unvoted.sum() if weights is None else weights @ self.unvoted
        total = self.examples if weights is None else weights.sum()
        return dict(zip(PARTS, (parts / total).tolist(), strict=True))


class _ClassCurve:
    """One class's log q_k and p_k (N,)."""

    def __init__(self, log_q: np.ndarray, p: np.ndarray):
        # Equal q must be recalibrated alike. Rounding keeps those together that differ in the last bits; of the
        # logarithm, so that tiny probabilities keep their ranks.
        rounded = log_q.round(12)
        self.order = rounded.argsort()
        ranked = rounded[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
        self.p = p
        self.squares = np.square(np.exp(log_q) - p)

    def parts(self, weights: np.ndarray | None) -> np.ndarray:
        """Miscalibration, discrimination and uncertainty of this class, times the sum of weights."""
        if weights is None:
            wp, score = self.p, self.squares.sum()
            mass = np.diff(self.starts, append=len(wp)).astype(np.float64)
        else:
            wp, score = weights * self.p, weights @ self.squares
            mass = np.add.reduceat(weights[self.order], self.starts)
        votes, square = np.add.reduceat(wp[self.order], self.starts), wp @ self.p
        there = mass > 0
        if not there.all():
            mass, votes = mass[there], votes[there]
        recalibrated = isotonic_regression(votes / mass, weights=mass).x
        best = square + recalibrated @ (mass * recalibrated - 2 * votes)
        constant = square - np.square(votes.sum()) / mass.sum()
        # Differences of equal numbers may round to -1e-17.
        return np.maximum([score - best, constant - best, constant], 0)
