"""Distances from the annotators by hand-worked numbers, against scipy, and on the real votes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import cityblock, jensenshannon
from scipy.special import softmax

from hf_softlabel import load_votes
from hf_softlabel.data.errors import VotesError
from hf_softlabel.metrics import UndefinedScoreWarning, arrays, disagreement, kl_to_annotators
from hf_softlabel.metrics.disagreement import (
    dist_ce,
    ent_ce,
    js_distance,
    js_divergence,
    manhattan,
    rank_cs,
    tvd,
    wasserstein,
)

SEEDS = st.integers(0, 2**32 - 1)
DISTANCES = (js_distance, tvd, manhattan, wasserstein, ent_ce)
SCORES = (*DISTANCES, rank_cs)


def case(seed: int, n: int = 20, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits and counts (N, C), with some classes that nobody voted for and some ties."""
    rng = np.random.default_rng(seed)
    votes = np.stack([rng.multinomial(10, p) for p in rng.dirichlet(np.full(classes, 0.5), n)])
    return rng.normal(scale=3, size=(n, classes)), votes


def test_distances_by_hand():
    q, votes = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]), np.array([[2, 2, 0], [3, 0, 0]])
    # p = (1/2, 1/2, 0) and (1, 0, 0). First row: m = (1/2, 3/8, 1/8), so that
    # 2 JS = 1/2 log(4/3) + (1/4 log(2/3) + 1/4 log 2). Second row: disjoint, JS = log 2.
    first = (0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)) / 2
    assert js_distance(q, votes, per_example=True) == pytest.approx(
        [math.sqrt(first), math.sqrt(math.log(2))], abs=1e-15
    )
    assert js_distance(q, votes) == pytest.approx((math.sqrt(first) + math.sqrt(math.log(2))) / 2, abs=1e-15)
    assert manhattan(q, votes, per_example=True) == pytest.approx([0.5, 2], abs=1e-15)
    assert manhattan(q, votes) == pytest.approx(1.25, abs=1e-15)
    assert tvd(q, votes, per_example=True) == pytest.approx([0.25, 1], abs=1e-15)
    assert dist_ce(q, votes) == pytest.approx(0.625, abs=1e-15)
    # CDFs (1/2, 1) and (1/2, 3/4); all the mass two steps away.
    assert wasserstein(q, votes, per_example=True) == pytest.approx([0.25, 2], abs=1e-15)
    # H(q) = 1.5 log 2 and 0, H(p) = log 2 and 0.
    assert ent_ce(q, votes, per_example=True) == pytest.approx([0.5 * math.log(2), 0], abs=1e-15)
    assert ent_ce(q, votes) == pytest.approx(0.25 * math.log(2), abs=1e-15)


def test_entropy_errors_do_not_cancel_unless_signed():
    q, votes = np.array([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]), np.array([[1, 0], [1, 1], [1, 1]])
    assert ent_ce(q, votes) == pytest.approx(math.log(2))
    # The model is surer than the annotators on two of three.
    assert ent_ce(q, votes, signed=True) == pytest.approx(-math.log(2) / 3)
    assert ent_ce(q, votes, signed=True, per_example=True) == pytest.approx(math.log(2) * np.array([1, -1, -1]))


def test_rankings_by_hand():
    votes = np.array([[5, 3, 2], [5, 3, 2], [4, 4, 2], [4, 4, 2], [4, 4, 2], [5, 3, 2], [1, 1, 1], [4, 4, 2]])
    q = [
        [0.6, 0.3, 0.1],  # the same ranking
        [0.6, 0.1, 0.3],  # the same winner only
        [0.6, 0.3, 0.1],  # people tie the first two: either order
        [0.3, 0.6, 0.1],  # is theirs,
        [0.4, 0.4, 0.2],  # and so is a tie,
        [0.4, 0.4, 0.2],  # but not where people have an order
        [0.2, 0.5, 0.3],  # people have no order at all
        [0.6, 0.1, 0.3],  # the third comes before the second
    ]
    assert rank_cs(q, votes, per_example=True).tolist() == [1, 0, 1, 1, 1, 0, 1, 0]
    assert rank_cs(q, votes) == 5 / 8


