"""What scores are compared with: the floor, the naive predictors, and one half of the annotators."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from hf_softlabel.metrics import calibrated_ece, calibrated_reference, human_ceiling, references, score_votes
from hf_softlabel.metrics.reference import split_half

pytestmark = pytest.mark.filterwarnings("ignore::hf_softlabel.metrics.UndefinedScoreWarning")


def votes_of(seed: int, n: int = 30, m: int = 10, classes: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.multinomial(m, p) for p in rng.dirichlet(np.full(classes, 0.5), n)])


def test_references_by_hand():
    votes, train = np.array([[3, 1], [0, 2]]), np.array([[1, 1], [1, 0], [1, 1], [1, 0]])
    table = references(votes, train)
    floor = (0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / 2
    assert table["floor"]["soft_nll"] == pytest.approx(floor)
    assert table["floor"]["kl"] == table["floor"]["soft_brier"] == table["floor"]["js_distance"] == 0.0
    assert table["floor"]["accuracy"] == 1.0
    # Uniform: log 2 on every row; squared distances 2/16 and 2/4.
    assert table["uniform"]["soft_nll"] == pytest.approx(math.log(2))
    assert table["uniform"]["kl"] == pytest.approx(math.log(2) - floor)
    assert table["uniform"]["soft_brier"] == pytest.approx((1 / 8 + 1 / 2) / 2)
    # The mean training distribution is (3/4, 1/4): right on the first row.
    assert table["train_mean"]["soft_nll"] == pytest.approx((2 * floor + math.log(4)) / 2)
    assert table["train_mean"]["kl"] == pytest.approx(math.log(4) / 2)
    assert table["train_mean"]["soft_brier"] == pytest.approx(2 * 0.75**2 / 2)
    assert references(votes, np.array([0.75, 0.25]))["train_mean"] == pytest.approx(table["train_mean"], nan_ok=True)
    assert list(references(votes)) == ["floor", "uniform", "human"]
    assert list(references(votes / votes.sum(1, keepdims=True))) == ["floor", "uniform"]


def test_references_of_tensors_are_those_of_their_arrays():
    votes = votes_of(2)
    table, of_tensors = references(votes, votes), references(torch.from_numpy(votes), torch.from_numpy(votes))
    for name in table:
        assert of_tensors[name] == pytest.approx(table[name], nan_ok=True)


def test_training_examples_weigh_the_same_whatever_their_number_of_votes():
    table = references(np.array([[1, 1]]), np.array([[90, 10], [1, 9]]))
    # The mean of (.9, .1) and (.1, .9) is uniform; pooled votes would be (91, 19).
    assert table["train_mean"] == pytest.approx(table["uniform"], nan_ok=True)


def test_no_predictor_beats_the_floor():
    votes = votes_of(8)
    table = references(votes, votes)
    assert table["floor"]["soft_nll"] < table["train_mean"]["soft_nll"] < table["uniform"]["soft_nll"]
    assert table["train_mean"]["kl"] > 0 and table["train_mean"]["soft_brier"] > 0


def test_halves_are_dealt_from_the_votes():
    votes = np.array([[3, 0, 2], [4, 4, 0], [1, 1, 1]])
    rng = np.random.default_rng(0)
    halves = np.stack([split_half(votes, rng) for _ in range(4000)])
    assert (halves.sum(1) == votes).all() and (halves >= 0).all()
    sizes = halves[:, 0].sum(-1)
    assert (sizes[:, 1] == 4).all()
    assert set(sizes[:, 0]) == {2, 3} and set(sizes[:, 2]) == {1, 2}
    # The odd vote falls to either half: each vote is in the first with probability 1/2.
    assert halves[:, 0].mean(0) == pytest.approx(votes / 2, abs=0.06)
    # Dealing 4 of 4 + 4 votes: the variance of the hypergeometric law is 4 * 1/2 * 1/2 * 4/7.
    assert halves[:, 0, 1, 0].var() == pytest.approx(4 / 7, rel=0.1)


def test_the_human_ceiling_is_the_mean_over_all_halves():
    votes = np.array([[2, 1, 1], [1, 3, 0]])
    rows = [np.repeat(np.arange(3), row) for row in votes]

    def halves(row):
        for chosen in combinations(range(4), 2):
            half = np.bincount(row[list(chosen)], minlength=3)
            yield half, np.bincount(row, minlength=3) - half

    pairs = [(one, two) for one in halves(rows[0]) for two in halves(rows[1])]
    exact = [score_votes(np.stack([a, c]) / 2, np.stack([b, d])) for (a, b), (c, d) in pairs]
    ceiling, reason = human_ceiling(votes, splits=300)
    assert reason is None
    for name in ("js_distance", "dist_ce", "soft_brier", "accuracy_majority", "ent_ce"):
        assert ceiling[name] == pytest.approx(np.mean([scores[name] for scores in exact]), abs=0.05), name
    # Of two votes and a third of one in each class, at most 7/9 is on a class, at least 1/9.
    assert -math.log(7 / 9) < ceiling["soft_nll"] < -math.log(1 / 9)


def test_the_calibrated_reference_is_what_calibrated_models_score():
    rng = np.random.default_rng(0)
    q = rng.dirichlet([1.0, 1, 1], 300)
    votes = rng.multinomial(7, q)
    found = calibrated_reference(q, votes, draws=60)
    label = rng.multinomial(1, q).argmax(1)
    own = score_votes(q, votes, label)
    for name, value in found.items():
        assert 0 < value < 2 * own[name] < 6 * value, name
    assert found["ece_equal_mass_soft"] == pytest.approx(calibrated_ece(q, votes), rel=0.1)
    assert found["ece_equal_mass"] == pytest.approx(calibrated_ece(q, label, target="hard"), rel=0.1)
    assert calibrated_reference(np.log(q), votes, from_logits=True, draws=60) == pytest.approx(found, abs=1e-9)
    assert calibrated_reference(q, votes / 7).keys() == {"ece_equal_mass", "smooth_ece"}
    # Ties are shared: a uniform prediction is calibrated exactly.
    assert calibrated_reference(np.full((50, 4), 0.25), np.ones((50, 4)))["ece_equal_mass"] == 0


def test_what_cannot_be_halved_has_no_ceiling_but_a_reason():
    for votes in (np.array([[0.5, 0.5]]), np.array([[1, 0], [0, 1]]), np.array([[1, 0], [0, 0]])):
        assert human_ceiling(votes) == ({}, "distributions and single votes cannot be halved")
    # An example with one vote is left out.
    votes = votes_of(1)
    single = np.concatenate([votes, [[1, 0, 0, 0]]])
    assert human_ceiling(single) == human_ceiling(votes)


@pytest.mark.sources
def test_the_split_half_human_ceiling_of_cifar10h(sources):
    (path,) = sources.rglob("cifar10h-counts.npy")
    ceiling, _ = human_ceiling(np.load(path))
    # Published with one split: over 10,000 images a split varies by .0003.
    assert ceiling["js_distance"] == pytest.approx(0.0766, abs=0.0009)
    assert ceiling["dist_ce"] == pytest.approx(0.0368, abs=0.0009)
