"""Bootstrap intervals of all scores, over examples; paired for several sets of predictions on the same examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tqdm.auto import tqdm

from ..data.errors import VotesError
from .summary import VoteScores

RESAMPLES = 1000
LEVEL = 0.95
CALIBRATION_ERRORS = ("ece_equal_mass", "ece_equal_mass_soft", "smooth_ece", "smooth_ece_soft")


def bootstrap_scores(
    tables: Sequence[VoteScores], resamples: int = RESAMPLES, seed: int = 0, progress: bool = False
) -> list[dict[str, np.ndarray]]:
    """The scores of each table in the same resamples of the examples: arrays (resamples,) by name."""
    if resamples < 1:
        raise VotesError(f"An interval needs resamples, not {resamples} of them.")
    sizes = {len(table.examples["soft_nll"]) for table in tables}
    if len(sizes) != 1:
        raise VotesError(f"Paired resamples need the same examples in all tables, not {sorted(sizes)} of them.")
    n, rng = sizes.pop(), np.random.default_rng(seed)
    draws: list[list[dict[str, float]]] = [[] for _ in tables]
    for _ in tqdm(
        range(resamples), desc="bootstrap", unit="resample", disable=None if progress else True, leave=False
    ):
        weights = np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64)
        for table, scores in zip(tables, draws, strict=True):
            scores.append(table.scores(weights))
    return [{name: np.array([row[name] for row in scores]) for name in scores[0]} for scores in draws]


def interval(name: str, estimate: float, draws: np.ndarray, level: float = LEVEL) -> tuple[float, float] | None:
    """The confidence interval of a score from its resamples; NaN where a resample has no score.

    Means and correlations have percentile intervals. Calibration errors are biased upwards, in a resample once more:
    the percentiles of a calibrated model's would exclude 0 always. Noise adds to their squares, so the basic interval
    is taken of these, and holds the estimate. It is made for errors near 0: of large ones, and of their differences,
    it covers less often than `level` says. `brier_miscalibration` has none: a resample does not show its bias. Its
    reference is what a calibrated model has, see [`calibrated_reference`].
    """
    if name == "brier_miscalibration":
        return None
    low, high = _quantiles(_without_bias(name, estimate, draws), level)
    return (low, high) if name not in CALIBRATION_ERRORS else _with(estimate, low, high)


def difference_interval(
    name: str, estimates: tuple[float, float], draws: tuple[np.ndarray, np.ndarray], level: float = LEVEL
) -> tuple[float, float] | None:
    """The interval of second - first, from scores of both in the same resamples."""
    if name == "brier_miscalibration":
        return None
    first, second = (_without_bias(name, e, d) for e, d in zip(estimates, draws, strict=True))
    with np.errstate(invalid="ignore"):  # infinite in both
        low, high = _quantiles(second - first, level)
        return (low, high) if name not in CALIBRATION_ERRORS else _with(estimates[1] - estimates[0], low, high)


def _without_bias(name: str, estimate: float, draws: np.ndarray) -> np.ndarray:
    """Resampled scores; those that are biased are mirrored at the estimate, calibration errors by their squares."""
    if name in CALIBRATION_ERRORS:
        return np.sqrt(np.maximum(0, 2 * estimate**2 - np.square(draws)))
    return 2 * estimate - draws if name == "brier_discrimination" else draws


def _with(estimate: float, low: float, high: float) -> tuple[float, float]:
    return (low, high) if np.isnan(low) else (min(low, estimate), max(high, estimate))


def _quantiles(draws: np.ndarray, level: float) -> tuple[float, float]:
    if np.isnan(draws).any():
        return float("nan"), float("nan")
    # Values that occur, so that an infinite one is not averaged with its neighbour.
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)
