"""Calibration of the predicted class. p is human, q is the model.

The confidence c of an example is max_k q_k. What it is to be compared with is chosen by `target`:
- `annotators`: votes (N, C), the annotators' mass on the predicted class;
- `hard`: labels (N,) in place of the votes, 1 where the predicted class is the label and 0 elsewhere.
Where several classes share the largest probability, the target is its mean over them, so that no score depends on the
order of the classes (a uniform predictor would else be scored by whichever class comes first).
Of no examples, or with a NaN among confidences or targets, every score is NaN.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import brentq

from ..data.errors import VotesError
from .arrays import NO_NUMBERS, human, labels_of, model, row_chunks, undefined
from .scoring import Top

BINS = 15
# Steps of the grid on [0, 1] for smooth ECE: one is far below any bandwidth that N rows can resolve.
GRID = 2**15
COARSE_GRID = 2**10
# Of a grid on which a smoothed density can be integrated.
STEPS_PER_BANDWIDTH = 32


def confidence_and_target(
    predictions: Any, votes: Any, from_logits: bool = False, target: str = "annotators"
) -> tuple[np.ndarray, np.ndarray]:
    """The confidence (N,) in the predicted class and its target (N,): all that ECEs and reliability diagrams need."""
    if target not in ("annotators", "hard"):
        raise VotesError(f"target is 'annotators' or 'hard', not {target!r}.")
    shape = tuple(np.shape(predictions))
    if target == "hard":
        labels = labels_of(votes, shape)
        votes = predictions  # unused: so that the rows below are the predictions' alone
    confidence, outcome = np.empty(shape[0]), np.empty(shape[0])
    for rows, raw, people in row_chunks(predictions, votes):
        q = model(raw, from_logits, rows.start)
        top = Top(q)
        confidence[rows] = top.largest
        outcome[rows] = top.hits(labels[rows]) if target == "hard" else top.mean(human(people))
    return confidence, outcome


class Confidences:
    """Confidences (N,), sorted once: the ECEs of any resample follow from its weights (N,) without sorting.

    A weight is how many copies of an example the resample has; by default one.
    """

    def __init__(self, confidence: np.ndarray):
        self.values = confidence
        self.defined = bool(len(confidence)) and not np.isnan(confidence).any()

    @cached_property
    def rounded(self) -> np.ndarray:
        # Keeps confidences that are equal but for their last bit together.
        return self.values.round(12)

    @cached_property
    def order(self) -> np.ndarray:
        return self.rounded.argsort()

    def bins(self, bins: int = BINS, weights: np.ndarray | None = None) -> np.ndarray:
        """The bin (N,), 0 to bins - 1, of each confidence: edges at the quantiles."""
        if not len(self.values):
            return np.empty(0, np.int64)
        if weights is None:
            n = len(self.values)
            edges = np.sort(self.rounded)[np.arange(1, bins) * n // bins]
        else:
            copies = np.cumsum(weights[self.order])
            # The (n b / bins)-th smallest confidence, counted from 0, begins bin b.
            first = np.searchsorted(copies, np.arange(1, bins) * round(copies[-1]) // bins, side="right")
            edges = self.rounded[self.order[first]]
        return np.searchsorted(edges, self.rounded, side="right")

    def equal_mass_ece(
        self, target: np.ndarray, weights: np.ndarray | None = None, bin_of: np.ndarray | None = None
    ) -> float:
        """The ECE over the bins (N,) that `bins` has given, by default its default ones."""
        residual = self._residual(target, weights)
        if residual is None:
            return float("nan")
        gaps = np.bincount(self.bins(weights=weights) if bin_of is None else bin_of, residual)
        return float(np.abs(gaps).sum() / (len(residual) if weights is None else weights.sum()))

    def smooth_ece(self, target: np.ndarray, weights: np.ndarray | None = None) -> float:
        residual = self._residual(target, weights)
        if residual is None:
            return float("nan")
        cosines = dct(_on_grid(self.values, residual))
        if weights is not None:
            cosines *= len(weights) / weights.sum()
        return _own_bandwidth(cosines)

    def _residual(self, target: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Weighted target - confidence (N,); None where no score is defined."""
        if not self.defined or np.isnan(target).any():
            return None
        residual = target - self.values
        return residual if weights is None else residual * weights


