"""All scores of predictions in one pass: what every evaluation logs and `hf-softlabel score` prints."""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any

import numpy as np

from ..data.errors import VotesError
from .arrays import UndefinedScoreWarning, array, human, labels_of, log_model_and_model, row_chunks
from .brier import BrierCurves, ClassColumns
from .calibration import Confidences
from .disagreement import js, same_ranking
from .scoring import TiedRanks, Top, cross_entropy, plogp, rank_correlation

# The scores in the order in which they are shown, and whether less of each is better. What is neither is a fact about
# the votes.
NAMES = {
    "soft_nll": True,
    "kl": True,
    "soft_brier": True,
    "accuracy": False,
    "accuracy_majority": False,
    "ece_equal_mass": True,
    "ece_equal_mass_soft": True,
    "smooth_ece": True,
    "smooth_ece_soft": True,
    "entropy_correlation": False,
    "js_distance": True,
    "dist_ce": True,
    "manhattan": True,
    "wasserstein": True,
    "ent_ce": True,
    "rank_cs": False,
    "brier_miscalibration": True,
    "brier_discrimination": False,
    "brier_uncertainty": None,
}
TITLES = {
    "soft_nll": "soft NLL",
    "kl": "KL to annotators",
    "soft_brier": "soft Brier",
    "accuracy": "accuracy",
    "accuracy_majority": "accuracy (majority)",
    "ece_equal_mass": "ECE, hard label",
    "ece_equal_mass_soft": "ECE, annotators",
    "smooth_ece": "smooth ECE, hard label",
    "smooth_ece_soft": "smooth ECE, annotators",
    "entropy_correlation": "entropy correlation",
    "js_distance": "JS distance",
    "dist_ce": "DistCE (TVD)",
    "manhattan": "Manhattan",
    "wasserstein": "Wasserstein",
    "ent_ce": "EntCE",
    "rank_cs": "RankCS",
    "brier_miscalibration": "Brier miscalibration",
    "brier_discrimination": "Brier discrimination",
    "brier_uncertainty": "Brier uncertainty",
}
LOWER_IS_BETTER = tuple(name for name, lower in NAMES.items() if lower)


class VoteScores:
    """Every score of predictions (N, C) against votes (N, C).

    Args:
        predictions: probabilities, or logits with `from_logits=True`.
        votes: counts or distributions.
        gold_label: (N,) class indices, negative where there is none. The hard label is the gold label where all rows
            have one, else the majority of the votes (any class that no other has more votes than).
        ordinal: the classes are steps of a scale in their order: adds `wasserstein`.

    Attributes:
        examples: arrays (N,) of the scores that are means over examples.
        hard_label: `gold` or `majority`.
        undefined: why a score is NaN, by its name.
    """

    def __init__(
        self,
        predictions: Any,
        votes: Any,
        gold_label: Any = None,
        from_logits: bool = False,
        ordinal: bool = False,
    ):
        if not len(predictions):
            raise VotesError("There are no predictions to score.")
        gold = np.full(len(predictions), -1) if gold_label is None else np.asarray(gold_label)
        has_gold = bool((gold >= 0).all())
        if has_gold:
            labels_of(gold, tuple(np.shape(predictions)))
        self.hard_label = "gold" if has_gold else "majority"
        columns: dict[str, np.ndarray] = defaultdict(lambda: np.empty(len(predictions)))
        by_class = ClassColumns(np.shape(predictions))
        for rows, raw, people in row_chunks(predictions, votes):
            p, (log_q, q) = human(people), log_model_and_model(raw, from_logits, rows.start)
            values = array(raw)  # logits are ranked as they are: softmax would tie those that underflow
            difference = p - q
            squares = np.square(difference)
            by_class.fill(rows, log_q, p, squares)
            top = Top(values)
            majority = top.majority_hits(p)
            nll, human_entropy, model_entropy = cross_entropy(p, log_q), -plogp(p).sum(-1), cross_entropy(q, log_q)
            distance = np.abs(difference).sum(-1)
            part = {
                "soft_nll": nll,
                "kl": np.maximum(nll - human_entropy, 0),  # rounding leaves -1e-16 where q = p
                "soft_brier": squares.sum(-1),
                "accuracy": top.hits(gold[rows]) if has_gold else majority,
                "accuracy_majority": majority,
                "js_distance": js(q, p, model_entropy + human_entropy),
                "dist_ce": distance / 2,
                "manhattan": distance,
                "wasserstein": np.abs(difference.cumsum(-1)).sum(-1) if ordinal else None,
                "ent_ce": np.abs(model_entropy - human_entropy),
                "rank_cs": same_ranking(values, p),
                "confidence": q.max(-1),
                "votes_on_top": top.mean(p),
                "human_entropy": human_entropy,
                "model_entropy": model_entropy,
            }
            for name, column in part.items():
                if column is not None:
                    columns[name][rows] = column
        self._model_entropy, self._human_entropy = (
            TiedRanks(columns.pop(name)) for name in ("model_entropy", "human_entropy")
        )
        self._confidence, self._on_top = Confidences(columns.pop("confidence")), columns.pop("votes_on_top")
        self._brier = BrierCurves(by_class)
        self.examples = dict(columns)
        self.undefined: dict[str, str] = {}

    def scores(self, weights: np.ndarray | None = None) -> dict[str, float]:
        """All scores, of the examples or of a resample in which there are `weights` (N,) copies of each."""
        scores = {name: _mean(values, weights) for name, values in self.examples.items()}
        hard, c = self.examples["accuracy"], self._confidence
        bin_of = c.bins(weights=weights)
        scores["ece_equal_mass"] = c.equal_mass_ece(hard, weights, bin_of)
        scores["ece_equal_mass_soft"] = c.equal_mass_ece(self._on_top, weights, bin_of)
        scores["smooth_ece"] = c.smooth_ece(hard, weights)
        scores["smooth_ece_soft"] = c.smooth_ece(self._on_top, weights)
        correlation, reason = rank_correlation(self._model_entropy, self._human_entropy, weights)
        scores["entropy_correlation"] = correlation
        scores |= {f"brier_{name}": part for name, part in self._brier.parts(weights).items()}
        if weights is None:
            self.undefined = {
                name: (name == "entropy_correlation" and reason) or "some predictions or votes are not numbers"
                for name, value in scores.items()
                if np.isnan(value)
            }
        return {name: scores[name] for name in NAMES if name in scores}


def _mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    if weights is None:
        return float(values.mean())
    infinite = np.isinf(values)
    if infinite.any():
        # 0 copies of an infinite score are 0, not NaN.
        return float("inf") if weights[infinite].any() else _mean(values[~infinite], weights[~infinite])
    return float(values @ weights / weights.sum())


def score_votes(
    predictions: Any, votes: Any, gold_label: Any = None, from_logits: bool = False, ordinal: bool = False
) -> dict[str, float]:
    """All scores as floats, see [`VoteScores`]; NaN, with a warning that says why, where one is undefined."""
    table = VoteScores(predictions, votes, gold_label, from_logits, ordinal)
    scores = table.scores()
    for name, reason in table.undefined.items():
        warnings.warn(UndefinedScoreWarning(f"{name} is NaN: {reason}."), stacklevel=2)
    return scores
