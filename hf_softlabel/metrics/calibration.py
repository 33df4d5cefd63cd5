"""Calibration of the predicted class, and the Brier score's parts. p is human, q is the model.

The confidence c of an example is max_k q_k. What it is to be compared with is chosen by `target`:
- `annotators`: votes (N, C), the annotators' mass on the predicted class;
- `hard`: labels (N,) in place of the votes, 1 where the predicted class is the label and 0 elsewhere.
Where several classes share the largest probability, the target is its mean over them, so that no score depends on the
order of the classes (a uniform predictor would else be scored by whichever class comes first).
Of no examples, or with a NaN among confidences or targets, every score is NaN.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import brentq, isotonic_regression

from ..data.errors import VotesError
from .disagreement import chunks, model, row_chunks
from .scoring import human

BINS = 15
# Points of the grid on [0, 1] for smooth ECE: its step is far below any bandwidth that N rows can resolve.
GRID = 2**15


def confidence_and_target(
    predictions: Any, votes: Any, from_logits: bool = False, target: str = "annotators"
) -> tuple[np.ndarray, np.ndarray]:
    """The confidence (N,) in the predicted class and its target (N,): all that ECEs and reliability diagrams need."""
    if target not in ("annotators", "hard"):
        raise VotesError(f"target is 'annotators' or 'hard', not {target!r}.")
    shape = tuple(np.shape(predictions))
    if target == "hard":
        labels = _labels(votes, shape)
        votes = predictions  # unused: so that the rows below are the predictions' alone
    confidence, outcome = np.empty(shape[0]), np.empty(shape[0])
    for rows, raw, people in row_chunks(predictions, votes):
        q = model(raw, from_logits)
        p = labels[rows, None] == np.arange(shape[1]) if target == "hard" else human(people)
        confidence[rows] = q.max(-1)
        top = q == q.max(-1, keepdims=True)
        # A NaN equals no maximum, and leaves no class to take the mean over.
        with np.errstate(invalid="ignore"):
            outcome[rows] = np.where(top, p, 0).sum(-1) / top.sum(-1)
    return confidence, outcome


def _labels(labels: Any, shape: tuple[int, ...]) -> np.ndarray:
    labels = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if labels.shape != shape[:1]:
        raise VotesError(
            f"target='hard' needs one label per example, shape {shape[:1]}, not {labels.shape}; "
            "votes are scored with target='annotators'."
        )
    unknown = np.flatnonzero(~np.isin(labels, np.arange(shape[-1])))
    if len(unknown):
        raise VotesError(
            f"Labels must be whole numbers from 0 to {shape[-1] - 1}, and rows {unknown[:5].tolist()} are not: "
            "leave these examples out."
        )
    return labels


def equal_mass_bins(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin (N,), 0 to bins - 1, of each confidence: edges at the quantiles, so that bins hold the same mass.

    Equal confidences share a bin, whatever the order of rows; bins are then uneven, or empty.
    """
    # Rounding keeps confidences that are equal but for their last bit together.
    rounded = confidence.round(12)
    n = len(rounded)
    if n == 0:
        return np.empty(0, np.int64)
    edges = np.sort(rounded)[np.arange(1, bins) * n // bins]
    return np.searchsorted(edges, rounded, side="right")


def equal_mass_ece(
    predictions: Any, votes: Any, from_logits: bool = False, target: str = "annotators", bins: int = BINS
) -> float:
    """Expected calibration error over equal-mass bins: sum_b n_b / N |mean target - mean confidence|.

    It is biased upwards: compare it with `calibrated_ece`, its value for a calibrated model.
    """
    confidence, outcome = confidence_and_target(predictions, votes, from_logits, target)
    if not len(confidence):
        return float("nan")
    gaps = np.bincount(equal_mass_bins(confidence, bins), outcome - confidence)
    return float(np.abs(gaps).sum() / len(confidence))


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
        warnings.warn(
            "calibrated_ece is NaN: it needs the counts of votes, and these are distributions.", stacklevel=2
        )
    if m is None or not n or np.isnan(outcome).any():
        return float("nan")
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
    residual = outcome - confidence
    if not len(confidence) or np.isnan(residual).any():
        return float("nan")
    cosines = dct(_residuals_on_grid(confidence, residual), type=1)
    # No residual is larger than 1: at s = 0 the error is above s, at s = 2 below.
    return float(brentq(lambda s: smoothed_error(cosines, s) - s, 0.0, 2.0, xtol=1e-10))


def _residuals_on_grid(confidence: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """The density (GRID + 1,) of residuals / N per grid step, each shared by the two nearest points."""
    position = confidence * GRID
    left = np.minimum(position.astype(np.int64), GRID - 1)
    share = (position - left) * residual
    mass = np.bincount(left, residual - share, minlength=GRID + 1)
    mass[1:] += np.bincount(left, share, minlength=GRID)
    # The two boundary points own half a step.
    mass[[0, -1]] *= 2
    return mass / len(confidence)


def smoothed_error(cosines: np.ndarray, bandwidth: float) -> float:
    """smECE at a fixed bandwidth, from the cosine transform of the residuals.

    A Gaussian reflected at both ends of [0, 1] is diagonal in cosines: it shrinks the k-th by exp(-(pi k s)^2 / 2).
    """
    k = np.arange(len(cosines))
    density = np.abs(idct(cosines * np.exp(-np.square(np.pi * bandwidth * k) / 2), type=1))
    return float(density.sum() - (density[0] + density[-1]) / 2)


def brier_decomposition(predictions: Any, votes: Any, from_logits: bool = False) -> dict[str, float]:
    """The soft Brier score's CORP parts (Dimitriadis et al. 2021), summed over classes.

    Each class's q_k is recalibrated by isotonic regression of the annotators' p_k on it:
    - `miscalibration`: the score less that of the recalibrated predictions (reliability);
    - `discrimination`: by how much these are better than always predicting the mean of p (resolution);
    - `uncertainty`: the score of that mean.
    soft Brier = miscalibration - discrimination + uncertainty, and no part is negative. Binned decompositions leave a
    remainder. NaN of no examples.
    """
    shape = tuple(np.shape(predictions))
    q, p = np.empty(shape[::-1]), np.empty(shape[::-1])  # a class per row: columns are read one after another
    for rows, q_rows, p_rows in chunks(predictions, votes, from_logits):
        q[:, rows], p[:, rows] = q_rows.T, p_rows.T
    parts = dict.fromkeys(("miscalibration", "discrimination", "uncertainty"), 0.0)
    if not shape[0] or np.isnan(q).any() or np.isnan(p).any():
        return dict.fromkeys(parts, float("nan"))
    for q_k, p_k in zip(q, p, strict=True):
        recalibrated, mean = _isotonic(q_k, p_k), p_k.mean()
        score, best, constant = (np.square(x - p_k).mean() for x in (q_k, recalibrated, mean))
        parts["miscalibration"] += float(score - best)
        parts["discrimination"] += float(constant - best)
        parts["uncertainty"] += float(constant)
    return parts


def _isotonic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The non-decreasing function of x that is nearest to y, at every x."""
    # Equal x must get one value. Rounding keeps those together that differ in the last bits; of the logarithm, so that
    # tiny probabilities keep their ranks.
    with np.errstate(divide="ignore"):
        log_x = np.log(x).round(12)
    order = log_x.argsort()
    ranked = log_x[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    counts = np.diff(np.append(starts, len(x)))
    means = np.add.reduceat(y[order], starts) / counts
    fitted = np.empty_like(y)
    fitted[order] = np.repeat(isotonic_regression(means, weights=counts).x, counts)
    return fitted
