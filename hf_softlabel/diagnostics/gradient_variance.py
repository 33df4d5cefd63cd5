"""Variance of the last layer's gradient when an example's label is sampled from its votes.

With features h (D,), prediction q and a label y ~ p, the gradient of the cross-entropy by the last layer's weights is
(q - e_y) h^T. Its variance, summed over the weights, is ||h||^2 E||e_y - p||^2 = ||h||^2 (1 - ||p||^2): q drops out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ..metrics import entropy
from ..metrics.arrays import array, human, model


@dataclass(frozen=True)
class GradientVariance:
    """Per example: the variance in closed form (N,), and its Spearman correlation with the annotators' entropy.

    `label_variance` (N,) is 1 - ||p||^2, the part that the votes alone decide, with its own correlation.
    """

    variance: np.ndarray
    label_variance: np.ndarray
    entropy: np.ndarray
    correlation: float
    label_correlation: float


def gradient_variance(features: Any, votes: Any, bias: bool = False) -> GradientVariance:
    """Features (N, D) before the last layer and votes (N, C).

    Args:
        bias: count the last layer's bias too, as a feature that is always 1.
    """
    h, p = array(features), human(votes)
    squared = np.square(h).sum(-1) + bias
    label_variance = 1 - np.square(p).sum(-1)
    spread = entropy(p)
    variance = squared * label_variance
    return GradientVariance(
        variance, label_variance, spread, _spearman(variance, spread), _spearman(label_variance, spread)
    )


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    # Rounding keeps votes that are equal but for the order of classes tied.
    x, y = x.round(12), y.round(12)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(spearmanr(x, y).statistic)


def sampled_gradient_variance(
    features: Any, logits: Any, votes: Any, samples: int = 1000, seed: int = 0
) -> np.ndarray:
    """The same variance (N,) by Monte Carlo: the gradients of sampled labels, and their spread about their mean."""
    h, q, p = array(features), model(logits, from_logits=True), human(votes)
    rng = np.random.default_rng(seed)
    variance = np.empty(len(h))
    for i, (feature, prediction, share) in enumerate(zip(h, q, p, strict=True)):
        counts = rng.multinomial(samples, share)
        drawn = np.flatnonzero(counts)
        # One gradient (C, D) for each label that was drawn, as often as it was.
        gradients = (prediction - np.eye(len(share))[drawn])[:, :, None] * feature
        weights = counts[drawn] / samples
        mean = np.tensordot(weights, gradients, 1)
        variance[i] = weights @ np.square(gradients - mean).sum((1, 2)) * samples / (samples - 1)
    return variance