def same_ranking_by_pairs(q: np.ndarray, p: np.ndarray) -> bool:
    return all((q[a] > q[b]) == (p[a] > p[b]) for a, b in itertools.permutations(range(len(p)), 2) if p[a] != p[b])


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_distances_equal_scipys(seed, classes):
    logits, votes = case(seed, classes=classes)
    q, p = softmax(logits, axis=1), votes / votes.sum(1, keepdims=True)
    scale = np.arange(classes)
    expected = {
        js_distance: jensenshannon(p, q, axis=1),
        manhattan: [cityblock(a, b) for a, b in zip(p, q, strict=True)],
        tvd: [cityblock(a, b) / 2 for a, b in zip(p, q, strict=True)],
        wasserstein: [stats.wasserstein_distance(scale, scale, a, b) for a, b in zip(p, q, strict=True)],
        ent_ce: abs(stats.entropy(q, axis=1) - stats.entropy(p, axis=1)),
        # Few distinct values, so that the model ties too.
        rank_cs: [same_ranking_by_pairs(a, b) for a, b in zip(logits.round(), votes, strict=True)],
    }
    for score, values in expected.items():
        predictions = logits.round() if score is rank_cs else logits
        found = score(predictions, votes, from_logits=True, per_example=True)
        # jensenshannon loses half of the digits near 0, and gives NaN for a negative rounding error.
        assert found == pytest.approx(
            np.nan_to_num(np.asarray(values, float)), abs=2e-8 if score is js_distance else 1e-12
        )
        assert score(predictions, votes, from_logits=True) == pytest.approx(found.mean(), abs=1e-15)


