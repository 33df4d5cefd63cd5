"""Deliveries: sampling statistics, and cycles by exact counts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from hf_softlabel.data.errors import VotesError
from hf_softlabel.delivery import (
    DELIVERIES,
    Delivery,
    distribution,
    majority_label,
    multipass_label,
    posterior_predictive,
    sample_label,
    shuffled_rows,
    sls_label,
    smoothed,
    vote_at,
)
from hf_softlabel.hashing import hash64
from hf_softlabel.mixup import mixup_pairs

VOTE_ROWS = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(lambda row: sum(row) > 0)


def labels_by_epoch(delivery: Delivery, votes: torch.Tensor, ids: torch.Tensor, epochs) -> np.ndarray:
    """(epochs, N) labels."""
    return torch.stack([delivery(votes, ids, epoch) for epoch in epochs]).numpy()


def joint_table(a: np.ndarray, b: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(a.ravel() * classes + b.ravel(), minlength=classes**2).reshape(classes, classes)


# The distribution of votes.


def test_soft_gives_votes_divided_by_their_sum():
    target = Delivery("soft")(torch.tensor([[3, 1, 0], [0, 0, 7]]), torch.tensor([0, 1]), 0)
    assert target.dtype == torch.float32
    assert target.tolist() == [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]]


def test_distribution_leaves_probabilities_and_divides_huge_counts_exactly():
    p = torch.tensor([[0.125, 0.875]], dtype=torch.float64)
    assert torch.equal(distribution(p), p.float())
    # float32 cannot hold these counts: the division must come before the rounding.
    assert distribution(torch.tensor([[2**25 + 1, 2**25 - 1]])).tolist() == [[0.5, 0.5]]


# Stochastic label sampling.


@pytest.mark.parametrize("kind", ["counts", "probabilities"])
def test_sls_draws_each_label_as_often_as_the_votes_say(kind):
    counts = torch.tensor([[5, 3, 2, 0], [1, 0, 0, 50], [0, 7, 7, 7]])
    votes = counts if kind == "counts" else counts.double() / counts.sum(-1, keepdim=True)
    epochs = 20_000
    drawn = labels_by_epoch(Delivery("sls", seed=3), votes, torch.tensor([0, 1, 2]), range(epochs))
    for row in range(3):
        seen, expected = np.bincount(drawn[:, row], minlength=4), distribution(counts)[row].double().numpy() * epochs
        assert (seen[expected == 0] == 0).all()
        assert chisquare(seen[expected > 0], expected[expected > 0], sum_check=False).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["counts", "probabilities"])
def test_sls_labels_of_many_examples_follow_the_votes_in_one_epoch(kind):
    n = 60_000
    votes = torch.tensor([[1, 2, 3]] if kind == "counts" else [[1 / 6, 2 / 6, 3 / 6]]).expand(n, 3)
    seen = torch.bincount(sls_label(votes, torch.arange(n), 4, 0), minlength=3).numpy()
    assert chisquare(seen, n * np.array([1, 2, 3]) / 6).pvalue > 1e-3


def test_sls_labels_of_neighbouring_examples_and_epochs_are_independent():
    n, epochs = 400, 300
    votes = torch.tensor([[5, 3, 2]]).expand(n, 3)
    drawn = labels_by_epoch(Delivery("sls"), votes, torch.arange(n), range(epochs))
    neighbours = {
        "ids": (drawn[:, :-1], drawn[:, 1:]),
        "epochs": (drawn[:-1], drawn[1:]),
        "diagonal": (drawn[:-1, 1:], drawn[1:, :-1]),
    }
    for name, pair in neighbours.items():
        assert chi2_contingency(joint_table(*pair, 3)).pvalue > 1e-3, name


def test_sls_labels_of_neighbouring_seeds_are_independent():
    n = 60_000
    votes = torch.tensor([[5, 3, 2]]).expand(n, 3)
    one, other = (sls_label(votes, torch.arange(n), 0, seed).numpy() for seed in (0, 1))
    assert chi2_contingency(joint_table(one, other, 3)).pvalue > 1e-3


@pytest.mark.parametrize("row", [[0, 3, 0, 2, 0], [0.0, 0.3, 0.0, 0.7, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
def test_a_class_without_votes_is_never_drawn(row):
    n = 50_000
    votes = torch.tensor([row]).expand(n, 5)
    drawn = set(sls_label(votes, torch.arange(n), 0, 0).unique().tolist())
    assert drawn == {k for k, mass in enumerate(row) if mass > 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("row", [[0.1] * 10 + [0.0], [0.7, 0.2, 0.1, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
def test_the_extreme_hashes_draw_the_first_and_the_last_class_with_mass(row, dtype):
    # Bits 0 give u = 0, bits -1 give the largest u below 1, whose product with the sum rounds.
    votes = torch.tensor([row, row], dtype=dtype)
    with_mass = [k for k, mass in enumerate(row) if mass > 0]
    assert sample_label(votes, torch.tensor([0, -1])).tolist() == [with_mass[0], with_mass[-1]]


def test_counts_are_drawn_by_exact_integer_thresholds():
    # below(bits, 6) is bits // 2 % 6: the six cells of the inverse CDF of 1, 2, 3.
    bits = 2 * torch.arange(6)
    assert sample_label(torch.tensor([[1, 2, 3]]).expand(6, 3), bits).tolist() == [0, 1, 1, 2, 2, 2]


def test_resample_every_holds_labels_for_exactly_so_many_epochs():
    n = 500
    votes = torch.tensor([[1, 1, 1]]).expand(n, 3)
    drawn = labels_by_epoch(Delivery("sls", resample_every=4), votes, torch.arange(n), range(12))
    for start in (0, 4, 8):
        assert (drawn[start : start + 4] == drawn[start]).all()
    # Two independent draws out of three classes agree in a third of the examples.
    for start in (4, 8):
        assert abs((drawn[start] == drawn[start - 1]).mean() - 1 / 3) < 0.1
    assert (drawn[::4] == labels_by_epoch(Delivery("sls"), votes, torch.arange(n), range(3))).all()


def test_shuffled_sls_draws_like_sls_from_the_votes_it_is_given():
    votes, ids = torch.tensor([[1, 2, 3]]).expand(100, 3), torch.arange(100)
    assert torch.equal(Delivery("shuffled_sls", seed=2)(votes, ids, 5), Delivery("sls", seed=2)(votes, ids, 5))


@given(st.integers(2, 2000), st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_shuffled_rows_keep_every_row_once(n, seed):
    assert torch.equal(shuffled_rows(n, seed).sort().values, torch.arange(n))


def test_shuffled_rows_leave_few_in_place_and_depend_on_the_seed():
    fixed = [(shuffled_rows(1000, seed) == torch.arange(1000)).sum().item() for seed in range(200)]
    # A random permutation has Poisson(1) fixed points: mean 1 with standard error .07 over 200 seeds.
    assert abs(np.mean(fixed) - 1) < 0.3 and max(fixed) < 10
    votes = torch.randint(0, 5, (1000, 4), generator=torch.Generator().manual_seed(0))
    assert sorted(votes[shuffled_rows(1000, 1)].tolist()) == sorted(votes.tolist())
    assert not torch.equal(shuffled_rows(1000, 1), shuffled_rows(1000, 2))


# Multipass.


@given(st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any), min_size=1, max_size=6), st.data())
@settings(max_examples=50, deadline=None)
def test_multipass_shows_every_vote_once_in_a_cycle_and_repeats_its_order(rows, data):
    votes = torch.tensor(rows)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 2**40), min_size=len(rows), max_size=len(rows))))
    m = votes.sum(-1)
    shown = labels_by_epoch(Delivery("multipass", seed=data.draw(st.integers(0, 99))), votes, ids, range(3 * m.max()))
    for row, length in enumerate(m.tolist()):
        for cycle in range(2):
            labels = shown[cycle * length : (cycle + 1) * length, row]
            assert np.bincount(labels, minlength=4).tolist() == rows[row]
        assert (shown[:length, row] == shown[length : 2 * length, row]).all()


def test_any_window_of_m_epochs_shows_every_vote_once():
    votes = torch.tensor([[3, 0, 4]])
    shown = labels_by_epoch(Delivery("multipass"), votes, torch.tensor([9]), range(30))[:, 0]
    for start in range(23):
        assert np.bincount(shown[start : start + 7], minlength=3).tolist() == [3, 0, 4]


def test_multipass_order_differs_between_examples_and_seeds():
    n, m = 300, 12
    votes = torch.tensor([[4, 4, 4]]).expand(n, 3)
    orders = {
        seed: labels_by_epoch(Delivery("multipass", seed=seed), votes, torch.arange(n), range(m)).T for seed in (0, 1)
    }
    # There are 12! / 4!^3 = 34650 orders, so among 300 about one pair agrees.
    assert len(np.unique(orders[0], axis=0)) > 290
    assert (orders[0] == orders[1]).all(1).sum() <= 2
    # The two orders of one example are independent.
    assert chi2_contingency(joint_table(orders[0], orders[1], 3)).pvalue > 1e-3


def test_each_vote_comes_first_equally_often():
    n = 60_000
    first = multipass_label(torch.tensor([[1, 2, 3]]).expand(n, 3), torch.arange(n), 0, 0)
    assert chisquare(torch.bincount(first).numpy(), n * np.array([1, 2, 3]) / 6).pvalue > 1e-3


def test_deterministic_control_is_multipass_with_another_seed():
    n, m = 200, 10
    votes, ids = torch.tensor([[5, 3, 2]]).expand(n, 3), torch.arange(n)
    control = labels_by_epoch(Delivery("deterministic_control", seed=7), votes, ids, range(m))
    multipass = labels_by_epoch(Delivery("multipass", seed=7), votes, ids, range(m))
    assert (control == labels_by_epoch(Delivery("multipass", seed=1007), votes, ids, range(m))).all()
    assert (np.sort(control, 0) == np.sort(multipass, 0)).all()
    # 10! / (5! 3! 2!) = 2520 orders: hardly any of the 200 examples keeps its own.
    assert (control == multipass).all(0).sum() <= 2


def test_vote_at_counts_through_the_classes():
    votes = torch.tensor([[2, 0, 3]]).expand(5, 3)
    assert vote_at(votes, torch.arange(5)).tolist() == [0, 0, 2, 2, 2]


# Majority and label smoothing.


@pytest.mark.parametrize("kind", ["counts", "probabilities"])
def test_ties_go_to_each_tied_class_equally_and_never_outside(kind):
    n = 30_000
    votes = torch.tensor([[3, 1, 3, 0, 3]]).expand(n, 5)
    votes = votes if kind == "counts" else votes / 10
    labels = Delivery("majority")(votes, torch.arange(n), 0)
    seen = torch.bincount(labels, minlength=5).numpy()
    assert seen[1] == seen[3] == 0
    assert chisquare(seen[[0, 2, 4]]).pvalue > 1e-3


def test_majority_is_stable_in_epochs_and_changes_with_the_seed():
    n = 1000
    votes, ids = torch.tensor([[2, 2]]).expand(n, 2), torch.arange(n)
    labels = labels_by_epoch(Delivery("majority"), votes, ids, [0, 1, 17, 10**6])
    assert (labels == labels[0]).all()
    other = Delivery("majority", seed=1)(votes, ids, 0).numpy()
    assert abs((other == labels[0]).mean() - 0.5) < 0.08


@given(st.lists(VOTE_ROWS.map(lambda row: (row * 3)[:6]), min_size=1, max_size=8), st.integers(0, 2**30))
@settings(max_examples=50, deadline=None)
def test_majority_has_the_most_votes(rows, seed):
    votes = torch.tensor(rows)
    label = majority_label(votes, torch.arange(len(rows)), seed)
    assert torch.equal(votes.gather(1, label[:, None])[:, 0], votes.amax(1))


def test_label_smoothing_by_hand():
    votes = torch.zeros(1, 10, dtype=torch.int64)
    votes[0, 4] = 51
    target = Delivery("label_smoothing", label_smoothing_epsilon=0.1)(votes, torch.tensor([0]), 0)
    expected = torch.full((1, 10), 0.01)
    expected[0, 4] = 0.91
    torch.testing.assert_close(target, expected)


@given(st.integers(2, 12), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_smoothed_targets_give_the_loss_of_torch(classes, epsilon, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, classes, generator=generator)
    labels = torch.randint(0, classes, (5,), generator=generator)
    ours = F.cross_entropy(logits, smoothed(labels, classes, epsilon))
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=epsilon))


# The posterior.


def test_posterior_predictive_by_hand():
    # One vote on 3 classes with a prior of 1.5 votes: (1 + .5, .5, .5) / 2.5.
    predictive = posterior_predictive(torch.tensor([[1, 0, 0], [0, 0, 4]]), 1.5)
    expected = torch.tensor([[0.6, 0.2, 0.2], [0.5 / 5.5, 0.5 / 5.5, 4.5 / 5.5]], dtype=torch.float64)
    torch.testing.assert_close(predictive, expected)
    torch.testing.assert_close(posterior_predictive(torch.tensor([[1, 3]]), 0.0)[0].tolist(), [0.25, 0.75])


def test_posterior_sls_draws_as_dirichlet_then_categorical_draws():
    n, votes, strength = 60_000, np.array([3, 1, 0, 1]), 2.0
    rng = np.random.default_rng(0)
    distributions = rng.dirichlet(votes + strength / 4, size=n)
    two_stage = np.bincount((distributions.cumsum(1) <= rng.random((n, 1))).sum(1), minlength=4)
    delivery = Delivery("posterior_sls", prior_strength=strength)
    ours = np.bincount(delivery(torch.from_numpy(votes).expand(n, 4), torch.arange(n), 3).numpy(), minlength=4)
    assert chi2_contingency([two_stage, ours]).pvalue > 1e-3
    assert ours[2] > 0, "a class without votes has the prior's mass"


def test_posterior_sls_without_prior_is_sls_and_holds_labels():
    votes, ids = torch.tensor([[2, 0, 3]]).expand(2000, 3), torch.arange(2000)
    assert set(Delivery("posterior_sls", prior_strength=0.0)(votes, ids, 0).tolist()) == {0, 2}
    held = labels_by_epoch(Delivery("posterior_sls", resample_every=3), votes, ids, range(4))
    assert (held[:3] == held[0]).all() and (held[3] != held[0]).any()


# Purity.


@pytest.mark.parametrize("name", DELIVERIES)
def test_an_examples_target_depends_on_nothing_but_its_votes_id_epoch_and_seed(name):
    generator = torch.Generator().manual_seed(0)
    votes = torch.randint(0, 4, (64, 5), generator=generator) + F.one_hot(torch.arange(64) % 5, 5)
    ids = torch.randperm(10**6, generator=generator)[:64]
    delivery = Delivery(name, seed=5)
    for epoch in (0, 3, 8):
        whole = delivery(votes, ids, epoch)
        order = torch.randperm(64, generator=generator)
        assert torch.equal(delivery(votes[order], ids[order], epoch), whole[order])
        for part in (slice(0, 1), slice(7, 20), slice(63, 64)):
            assert torch.equal(delivery(votes[part], ids[part], epoch), whole[part])
        assert torch.equal(Delivery(name, seed=5)(votes, ids, epoch), whole)


@pytest.mark.parametrize("name", DELIVERIES)
def test_deliveries_neither_read_nor_advance_the_global_generators(name):
    votes, ids = torch.tensor([[3, 3, 2]]).expand(50, 3), torch.arange(50)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        delivered = [Delivery(name)(votes, ids, epoch) for epoch in range(4)]
        results.append([*delivered, *mixup_pairs(ids, 0, 0, 0.7), shuffled_rows(50, 0)])
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# What is refused.


@pytest.mark.parametrize("name", ["multipass", "deterministic_control", "posterior_sls"])
def test_deliveries_that_need_counts_refuse_probabilities(name):
    delivery = Delivery(name)
    assert delivery.needs_counts
    with pytest.raises(VotesError, match=rf"'{name}' needs integer vote counts.*'soft' or 'sls'"):
        delivery(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0)


def test_multipass_label_itself_refuses_probabilities():
    with pytest.raises(VotesError, match=r"these rows are probabilities.*'sls'"):
        multipass_label(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0, 0)


@pytest.mark.parametrize(
    "name", [n for n in DELIVERIES if n not in ("multipass", "deterministic_control", "posterior_sls")]
)
def test_the_other_deliveries_take_probabilities(name):
    assert not Delivery(name).needs_counts
    target = Delivery(name)(torch.tensor([[0.25, 0.75]]), torch.tensor([0]), 0)
    assert len(target) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "slz"}, "Unknown delivery 'slz'. Choose one of: soft, sls"),
        ({"name": "sls", "resample_every": 0}, "at least 1 epoch, not 0"),
        ({"name": "label_smoothing", "label_smoothing_epsilon": 1.1}, r"lie in \[0, 1\], not 1.1"),
        ({"name": "label_smoothing", "label_smoothing_epsilon": -0.1}, r"lie in \[0, 1\], not -0.1"),
        ({"name": "posterior_sls", "prior_strength": -1}, "cannot be negative: -1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(VotesError, match=message):
        Delivery(**settings)


def test_delivery_hashes_have_purposes_of_their_own():
    # With one hash for all purposes the SLS draw would decide the tie of the majority too.
    n = 20_000
    votes, ids = torch.tensor([[1, 1]]).expand(n, 2), torch.arange(n)
    drawn = {name: Delivery(name)(votes, ids, 0).numpy() for name in ("sls", "multipass", "majority")}
    for a, b in [("sls", "multipass"), ("sls", "majority"), ("multipass", "majority")]:
        assert chi2_contingency(joint_table(drawn[a], drawn[b], 2)).pvalue > 1e-3, (a, b)
    assert not torch.equal(hash64("sls", 0, 0, ids), hash64("mixup", 0, 0, ids))
