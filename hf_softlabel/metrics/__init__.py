"""Scores of predicted distributions against annotators' votes: pure functions on arrays."""

from .reference import references
from .scoring import (
    accuracy,
    entropy,
    entropy_correlation,
    kl_to_annotators,
    score_votes,
    soft_brier,
    soft_nll,
)

__all__ = [
    "accuracy",
    "entropy",
    "entropy_correlation",
    "kl_to_annotators",
    "references",
    "score_votes",
    "soft_brier",
    "soft_nll",
]
