"""The soft Brier score's parts, by isotonic regression. p is human, q is the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from .arrays import NO_NUMBERS, chunks, undefined

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
    curves = BrierCurves(predictions, votes, from_logits)
    if not curves.defined:
        undefined(NO_NUMBERS)
    return curves.parts()


class BrierCurves:
    """Predictions and votes (N, C), sorted once: the parts of any resample follow from its weights (N,).

    A weight is how many copies of an example the resample has; by default one.
    """

    def __init__(self, predictions: Any, votes: Any, from_logits: bool = False):
        shape = tuple(np.shape(predictions))
        q, p = np.empty(shape[::-1]), np.empty(shape[::-1])  # a class per row: columns are read one after another
        for rows, q_rows, p_rows in chunks(predictions, votes, from_logits):
            q[:, rows], p[:, rows] = q_rows.T, p_rows.T
        self.defined = bool(shape[0]) and not (np.isnan(q).any() or np.isnan(p).any())
        voted = p.any(-1)
        self.curves = [_ClassCurve(q[k], p[k]) for k in np.flatnonzero(voted)] if self.defined else []
        # Recalibration takes all mass from a class that nobody voted for: with 100,000 classes these are most.
        self.unvoted = np.square(q[~voted]).sum(0)

    def parts(self, weights: np.ndarray | None = None) -> dict[str, float]:
        if not self.defined:
            return dict.fromkeys(PARTS, float("nan"))
        weights = np.ones(len(self.unvoted)) if weights is None else weights
        parts = sum(curve.parts(weights) for curve in self.curves)
        parts[0] += weights @ self.unvoted
        return dict(zip(PARTS, (parts / weights.sum()).tolist(), strict=True))


class _ClassCurve:
    """One class's q_k and p_k (N,)."""

    def __init__(self, q: np.ndarray, p: np.ndarray):
        # Equal q must be recalibrated alike. Rounding keeps those together that differ in the last bits; of the
        # logarithm, so that tiny probabilities keep their ranks.
        with np.errstate(divide="ignore"):
            log_q = np.log(q).round(12)
        self.order = log_q.argsort()
        ranked = log_q[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
        self.p = p[self.order]
        self.squares = np.square(q - p)[self.order]

    def parts(self, weights: np.ndarray) -> np.ndarray:
        """Miscalibration, discrimination and uncertainty of this class, times the sum of weights."""
        w = weights[self.order]
        wp = w * self.p
        mass, votes = np.add.reduceat(w, self.starts), np.add.reduceat(wp, self.starts)
        there = mass > 0
        mass, votes = mass[there], votes[there]
        recalibrated = isotonic_regression(votes / mass, weights=mass).x
        score, square = w @ self.squares, wp @ self.p
        best = square + recalibrated @ (mass * recalibrated - 2 * votes)
        constant = square - np.square(votes.sum()) / mass.sum()
        # Differences of equal numbers may round to -1e-17.
        return np.maximum([score - best, constant - best, constant], 0)
