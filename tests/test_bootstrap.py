"""Bootstrap intervals against standard errors, real resamples, and what a calibrated model must be given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

from hf_softlabel.data.errors import VotesError
from hf_softlabel.metrics import VoteScores, bootstrap_scores, difference_interval, interval, score_votes
from hf_softlabel.metrics.bootstrap import CALIBRATION_ERRORS
from hf_softlabel.metrics.calibration import Confidences

pytestmark = pytest.mark.filterwarnings("ignore::hf_softlabel.metrics.UndefinedScoreWarning")
MEANS = ("soft_nll", "kl", "soft_brier", "accuracy", "js_distance", "dist_ce", "ent_ce", "rank_cs")


def case(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    votes = np.stack([rng.multinomial(10, p) for p in rng.dirichlet([0.6] * 3, n)])
    return 0.3 * votes + rng.normal(size=votes.shape), votes


def test_intervals_of_means_are_those_of_the_standard_error():
    logits, votes = case(0, 500)
    table = VoteScores(logits, votes, from_logits=True)
    scores, (draws,) = table.scores(), bootstrap_scores([table], 400)
    for name in MEANS:
        each = table.examples[name]
        half = 1.96 * each.std() / len(each) ** 0.5
        low, high = interval(name, scores[name], draws[name])
        assert low == pytest.approx(scores[name] - half, abs=0.25 * half), name
        assert high == pytest.approx(scores[name] + half, abs=0.25 * half), name


def test_each_draw_is_the_scores_of_a_resample_with_replacement():
    logits, votes = case(1, 30)
    (draws,) = bootstrap_scores([VoteScores(logits, votes, from_logits=True)], 5, seed=7)
    rng = np.random.default_rng(7)
    for i in range(5):
        rows = rng.integers(0, 30, 30)
        expected = score_votes(logits[rows], votes[rows], from_logits=True)
        assert {name: values[i] for name, values in draws.items()} == pytest.approx(expected, abs=1e-9)
    assert all(values.shape == (5,) for values in draws.values())


def test_the_seed_is_all_that_the_draws_depend_on():
    logits, votes = case(2, 40)
    table = VoteScores(logits, votes, from_logits=True)
    np.random.seed(0)
    one, again, other = (bootstrap_scores([table], 10, seed)[0]["soft_nll"] for seed in (3, 3, 4))
    assert one.tolist() == again.tolist() != other.tolist()
    assert len(set(one)) == 10


def test_several_tables_see_the_same_resamples():
    logits, votes = case(3, 200)
    better = logits + np.random.default_rng(0).normal(scale=0.2, size=logits.shape)
    tables = [VoteScores(z, votes, from_logits=True) for z in (logits, better, logits)]
    first, second, copy = bootstrap_scores(tables, 200, seed=1)
    for name in first:
        assert first[name].tolist() == copy[name].tolist()
    (alone,) = bootstrap_scores(tables[1:2], 200, seed=1)
    assert alone["kl"].tolist() == second["kl"].tolist()
    gap = tables[1].examples["soft_nll"] - tables[0].examples["soft_nll"]
    means = tuple(table.examples["soft_nll"].mean() for table in tables[:2])
    low, high = difference_interval("soft_nll", means, (first["soft_nll"], second["soft_nll"]))
    half = 1.96 * gap.std() / 200**0.5
    assert (low, high) == pytest.approx((gap.mean() - half, gap.mean() + half), abs=0.3 * half)
    unpaired = np.quantile(second["soft_nll"] - first["soft_nll"][::-1], [0.025, 0.975])
    assert high - low < np.diff(unpaired)[0] / 2


def test_what_cannot_be_paired_or_drawn_is_refused():
    logits, votes = case(4, 20)
    tables = [VoteScores(logits[rows], votes[rows], from_logits=True) for rows in (slice(20), slice(19))]
    with pytest.raises(VotesError, match=r"same examples in all tables, not \[19, 20\] of them"):
        bootstrap_scores(tables, 3)
    with pytest.raises(VotesError, match="needs resamples, not 0"):
        bootstrap_scores(tables[:1], 0)


def test_the_interval_of_a_calibrated_model_reaches_0_and_that_of_percentiles_does_not():
    """15 bins of 13 examples: the ECE of a calibrated model is some .1 by chance, and more in each resample of it."""
    reached = by_percentiles = sure = 0
    repeats, n = 30, 200
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.4, 1, n)
        sorted_once = Confidences(confidence)
        for shift in (0.0, 0.3):
            outcome = (rng.random(n) < confidence - shift).astype(float)
            estimate = sorted_once.equal_mass_ece(outcome)
            weights = (np.bincount(rng.integers(0, n, n), minlength=n).astype(float) for _ in range(200))
            draws = np.array([sorted_once.equal_mass_ece(outcome, weights=w) for w in weights])
            low, high = interval("ece_equal_mass", estimate, draws)
            assert 0 <= low <= estimate <= high
            if shift:
                # Of one that is sure of itself by .3 the interval must not reach 0, and should hold the .3.
                assert low > 0
                sure += low <= shift <= high
            else:
                reached += low == 0
                by_percentiles += np.quantile(draws, 0.025) <= 0.01
    assert reached >= 0.9 * repeats and by_percentiles == 0
    assert sure >= 0.8 * repeats


@pytest.mark.parametrize("name", ["ece_equal_mass", "smooth_ece_soft", "brier_discrimination"])
def test_biased_scores_by_hand(name):
    draws = np.linspace(0.2, 0.4, 201)  # percentiles .205 and .395 of values that occur
    found = interval(name, 0.25, draws)
    if name in CALIBRATION_ERRORS:
        # 2 * .25^2 - .395^2 is below 0; 2 * .25^2 - .205^2 is .0830.
        assert found == pytest.approx((0, math.sqrt(0.125 - 0.205**2)), abs=2e-3)
        # The estimate is below all resamples: the interval still holds it.
        assert interval(name, 0.1, draws) == (0, 0.1)
        # Both errors are mirrored: the second, .4, to 2 * .4^2 - .3^2 = .23, the first, .3, to itself.
        ends = difference_interval(name, (0.3, 0.4), (np.full(9, 0.3), np.full(9, 0.3)))
        assert ends == pytest.approx((0.1, math.sqrt(0.23) - 0.3))
    else:
        assert found == pytest.approx((0.105, 0.295), abs=2e-3)
    assert interval("soft_nll", 0.25, draws) == pytest.approx((0.205, 0.395), abs=2e-3)


def test_two_calibrated_models_that_differ_are_seldom_told_apart():
    """One knows every example's distribution, the other only three kinds of them. Both are calibrated."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0, 0], [0, 1.5, 0], [0, 0, 1.0]])
    kinds = np.stack([softmax(centre + rng.normal(size=(20_000, 3)), axis=1).mean(0) for centre in centres])
    repeats, n, verdicts = 30, 200, {"equal_mass_ece": 0, "smooth_ece": 0}
    for _ in range(repeats):
        kind = rng.integers(0, 3, n)
        p = softmax(centres[kind] + rng.normal(size=(n, 3)), axis=1)
        votes = rng.multinomial(10, p) / 10
        tops = [(q.max(1), votes[np.arange(n), q.argmax(1)]) for q in (kinds[kind], p)]
        weights = [np.bincount(rng.integers(0, n, n), minlength=n).astype(float) for _ in range(100)]
        for score in verdicts:
            models = [Confidences(confidence) for confidence, _ in tops]
            pairs = list(zip(models, (target for _, target in tops), strict=True))
            estimates = tuple(getattr(model, score)(target) for model, target in pairs)
            draws = tuple(np.array([getattr(m, score)(t, weights=w) for w in weights]) for m, t in pairs)
            name = "ece_equal_mass_soft" if score == "equal_mass_ece" else "smooth_ece_soft"
            low, high = difference_interval(name, estimates, draws)
            assert low <= estimates[1] - estimates[0] <= high
            verdicts[score] += low > 0 or high < 0
    # 5% of 30 are 1.5.
    assert max(verdicts.values()) <= 4


