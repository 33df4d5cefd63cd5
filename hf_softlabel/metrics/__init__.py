"""Scores of predicted distributions against annotators' votes: pure functions on arrays."""

from .calibration import (
    brier_decomposition,
    calibrated_ece,
    confidence_and_target,
    equal_mass_bins,
    equal_mass_ece,
    smooth_ece,
)
from .disagreement import dist_ce, ent_ce, js_distance, manhattan, rank_cs, tvd, wasserstein
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
    "brier_decomposition",
    "calibrated_ece",
    "confidence_and_target",
    "dist_ce",
    "ent_ce",
    "entropy",
    "entropy_correlation",
    "equal_mass_bins",
    "equal_mass_ece",
    "js_distance",
    "kl_to_annotators",
    "manhattan",
    "rank_cs",
    "references",
    "score_votes",
    "smooth_ece",
    "soft_brier",
    "soft_nll",
    "tvd",
    "wasserstein",
]
