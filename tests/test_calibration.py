"""Calibration by hand-worked numbers, against scikit-learn, relplot, and direct implementations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.fft import dct
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression

from hf_softlabel.data.errors import VotesError
from hf_softlabel.metrics import UndefinedScoreWarning, calibration, soft_brier
from hf_softlabel.metrics.brier import brier_decomposition
from hf_softlabel.metrics.calibration import (
    calibrated_ece,
    confidence_and_target,
    equal_mass_bins,
    equal_mass_ece,
    smooth_ece,
)

SEEDS = st.integers(0, 2**32 - 1)
ECES = (equal_mass_ece, smooth_ece)


def case(seed: int, n: int = 60, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, counts (N, C) and labels (N,)."""
    rng = np.random.default_rng(seed)
    votes = np.stack([rng.multinomial(10, p) for p in rng.dirichlet(np.full(classes, 0.5), n)])
    return rng.normal(scale=2, size=(n, classes)) + 0.2 * votes, votes, votes.argmax(1)


def binary(confidence) -> np.ndarray:
    """Predictions (N, 2) of class 0 with these confidences."""
    c = np.asarray(confidence, float)
    return np.stack([c, 1 - c], 1)


def test_ece_by_hand():
    q = binary([0.6, 0.7, 0.8, 0.9])
    # Two bins: mean confidences .65 and .85, half and all of the labels right.
    assert equal_mass_ece(q, [0, 1, 0, 0], target="hard", bins=2) == pytest.approx((0.15 + 0.15) / 2, abs=1e-15)
    # The annotators' mass on class 0 is .5, 1 | 1, 0.
    votes = np.array([[2, 2], [3, 0], [5, 0], [0, 5]])
    assert equal_mass_ece(q, votes, bins=2) == pytest.approx((0.1 + 0.35) / 2, abs=1e-15)
    # A bin per example.
    assert equal_mass_ece(q, votes) == pytest.approx((0.1 + 0.3 + 0.2 + 0.9) / 4, abs=1e-15)


def test_tied_confidences_share_a_bin():
    # Sorted and split into 15, the bins of these rows would each be all right or all wrong: .42 for .3.
    q, labels = binary(np.full(1000, 0.9)), np.repeat([0, 1], [600, 400])
    assert equal_mass_ece(q, labels, target="hard") == pytest.approx(0.3, abs=1e-12)
    assert equal_mass_bins(np.array([0.9, 0.5, 0.9, 0.9, 0.7, 0.9]), bins=3).tolist() == [2, 0, 2, 2, 0, 2]
    # Equal but for the last bits.
    assert len(set(equal_mass_bins(np.array([0.3, 0.1 + 0.2, 0.3, 0.3])))) == 1