def test_miscalibration_has_no_interval():
    draws = np.linspace(0.2, 0.4, 201)
    assert interval("brier_miscalibration", 0.25, draws) is None
    assert difference_interval("brier_miscalibration", (0.2, 0.25), (draws, draws)) is None


@pytest.mark.parametrize("name", ["soft_nll", "entropy_correlation", "brier_discrimination", *CALIBRATION_ERRORS])
def test_a_resample_without_a_score_leaves_no_interval(name):
    draws = np.array([0.1, 0.2, math.nan, 0.3])
    for found in (interval(name, 0.2, draws), difference_interval(name, (0.2, 0.2), (draws, draws))):
        assert all(math.isnan(end) for end in found)


def test_constant_entropies_are_undefined_in_the_resamples_that_leave_the_only_other_out():
    votes = np.array([[2, 2], [3, 1], [2, 2]])
    q = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]])
    (draws,) = bootstrap_scores([VoteScores(q, votes)], 50)
    undefined = np.isnan(draws["entropy_correlation"])
    # (2/3)^3 of resamples leave it out, and 1/27 are of it alone.
    assert 0.2 < undefined.mean() < 0.5
    assert not np.isnan(draws["soft_nll"]).any()
    assert math.isnan(interval("entropy_correlation", 1.0, draws["entropy_correlation"])[0])


def test_infinite_scores_are_ends_and_never_averaged_with_their_neighbours():
    logits, votes = case(6, 40)
    q = softmax(logits, axis=1)
    row = int(np.flatnonzero((votes > 0).all(1))[0])
    q[row] = [0, 0.5, 0.5]
    table = VoteScores(q, votes)
    (draws,) = bootstrap_scores([table], 200)
    # A resample leaves one example out with probability 1/e.
    assert np.isinf(draws["soft_nll"]).mean() == pytest.approx(1 - 1 / math.e, abs=0.1)
    low, high = interval("soft_nll", math.inf, draws["soft_nll"])
    assert math.isfinite(low) and high == math.inf
    assert low in draws["soft_nll"]
    assert all(math.isfinite(end) for end in interval("soft_brier", 0.1, draws["soft_brier"]))
    assert interval("kl", math.inf, np.full(10, np.inf)) == (math.inf, math.inf)
