"""Scores of predicted distributions against annotators' votes: pure functions on arrays."""

from .arrays import UndefinedScoreWarning
from .bootstrap import bootstrap_scores, difference_interval, interval
from .brier import brier_decomposition
from .calibration import (
    calibrated_ece,
    confidence_and_target,
    equal_mass_bins,
    equal_mass_ece,
    smooth_ece,
)
from .disagreement import dist_ce, ent_ce, js_distance, manhattan, rank_cs, tvd, wasserstein
from .reference import calibrated_reference, human_ceiling, references
from .scoring import (
    accuracy,
    accuracy_majority,
    entropy,
    entropy_correlation,
    kl_to_annotators,
    soft_brier,
    soft_nll,
)
from .summary import VoteScores, score_votes

__all__ = [
    "UndefinedScoreWarning",
    "VoteScores",
    "accuracy",
    "accuracy_majority",
    "bootstrap_scores",
    "brier_decomposition",
    "calibrated_ece",
    "calibrated_reference",
    "confidence_and_target",
    "difference_interval",
    "dist_ce",
    "ent_ce",
    "entropy",
    "entropy_correlation",
    "equal_mass_bins",
    "equal_mass_ece",
    "human_ceiling",
    "interval",
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
