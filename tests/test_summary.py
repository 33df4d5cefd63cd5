"""All scores in one pass: each is its function's, and a resample by weights is the resample itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from hf_softlabel import metrics
from hf_softlabel.data.errors import VotesError
from hf_softlabel.metrics import UndefinedScoreWarning, VoteScores, arrays, score_votes
from hf_softlabel.metrics.summary import LOWER_IS_BETTER, NAMES

pytestmark = pytest.mark.filterwarnings("ignore::hf_softlabel.metrics.UndefinedScoreWarning")
SEEDS = st.integers(0, 2**32 - 1)


def case(seed: int, n: int = 40, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, of which some tie, counts (N, C), and gold labels (N,)."""
    rng = np.random.default_rng(seed)
    votes = np.stack([rng.multinomial(10, p) for p in rng.dirichlet(np.full(classes, 0.5), n)])
    logits = (rng.normal(scale=2, size=(n, classes)) + 0.2 * votes).round(1)
    return logits, votes, rng.integers(0, classes, n)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_each_score_is_its_function(seed):
    logits, votes, gold = case(seed)
    scores = score_votes(logits, votes, gold, from_logits=True, ordinal=True)
    assert list(scores) == list(NAMES)
    assert all(type(value) is float for value in scores.values())
    same_name = ("soft_nll", "soft_brier", "js_distance", "dist_ce", "manhattan", "wasserstein", "ent_ce", "rank_cs")
    expected = {name: getattr(metrics, name)(logits, votes, from_logits=True) for name in same_name}
    expected |= {
        "kl": metrics.kl_to_annotators(logits, votes, from_logits=True),
        "accuracy": metrics.accuracy(logits, gold),
        "accuracy_majority": metrics.accuracy_majority(logits, votes),
        "ece_equal_mass": metrics.equal_mass_ece(logits, gold, from_logits=True, target="hard"),
        "ece_equal_mass_soft": metrics.equal_mass_ece(logits, votes, from_logits=True),
        "smooth_ece": metrics.smooth_ece(logits, gold, from_logits=True, target="hard"),
        "smooth_ece_soft": metrics.smooth_ece(logits, votes, from_logits=True),
        "entropy_correlation": metrics.entropy_correlation(logits, votes, from_logits=True),
    }
    parts = metrics.brier_decomposition(logits, votes, from_logits=True)
    expected |= {f"brier_{name}": value for name, value in parts.items()}
    assert scores == pytest.approx(expected, abs=1e-12)
    assert score_votes(softmax(logits, axis=1), votes, gold, ordinal=True) == pytest.approx(scores, abs=1e-9)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_weights_are_copies_of_examples(seed):
    logits, votes, gold = case(seed)
    rows = np.random.default_rng(seed).integers(0, len(votes), len(votes))
    weights = np.bincount(rows, minlength=len(votes)).astype(float)
    by_weights = VoteScores(logits, votes, gold, from_logits=True, ordinal=True).scores(weights)
    resampled = VoteScores(logits[rows], votes[rows], gold[rows], from_logits=True, ordinal=True).scores()
    assert by_weights == pytest.approx(resampled, abs=1e-9, nan_ok=True)


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_the_order_of_rows_and_classes_does_not_matter(seed):
    logits, votes, gold = case(seed)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(len(votes)), rng.permutation(4)
    scores = score_votes(logits, votes, gold, from_logits=True)
    permuted = score_votes(
        logits[rows][:, classes], votes[rows][:, classes], np.argsort(classes)[gold[rows]], from_logits=True
    )
    assert permuted == pytest.approx(scores, abs=1e-10)


def test_less_is_better_where_the_annotators_own_distribution_scores_zero():
    _, votes, _ = case(0, n=300)
    own = score_votes(votes / 10, votes, ordinal=True)
    uniform = score_votes(np.full(votes.shape, 0.25), votes, ordinal=True)
    for name in NAMES:
        if name in LOWER_IS_BETTER:
            assert own[name] < uniform[name] or name.startswith(("ece", "smooth", "brier")), name
    assert own["soft_nll"] == pytest.approx(metrics.entropy(votes).mean())
    for name in ("kl", "soft_brier", "js_distance", "dist_ce", "manhattan", "wasserstein", "ent_ce"):
        assert own[name] == pytest.approx(0, abs=1e-7), name
    for name in ("ece_equal_mass_soft", "smooth_ece_soft", "brier_miscalibration"):
        assert own[name] == pytest.approx(0, abs=1e-7), name
    assert own["accuracy"] == own["rank_cs"] == 1 and own["entropy_correlation"] == pytest.approx(1)
    # A quarter of the classes is the majority, or a little more with ties: whichever class comes first.
    assert uniform["accuracy_majority"] == pytest.approx((votes == votes.max(1, keepdims=True)).mean())