@given(SEEDS, st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_bins_of_distinct_confidences_hold_the_same_mass(seed, n):
    confidence = np.random.default_rng(seed).random(n)
    sizes = np.bincount(equal_mass_bins(confidence), minlength=15)
    assert len(sizes) == 15 and set(sizes[sizes > 0]) <= {n // 15, n // 15 + 1}
    order = confidence.argsort()
    assert (np.diff(equal_mass_bins(confidence)[order]) >= 0).all()


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_ece_is_that_of_scikit_learns_calibration_curve(seed):
    logits, votes, labels = case(seed, n=150)
    q = softmax(logits, axis=1)
    right = q.argmax(1) == labels
    truth, predicted = calibration_curve(right, q.max(1), n_bins=15, strategy="quantile")
    assert equal_mass_ece(q, labels, target="hard") == pytest.approx(abs(truth - predicted).mean(), abs=1e-12)
    mass = (votes / 10)[np.arange(150), q.argmax(1)]
    by_hand = [abs(mass[b].mean() - q.max(1)[b].mean()) for b in np.split(q.max(1).argsort(), 15)]
    assert equal_mass_ece(q, votes) == pytest.approx(np.mean(by_hand), abs=1e-12)


def test_a_uniform_predictor_is_scored_by_all_classes():
    votes = np.array([[8, 2, 0], [9, 0, 1], [7, 2, 1]])
    q = np.full((3, 3), 1 / 3)
    for order in ([0, 1, 2], [2, 1, 0]):
        for ece in ECES:
            assert ece(q, votes[:, order]) == pytest.approx(0, abs=1e-12)
    # Two of three classes share the maximum: the target is the mean of .8 and .2, and of right and wrong.
    tied = np.array([[0.4, 0.4, 0.2]])
    assert [x.tolist() for x in confidence_and_target(tied, votes[:1])] == [[0.4], [0.5]]
    assert [x.tolist() for x in confidence_and_target(tied, [1], target="hard")] == [[0.4], [0.5]]
    assert [x.tolist() for x in confidence_and_target(tied, [2], target="hard")] == [[0.4], [0.0]]


def direct_smoothed_error(c: np.ndarray, residual: np.ndarray, s: float) -> float:
    """smECE at bandwidth s by its definition: every example's kernel, with its mirror images, at every t."""
    t = np.linspace(0, 1, 4001)[:, None]
    images = [2 * j + sign * c for j in range(-4, 5) for sign in (1, -1)]
    kernel = sum(np.exp(-(((t - x) / s) ** 2) / 2) for x in images) / (s * math.sqrt(2 * math.pi))
    return float(np.trapezoid(np.abs((kernel * residual).mean(1)), t[:, 0]))


@given(SEEDS)
@settings(max_examples=8, deadline=None)
def test_smooth_ece_is_its_definition(seed):
    logits, votes, labels = case(seed, n=40)
    for people, target in ((votes, "annotators"), (labels, "hard")):
        c, outcome = confidence_and_target(logits, people, True, target)
        found = smooth_ece(logits, people, True, target)
        # Since the error falls with the bandwidth, only one bandwidth is its own error.
        assert found == pytest.approx(direct_smoothed_error(c, outcome - c, found), abs=1e-5)
        cosines = dct(calibration._on_grid(c, outcome - c))
        for s in (0.01, 0.05, 0.3, 1.0):
            expected = direct_smoothed_error(c, outcome - c, s)
            assert calibration.smoothed_error(cosines, s) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("s", [0.01, 0.02, 0.03125])
def test_a_grid_of_32_steps_in_a_bandwidth_is_as_good_as_a_finer_one(s):
    rng = np.random.default_rng(0)
    c = rng.uniform(0.3, 1, 300)
    cosines = dct(calibration._on_grid(c, (rng.random(300) < c) - c))
    exact = calibration.smoothed_error(cosines, s)
    # The midpoint rule alone, which knows nothing of changes of sign, is off by 4e-8 and more.
    assert calibration.smoothed_error(cosines, s, grid=round(32 / s)) == pytest.approx(exact, abs=1e-8)


def test_smooth_ece_smooths_across_the_boundary():
    # At the very ends of [0, 1] half of a plain Gaussian would be lost.
    c, residual = np.array([0.0, 1.0]), np.array([0.4, -0.2])
    cosines = dct(calibration._on_grid(c, residual))
    for s in (0.02, 0.2):
        assert calibration.smoothed_error(cosines, s) == pytest.approx(direct_smoothed_error(c, residual, s), abs=1e-5)
    assert calibration.smoothed_error(cosines, 0.02) == pytest.approx(0.3, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_smooth_ece_agrees_with_its_authors(seed):
    relplot = pytest.importorskip("relplot", reason="the authors' smooth ECE, from the test extra, is the oracle")
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.5, 1, 3000)
    labels = (rng.random(3000) >= c ** (1 + seed)).astype(int)
    # Its search stops at a bandwidth of 1/1024, and it adds a little to the density.
    expected = relplot.smECE(c, 1.0 - labels)
    assert smooth_ece(binary(c), labels, target="hard") == pytest.approx(expected, abs=1.5e-3)


@pytest.mark.filterwarnings("error")
def test_smooth_ece_by_hand():
    # Residuals of one sign do not cancel at any bandwidth.
    assert smooth_ece(binary([0.7]), [0], target="hard") == pytest.approx(0.3, abs=1e-9)
    assert smooth_ece(binary([0.7, 0.9]), np.array([[1, 0], [1, 0]])) == pytest.approx(0.2, abs=1e-9)
    # Those of one confidence cancel at every bandwidth.
    assert smooth_ece(binary([0.75, 0.75]), np.array([[4, 0], [2, 2]])) == 0
    # Extreme logits: sure of the wrong class, always or half of the time.
    sure = np.array([[1e4, -1e4], [1e4, -1e4]])
    assert smooth_ece(sure, [1, 1], True, "hard") == pytest.approx(1, abs=1e-9)
    assert smooth_ece(sure, [0, 1], True, "hard") == pytest.approx(0.5, abs=1e-9)
    assert equal_mass_ece(sure, [0, 1], True, "hard") == 0.5
    assert equal_mass_ece(sure, np.array([[3, 1], [3, 1]]), True) == 0.25
    # Float32 probabilities may sum to a little more than 1.
    assert smooth_ece(np.array([[1.0000001, 0]]), [0], target="hard") == pytest.approx(0, abs=1e-6)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_eces_lie_between_the_mean_residual_and_the_mean_of_its_size(seed):
    logits, votes, labels = case(seed)
    for people, target in ((votes, "annotators"), (labels, "hard")):
        c, outcome = confidence_and_target(logits, people, True, target)
        for ece in ECES:
            value = ece(logits, people, True, target)
            assert type(value) is float
            assert abs((outcome - c).mean()) - 1e-9 <= value <= abs(outcome - c).mean() + 1e-9


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_and_classes_does_not_matter(seed):
    logits, votes, _ = case(seed)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(60), rng.permutation(4)
    # Whole logits: many tied confidences, and ties within a row.
    for scores in (logits, logits.round()):
        for ece in ECES:
            expected = pytest.approx(ece(scores, votes, True), abs=1e-8)
            assert ece(scores[rows], votes[rows], True) == expected
            assert ece(scores[:, classes], votes[:, classes], True) == expected
        parts = pytest.approx(brier_decomposition(scores, votes, True), abs=1e-10)
        assert brier_decomposition(scores[rows], votes[rows], True) == parts
        assert brier_decomposition(scores[:, classes], votes[:, classes], True) == parts


def test_tensors_and_lists_score_as_their_arrays():
    logits, votes, labels = case(3)
    tensor = torch.from_numpy(logits).to(torch.bfloat16).requires_grad_()
    array = tensor.detach().double().numpy()
    for score in (equal_mass_ece, smooth_ece, calibrated_ece, brier_decomposition):
        expected = score(array, votes, True)
        assert score(tensor, torch.from_numpy(votes), True) == expected
        assert score(array.tolist(), votes.tolist(), True) == expected
        assert score(softmax(array, axis=1), votes) == pytest.approx(expected, abs=1e-9)
    for score in (equal_mass_ece, smooth_ece, calibrated_ece):
        expected = score(array, labels, True, "hard")
        assert score(tensor, torch.from_numpy(labels), True, "hard") == expected
        assert score(array, labels.tolist(), True, "hard") == expected


@pytest.mark.parametrize(
    ("c", "n", "error"),
    # The normal law is within 1%. A thousand draws have a standard error of up to 3%.
    [(0.5, 100, 0.01), (0.5, 1500, 0.01), (0.98, 1300, 0.01), (0.999, 3000, 0.1), (0.7, 1, 0.1)],
)
def test_the_calibrated_reference_is_the_binomials_mean_deviation(c, n, error):
    # All confidences tie: one bin, in which the number of right labels is binomial.
    k = np.arange(n + 1)
    expected = (abs(k / n - c) * stats.binom.pmf(k, n, c)).sum()
    q = binary(np.full(n, c))
    assert calibrated_ece(q, np.zeros(n, int), target="hard") == pytest.approx(expected, rel=error)
    # Four votes an example are four times as many draws.
    k = np.arange(4 * n + 1)
    expected = (abs(k / (4 * n) - c) * stats.binom.pmf(k, 4 * n, c)).sum()
    assert calibrated_ece(q, np.tile([1, 3], (n, 1))) == pytest.approx(expected, rel=error)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_calibrated_reference_is_what_calibrated_models_score(scale):
    rng = np.random.default_rng(0)
    # Scale 8 leaves bins without any doubt, in which next to nothing varies.
    q = softmax(rng.normal(scale=scale, size=(2000, 4)), axis=1)
    drawn = (rng.random((200, 2000, 1)) > q.cumsum(1)).sum(-1).clip(0, 3)
    scores = [equal_mass_ece(q, labels, target="hard") for labels in drawn]
    found = calibrated_ece(q, drawn[0], target="hard")
    assert found == pytest.approx(np.mean(scores), abs=4 * np.std(scores) / math.sqrt(200))
    assert found == calibrated_ece(q, drawn[1], target="hard")
    votes = np.stack([rng.multinomial(5, q) for _ in range(100)])
    soft = [equal_mass_ece(q, v) for v in votes]
    assert calibrated_ece(q, votes[0]) == pytest.approx(np.mean(soft), abs=4 * np.std(soft) / math.sqrt(100))


def test_brier_decomposition_by_hand():
    # Isotonic regression of (0, 1, 0, 1) pools the two in the middle: (0, .5, .5, 1).
    q, votes = binary([0.2, 0.4, 0.6, 0.8]), np.array([[0, 1], [1, 0], [0, 1], [1, 0]])
    # For each of two classes the score is .2, recalibrated .125, and of the mean .25.
    expected = {"miscalibration": 2 * 0.075, "discrimination": 2 * 0.125, "uncertainty": 2 * 0.25}
    assert brier_decomposition(q, votes) == pytest.approx(expected, abs=1e-15)
    # Tied predictions get one value, in any order: the mean of theirs.
    tied = brier_decomposition(binary([0.4, 0.4, 0.4, 0.4]), votes)
    assert tied == pytest.approx({"miscalibration": 2 * 0.01, "discrimination": 0, "uncertainty": 0.5}, abs=1e-15)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_brier_decomposition_is_scikit_learns_isotonic_regression(seed):
    logits, votes, _ = case(seed)
    # Shares of ten tie often; scikit-learn takes their mean too.
    tenths = np.random.default_rng(seed).multinomial(10, np.full(4, 0.25), len(votes)) / 10
    for q in (softmax(logits, axis=1), tenths):
        p = votes / 10
        fitted = np.stack([IsotonicRegression().fit(q[:, k], p[:, k]).predict(q[:, k]) for k in range(4)], 1)
        score, best, mean = (np.square(x - p).sum(1).mean() for x in (q, fitted, p.mean(0)))
        parts = brier_decomposition(q, votes)
        assert parts["miscalibration"] == pytest.approx(score - best, abs=1e-10)
        assert parts["discrimination"] == pytest.approx(mean - best, abs=1e-10)
        assert parts["uncertainty"] == pytest.approx(mean, abs=1e-12)
        total = parts["miscalibration"] - parts["discrimination"] + parts["uncertainty"]
        assert total == pytest.approx(soft_brier(q, votes), abs=1e-14)
        assert all(value >= -1e-12 for value in parts.values())


def test_mass_on_classes_without_votes_is_miscalibration():
    q = np.array([[0.5, 0.2, 0.3], [0.2, 0.7, 0.1]])
    votes = np.array([[3, 0, 0], [0, 2, 0]])
    # The two other classes are ranked as the votes are, and recalibrated without error.
    expected = {
        "miscalibration": (0.25 + 0.04 + 0.04 + 0.09 + 0.09 + 0.01) / 2,
        "discrimination": 0.5,
        "uncertainty": 0.5,
    }
    assert brier_decomposition(q, votes) == pytest.approx(expected, abs=1e-15)


def test_recalibration_moves_miscalibration_only():
    logits, votes, _ = case(5)
    own = brier_decomposition(votes / 10, votes)
    assert own["miscalibration"] == pytest.approx(0, abs=1e-15)
    assert own["discrimination"] == pytest.approx(own["uncertainty"], abs=1e-15)
    # Of two classes, a temperature keeps the ranking within each.
    logits, votes = logits[:, :2], votes[:, :2] + 1
    before, after = (brier_decomposition(x, votes, from_logits=True) for x in (logits, 3 * logits))
    assert after["discrimination"] == pytest.approx(before["discrimination"], abs=1e-14)
    assert after["uncertainty"] == before["uncertainty"]
    assert after["miscalibration"] > before["miscalibration"]


@pytest.mark.filterwarnings("error", "ignore::hf_softlabel.metrics.UndefinedScoreWarning")
def test_what_is_undefined_is_nan():
    nothing, q = np.empty((0, 3)), np.array([[0.2, 0.8], [np.nan, 1.0], [0.3, 0.7]])
    for score in (equal_mass_ece, smooth_ece, calibrated_ece):
        assert math.isnan(score(nothing, nothing))
        assert math.isnan(score(nothing, np.empty(0), target="hard"))
        assert math.isnan(score(q, np.ones((3, 2))))
        assert math.isnan(score(q, [0, 1, 1], target="hard"))
    for votes, predictions in ((nothing, nothing), (np.ones((3, 2)), q)):
        parts = brier_decomposition(predictions, votes)
        assert len(parts) == 3 and all(math.isnan(value) for value in parts.values())
    for score in (equal_mass_ece, smooth_ece, calibrated_ece, brier_decomposition):
        with pytest.warns(UndefinedScoreWarning, match="no examples, or some predictions or votes are not numbers"):
            score(q, np.ones((3, 2)))
    with pytest.warns(UndefinedScoreWarning, match="needs the counts of votes"):
        assert math.isnan(calibrated_ece(binary([0.7]), np.array([[0.4, 0.6]])))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "error:divide by zero")
def test_an_example_without_votes_makes_the_score_nan():
    for score in (equal_mass_ece, smooth_ece, calibrated_ece):
        assert math.isnan(score(binary([0.7, 0.6]), np.array([[0, 0], [2, 1]])))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("votes", [[[3, 1]], [[1, 0]]])
def test_one_example(votes):
    q, p = binary([0.7]), votes[0][0] / sum(votes[0])
    assert equal_mass_ece(q, votes) == pytest.approx(abs(p - 0.7))
    assert smooth_ece(q, votes) == pytest.approx(abs(p - 0.7))
    parts = brier_decomposition(q, votes)
    # The mean of one example is itself: all of the score is miscalibration.
    expected = {"miscalibration": soft_brier(q, np.array(votes)), "discrimination": 0, "uncertainty": 0}
    assert parts == pytest.approx(expected, abs=1e-15)


def test_arrays_that_do_not_fit_are_refused():
    q = np.full((3, 2), 0.5)
    for score in (equal_mass_ece, smooth_ece, calibrated_ece):
        with pytest.raises(VotesError, match=r"One label per example.*target='annotators'"):
            score(q, np.ones((3, 2)), target="hard")
        with pytest.raises(VotesError, match=r"from 0 to 1, and rows 0, 2 are not"):
            score(q, [-1, 1, 2], target="hard")
        with pytest.raises(VotesError, match="'annotators' or 'hard', not 'soft'"):
            score(q, np.ones((3, 2)), target="soft")
    for score in (equal_mass_ece, smooth_ece, brier_decomposition):
        with pytest.raises(VotesError, match="must have one shape"):
            score(q, np.ones((1, 2)))