@given(SEEDS, st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_ranges_and_symmetry(seed, classes):
    logits, votes = case(seed, classes=classes)
    q, p = softmax(logits, axis=1), votes / votes.sum(1, keepdims=True)
    top = {js_distance: math.sqrt(math.log(2)), tvd: 1, manhattan: 2, wasserstein: classes - 1}
    for score in DISTANCES:
        values = score(q, votes, per_example=True)
        assert (values >= 0).all() and (values <= top.get(score, math.log(classes)) + 1e-12).all()
        assert score(p, q, per_example=True) == pytest.approx(values, abs=1e-12)
    assert set(rank_cs(q, votes, per_example=True)) <= {0.0, 1.0}
    # Pinsker's inequality for JS (against m), and the two orders between the distances.
    assert (tvd(q, p, per_example=True) <= math.sqrt(2) * js_distance(q, p, per_example=True) + 1e-12).all()
    assert (tvd(q, p, per_example=True) <= wasserstein(q, p, per_example=True) + 1e-12).all()


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_annotators_own_distribution_is_at_zero(seed):
    _, votes = case(seed)
    p = votes / votes.sum(1, keepdims=True)
    for score in DISTANCES:
        assert score(p, votes) == 0
        # From logits q is p but for rounding, and the distance stays at the size of that rounding.
        with np.errstate(divide="ignore"):
            assert score(np.log(p), votes, from_logits=True) == pytest.approx(0, abs=1e-14)
    assert rank_cs(p, votes) == 1


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_and_classes_does_not_matter(seed):
    logits, votes = case(seed)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(20), rng.permutation(4)
    for score in SCORES:
        expected = score(logits, votes, from_logits=True, per_example=True)
        assert score(logits[rows], votes[rows], from_logits=True, per_example=True) == pytest.approx(expected[rows])
        # Only the reversal keeps the neighbours of an ordinal scale.
        order = slice(None, None, -1) if score is wasserstein else classes
        found = score(logits[:, order], votes[:, order], from_logits=True, per_example=True)
        assert found == pytest.approx(expected, abs=1e-12)


def test_the_wasserstein_distance_knows_the_order_of_classes():
    q, votes = np.array([[0.0, 0.0, 1.0]]), np.array([[3, 0, 0]])
    assert wasserstein(q, votes) == 2
    assert wasserstein(q[:, [0, 2, 1]], votes[:, [0, 2, 1]]) == 1


def test_counts_distributions_logits_and_tensors_score_alike():
    logits, votes = case(4)
    q, p = softmax(logits, axis=1), votes / votes.sum(1, keepdims=True)
    for score in SCORES:
        expected = score(q, votes, per_example=True)
        assert type(score(q, votes)) is float
        assert expected.shape == (20,) and expected.dtype == np.float64
        for predictions, people, from_logits in ((q, p, False), (logits + 100, votes * 7, True)):
            assert score(predictions, people, from_logits, per_example=True) == pytest.approx(expected, abs=1e-10)
        tensor = torch.from_numpy(logits).to(torch.bfloat16)
        array = tensor.double().numpy()
        assert score(tensor.requires_grad_(), torch.from_numpy(votes), True) == score(array, votes, True)
        assert score(q.tolist(), votes.tolist()) == score(q, votes)


@pytest.mark.filterwarnings("error")
def test_extreme_logits_one_hot_votes_and_one_example():
    logits, votes = np.array([[1e4, -1e4, -2e4]]), np.array([[0, 1, 0]])
    assert js_distance(logits, votes, from_logits=True) == pytest.approx(math.sqrt(math.log(2)), abs=1e-15)
    assert tvd(logits, votes, from_logits=True) == 1
    assert manhattan(logits, votes, from_logits=True) == 2
    assert wasserstein(logits, votes, from_logits=True) == 1
    assert ent_ce(logits, votes, from_logits=True) == 0
    assert rank_cs(logits, votes, from_logits=True) == 0
    # Both small probabilities underflow, but the logits still rank them.
    assert rank_cs(logits, np.array([[5, 3, 1]]), from_logits=True) == 1
    assert rank_cs(logits, np.array([[5, 1, 3]]), from_logits=True) == 0
    for score in DISTANCES:
        assert score(logits, np.array([[9, 0, 0]]), from_logits=True) == 0
    masked = np.array([[0.0, -np.inf, -np.inf]])
    assert rank_cs(masked, np.array([[5, 0, 0]]), from_logits=True) == 1
    assert rank_cs(masked, np.array([[5, 1, 0]]), from_logits=True) == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("score", SCORES)
def test_what_is_undefined_is_nan(score):
    with pytest.warns(UndefinedScoreWarning, match="there are no examples"):
        assert math.isnan(score(np.empty((0, 3)), np.empty((0, 3))))
    assert score(np.empty((0, 3)), np.empty((0, 3)), per_example=True).shape == (0,)
    q = np.array([[0.2, 0.8], [np.nan, 1.0], [1.0, np.nan]])
    assert np.isnan(score(q, np.ones((3, 2)), per_example=True)).tolist() == [False, True, True]
    with pytest.warns(UndefinedScoreWarning, match=r"votes of row\(s\) 1, 2 are not numbers"):
        assert math.isnan(score(q, np.ones((3, 2))))


@pytest.mark.parametrize("score", SCORES)
def test_arrays_that_do_not_fit_are_refused(score):
    with pytest.raises(VotesError, match=r"\(examples, classes\) is needed, not \(3,\)"):
        score(np.ones(3) / 3, np.ones((1, 3)))
    # One row would be broadcast over all others.
    with pytest.raises(VotesError, match=r"Predictions \(4, 3\) and votes \(1, 3\) must have one shape"):
        score(np.ones((4, 3)) / 3, np.ones((1, 3)))


@pytest.mark.parametrize("score", SCORES)
def test_chunks_of_rows_do_not_change_the_scores(score, monkeypatch):
    logits, votes = case(9, n=23)
    expected = score(logits, votes, from_logits=True, per_example=True)
    monkeypatch.setattr(arrays, "CHUNK", 20)
    assert score(logits, votes, from_logits=True, per_example=True).tolist() == expected.tolist()
    monkeypatch.setattr(arrays, "CHUNK", 1)
    assert score(logits, votes, from_logits=True, per_example=True) == pytest.approx(expected, abs=1e-14)


def test_a_hundred_thousand_classes():
    rng = np.random.default_rng(0)
    logits, votes = rng.normal(size=(4, 100_000)), rng.integers(0, 3, (4, 100_000))
    q, p = softmax(logits, axis=1), votes / votes.sum(1, keepdims=True)
    assert js_distance(logits, votes, True) == pytest.approx(jensenshannon(p, q, axis=1).mean(), abs=1e-9)
    assert wasserstein(logits, votes, True) == pytest.approx(abs(q.cumsum(1) - p.cumsum(1)).sum(1).mean(), rel=1e-6)


@pytest.mark.sources
@pytest.mark.parametrize(
    ("subset", "js", "kl", "ties"),
    [("snli", 0.3829, 0.5455, 14), ("mnli", 0.3022, 0.3557, 14), ("alphanli", 0.3205, 0.4060, 8)],
)
def test_a_uniform_predictor_on_chaosnli(subset, js, kl, ties, sources):
    loaded = load_votes("chaosnli", subset=subset, sources=sources)
    votes = np.concatenate([np.asarray(split["votes"]) for split in loaded.values()])
    q = np.full(votes.shape, 1 / votes.shape[1])
    assert js_distance(q, votes) == pytest.approx(js, abs=5e-5)
    assert kl_to_annotators(q, votes) == pytest.approx(kl, abs=5e-5)
    assert ((votes == votes.max(1, keepdims=True)).sum(1) > 1).sum() == ties


def hard_distributions(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """q and p (N, C) with ties, zeros, q = p and nearly so, one-hot rows, q that is nearly 0, and NaNs."""
    rng = np.random.default_rng(classes)
    p = rng.multinomial(5, rng.dirichlet(np.full(classes, 0.5)), 200) / 5
    tied = rng.multinomial(5, np.full(classes, 1 / classes), 200) / 5
    smooth = rng.dirichlet(np.full(classes, 1.0), 200)
    near = [(1 - share) * p + share * smooth for share in (0, 1e-12, 1e-7, 1e-3, 0.1)]
    q = np.concatenate([tied, smooth, *near, rng.dirichlet(np.full(classes, 1e-3), 200), np.eye(classes)[:2]])
    p = np.concatenate([p] * 8 + [np.eye(classes)[1::-1]])
    q[3], p[5], q[7, 0] = np.nan, np.nan, np.nan
    return np.asfortranarray(q), np.asfortranarray(p)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_distance_by_entropies_is_that_by_differences(classes):
    q, p = hard_distributions(classes)
    distance = js_distance(q, p, per_example=True)
    assert distance == pytest.approx(np.sqrt(js_divergence(q, p)), abs=1e-13, nan_ok=True)
    assert np.isnan(distance).sum() == 3
    # q = p, exactly and in all but the last digits.
    assert (distance[400:600][~np.isnan(distance[400:600])] == 0).all()
    assert (distance[600:800] < 1e-5).all()
    assert distance[-1] == pytest.approx(np.sqrt(np.log(2)), abs=1e-15)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [1, 2, 3, 10, 100])
def test_rankings_by_pairs_are_those_by_sorting(classes, monkeypatch):
    q, p = hard_distributions(max(classes, 2))
    q, p = q[:, :classes], p[:, :classes]
    q[9, :1], q[10, :1], q[11] = -np.inf, np.inf, -np.inf
    by_number_of_classes = {}
    for few in (0, 1000):
        monkeypatch.setattr(disagreement, "FEW_CLASSES", few)
        by_number_of_classes[few] = disagreement.same_ranking(q, p)
    np.testing.assert_array_equal(by_number_of_classes[0], by_number_of_classes[1000])
    assert {0, 1} <= set(by_number_of_classes[0]) or classes == 1