def test_the_hard_label_is_the_gold_label_only_where_all_rows_have_one():
    logits, votes, gold = case(3)
    assert VoteScores(logits, votes, gold, from_logits=True).hard_label == "gold"
    gold[7] = -1
    table = VoteScores(logits, votes, gold, from_logits=True)
    assert table.hard_label == VoteScores(logits, votes, from_logits=True).hard_label == "majority"
    assert table.scores()["accuracy"] == table.scores()["accuracy_majority"]


def test_chunks_do_not_change_the_scores(monkeypatch):
    logits, votes, gold = case(4)
    expected = score_votes(logits, votes, gold, from_logits=True)
    monkeypatch.setattr(arrays, "CHUNK", 12)
    assert score_votes(logits, votes, gold, from_logits=True) == pytest.approx(expected, abs=1e-12)
    tensors = (torch.from_numpy(x) for x in (logits, votes, gold))
    assert score_votes(*tensors, from_logits=True) == pytest.approx(expected, abs=1e-12)


def test_what_is_undefined_is_nan_with_its_reason():
    logits, votes, _ = case(5)
    table = VoteScores(np.zeros_like(logits), votes, from_logits=True)
    assert math.isnan(table.scores()["entropy_correlation"])
    assert table.undefined == {"entropy_correlation": "the predictions have the same entropy in all examples"}
    with pytest.warns(UndefinedScoreWarning, match="entropy_correlation is NaN: the predictions have the same"):
        score_votes(np.zeros_like(logits), votes, from_logits=True)
    logits[3] = np.nan
    table = VoteScores(logits, votes, from_logits=True)
    scores = table.scores()
    assert {name for name, value in scores.items() if math.isnan(value)} == set(table.undefined) == set(scores)
    with pytest.raises(VotesError, match="no predictions"):
        VoteScores(logits[:0], votes[:0])


def test_infinite_scores_stay_so_only_in_resamples_that_have_the_example():
    q, votes = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]]), np.array([[1, 1], [1, 1], [1, 3]])
    table = VoteScores(q, votes)
    assert table.scores()["soft_nll"] == math.inf
    rest = table.scores(np.array([0.0, 2.0, 1.0]))
    assert rest["soft_nll"] == pytest.approx(score_votes(q[[1, 1, 2]], votes[[1, 1, 2]])["soft_nll"])
    assert table.scores(np.array([1.0, 2.0, 0.0]))["kl"] == math.inf


@pytest.mark.parametrize("logits", [[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]]])
def test_one_example_with_extreme_logits_and_one_vote(logits):
    scores = score_votes(np.array(logits), np.array([[1, 0, 0]]), from_logits=True)
    right = logits[0][0] > 0
    assert scores["accuracy"] == float(right)
    assert scores["soft_nll"] == scores["kl"] == (0 if right else 2e4)
    assert scores["ece_equal_mass"] == scores["ece_equal_mass_soft"] == float(not right)
    assert math.isnan(scores["entropy_correlation"])


def test_a_hundred_thousand_classes():
    rng = np.random.default_rng(0)
    n, classes = 6, 100_000
    logits = rng.normal(size=(n, classes)).astype(np.float32)
    votes = np.zeros((n, classes), np.int32)
    np.add.at(votes, (np.repeat(np.arange(n), 5), rng.integers(0, classes, 5 * n)), 1)
    scores = score_votes(logits, votes, from_logits=True)
    q, p = softmax(logits.astype(float), axis=1), votes / 5
    assert scores["soft_nll"] == pytest.approx(-(p * np.log(q)).sum(1).mean())
    total = scores["brier_miscalibration"] - scores["brier_discrimination"] + scores["brier_uncertainty"]
    assert total == pytest.approx(scores["soft_brier"], abs=1e-12) == np.square(q - p).sum(1).mean()


@pytest.mark.parametrize(
    "wrong", [np.array([[2.0, -1.0], [0.5, 0.5]]), np.array([[0.3, 0.3], [0.5, 0.5]]), np.array([[3.0, 1], [0, 1]])]
)
def test_logits_that_are_given_as_probabilities_are_refused(wrong, monkeypatch):
    votes = np.array([[1, 1], [2, 0]])
    scores = (
        score_votes,
        metrics.soft_nll,
        metrics.js_distance,
        metrics.equal_mass_ece,
        metrics.soft_brier,
        metrics.entropy_correlation,
        metrics.brier_decomposition,
    )
    monkeypatch.setattr(arrays, "CHUNK", 4)  # two rows at a time
    right = np.full((3, 2), 0.5)
    for score in scores:
        with pytest.raises(VotesError, match=r"must be probabilities, and 1 row\(s\) are not: 3 .*from_logits=True"):
            score(np.concatenate([right, wrong]), np.concatenate([np.ones((3, 2), int), votes]))
