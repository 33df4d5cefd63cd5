"""Distances of predicted distributions from the annotators', example by example. p is human, q is the model.

Every function is called as `f(predictions, votes, from_logits=False, per_example=False)`: the mean over examples, or
with `per_example=True` the array (N,) that it is the mean of. Of no examples the mean is NaN, and a NaN among the
predictions or votes of an example makes its score NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import xlog1py

from ..data.errors import VotesError
from .scoring import _array, entropy, human, log_model

# Numbers per chunk of rows: temporary arrays stay at 2 MB each, in the cache, whatever N and C are.
CHUNK = 2**18


def chunks(predictions: Any, votes: Any, from_logits: bool = False) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """(rows, q, p) over chunks of rows: the model's and the annotators' distributions as float64."""
    for rows, q, p in row_chunks(predictions, votes):
        yield rows, model(q, from_logits), human(p)


def model(predictions: Any, from_logits: bool = False) -> np.ndarray:
    """Predictions (N, C) -> float64 probabilities (N, C)."""
    return np.exp(log_model(predictions, from_logits)) if from_logits else _array(predictions)


def row_chunks(predictions: Any, votes: Any) -> Iterator[tuple[slice, Any, Any]]:
    """(rows, predictions, votes) over chunks of rows, as they were given; arrays that do not fit are refused."""
    predictions, votes = (x if hasattr(x, "shape") else np.asarray(x) for x in (predictions, votes))
    for values in (predictions, votes):
        if values.ndim != 2:
            _array(values)  # refuses it
    if predictions.shape != votes.shape:
        raise VotesError(
            f"Predictions {tuple(predictions.shape)} and votes {tuple(votes.shape)} must have one shape: "
            "a row per example and a column per class, in the same order."
        )
    n, classes = predictions.shape
    step = max(1, CHUNK // max(1, classes))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        yield rows, predictions[rows], votes[rows]


def mean_of(values: np.ndarray) -> float:
    """The mean as a float; NaN, without numpy's warning, when there are none."""
    return float(values.mean()) if len(values) else float("nan")


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
    return _score(_js, predictions, votes, from_logits, per_example)


def _js(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    # With d = (p - q) / (p + q) each class gives (p + q) / 4 * ((1 + d) log(1 + d) + (1 - d) log(1 - d)), which is
    # exact near 0. As a difference of entropies it would round to 1e-16, and the distance of q = p to 1e-8.
    total = p + q
    d = np.divide(p - q, total, out=np.zeros_like(p), where=total > 0)
    divergence = (total * (xlog1py(1 + d, d) + xlog1py(1 - d, -d))).sum(-1) / 4
    return np.sqrt(np.maximum(divergence, 0))


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
    parts = [_same_ranking(_array(q), human(p)) for _, q, p in row_chunks(predictions, votes)]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values if per_example else mean_of(values)


def _same_ranking(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    order = q.argsort(-1)
    ranked_q, ranked_p = np.take_along_axis(q, order, -1), np.take_along_axis(p, order, -1)
    tied, above = ranked_p[:, 1:] == ranked_p[:, :-1], ranked_p[:, 1:] > ranked_p[:, :-1]
    same = (tied | (above & (ranked_q[:, 1:] != ranked_q[:, :-1]))).all(-1)
    return np.where(np.isnan(q).any(-1) | np.isnan(p).any(-1), np.nan, same)
