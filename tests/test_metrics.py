"""Scores by hand-worked numbers and against scipy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

from hf_softlabel.data.errors import VotesError
from hf_softlabel.metrics import (
    UndefinedScoreWarning,
    accuracy,
    accuracy_majority,
    entropy,
    entropy_correlation,
    kl_to_annotators,
    score_votes,
    soft_brier,
    soft_nll,
)
from hf_softlabel.metrics.arrays import log_model_and_model
from hf_softlabel.metrics.scoring import TiedRanks, Top

pytestmark = pytest.mark.filterwarnings("ignore::hf_softlabel.metrics.UndefinedScoreWarning")
SEEDS = st.integers(0, 2**32 - 1)
CLASS_SCORES = (soft_nll, kl_to_annotators, soft_brier, entropy_correlation)


def case(seed: int, n: int = 20, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits and counts (N, C), with some classes that nobody voted for."""
    rng = np.random.default_rng(seed)
    votes = np.stack([rng.multinomial(10, p) for p in rng.dirichlet(np.full(classes, 0.5), n)])
    return rng.normal(scale=3, size=(n, classes)), votes


def test_scores_by_hand():
    q, votes = np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([[3, 1], [0, 2]])
    # p = (3/4, 1/4) and (0, 1).
    nll = (math.log(2) + math.log(4 / 3)) / 2
    human = (0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / 2
    assert soft_nll(q, votes) == pytest.approx(nll, abs=1e-15)
    assert kl_to_annotators(q, votes) == pytest.approx(nll - human, abs=1e-15)
    # (1/16 + 1/16 + 1/16 + 1/16) / 2.
    assert soft_brier(q, votes) == pytest.approx(0.125, abs=1e-15)
    assert entropy(votes) == pytest.approx([2 * human, 0], abs=1e-15)
    # Both classes of the first row are on top: half of each is right.
    assert accuracy(q, [0, 1]) == accuracy(q, [1, 1]) == 0.75
    assert accuracy(q, [0, 0]) == 0.25
    assert accuracy(q, [1, 1], per_example=True).tolist() == [0.5, 1.0]


def test_votes_and_labels_that_are_none_are_refused():
    q = np.array([[0.5, 0.5], [0.25, 0.75]])
    for score in (soft_nll, kl_to_annotators, soft_brier, accuracy_majority, score_votes):
        with pytest.raises(VotesError, match=r"must not be negative, and row\(s\) 1 are"):
            score(q, np.array([[1, 1], [3, -1]]))
        with pytest.raises(VotesError, match="must have one shape"):
            score(q, np.array([[1, 1]]))
    for labels, message in (([0], "One label per example"), ([0, 2], "rows 1 are not"), ([0, -1], "rows 1 are not")):
        with pytest.raises(VotesError, match=message):
            accuracy(q, labels)
    with pytest.raises(VotesError, match="from 0 to 1, and rows 1 are not"):
        score_votes(q, np.ones((2, 2)), [0, 7])
    # Nobody voted on the second: neither right nor wrong.
    scores = score_votes(q, np.array([[3, 1], [0, 0]]))
    assert all(math.isnan(value) for value in scores.values())
    assert np.isnan(accuracy_majority(q, np.array([[3, 1], [0, 0]]), per_example=True)).tolist() == [False, True]


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_scores_equal_scipys_entropies(seed):
    logits, votes = case(seed)
    p, q = votes / votes.sum(1, keepdims=True), softmax(logits, axis=1)
    assert entropy(votes) == pytest.approx(stats.entropy(votes, axis=1), abs=1e-12)
    assert kl_to_annotators(q, votes) == pytest.approx(stats.entropy(p, q, axis=1).mean(), abs=1e-12)
    assert kl_to_annotators(q, votes) >= 0
    assert soft_nll(q, votes) == pytest.approx(kl_to_annotators(q, votes) + entropy(votes).mean(), abs=1e-12)
    assert soft_brier(q, votes) == pytest.approx((np.linalg.norm(q - p, axis=1) ** 2).mean(), abs=1e-12)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_one_hot_votes_give_the_ordinary_log_loss_and_brier_score(seed):
    logits, _ = case(seed)
    labels = np.random.default_rng(seed).integers(0, 4, len(logits))
    votes, q = np.eye(4, dtype=int)[labels], softmax(logits, axis=1)
    assert soft_nll(logits, votes, from_logits=True) == pytest.approx(log_loss(labels, q, labels=range(4)), rel=1e-9)
    assert kl_to_annotators(q, votes) == soft_nll(q, votes)
    assert soft_brier(q, votes) == pytest.approx(np.mean(np.sum((q - votes) ** 2, 1)), abs=1e-12)
    assert (entropy(votes) == 0).all()


def test_perfect_predictions_reach_the_floor():
    _, votes = case(0)
    p = votes / votes.sum(1, keepdims=True)
    assert soft_nll(p, votes) == pytest.approx(entropy(votes).mean(), abs=1e-15)
    assert kl_to_annotators(p, votes) == pytest.approx(0, abs=1e-15)
    assert soft_brier(p, votes) == pytest.approx(0, abs=1e-15)
    assert entropy_correlation(p, votes) == pytest.approx(1)


def test_counts_distributions_and_their_multiples_are_the_same_votes():
    logits, votes = case(3)
    for score in CLASS_SCORES:
        expected = score(logits, votes, from_logits=True)
        assert score(logits, votes * 7, from_logits=True) == pytest.approx(expected, abs=1e-12)
        assert score(logits, votes / votes.sum(1, keepdims=True), from_logits=True) == pytest.approx(
            expected, abs=1e-12
        )


def test_logits_equal_their_probabilities_and_may_be_shifted():
    logits, votes = case(4)
    for score in CLASS_SCORES:
        expected = score(softmax(logits, axis=1), votes)
        assert score(logits, votes, from_logits=True) == pytest.approx(expected, abs=1e-12)
        assert score(logits + 100, votes, from_logits=True) == pytest.approx(expected, abs=1e-10)


@pytest.mark.filterwarnings("error")
def test_extreme_logits_give_finite_scores():
    logits, votes = np.array([[1e4, -1e4], [-1e4, 1e4]]), np.array([[1, 0], [1, 1]])
    # The first row is right; in the second half of the mass is 2e4 nats away.
    assert soft_nll(logits, votes, from_logits=True) == pytest.approx(0.5 * 0.5 * 2e4)
    assert kl_to_annotators(logits, votes, from_logits=True) == pytest.approx((1e4 - math.log(2)) / 2)
    assert soft_brier(logits, votes, from_logits=True) == pytest.approx(0.25)
    with pytest.warns(UndefinedScoreWarning):
        scores = score_votes(logits, votes, from_logits=True)
    assert scores["soft_nll"] == pytest.approx(5000) and math.isnan(scores["entropy_correlation"])


@pytest.mark.filterwarnings("error")
def test_zero_probability_is_infinite_only_where_somebody_voted():
    q = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert soft_nll(q, np.array([[3, 1], [1, 1]])) == math.inf
    assert kl_to_annotators(q, np.array([[3, 1], [1, 1]])) == math.inf
    assert soft_nll(q, np.array([[4, 0], [1, 1]])) == pytest.approx(math.log(2) / 2)
    assert soft_brier(q, np.array([[3, 1], [1, 1]])) == pytest.approx(0.125 / 2)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_and_classes_does_not_matter(seed):
    logits, votes = case(seed)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(20), rng.permutation(4)
    for score in CLASS_SCORES:
        expected = pytest.approx(score(logits, votes, from_logits=True), abs=1e-10, nan_ok=True)
        assert score(logits[rows], votes[rows], from_logits=True) == expected
        assert score(logits[:, classes], votes[:, classes], from_logits=True) == expected


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_entropy_correlation_is_spearmans_over_examples(seed):
    logits, votes = case(seed)
    model, people = stats.entropy(softmax(logits, axis=1), axis=1), stats.entropy(votes, axis=1)
    expected = stats.spearmanr(model, people.round(12)).statistic
    assert entropy_correlation(logits, votes, from_logits=True) == pytest.approx(expected, abs=1e-12)


def test_entropy_correlation_by_hand():
    votes = np.array([[10, 0], [9, 1], [7, 3], [5, 5]])
    q = np.array([[0.99, 0.01], [0.6, 0.4], [0.8, 0.2], [0.5, 0.5]])
    # The ranks of H(q) are 1, 3, 2, 4 to 1, 2, 3, 4: 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15) = .8.
    assert entropy_correlation(q, votes) == pytest.approx(0.8)
    assert entropy_correlation(q, votes[::-1]) == pytest.approx(-0.8)


def test_an_undefined_entropy_correlation_is_nan_and_says_why():
    logits, votes = case(5)
    with pytest.warns(UndefinedScoreWarning, match="the predictions have the same entropy in all examples"):
        assert math.isnan(entropy_correlation(np.zeros_like(logits), votes, from_logits=True))
    # The same distribution in another order of classes has another last bit, but no other entropy.
    rolled = np.stack([np.roll([1, 2, 3, 4], i) for i in range(20)])
    with pytest.warns(UndefinedScoreWarning, match="the votes have the same entropy in all examples"):
        assert math.isnan(entropy_correlation(logits, rolled, from_logits=True))
    for n in (0, 1):
        with pytest.warns(UndefinedScoreWarning, match="needs two examples"):
            assert math.isnan(entropy_correlation(logits[:n], votes[:n], from_logits=True))
    logits[3, 1] = np.nan
    with pytest.warns(UndefinedScoreWarning, match="not numbers"):
        assert math.isnan(entropy_correlation(logits, votes, from_logits=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_tensors_score_as_their_numpy_arrays(dtype):
    logits, votes = case(6)
    tensor = torch.from_numpy(logits).to(dtype)
    array, counts = tensor.double().numpy(), torch.from_numpy(votes)
    for score in CLASS_SCORES:
        assert score(tensor.requires_grad_(), counts, from_logits=True) == score(array, votes, from_logits=True)
    assert score_votes(tensor, counts, counts.argmax(1), True) == score_votes(array, votes, votes.argmax(1), True)
    assert accuracy(tensor, counts.argmax(1)) == accuracy(array, votes.argmax(1))


def test_score_votes_takes_gold_labels_only_when_every_row_has_one():
    logits = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
    votes = np.array([[3, 1], [1, 3], [1, 3], [30, 10]])
    assert score_votes(logits, votes, from_logits=True)["accuracy"] == 0.75
    with_gold = score_votes(logits, votes, np.array([1, 0, 1, 0]), from_logits=True)
    assert with_gold["accuracy"] == 0.25
    assert with_gold["accuracy_majority"] == 0.75
    assert score_votes(logits, votes, np.array([1, 0, 1, -1]), True)["accuracy"] == 0.75
    assert score_votes(logits, votes, np.array([-1] * 4), True)["accuracy"] == 0.75


def test_any_of_the_tied_classes_is_the_majority():
    votes = np.array([[2, 2, 1]] * 3)
    logits = np.eye(3)
    assert score_votes(logits, votes, from_logits=True)["accuracy_majority"] == pytest.approx(2 / 3)
    assert score_votes(logits[[1]], votes[[1]], from_logits=True)["accuracy"] == 1.0


@pytest.mark.parametrize("score", [soft_nll, soft_brier, entropy_correlation])
def test_arrays_of_another_shape_are_refused(score):
    with pytest.raises(VotesError, match=r"\(examples, classes\) is needed, not \(3,\)"):
        score(np.ones(3) / 3, np.ones((1, 3)))
    with pytest.raises(VotesError, match=r"not \(3,\)"):
        score(np.ones((1, 3)) / 3, np.ones(3))


def test_entropy_is_scipys_down_to_the_smallest_shares():
    p = np.array([[0.5, 0.5, 0], [1, 0, 0], [1 - 1e-6, 1e-6, 0], [1, 1e-300, 0], [1, 5e-324, 0], [0.2, 0.3, 0.5]])
    assert entropy(p) == pytest.approx(stats.entropy(p, axis=1), rel=1e-14, abs=1e-310)


@pytest.mark.filterwarnings("error")
def test_one_exponential_gives_scipys_softmax_and_its_logarithm():
    inf, nan = np.inf, np.nan
    extreme = [[1e4, -1e4, 3], [-inf, 0, -inf], [-inf] * 3, [inf, 0, 1], [inf, -inf, inf], [nan, 0, 1], [-745, 0, 0]]
    logits = np.concatenate([np.random.default_rng(0).normal(scale=9, size=(100, 3)), extreme])
    log_q, q = log_model_and_model(logits, from_logits=True)
    with np.errstate(invalid="ignore"):
        expected = log_softmax(logits, axis=1)
    np.testing.assert_allclose(log_q, expected, rtol=1e-15)
    np.testing.assert_allclose(q, np.exp(expected), rtol=1e-13)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("largest", [2.3, 1e5, 1e9, np.inf])
@pytest.mark.parametrize("n", [1, 2, 7, 3000])
def test_ranks_are_scipys_for_values_of_any_size(n, largest):
    rng = np.random.default_rng(n)
    values = rng.choice([0, -0.0, 1e-17, -1e-17, 1e-12, 2e-12, 0.5, 0.5 + 1e-15, 1, *rng.uniform(0, 2.3, 500)], n)
    values[-1] = largest
    ranks = TiedRanks(values).ranks(np.ones(n))
    assert ranks == pytest.approx(stats.rankdata(values.round(12)) - 0.5, abs=1e-9)


@pytest.mark.filterwarnings("error")
def test_classes_that_share_the_top_share_the_hit():
    inf, nan = np.inf, np.nan
    q = np.array([[0, 1, 2], [2, 2, 1], [3, 3, 3], [-inf, inf, inf], [nan, 1, 2], [0, 2, 1]], dtype=float)
    p = np.array([[0, 0.5, 0.5], [1, 0, 0], [0.25, 0.25, 0.5], [0, 0, 1], [0, 0, 1], [nan, nan, nan]])
    for order in "CF":
        top = Top(q.copy(order))
        np.testing.assert_array_equal(top.hits(np.array([2.0, 1, 0, 0, 2, 1])), [1, 1 / 2, 1 / 3, 0, nan, 1])
        np.testing.assert_array_equal(top.mean(p), [0.5, 0.5, 1 / 3, 0.5, nan, nan])
        np.testing.assert_array_equal(top.majority_hits(p), [1, 1 / 2, 1 / 3, 1 / 2, nan, nan])
