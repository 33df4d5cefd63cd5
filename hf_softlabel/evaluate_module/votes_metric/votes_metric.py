"""Scores of predicted distributions against annotators' votes, as an `evaluate` metric.

`evaluate` copies this file alone, so it needs nothing but the installed package.
"""

import datasets
import evaluate
import numpy as np

from hf_softlabel import metrics
from hf_softlabel.data.errors import VotesError, some

# By their names in a run's metrics.json: `_soft` is calibration to the annotators, not to a hard label.
SCORES = {
    "soft_nll": metrics.soft_nll,
    "kl": metrics.kl_to_annotators,
    "soft_brier": metrics.soft_brier,
    # Softmax keeps the largest where it is.
    "accuracy_majority": lambda predictions, votes, from_logits: metrics.accuracy_majority(predictions, votes),
    "ece_equal_mass_soft": metrics.equal_mass_ece,
    "smooth_ece_soft": metrics.smooth_ece,
    "entropy_correlation": metrics.entropy_correlation,
    "js_distance": metrics.js_distance,
    "dist_ce": metrics.dist_ce,
    "manhattan": metrics.manhattan,
    "wasserstein": metrics.wasserstein,
    "ent_ce": metrics.ent_ce,
    "rank_cs": metrics.rank_cs,
}
# Without a name: all but the one that is only for classes that are steps of a scale.
DEFAULT = [name for name in SCORES if name != "wasserstein"]

DESCRIPTION = "Scores of predicted distributions against the votes of annotators, who may disagree."
INPUTS = f"""
Args:
    predictions: for each example a list of C probabilities, or logits with `from_logits=True`.
    references: for each example its votes, a list of C counts or shares, in the same order of classes.
    from_logits (bool): whether the predictions are logits.

Returns:
    A dictionary with the score that was loaded, one of {", ".join(SCORES)}; without a name with all of them but
    wasserstein, which is for classes that are steps of a scale.
"""
CITATION = """
@inproceedings{gheibi2026same,
  title = {Same Target, Different Basins: Hard vs. Soft Labels for Annotator Distributions},
  author = {Gheibi, Mirerfan and Ghazizadeh, Gashin},
  booktitle = {2nd Workshop on Epistemic Intelligence in Machine Learning (EIML@ICML 2026)},
  year = {2026},
}
"""


class VotesMetric(evaluate.Metric):
    """One score by its name, or without a name all in `DEFAULT`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", *SCORES):
            raise VotesError(f"There is no score {self.config_name!r}. There are: {', '.join(SCORES)}.")
        row = datasets.List(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": row, "references": row}),
        )

    def _compute(
        self, predictions: list[list[float]], references: list[list[float]], from_logits: bool = False
    ) -> dict[str, float]:
        q, votes = _array("predictions", predictions), _array("references", references)
        names = DEFAULT if self.config_name == "default" else [self.config_name]
        return {name: SCORES[name](q, votes, from_logits=from_logits) for name in names}


def _array(name: str, rows: list[list[float]]) -> np.ndarray:
    """Rows of C numbers -> float64 (N, C)."""
    classes = len(rows[0]) if rows else 0
    ragged = [i for i, row in enumerate(rows) if len(row) != classes]
    if ragged:
        raise VotesError(
            f"{name} have {classes} classes in row 0, but not in row(s) {some(ragged)}: a number per class is needed."
        )
    return np.array(rows, np.float64).reshape(len(rows), classes)
