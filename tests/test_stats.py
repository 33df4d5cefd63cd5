"""Paired tests against brute force, scipy and hand-worked cases; Holm against its definition as a closed test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, ttest_1samp, wilcoxon

from hf_softlabel.experiments.stats import (
    holm,
    mean_interval,
    paired_differences,
    paired_test,
    seeds_for_power,
    seeds_to_reach,
    smallest_p,
)


def brute_force(differences: list[float]) -> tuple[float, float, float]:
    """P(W <= w), P(W >= w) and twice the smaller, over all signs of the ranks of what is not 0."""
    d = np.array([x for x in differences if x != 0])
    ranks = rankdata(np.abs(d))
    seen = ranks[d > 0].sum()
    every = np.array([sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(d))])
    less, greater = (every <= seen + 1e-9).mean(), (every >= seen - 1e-9).mean()
    return less, greater, min(1, 2 * min(less, greater))


@pytest.mark.parametrize(
    "differences",
    [
        [-1.0, -2, -3, -4, -5],
        [1.0, 2, 3, 4, -5],
        [1.0, 1, 2, 3, -1],  # ties
        [0.0, 1, 2, -3, 0, 4],  # zeros
        [1.0, 1, 2, 3, -1, 0, 2, 2, 5, -4, 6, -7, 8],  # 13 with both
        [0.5],
    ],
)
def test_p_values_are_exact_with_ties_and_zeros_too(differences):
    test = paired_test(differences)
    less, greater, both = brute_force(differences)
    assert (test.p_less, test.p_greater, test.p_two_sided) == pytest.approx((less, greater, both))


def test_five_seeds_that_agree_reach_the_smallest_p():
    test = paired_test([-0.1, -0.2, -0.05, -0.3, -0.01])
    assert test.p_less == 0.03125 == smallest_p(5)
    assert test.p_two_sided == 0.0625 == smallest_p(5, two_sided=True)
    assert (test.n, test.agree) == (5, 5)
    # One that disagrees by the least: W = 1, and 2 of 32 signs are as extreme.
    assert paired_test([-0.1, -0.2, -0.05, -0.3, 0.01]).p_less == 2 / 32


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5).filter(lambda x: abs(x) > 1e-6), min_size=3, max_size=40, unique_by=abs))
def test_without_ties_it_is_scipys_exact_test_and_symmetric(differences):
    test = paired_test(differences)
    for name, side in (("p_less", "less"), ("p_greater", "greater"), ("p_two_sided", "two-sided")):
        assert getattr(test, name) == pytest.approx(wilcoxon(differences, alternative=side, method="exact").pvalue)
    mirrored = paired_test([-x for x in differences])
    assert mirrored.p_less == pytest.approx(test.p_greater) and mirrored.mean == pytest.approx(-test.mean)
    assert min(test.p_less, test.p_greater) >= smallest_p(len(differences)) - 1e-15


def test_many_pairs_approach_the_normal_approximation():
    many = np.random.default_rng(0).normal(0.1, 1, size=400)
    for differences in (many, np.round(many, 1)):
        near = wilcoxon(differences, alternative="greater", method="asymptotic").pvalue
        assert paired_test(differences).p_greater == pytest.approx(near, rel=0.02)


def test_equal_steps_of_accuracies_are_ties_in_spite_of_rounding():
    rng = np.random.default_rng(0)
    for _ in range(200):
        hits = rng.integers(1700, 1760, (2, 10))
        test = paired_test(paired_differences(hits[0] / 2000, hits[1] / 2000))
        counted = paired_test(hits[0] - hits[1])
        assert (test.p_less, test.p_greater) == pytest.approx((counted.p_less, counted.p_greater))
    assert paired_differences([0.3, 1e-3], [0.1 + 0.2, 0.0]).tolist() == pytest.approx([0, 1e-3])
    assert paired_differences([0.1 + 0.2], [0.3])[0] == 0
    assert paired_differences([1500.25], [1500.0])[0] == 0.25 and paired_differences([0.0], [0.0])[0] == 0
    assert np.isnan(paired_differences([math.nan], [1.0])).all()


def test_no_difference_is_no_evidence_and_no_agreement():
    test = paired_test([0.0, 0.0, 0.0])
    assert (test.p_less, test.p_greater, test.p_two_sided, test.agree) == (1, 1, 1, 0)
    assert paired_test([0.0, -1.0, -2.0]).agree == 2
    with pytest.raises(ValueError, match="finite"):
        paired_test([1.0, math.nan])
    with pytest.raises(ValueError, match="must be some"):
        paired_test([])


def closed_test(p: list[float]) -> list[float]:
    """Holm by its definition: the worst Bonferroni p of all intersections that contain a hypothesis."""
    places = range(len(p))
    subsets = [s for size in range(1, len(p) + 1) for s in itertools.combinations(places, size)]
    return [max(min(1, len(s) * min(p[j] for j in s)) for s in subsets if i in s) for i in places]


def test_holm_by_hand():
    # Sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04, and none below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # The paper's sweep: 9 of 12 cells at the smallest p of 5 seeds.
    adjusted = holm([0.03125] * 9 + [0.0625, 0.0625, 0.09375])
    assert adjusted[:9] == pytest.approx([12 * 0.03125] * 9) and min(adjusted) > 0.05
    assert holm([]) == []


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_holm_is_the_closed_test_of_bonferroni(p):
    assert holm(p) == pytest.approx(closed_test(p))


def test_seeds_that_a_claim_needs():
    # The case: 12 tests of 5 seeds cannot pass, 8 seeds can: 12 / 2^8 = .047, 12 / 2^7 = .094.
    assert seeds_to_reach(12) == 8 and seeds_to_reach(1) == 5 and seeds_to_reach(1, two_sided=True) == 6
    for tests in (1, 2, 4, 12, 28, 64):
        for two_sided in (False, True):
            n = seeds_to_reach(tests, two_sided)
            assert tests * smallest_p(n, two_sided) <= 0.05 < tests * smallest_p(n - 1, two_sided)


@pytest.mark.parametrize(("effect", "tests", "two_sided"), [(0.5, 1, True), (1.0, 12, False), (2.0, 4, True)])
def test_seeds_for_power_have_about_that_power(effect, tests, two_sided):
    n = seeds_for_power(effect, tests, two_sided)
    rng = np.random.default_rng(0)
    side = "two-sided" if two_sided else "greater"
    found = wilcoxon(rng.normal(effect, 1, (1500, n)), axis=1, alternative=side).pvalue <= 0.05 / tests
    assert 0.77 < found.mean() < 0.9
    assert seeds_for_power(0.0) is None and seeds_for_power(math.inf) is None
    assert seeds_for_power(100.0, 12) == 8  # never fewer than can reach it


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_the_interval_of_a_mean_is_scipys(values):
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((expected.low, expected.high), abs=1e-9)
    # By hand: mean 2, SD 1, t of 2 degrees of freedom 4.3027.
    assert mean_interval([1, 2, 3]) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)
