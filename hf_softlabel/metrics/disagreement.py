"""Distances of predicted distributions from the annotators', example by example. p is human, q is the model.

Every function is called as `f(predictions, votes, from_logits=False, per_example=False)`: the mean over examples, or
with `per_example=True` the array (N,) that it is the mean of. Of no examples the mean is NaN, and a NaN among the
predictions or votes of an example makes its score NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import array, chunks, human, mean_of, row_chunks
from .scoring import entropy, plogp

ABOVE_MINUS_1 = np.nextafter(-1.0, 0.0)
# Below it a divergence is not taken as a difference of entropies, whose rounding is 1e-15: in the distance, 1e-14.
NEAR = 1e-3
# With as many classes, comparing all pairs of them still takes less time than sorting.
FEW_CLASSES = 24


def _score(
    distance: Callable[[np.ndarray, np.ndarray], np.ndarray],
    predictions: Any,
    votes: Any,
    from_logits: bool,
    per_example: bool,
) -> float | np.ndarray:
    parts = [distance(q, p) for _, q, p in chunks(predictions, votes, from_logits)]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values if per_example else mean_of(values)


def js_distance(
    predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False
) -> float | np.ndarray:
    """ChaosNLI's JSD: the square root of the Jensen-Shannon divergence, natural log; from 0 to sqrt(log 2)."""
    return _score(lambda q, p: js(q, p, -(plogp(q) + plogp(p)).sum(-1)), predictions, votes, from_logits, per_example)


def js(q: np.ndarray, p: np.ndarray, entropies: np.ndarray) -> np.ndarray:
    """The JS distance (N,) of distributions (N, C), from H(q) + H(p) (N,): their mixture's entropy less the mean."""
    divergence = -plogp((p + q) / 2).sum(-1) - entropies / 2
    near = np.flatnonzero(~(divergence > NEAR))
    if len(near):
        divergence[near] = js_divergence(q[near], p[near])
    return np.sqrt(divergence)


def js_divergence(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The JS divergence (N,), exact where q and p are nearly the same: in four times the time."""
    # With d = (p - q) / (p + q) each class gives (p + q) / 4 * ((1 + d) log(1 + d) + (1 - d) log(1 - d)), which is
    # exact near 0. As a difference of entropies it would round to 1e-16, and the distance of q = p to 1e-8.
    total = p + q
    d = (p - q) / np.maximum(total, np.finfo(np.float64).tiny)
    # The logarithm of 0 is multiplied by 0, and only must be finite.
    above, below = np.log1p(np.maximum(d, ABOVE_MINUS_1)), np.log1p(np.maximum(-d, ABOVE_MINUS_1))
    return np.maximum((total * ((1 + d) * above + (1 - d) * below)).sum(-1) / 4, 0)


def manhattan(
    predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False
) -> float | np.ndarray:
    """LeWiDi's Manhattan distance sum_k |p_k - q_k|, from 0 to 2."""
    return _score(lambda q, p: np.abs(p - q).sum(-1), predictions, votes, from_logits, per_example)


def tvd(predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False) -> float | np.ndarray:
    """Total variation distance 1/2 sum_k |p_k - q_k|, from 0 to 1; Baan et al. (2022) call it DistCE."""
    return _score(lambda q, p: np.abs(p - q).sum(-1) / 2, predictions, votes, from_logits, per_example)


dist_ce = tvd


def wasserstein(
    predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False
) -> float | np.ndarray:
    """LeWiDi's distance for ordinal classes: 1-Wasserstein over classes 0, 1, ... C - 1, a unit apart.

    sum_k |CDF_p(k) - CDF_q(k)|, from 0 to C - 1. The columns must be in the order of the scale.
    """
    return _score(lambda q, p: np.abs((p - q).cumsum(-1)).sum(-1), predictions, votes, from_logits, per_example)


def ent_ce(
    predictions: Any,
    votes: Any,
    from_logits: bool = False,
    per_example: bool = False,
    signed: bool = False,
) -> float | np.ndarray:
    """Entropy calibration error of Baan et al. (2022), in nats: the mean of |H(q) - H(p)|, as in their Table 1.

    `signed=True` keeps the sign of their definition H(q) - H(p): below 0 the model is surer than the annotators.
    """
    difference = _score(lambda q, p: entropy(q) - entropy(p), predictions, votes, from_logits, per_example=True)
    values = difference if signed else np.abs(difference)
    return values if per_example else mean_of(values)


def rank_cs(predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False) -> float | np.ndarray:
    """Ranking calibration score of Baan et al. (2022): the share of examples whose classes q ranks as p does.

    Two classes with the same votes may come in either order, or tie. Classes with different votes must come in the
    annotators' order, and a tie of the model between them is a miss. Ties are exact. (The authors' code breaks them by
    `argsort`, thus by the order of the columns.)
    """
    # Logits are ranked as they are: softmax would tie those that underflow.
    parts = [same_ranking(array(q), human(p)) for _, q, p in row_chunks(predictions, votes)]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values if per_example else mean_of(values)


def same_ranking(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """1 where q ranks the classes as p does, else 0: (N, C) -> (N,)."""
    same = (_same_pairs if q.shape[1] <= FEW_CLASSES else _same_order)(q, p)
    return np.where(np.isnan(q).any(-1) | np.isnan(p).any(-1), np.nan, same)


def _same_order(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    order = q.argsort(-1)
    ranked_q, ranked_p = np.take_along_axis(q, order, -1), np.take_along_axis(p, order, -1)
    tied, above = ranked_p[:, 1:] == ranked_p[:, :-1], ranked_p[:, 1:] > ranked_p[:, :-1]
    return (tied | (above & (ranked_q[:, 1:] != ranked_q[:, :-1]))).all(-1)


def _same_pairs(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    wrong = np.zeros(len(q), bool)
    # Each class with the one that is `step` columns further.
    for step in range(1, q.shape[1]):
        p_here, p_there, q_here, q_there = p[:, :-step], p[:, step:], q[:, :-step], q[:, step:]
        pairs = ((p_here > p_there) & (q_here <= q_there)) | ((p_here < p_there) & (q_here >= q_there))
        wrong |= pairs.any(-1)
    return ~wrong
