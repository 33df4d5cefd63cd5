"""Sets of classes that hold a chosen share of the annotators' votes. p is human, q is the model.

Conformal risk control (Angelopoulos et al. 2022): on new examples that are exchangeable with the calibration split,
the expected share of votes in the set is at least `coverage`, whatever the model. The guarantee is on average over
examples, not for each of them, and holds for examples that neither the model nor a scaling was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from .data.errors import VotesError, some
from .metrics.arrays import PROBABILITY_TOLERANCE, model
from .scaling import check_shapes, load_beside_model, save_beside_model, vote_distributions

VOTE_COVERAGE_NAME = "vote_coverage.json"


@dataclass(frozen=True)
class VoteCoverage:
    """The set of an example has the classes whose score is at most `threshold`; see [`set_scores`].

    Args:
        coverage: the share of votes to hold, as asked for.
        threshold: from 0, the most probable class only, to 1, all classes.
        examples: how many it was fitted on.
    """

    coverage: float
    threshold: float
    examples: int

    def __post_init__(self):
        for name in ("coverage", "threshold"):
            value = getattr(self, name)
            # Scores are sums of probabilities, which rounding may leave a little above 1.
            if type(value) not in (int, float) or not 0 <= value <= 1 + PROBABILITY_TOLERANCE:
                raise VotesError(f"{name} must be a number from 0 to 1, not {value!r}.")

    def sets(self, predictions: Any, from_logits: bool = False) -> np.ndarray:
        """Predictions (N, C) -> bool (N, C): the classes in each example's set, at least one."""
        return set_scores(predictions, from_logits) <= self.threshold

    def measure(self, predictions: Any, votes: Any, from_logits: bool = False) -> dict[str, Any]:
        """How the sets do on other examples.

        Args:
            predictions: (N, C) probabilities, or logits with `from_logits=True`.
            votes: (N, C) counts or distributions.

        Returns:
            `covered`, the mean share of an example's votes in its set; `covered_interval`, its 95% interval by the
            normal law; `all_covered`, the share of examples with every vote in the set; `set_size`, the mean; and
            `set_sizes`, the number of examples by the size of their set.
        """
        inside = self.sets(predictions, from_logits)
        p = vote_distributions(votes)
        check_shapes(inside, p)
        n, classes = p.shape
        # What is left out is summed, so that an example with every vote in its set counts exactly 1.
        covered = 1 - np.where(inside, 0, p).sum(-1)
        mean = float(covered.mean())
        half = 1.96 * float(covered.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
        sizes = np.bincount(inside.sum(-1), minlength=classes + 1)[1:]
        return {
            "covered": mean,
            "covered_interval": np.clip([mean - half, mean + half], 0, 1).tolist(),
            "all_covered": float((covered == 1).mean()),
            "set_size": float(inside.sum(-1).mean()),
            "set_sizes": {size: int(examples) for size, examples in enumerate(sizes, 1)},
        }

    def save(self, folder: str | Path) -> Path:
        """Write `vote_coverage.json` into a model's folder."""
        return save_beside_model(self, folder, VOTE_COVERAGE_NAME)

    @classmethod
    def load(cls, source: str | Path, revision: str | None = None) -> VoteCoverage:
        """Read it from a model's folder, a file, or a model repository of the Hub."""
        return load_beside_model(cls, source, VOTE_COVERAGE_NAME, revision)


def fit_vote_coverage(predictions: Any, votes: Any, coverage: float = 0.9, from_logits: bool = False) -> VoteCoverage:
    """The least threshold whose sets hold an expected share `coverage` of the votes on new examples.

    With the loss L_i = 1 - sum of p_ik over the set, and n examples, it is the least threshold for which
    n / (n + 1) * mean L + 1 / (n + 1) <= 1 - coverage.

    Args:
        predictions: (N, C) probabilities, or logits with `from_logits=True`.
        votes: (N, C) counts or distributions.
        coverage: between 0 and 1.
    """
    if not 0 < coverage < 1:
        raise VotesError(f"coverage must lie between 0 and 1, not {coverage!r}; all classes cover everything.")
    p = vote_distributions(votes)
    n = len(p)
    # As a decimal fraction: 1 - 0.9 in floats is a little too small, and would ask for ten examples instead of nine.
    alpha = 1 - Fraction(str(float(coverage)))
    needed = ceil(1 / alpha - 1)
    if n < needed:
        raise VotesError(
            f"{n} example(s) cannot promise a coverage of {coverage}: at least {needed} are needed. "
            "Use more of them, or a lower coverage."
        )
    scores = set_scores(predictions, from_logits)
    check_shapes(scores, p)
    # Votes are left out from the highest score downwards, as long as the budget lasts; the first vote that it does not
    # pay for sets the threshold. (1e-9 of an example: sums of thirds must not depend on the order of rows.)
    budget = float(alpha * (n + 1) - 1) + 1e-9
    voted = p > 0  # the others weigh nothing, and are most of what there is to sort
    scores, mass = scores[voted], p[voted]
    order = np.argsort(-scores)
    first_kept = int(np.searchsorted(np.cumsum(mass[order]), budget))
    return VoteCoverage(float(coverage), float(scores[order[min(first_kept, len(order) - 1)]]), n)


def set_scores(predictions: Any, from_logits: bool = False) -> np.ndarray:
    """s_ik, the sum of q_ij over the classes j that are more probable than k: (N, C) -> (N, C).

    It is 0 for the most probable class. Classes of one probability have one score, and enter a set together.
    """
    q = model(predictions, from_logits)
    wrong = np.flatnonzero(np.isnan(q).any(-1))
    if len(wrong):
        raise VotesError(f"Predictions are not numbers in rows {some(wrong)}: leave these examples out.")
    order = np.argsort(-q, axis=-1)
    ranked = np.take_along_axis(q, order, -1)
    before = np.zeros_like(q)
    np.cumsum(ranked[:, :-1], axis=-1, out=before[:, 1:])
    # The sum stays where it is until the probability falls.
    before[:, 1:][ranked[:, 1:] == ranked[:, :-1]] = 0
    ranked_scores = np.maximum.accumulate(before, axis=-1)
    scores = np.empty_like(q)
    # Rounding keeps scores together that differ in the last bits, as those of logits and of their softmax do.
    np.put_along_axis(scores, order, ranked_scores.round(12), -1)
    return scores