def equal_mass_bins(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin (N,), 0 to bins - 1, of each confidence: edges at the quantiles, so that bins hold the same mass.

    Equal confidences share a bin, whatever the order of rows; bins are then uneven, or empty.
    """
    return Confidences(confidence).bins(bins)


def equal_mass_ece(
    predictions: Any, votes: Any, from_logits: bool = False, target: str = "annotators", bins: int = BINS
) -> float:
    """Expected calibration error over equal-mass bins: sum_b n_b / N |mean target - mean confidence|.

    It is biased upwards: compare it with `calibrated_ece`, its value for a calibrated model.
    """
    confidence, outcome = confidence_and_target(predictions, votes, from_logits, target)
    confidences = Confidences(confidence)
    value = confidences.equal_mass_ece(outcome, bin_of=confidences.bins(bins))
    return undefined(NO_NUMBERS) if math.isnan(value) else value


def calibrated_ece(
    predictions: Any,
    votes: Any,
    from_logits: bool = False,
    target: str = "annotators",
    bins: int = BINS,
    seed: int = 0,
) -> float:
    """What `equal_mass_ece` is on average for a calibrated model with the same confidences c and as many examples.

    Outcomes are drawn anew: for `hard` the label is the predicted class with probability c; for `annotators` each of
    an example's m votes is, so that this is the score of a model that knows every example's distribution. (Where
    examples of one confidence differ in theirs, a calibrated model scores more.) Distributions do not say how many
    people voted: NaN, with a warning. Bins in which many outcomes vary use the normal law's mean absolute deviation,
    the others are simulated from `seed`.
    """
    confidence, outcome = confidence_and_target(predictions, votes, from_logits, target)
    n = len(confidence)
    m = np.ones(n, np.int64) if target == "hard" else _vote_numbers(votes)
    if m is None:
        return undefined("it needs the counts of votes, and these are distributions")
    if not n or np.isnan(outcome).any():
        return undefined(NO_NUMBERS)
    c = confidence.clip(0, 1)
    bin_of = equal_mass_bins(confidence, bins)
    variance = np.bincount(bin_of, c * (1 - c) / m, minlength=bins)
    deviation = np.sqrt(variance * 2 / np.pi)
    # From a variance of 25 votes on, the normal law is within 1%.
    few = np.bincount(bin_of, c * (1 - c) * m, minlength=bins) < 25
    rows = few[bin_of]
    if rows.any():
        c, m, bin_of = c[rows], m[rows], bin_of[rows]
        rng = np.random.default_rng(seed)
        draws = int(np.clip(2e7 // len(c), 20, 1000))
        total = np.zeros(bins)
        for _ in range(draws):
            outcome = rng.random(len(c)) < c if target == "hard" else rng.binomial(m, c) / m
            total += np.abs(np.bincount(bin_of, outcome - c, minlength=bins))
        deviation = np.where(few, total / draws, deviation)
    return float(deviation.sum() / n)


def _vote_numbers(votes: Any) -> np.ndarray | None:
    """How many people voted on each example (N,), or None if votes are distributions."""
    votes = votes.detach().cpu().double().numpy() if hasattr(votes, "detach") else np.asarray(votes)
    return votes.sum(-1).astype(np.int64) if (votes == np.floor(votes)).all() else None


def smooth_ece(predictions: Any, votes: Any, from_logits: bool = False, target: str = "annotators") -> float:
    """Smooth ECE of Blasiok and Nakkiran (2023): the bandwidth s at which the ECE smoothed by s is s itself.

    smECE_s = integral over t of |1/N sum_i K_s(t, c_i) (target_i - c_i)|, with K_s the Gaussian kernel reflected at 0
    and 1. It falls as s grows, so that there is exactly one such s.
    """
    confidence, outcome = confidence_and_target(predictions, votes, from_logits, target)
    value = Confidences(confidence).smooth_ece(outcome)
    return undefined(NO_NUMBERS) if math.isnan(value) else value


def _on_grid(confidence: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The density (GRID,) of weights (N,) / N per grid step, each shared by the two nearest of the steps' middles."""
    position = np.clip(confidence * GRID - 0.5, 0, GRID - 1)
    left = np.minimum(position.astype(np.int64), GRID - 2)
    share = (position - left) * weight
    mass = np.bincount(left, weight - share, minlength=GRID)
    mass[1:] += np.bincount(left, share, minlength=GRID - 1)
    return mass / len(confidence)


def _own_bandwidth(cosines: np.ndarray) -> float:
    """The s at which `smoothed_error` is s itself, to 1e-8: the grids' part is larger than the search's."""
    # No residual is larger than 1: at s = 0 the error is above s, at s = 2 below.
    s = brentq(lambda s: smoothed_error(cosines, s, COARSE_GRID) - s, 0.0, 2.0, xtol=1e-10)
    if s * COARSE_GRID >= STEPS_PER_BANDWIDTH:
        return float(s)
    # The coarse grid has found the place and the slope: a step or two on a grid that resolves it are enough.
    slope = (smoothed_error(cosines, s * 1.001, COARSE_GRID) - s) / (s * 0.001) - 1 if s else -1.0
    fine = min(GRID, 2 ** math.ceil(math.log2(STEPS_PER_BANDWIDTH / s))) if s > 1e-3 else GRID
    for _ in range(5):
        step = (smoothed_error(cosines, s, fine) - s) / slope
        s -= step
        if abs(step) < 1e-10:
            return float(s)
        if s < 0:
            break
    # Bandwidths that the coarse grid does not resolve.
    return float(brentq(lambda s: smoothed_error(cosines, s) - s, 0.0, 2.0, xtol=1e-10))


def smoothed_error(cosines: np.ndarray, bandwidth: float, grid: int = GRID) -> float:
    """smECE at a fixed bandwidth, from the cosine transform of the residuals, on a grid of so many steps.

    A Gaussian reflected at both ends of [0, 1] is diagonal in cosines: it shrinks the k-th by exp(-(pi k s)^2 / 2).
    """
    # Beyond 9.5 standard deviations it shrinks them to less than 1e-19.
    terms = min(grid, math.ceil(9.5 / (math.pi * bandwidth)) + 1 if bandwidth else GRID)
    k = np.arange(terms)
    smooth = idct(cosines[:terms] * np.exp(-np.square(np.pi * bandwidth * k) / 2), n=grid)
    density = np.abs(smooth)
    # The midpoint rule is exact for so smooth a function, but not for its modulus: where the sign changes, between
    # values of a and -b, it is off by ab / (a + b) - (a + b) / 6 of a step, up to terms of third order.
    turns = np.flatnonzero(smooth[1:] * smooth[:-1] < 0)
    both = density[turns] + density[turns + 1]
    excess = density[turns] * density[turns + 1] / both - both / 6
    return float(density.sum() - excess.sum())


def smooth_reliability(
    confidence: np.ndarray, target: np.ndarray, bandwidth: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The curve of a smooth reliability diagram, from confidences and targets (N,) of `confidence_and_target`.

    Returns:
        Arrays (GRID,): points on [0, 1], the mean target at each by the kernel of `smooth_ece` (NaN where there is
        no mass), and the density of confidences, which integrates to 1. `smooth_ece` is the bandwidth to use.
    """
    shrink = np.exp(-np.square(np.pi * bandwidth * np.arange(GRID)) / 2)
    density, mass = (
        idct(dct(_on_grid(confidence, weight)) * shrink) * GRID for weight in (np.ones_like(confidence), target)
    )
    # The transforms leave about 1e-13 of the largest density where there is none.
    some_mass = density > 1e-9 * density.max(initial=0)
    mean = np.divide(mass, density, out=np.full_like(density, np.nan), where=some_mass)
    return (np.arange(GRID) + 0.5) / GRID, mean, density
