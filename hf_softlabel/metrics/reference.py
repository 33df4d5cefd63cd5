"""What a score is to be compared with: the best and the naive predictors on the same votes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import human
from .scoring import entropy, kl_to_annotators, soft_brier, soft_nll


def references(votes: Any, train_votes: Any = None) -> dict[str, dict[str, float]]:
    """Scores of reference predictors on votes (N, C): `floor` (the votes themselves), `uniform`, and `train_mean`."""
    p = human(votes)
    predictors = {"uniform": np.full_like(p, 1 / p.shape[1])}
    if train_votes is not None:
        predictors["train_mean"] = np.broadcast_to(human(train_votes).mean(0), p.shape)
    table = {"floor": {"soft_nll": float(entropy(p).mean()), "kl": 0.0, "soft_brier": 0.0}}
    for name, q in predictors.items():
        table[name] = {
            "soft_nll": soft_nll(q, p),
            "kl": kl_to_annotators(q, p),
            "soft_brier": soft_brier(q, p),
        }
    return table
