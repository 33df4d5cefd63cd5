"""Proper scoring rules and agreement with annotators. Natural logarithms; p is human, q is the model.

Every function is called as `f(predictions, votes)`: predictions (N, C) are probabilities, or logits with
`from_logits=True`; votes (N, C) are counts or distributions. numpy arrays or torch tensors in, float out; with
`per_example=True` the array (N,) that it is the mean of. Of no examples the mean is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import array, human, labels_of, log_model, log_model_and_model, mean_of, row_chunks, undefined


def entropy(distributions: Any) -> np.ndarray:
    """Shannon entropy in nats of each row: (N, C) -> (N,)."""
    p = human(distributions)
    return -plogp(p).sum(-1)


def plogp(p: np.ndarray) -> np.ndarray:
    """p log p, and 0 of 0."""
    # As exact as scipy's xlogy, in a fifth of the time: 0 times a finite logarithm is 0.
    values = np.maximum(p, np.finfo(np.float64).tiny)
    np.log(values, out=values)
    values *= p
    return values


def cross_entropy(p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """-sum_k p_k log q_k of each row: (N, C) -> (N,)."""
    with np.errstate(invalid="ignore"):
        value = (p * log_q).sum(-1)
    if np.isnan(value).any():
        # 0 * log 0 = 0: only classes that somebody voted for count.
        value = np.multiply(p, log_q, out=np.zeros_like(p), where=p != 0).sum(-1)
    return -value


def _score(
    rule: Callable[[np.ndarray, np.ndarray], np.ndarray],
    predictions: Any,
    votes: Any,
    from_logits: bool,
    per_example: bool,
) -> float | np.ndarray:
    """A rule(p, log q) of distributions, in chunks of rows."""
    parts = [
        rule(human(people), log_model(raw, from_logits, rows.start))
        for rows, raw, people in row_chunks(predictions, votes)
    ]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values if per_example else mean_of(values)


def soft_nll(predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False) -> float | np.ndarray:
    """mean_i -sum_k p_ik log q_ik, the papers' primary metric."""
    return _score(cross_entropy, predictions, votes, from_logits, per_example)


def kl_to_annotators(
    predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False
) -> float | np.ndarray:
    """mean KL(p || q) = soft NLL - H(p)."""
    return _score(_kl, predictions, votes, from_logits, per_example)


def _kl(p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    # Rounding leaves -1e-16 where q = p.
    return np.maximum(cross_entropy(p, log_q) + plogp(p).sum(-1), 0)


def soft_brier(
    predictions: Any, votes: Any, from_logits: bool = False, per_example: bool = False
) -> float | np.ndarray:
    """mean_i sum_k (q_ik - p_ik)^2."""
    return _score(lambda p, log_q: np.square(np.exp(log_q) - p).sum(-1), predictions, votes, from_logits, per_example)


def accuracy(predictions: Any, labels: Any, per_example: bool = False) -> float | np.ndarray:
    """The share of rows whose largest prediction is the label; predictions (N, C), labels (N,).

    Where several classes share the largest prediction, the row counts for the share of them that is right: no score
    depends on the order of the classes.
    """
    q = array(predictions)
    hits = Top(q).hits(labels_of(labels, q.shape))
    return hits if per_example else mean_of(hits)


def accuracy_majority(predictions: Any, votes: Any, per_example: bool = False) -> float | np.ndarray:
    """The share of rows whose largest prediction is a majority: a class that no other has more votes than."""
    parts = [Top(array(raw)).majority_hits(human(people)) for _, raw, people in row_chunks(predictions, votes)]
    hits = np.concatenate(parts) if parts else np.empty(0)
    return hits if per_example else mean_of(hits)


class Top:
    """The class with the largest q (N, C) of each row, or the classes that share it."""

    def __init__(self, q: np.ndarray):
        self.largest = q.max(-1)
        self.on_top = q == self.largest[:, None]
        self.number = self.on_top.sum(-1)  # 0 where q has NaNs, which equal nothing

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean of values (N, C) over the classes on top: (N,); NaN where q has NaNs."""
        with np.errstate(invalid="ignore"):
            return (self.on_top * values).sum(-1) / self.number

    def hits(self, labels: np.ndarray) -> np.ndarray:
        """The share (N,) of the classes on top that is the label (N,)."""
        with np.errstate(invalid="ignore"):
            return self.on_top[np.arange(len(labels)), labels.astype(np.intp)] / self.number

    def majority_hits(self, p: np.ndarray) -> np.ndarray:
        """The share (N,) of the classes on top that no other has more of p (N, C) than; NaN where nobody voted."""
        most = p.max(-1)
        return np.where(np.isnan(most), np.nan, self.mean(p == most[:, None]))


def entropy_correlation(predictions: Any, votes: Any, from_logits: bool = False) -> float:
    """Spearman correlation over examples of H(q) with H(p); NaN, with a warning that says why, if undefined."""
    machine, people = [], []
    for rows, raw, votes_of_rows in row_chunks(predictions, votes):
        log_q, q = log_model_and_model(raw, from_logits, rows.start)
        machine.append(cross_entropy(q, log_q))
        people.append(entropy(votes_of_rows))
    value, reason = rank_correlation(*(TiedRanks(np.concatenate([[], *parts])) for parts in (machine, people)))
    return undefined(reason) if reason else value


class TiedRanks:
    """The order of values (N,), found once: their ranks in any resample follow from its weights without sorting."""

    def __init__(self, values: Any):
        # Rounding keeps entropies of distributions that are equal but for their last bit tied.
        values = np.asarray(values, np.float64).round(12)
        self.defined = bool(len(values)) and not np.isnan(values).any()
        self.groups, self.place = np.unique(values, return_inverse=True)

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """The mean rank (N,) of each value among so many copies (N,) of each."""
        mass = np.bincount(self.place, weights, minlength=len(self.groups))
        return (np.cumsum(mass) - mass / 2)[self.place]


def rank_correlation(
    model: TiedRanks, people: TiedRanks, weights: np.ndarray | None = None
) -> tuple[float, str | None]:
    """Spearman's correlation of two entropies (N,), and why it is NaN if it is."""
    n = len(model.place)
    weights = np.ones(n) if weights is None else weights
    if n == 0 or np.count_nonzero(weights) < 2:
        return float("nan"), "a correlation needs two examples"
    if not (model.defined and people.defined):
        return float("nan"), "some predictions or votes are not numbers"
    x, y = (ranks - np.average(ranks, weights=weights) for ranks in (model.ranks(weights), people.ranks(weights)))
    for name, ranks in (("predictions", x), ("votes", y)):
        if not np.any(ranks[weights > 0]):
            return float("nan"), f"the {name} have the same entropy in all examples"
    wx = weights * x
    return float(wx @ y / np.sqrt((wx @ x) * ((weights * y) @ y))), None
