"""What a score is to be compared with: the best, the naive and the human predictors on the same votes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import array, human, model
from .summary import VoteScores

# Random halves whose scores are averaged.
SPLITS = 10
# A half gives probability 0 to classes that the other half voted for, and an infinite soft NLL. For soft NLL and KL
# alone it gets one vote more, spread over all classes.
PRIOR_VOTES = 1.0
SMOOTHED = ("soft_nll", "kl")
# Simulations of calibrated predictions, and the scores that they are made for.
DRAWS = 20
HARD_ERRORS = ("ece_equal_mass", "smooth_ece")
SOFT_ERRORS = ("ece_equal_mass_soft", "smooth_ece_soft", "brier_miscalibration")


def split_half(votes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Deal the votes (N, C) of each example into two halves at random; the odd vote falls to either."""
    total = votes.sum(-1)
    left = total // 2 + (total % 2) * rng.integers(0, 2, len(votes))
    half, rest = np.zeros_like(votes), total.copy()
    for k in np.flatnonzero(votes.any(0)):
        # Of the votes that are not dealt yet, `left` go to this half.
        rest -= votes[:, k]
        half[:, k] = rng.hypergeometric(votes[:, k], rest, left)
        left -= half[:, k]
    return half, votes - half


def human_ceiling(
    votes: Any, gold_label: Any = None, ordinal: bool = False, splits: int = SPLITS, seed: int = 0
) -> tuple[dict[str, float], str | None]:
    """Scores of half of each example's annotators as predictors of the other half, and why there are none if so.

    Mean over random halves. A model that predicts the distribution behind the votes can do better: a half is itself a
    small sample. Examples with a single vote have no halves and are left out.
    """
    counts = array(votes)
    if (counts % 1).any() or (counts.sum(-1) < 2).all():
        return {}, "distributions and single votes cannot be halved"
    enough = counts.sum(-1) >= 2
    counts = counts[enough].astype(np.int64)
    gold = None if gold_label is None else np.asarray(gold_label)[enough]
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(splits):
        half, other = split_half(counts, rng)
        scores = VoteScores(human(half), other, gold, ordinal=ordinal).scores()
        smoothed = human(half + PRIOR_VOTES / counts.shape[1])
        tables.append({**scores, **_proper(smoothed, other)})
    return {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}, None


def _proper(predictions: np.ndarray, votes: np.ndarray) -> dict[str, float]:
    scores = VoteScores(predictions, votes).scores()
    return {name: scores[name] for name in SMOOTHED}


def references(
    votes: Any,
    train_votes: Any = None,
    gold_label: Any = None,
    ordinal: bool = False,
) -> dict[str, dict[str, float]]:
    """All scores of reference predictors on votes (N, C).

    - `floor`: the votes themselves, whose soft NLL is their entropy;
    - `uniform`: every class alike;
    - `train_mean`: the mean distribution of the training votes (M, C), or of that mean itself (C,), when given;
    - `human`: one half of the annotators against the other, see [`human_ceiling`]; when votes are counts.
    """
    p = human(votes)
    predictors = {"floor": p, "uniform": np.full_like(p, 1 / p.shape[1])}
    if train_votes is not None:
        train = array(np.atleast_2d(train_votes)) if np.ndim(train_votes) == 1 else train_votes
        predictors["train_mean"] = np.broadcast_to(human(train).mean(0), p.shape)
    table = {name: VoteScores(q, votes, gold_label, ordinal=ordinal).scores() for name, q in predictors.items()}
    ceiling, _ = human_ceiling(votes, gold_label, ordinal)
    return {**table, "human": ceiling} if ceiling else table


def calibrated_reference(
    predictions: Any, votes: Any, from_logits: bool = False, draws: int = DRAWS, seed: int = 0
) -> dict[str, float]:
    """What calibration errors would be, on average, if the predictions (N, C) were each example's own distribution.

    As many votes as each example has, and one label for the hard scores, are drawn from the predictions. Distributions
    do not say how many people voted: of these only the hard scores are known.
    """
    q = model(predictions, from_logits)
    q = q / q.sum(-1, keepdims=True)
    counts = array(votes)
    has_counts = not (counts % 1).any()
    number = counts.sum(-1).astype(np.int64) if has_counts else np.ones(len(q), np.int64)
    rng = np.random.default_rng(seed)
    names = HARD_ERRORS + (SOFT_ERRORS if has_counts else ())
    tables = []
    for _ in range(draws):
        label = rng.multinomial(1, q).argmax(-1)
        tables.append(VoteScores(q, rng.multinomial(number, q), label).scores())
    return {name: float(np.mean([table[name] for table in tables])) for name in names}
