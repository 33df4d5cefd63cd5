"""Similarity of representations: linear centred kernel alignment (Kornblith et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.errors import VotesError


def linear_cka(x: Any, y: Any) -> float:
    """Features (N, D) and (N, E) of the same N examples -> similarity from 0 to 1; NaN if either is constant.

    ||Y^T X||^2 / (||X^T X|| ||Y^T Y||) of centred features, in Frobenius norms. It does not change when features are
    rotated, shifted, or scaled as a whole.
    """
    x, y = (_centred(features) for features in (x, y))
    if len(x) != len(y):
        raise VotesError(f"CKA compares features of the same examples: {len(x)} and {len(y)} are given.")
    if len(x) < max(x.shape[1], y.shape[1]):
        # The same number from the Gram matrices of the examples, which are smaller here.
        k, m = x @ x.T, y @ y.T
        shared, own = np.vdot(k, m), np.linalg.norm(k) * np.linalg.norm(m)
    else:
        shared = np.linalg.norm(y.T @ x) ** 2
        own = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(shared / own) if own > 0 else float("nan")


def _centred(features: Any) -> np.ndarray:
    features = features.detach().cpu().double().numpy() if hasattr(features, "detach") else np.asarray(features, float)
    if features.ndim != 2 or not len(features):
        raise VotesError(f"CKA needs features of shape (examples, dimensions), not {features.shape}.")
    return features - features.mean(0)
