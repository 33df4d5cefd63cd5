"""Vote-coverage sets against brute force, ordinary conformal prediction, simulations and the real votes."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from hf_softlabel import load_votes
from hf_softlabel.conformal import VoteCoverage, fit_vote_coverage, set_scores
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.votes import dense_votes

SEEDS = st.integers(0, 2**32 - 1)
COVERAGES = st.sampled_from([0.05, 0.5, 0.8, 0.9, 0.95])


def case(seed: int, n: int = 30, classes: int = 4, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and counts (N, C); with ties, probabilities are tenths, so that many are equal."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(classes, 0.7), n)
    votes = rng.multinomial(rng.integers(1, 8, n), rng.dirichlet(np.full(classes, 0.5), n) / 2 + q / 2)
    return (rng.multinomial(10, q) / 10 if ties else q), votes


def scores_by_pairs(q: np.ndarray) -> np.ndarray:
    return np.array([[sum(other for other in row if other > one) for one in row] for row in q])


def threshold_by_brute_force(scores: np.ndarray, votes: np.ndarray, coverage: float) -> float:
    """The least of all scores that meets the condition, in exact arithmetic."""
    n, alpha = len(votes), 1 - Fraction(str(coverage))
    for threshold in sorted({0.0, *scores.flat}):
        loss = sum(
            1 - sum(Fraction(int(v), int(row.sum())) for v, s in zip(row, s_row, strict=True) if s <= threshold)
            for row, s_row in zip(votes, scores, strict=True)
        )
        if Fraction(n, n + 1) * (loss / n) + Fraction(1, n + 1) <= alpha:
            return threshold
    raise AssertionError("no threshold is enough")


def test_scores_by_hand():
    q = [[0.5, 0.2, 0.3], [0.25, 0.5, 0.25], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]
    assert set_scores(q).tolist() == [[0, 0.8, 0.5], [0.5, 0, 0.5], [1, 0, 1], [0.5, 0.5, 0]]
    third = np.full((1, 3), 1 / 3)
    assert set_scores(third).tolist() == [[0, 0, 0]]


def test_sets_by_hand():
    # Nine examples and a coverage of 0.8 leave the votes of 0.2 * 10 - 1 = 1 example out: the two halves with
    # the scores 0.9 and 0.6. All others are for a most probable class.
    q = np.array([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]] + [[0.7, 0.3]] * 6)
    q = np.concatenate([q, np.zeros((9, 1))], axis=1)
    votes = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0]] + [[1, 0, 0]] * 6)
    assert fit_vote_coverage(q, votes, 0.8) == VoteCoverage(0.8, 0.0, 9)
    # Of three halves, with the scores 0.9, 0.7 and 0.6, the last is kept.
    votes[3] = [1, 1, 0]
    fitted = fit_vote_coverage(q, votes, 0.8)
    assert fitted == VoteCoverage(0.8, 0.6, 9)
    assert fitted.sets(q).sum(-1).tolist() == [1, 2, 2] + [1] * 6
    assert fitted.sets(q)[1].tolist() == [True, True, False]


@settings(max_examples=60, deadline=None)
@given(SEEDS, COVERAGES, st.integers(20, 40), st.booleans())
def test_threshold_by_brute_force(seed, coverage, n, ties):
    q, votes = case(seed, n, ties=ties)
    fitted = fit_vote_coverage(q, votes, coverage)
    assert fitted.threshold == pytest.approx(
        threshold_by_brute_force(scores_by_pairs(q).round(12), votes, coverage), abs=1e-12
    )
    assert set_scores(q) == pytest.approx(scores_by_pairs(q), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS, COVERAGES, st.integers(20, 60))
def test_one_hot_votes_are_ordinary_conformal_prediction(seed, coverage, n):
    q, votes = case(seed, n)
    labels = votes.argmax(-1)
    of_labels = np.sort(scores_by_pairs(q)[np.arange(n), labels])
    rank = math.ceil(Fraction(str(coverage)) * (n + 1))
    assert fit_vote_coverage(q, np.eye(4)[labels], coverage).threshold == pytest.approx(of_labels[rank - 1], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS, COVERAGES, st.booleans())
def test_symmetries(seed, coverage, ties):
    q, votes = case(seed, ties=ties)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(len(q)), rng.permutation(4)
    fitted = fit_vote_coverage(q, votes, coverage)
    inside = fitted.sets(q)
    assert fit_vote_coverage(q[rows], votes[rows], coverage) == fitted
    assert fit_vote_coverage(q[:, classes], votes[:, classes], coverage) == fitted
    assert (fitted.sets(q[:, classes]) == inside[:, classes]).all()
    # The most probable classes are always in, and no class without those that are as probable.
    assert inside[q == q.max(-1, keepdims=True)].all()
    assert (np.where(inside, q, 1).min(-1) > np.where(inside, -1, q).max(-1)).all()
    higher = fit_vote_coverage(q, votes, 0.96)
    assert higher.threshold >= fitted.threshold
    assert (higher.sets(q) >= inside).all()
    # On the calibration split itself the share is above what was asked for.
    assert fitted.measure(q, votes)["covered"] >= coverage - 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_the_kind_of_predictions_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=(50, 5))
    votes = rng.multinomial(5, softmax(z, -1))
    fitted = fit_vote_coverage(softmax(z, -1), votes)
    assert fit_vote_coverage(z, votes, from_logits=True) == fitted
    assert fit_vote_coverage(torch.tensor(z), torch.tensor(votes), from_logits=True) == fitted
    assert fit_vote_coverage(softmax(z, -1), votes / votes.sum(-1, keepdims=True)) == fitted
    assert (fitted.sets(z, from_logits=True) == fitted.sets(softmax(z, -1))).all()
    expected = fitted.measure(softmax(z, -1), votes)
    assert fitted.measure(torch.tensor(z), votes, from_logits=True) == expected


def test_sums_of_fractions_are_exact():
    # 19 examples and a coverage of 0.9 leave the votes of 0.1 * 20 - 1 = 1 example out, and nine ninths are that.
    votes = np.array([[8, 1, 0]] * 9 + [[1, 0, 0]] * 10)
    q = np.tile([0.75, 0.25, 0.0], (19, 1))
    assert np.cumsum(np.full(9, 1 / 9))[-1] > 1  # in floats they are more
    assert fit_vote_coverage(q, votes, 0.9).threshold == 0


def test_a_coverage_near_zero():
    assert fit_vote_coverage(*case(0), coverage=1e-12).threshold == 0


def test_the_promise_holds_in_simulations():
    rng = np.random.default_rng(1)
    n, new, coverage, repetitions = 40, 200, 0.8, 1500
    covered = []
    for _ in range(repetitions):
        # A model that knows nothing of half of what the annotators think: its most probable class has too few votes.
        z = rng.normal(size=(n + new, 6))
        votes = rng.multinomial(3, softmax(1.5 * z + rng.normal(size=z.shape), -1))
        q = softmax(z, -1)
        fitted = fit_vote_coverage(q[:n], votes[:n], coverage)
        covered.append(fitted.measure(q[n:], votes[n:])["covered"])
    mean, error = np.mean(covered), np.std(covered) / repetitions**0.5
    assert error < 0.002
    # Angelopoulos et al., Theorem 2: for scores without ties no more than 2 / (n + 1) above.
    assert coverage - 3 * error <= mean <= coverage + 2 / (n + 1) + 3 * error


def test_measures_by_hand():
    q = np.array([[0.6, 0.3, 0.1], [0.5, 0.25, 0.25], [0.8, 0.15, 0.05], [1.0, 0.0, 0.0]])
    votes = np.array([[1, 1, 2], [1, 2, 1], [3, 1, 0], [1, 0, 0]])
    measured = VoteCoverage(0.7, 0.6, 10).measure(q, votes)
    # The sets are (0, 1), (0, 1, 2), (0) and (0): half, all, three quarters and all of the votes.
    half = 1.96 * np.std([0.5, 1, 0.75, 1], ddof=1) / 2
    assert measured == {
        "covered": 0.8125,
        "covered_interval": pytest.approx([0.8125 - half, 1]),
        "all_covered": 0.5,
        "set_size": 1.75,
        "set_sizes": {1: 2, 2: 1, 3: 1},
    }
    json.dumps(measured)
    assert VoteCoverage(0.7, 0.6, 10).measure(q[2:], votes[2:])["set_sizes"] == {1: 2, 2: 0, 3: 0}
    # In floats six sixths are not 1, but no vote is left out.
    sixths = np.full((1, 6), 1 / 6)
    assert sixths.sum(-1) != 1 and VoteCoverage(0.7, 0.6, 10).measure(sixths, np.ones((1, 6)))["all_covered"] == 1
    assert np.isnan(VoteCoverage(0.7, 0.6, 10).measure(q[:1], votes[:1])["covered_interval"]).all()


@pytest.mark.parametrize(("coverage", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.7, 3), (0.5, 1)])
def test_too_few_examples(coverage, needed):
    q, votes = case(0, n=needed)
    # All that is left out must be nothing: the largest score that somebody voted for.
    assert fit_vote_coverage(q, votes, coverage).threshold == set_scores(q)[votes > 0].max()
    with pytest.raises(VotesError, match=rf"{needed - 1} example.*{coverage}: at least {needed} are needed"):
        fit_vote_coverage(q[:-1], votes[:-1], coverage)


def test_what_is_refused():
    q, votes = case(0)
    for coverage in (0, 1, 1.5, float("nan")):
        with pytest.raises(VotesError, match="between 0 and 1"):
            fit_vote_coverage(q, votes, coverage)
    with pytest.raises(VotesError, match="from_logits=True"):
        fit_vote_coverage(np.log(q), votes)
    with pytest.raises(VotesError, match="one shape"):
        fit_vote_coverage(q[:, :3] / q[:, :3].sum(-1, keepdims=True), votes)
    fitted = fit_vote_coverage(q, votes)
    with pytest.raises(VotesError, match="one shape"):
        fitted.measure(q[:5], votes)
    with pytest.raises(VotesError, match="at least one example"):
        fitted.measure(q[:0], votes[:0])
    q[3] = np.nan
    with pytest.raises(VotesError, match="not numbers in rows 3"):
        fitted.sets(q)
    votes[[4, 6]] = 0
    with pytest.raises(VotesError, match=r"2 row\(s\): 4, 6"):
        fit_vote_coverage(q, votes)


def test_save_and_load(tmp_path):
    fitted = fit_vote_coverage(*case(2))
    path = fitted.save(tmp_path)
    assert path == tmp_path / "vote_coverage.json"
    assert VoteCoverage.load(tmp_path) == fitted == VoteCoverage.load(path)
    for values in ({"coverage": 0.9}, {"coverage": 0.9, "threshold": None, "examples": 3}):
        path.write_text(json.dumps(values))
        with pytest.raises(VotesError, match=r"vote_coverage.json is not what VoteCoverage.save writes"):
            VoteCoverage.load(tmp_path)


def measured_over_splits(votes: np.ndarray, coverage: float, splits: int = 20) -> tuple[float, float]:
    """Mean share of votes covered in halves of the examples that were not fitted on, and its standard error.

    The prediction is the other half of the example's own votes, with one more vote spread over all classes.
    """
    rng = np.random.default_rng(0)
    seen = rng.multivariate_hypergeometric
    halves = np.stack([seen(row, row.sum() // 2) for row in votes])
    q, rest = halves + 1 / votes.shape[1], votes - halves
    q /= q.sum(-1, keepdims=True)
    covered = []
    for _ in range(splits):
        order = rng.permutation(len(votes))
        fit, new = order[: len(order) // 2], order[len(order) // 2 :]
        covered.append(fit_vote_coverage(q[fit], rest[fit], coverage).measure(q[new], rest[new])["covered"])
    return float(np.mean(covered)), float(np.std(covered) / splits**0.5)


@pytest.mark.sources
@pytest.mark.parametrize("coverage", [0.9, 0.95, 0.98])
def test_cifar10h(sources, coverage):
    votes = np.load(next(sources.rglob("cifar10h-counts.npy"))).astype(np.int64)
    mean, error = measured_over_splits(votes, coverage)
    assert mean >= coverage - 3 * error
    # The most probable class alone has 95% of the votes.
    assert mean <= max(coverage, 0.955) + 0.005


@pytest.mark.sources
@pytest.mark.parametrize("subset", ["snli", "mnli", "alphanli"])
def test_chaosnli(sources, subset):
    votes = dense_votes(load_votes("chaosnli", subset, sources=sources)["train"])
    mean, error = measured_over_splits(votes, 0.9)
    assert 0.9 - 3 * error <= mean
