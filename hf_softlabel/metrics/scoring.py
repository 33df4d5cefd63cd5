"""Proper scoring rules and agreement with annotators. Natural logarithms; p is human, q is the model.

Every function is called as `f(predictions, votes)`: predictions (N, C) are probabilities, or logits with
`from_logits=True`; votes (N, C) are counts or distributions. numpy arrays or torch tensors in, float out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_softmax, xlogy
from scipy.stats import spearmanr

from ..data.errors import VotesError


def human(votes: Any) -> np.ndarray:
    """Counts or distributions (N, C) -> float64 distributions (N, C)."""
    p = _array(votes)
    return p / p.sum(-1, keepdims=True)


def log_model(predictions: Any, from_logits: bool = False) -> np.ndarray:
    """Predictions (N, C) -> float64 log probabilities (N, C); a zero probability gives -inf."""
    q = _array(predictions)
    if from_logits:
        return log_softmax(q, axis=-1)
    with np.errstate(divide="ignore"):
        return np.log(q)


def _array(values: Any) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        values = values.detach().cpu().double().numpy() if hasattr(values, "detach") else np.asarray(values)
    if values.ndim != 2:
        raise VotesError(f"An array of shape (examples, classes) is needed, not {values.shape}.")
    return values.astype(np.float64, copy=False)


def entropy(distributions: Any) -> np.ndarray:
    """Shannon entropy in nats of each row: (N, C) -> (N,)."""
    p = human(distributions)
    return -xlogy(p, p).sum(-1)


def _cross_entropy(p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    # 0 * log 0 = 0: only classes that somebody voted for count.
    return -np.where(p > 0, p * np.where(p > 0, log_q, 0.0), 0.0).sum(-1)


def soft_nll(predictions: Any, votes: Any, from_logits: bool = False) -> float:
    """mean_i -sum_k p_ik log q_ik, the papers' primary metric."""
    return float(_cross_entropy(human(votes), log_model(predictions, from_logits)).mean())


def kl_to_annotators(predictions: Any, votes: Any, from_logits: bool = False) -> float:
    """mean KL(p || q) = soft NLL - H(p)."""
    return soft_nll(predictions, votes, from_logits) - float(entropy(votes).mean())


def soft_brier(predictions: Any, votes: Any, from_logits: bool = False) -> float:
    """mean_i sum_k (q_ik - p_ik)^2."""
    q = np.exp(log_model(predictions, from_logits))
    return float(np.square(q - human(votes)).sum(-1).mean())


def accuracy(predictions: Any, labels: Any) -> float:
    """The share of rows whose largest prediction is the label; predictions (N, C), labels (N,)."""
    return float((_array(predictions).argmax(-1) == np.asarray(labels)).mean())


def entropy_correlation(predictions: Any, votes: Any, from_logits: bool = False) -> float:
    """Spearman correlation over examples of H(q) with H(p); NaN when either is constant."""
    model, people = entropy(np.exp(log_model(predictions, from_logits))), entropy(votes)
    # Rounding keeps distributions that are equal but for their last bit tied.
    model, people = model.round(12), people.round(12)
    if len(model) < 2 or np.ptp(model) == 0 or np.ptp(people) == 0:
        return float("nan")
    return float(spearmanr(model, people).statistic)


def score_votes(logits: Any, votes: Any, gold_label: Any = None) -> dict[str, float]:
    """The scores logged at every evaluation, from logits (N, C).

    `accuracy` is against the gold label where all rows have one (`gold_label` >= 0), else against the majority.
    Where several classes share the most votes, any of them counts as the majority.
    """
    votes_array = _array(votes)
    chosen = _array(logits).argmax(-1)
    majority = votes_array[np.arange(len(chosen)), chosen] == votes_array.max(-1)
    scores = {
        "soft_nll": soft_nll(logits, votes, from_logits=True),
        "kl": kl_to_annotators(logits, votes, from_logits=True),
        "soft_brier": soft_brier(logits, votes, from_logits=True),
        "accuracy_majority": float(majority.mean()),
        "entropy_correlation": entropy_correlation(logits, votes, from_logits=True),
    }
    gold = None if gold_label is None else np.asarray(gold_label)
    known = gold is not None and len(gold) > 0 and bool((gold >= 0).all())
    scores["accuracy"] = accuracy(logits, gold) if known else scores["accuracy_majority"]
    return scores
