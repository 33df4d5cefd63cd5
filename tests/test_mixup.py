"""Mixup: shares, partners, and mixed targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, ks_2samp, kstest

from hf_softlabel.delivery import Delivery
from hf_softlabel.mixup import mix, mix_targets, mixup_pairs

VOTE_ROWS = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(lambda row: sum(row) > 0)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_follow_the_beta_distribution(alpha):
    _, share = mixup_pairs(torch.arange(40_000), 2, 0, alpha)
    assert share.dtype == torch.float32 and share.min() >= 0 and share.max() <= 1
    # Shares next to 1 are rounded to 1 in float32: against scipy's draws so rounded, and exactly for the lower half.
    draws = beta(alpha, alpha).rvs(100_000, random_state=0).astype(np.float32)
    assert ks_2samp(share.numpy(), draws).pvalue > 1e-3
    lower = share[share < 0.5].double().numpy()
    assert kstest(lower, lambda x: 2 * beta(alpha, alpha).cdf(x)).pvalue > 1e-3


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=40), st.integers(0, 300), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_mixup_partners_are_a_permutation_without_fixed_points(ids, epoch, seed):
    # Examples may repeat in a batch: the last batch on several processes is filled up.
    partner, _ = mixup_pairs(torch.tensor(ids), epoch, seed, 1.0)
    assert sorted(partner.tolist()) == list(range(len(ids)))
    assert (partner != torch.arange(len(ids))).all()


def test_a_single_example_is_mixed_with_itself():
    partner, share = mixup_pairs(torch.tensor([5]), 0, 0, 1.0)
    assert partner.tolist() == [0]
    x = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(mix(x, partner, share), x)


def test_mixup_partners_and_shares_change_with_epoch_and_seed():
    ids = torch.arange(64)
    pairs = [mixup_pairs(ids, epoch, seed, 1.0) for epoch, seed in [(0, 0), (1, 0), (0, 1)]]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert (pairs[a][0] == pairs[b][0]).float().mean() < 0.2
        assert (pairs[a][1] == pairs[b][1]).float().mean() < 0.1


def test_mixup_partner_and_share_are_independent():
    # The share is hashed once more: else those first in the order would have the lowest shares.
    ids = torch.arange(20_000)
    partner, share = mixup_pairs(ids, 0, 0, 1.0)
    assert abs(np.corrcoef(share.numpy(), share[partner].numpy())[0, 1]) < 0.03


def test_mix_by_hand():
    x = torch.arange(12, dtype=torch.float32).view(3, 2, 2)
    mixed = mix(x, torch.tensor([1, 2, 0]), torch.tensor([0.25, 1.0, 0.0]))
    # .25 * (0, 1, 2, 3) + .75 * (4, 5, 6, 7); then itself; then its partner.
    assert mixed.tolist() == [[[3, 4], [5, 6]], [[4, 5], [6, 7]], [[0, 1], [2, 3]]]
    assert mix(x.half(), torch.tensor([1, 2, 0]), torch.tensor([0.25, 1.0, 0.0])).dtype == torch.float16


def test_mixed_hard_targets_by_hand():
    mixed = mix_targets(torch.tensor([0, 2]), 3, torch.tensor([1, 0]), torch.tensor([0.75, 0.5]))
    assert mixed.tolist() == [[0.75, 0.0, 0.25], [0.5, 0.0, 0.5]]


def test_mixed_soft_targets_by_hand_which_timm_does_not_give():
    timm_data = pytest.importorskip("timm.data")
    soft = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    mixed = mix_targets(soft, 3, torch.tensor([1, 0]), torch.tensor([0.75, 0.5]))
    assert mixed.tolist() == [[0.375, 0.4375, 0.1875], [0.25, 0.375, 0.375]]
    assert mixed.sum(1).tolist() == [1.0, 1.0]
    # timm pairs the batch with its reverse, by one share for all.
    mixer = timm_data.Mixup(mixup_alpha=1.0, label_smoothing=0.0, num_classes=3)
    try:
        _, theirs = mixer(torch.rand(2, 3, 4, 4), soft)
    except Exception:
        return
    lower, upper = torch.minimum(soft, soft.flip(0)), torch.maximum(soft, soft.flip(0))
    a_mix = theirs.shape == soft.shape and bool(((theirs >= lower) & (theirs <= upper)).all())
    assert not a_mix, "timm mixes soft targets now: ours can go"


@given(st.integers(1, 20), st.integers(2, 6), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_mixed_targets_are_distributions(n, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    partner, share = mixup_pairs(torch.arange(n), 0, seed, 0.2)
    soft = torch.rand(n, classes, generator=generator).softmax(-1)
    hard = torch.randint(0, classes, (n,), generator=generator)
    for targets in (soft, hard):
        mixed = mix_targets(targets, classes, partner, share)
        assert (mixed >= 0).all()
        torch.testing.assert_close(mixed.sum(1), torch.ones(n))


def test_mixup_delivers_majority_or_soft_targets():
    votes, ids = torch.tensor([[3, 1]]), torch.tensor([0])
    assert Delivery("mixup")(votes, ids, 0).tolist() == [0]
    assert Delivery("mixup", mixup_targets="soft")(votes, ids, 0).tolist() == [[0.75, 0.25]]


def test_shares_depend_on_the_example_not_on_the_batch():
    ids = torch.tensor([3, 1, 4, 15, 9])
    _, share = mixup_pairs(ids, 2, 6, 0.5)
    assert torch.equal(mixup_pairs(ids[1:3], 2, 6, 0.5)[1], share[1:3])
