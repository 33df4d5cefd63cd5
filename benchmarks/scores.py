"""All scores of a million examples against the same by netcal, relplot, scikit-learn and scipy.

Each score of the peers is by the function that their documentation has for it; what they have none for (soft NLL, the
ECE against annotators, RankCS) is a line or two of numpy. Softmax and p are worked out once for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import entropy, spearmanr
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import accuracy_score, mean_squared_error
from sklearn.metrics.pairwise import paired_manhattan_distances

from hf_softlabel.metrics import VoteScores, brier_decomposition, equal_mass_ece
from hf_softlabel.metrics.calibration import Confidences

from .measure import Row, alternate, growth, memory, peak_memory, peer

EXAMPLES, CLASSES, VOTES = 1_000_000, 10, 10
# How far the peers' scores may be from ours: relplot has another grid.
TOLERANCES = {"smooth_ece": 1e-3, "smooth_ece_soft": 1e-3}
PACKAGES = ("netcal", "relplot", "scikit-learn", "scipy")


def rows(scale: float) -> Iterator[Row]:
    n = int(EXAMPLES * scale)
    logits, votes, labels = data(n)
    ours, theirs = all_scores(n)(), peer_scores(logits, votes, labels)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        # Where a bin ends between two examples, one of them may lie on either side.
        tolerance = 30 / n if name.startswith("ece") else TOLERANCES.get(name, 1e-9)
        if abs(ours[name] - value) > tolerance:
            raise AssertionError(f"{name}: {ours[name]} is not the peers' {value}")
    sizes = {"examples": n, "classes": CLASSES}
    times = alternate(all_scores(n), lambda: peer_scores(logits, votes, labels), 3, time.process_time)
    yield times.row(
        f"all {len(ours)} scores",
        "netcal, relplot, scikit-learn, scipy and numpy",
        "times as fast",
        ">= 10",
        sizes=sizes,
        checked=f"all equal to 1e-9 (ECE: 3e-5; to 1e-3: {', '.join(TOLERANCES)})",
        packages=PACKAGES,
    )
    q = softmax(logits.astype(np.float64), axis=1)
    for name, package, one, other in single_scores(q, votes, labels):
        times = alternate(one, other, 3, time.process_time)
        checked = f"{one():.6f} and {other():.6f}"
        yield times.row(name, package, "times as fast", sizes=sizes, checked=checked, packages=(package,))
    peak = peak_memory(all_scores, n)
    yield Row(
        "peak memory of all scores, beyond logits and votes",
        "the bytes of logits (float32) and votes (int32)",
        peak / (logits.nbytes + votes.nbytes),
        "times as much",
        sizes=sizes,
    )
    yield memory("all scores", "logits and votes", all_scores, n, sizes=sizes)
    # About 7 GB at ten times the size.
    yield growth("all scores, growth", all_scores, n, clock=time.process_time)


def data(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits (n, C) float32, ten votes for each example, and a gold label."""
    rng = np.random.default_rng(0)
    truth = rng.normal(scale=2, size=(n, CLASSES)).astype(np.float32)
    votes = rng.multinomial(VOTES, softmax(truth.astype(np.float64), axis=1)).astype(np.int32)
    return truth + rng.normal(size=truth.shape).astype(np.float32), votes, votes.argmax(1)


def all_scores(n: int) -> Callable[[], dict[str, float]]:
    logits, votes, labels = data(n)
    return lambda: VoteScores(logits, votes, labels, from_logits=True).scores()


def peer_scores(logits: np.ndarray, votes: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What the peers' functions give for the names of ours."""
    netcal_metrics, relplot = peer("netcal.metrics"), peer("relplot")
    q = softmax(logits.astype(np.float64), axis=1)
    p = votes / votes.sum(1, keepdims=True)
    predicted, confidence = q.argmax(1), q.max(1)
    on_top, right = p[np.arange(len(p)), predicted], (predicted == labels).astype(np.float64)
    edges = np.quantile(confidence, np.arange(1, 15) / 15)
    gaps = np.bincount(np.digitize(confidence, edges), on_top - confidence)
    # Rounded, or the same votes on other classes would not be tied.
    model_entropy, human_entropy = (entropy(x, axis=1).round(12) for x in (q, p))
    distance = float(paired_manhattan_distances(p, q).mean())
    ranked = np.take_along_axis(p, q.argsort(1), 1)  # the model's ties are none here
    scores = {
        "soft_nll": float(-(p * np.log(q)).sum(1).mean()),
        "kl": float(entropy(p, q, axis=1).mean()),
        "soft_brier": mean_squared_error(p, q) * CLASSES,
        "accuracy": accuracy_score(labels, predicted),
        "accuracy_majority": float((on_top == p.max(1)).mean()),
        "ece_equal_mass": netcal_metrics.ECE(bins=15, equal_intervals=False).measure(q, labels),
        "ece_equal_mass_soft": float(np.abs(gaps).sum() / len(p)),
        "smooth_ece": relplot.smECE(confidence, right),
        "smooth_ece_soft": relplot.smECE(confidence, on_top),
        "entropy_correlation": float(spearmanr(model_entropy, human_entropy).statistic),
        "js_distance": float(jensenshannon(p, q, axis=1).mean()),
        "dist_ce": distance / 2,
        "manhattan": distance,
        "ent_ce": float(np.abs(model_entropy - human_entropy).mean()),
        "rank_cs": float((np.diff(ranked) >= 0).all(1).mean()),
    }
    return scores | isotonic_parts(q, p)


def isotonic_parts(q: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """The Brier score's parts, class by class."""
    score = best = constant = 0.0
    for own, people in zip(q.T, p.T, strict=True):
        recalibrated = IsotonicRegression(out_of_bounds="clip").fit_transform(own, people)
        score += mean_squared_error(people, own)
        best += mean_squared_error(people, recalibrated)
        constant += float(np.var(people))
    return {
        "brier_miscalibration": score - best,
        "brier_discrimination": constant - best,
        "brier_uncertainty": constant,
    }


def single_scores(
    q: np.ndarray, votes: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[str, str, Callable, Callable]]:
    """(score, the peer's package, our call, its call)."""
    ece, relplot = peer("netcal.metrics").ECE(bins=15, equal_intervals=False), peer("relplot")
    confidence, right = q.max(1), (q.argmax(1) == labels).astype(np.float64)
    p = votes / votes.sum(1, keepdims=True)
    yield (
        "equal-mass ECE of probabilities",
        "netcal",
        lambda: equal_mass_ece(q, labels, target="hard"),
        lambda: ece.measure(q, labels),
    )
    yield (
        "smooth ECE of confidences",
        "relplot",
        lambda: Confidences(confidence).smooth_ece(right),
        lambda: relplot.smECE(confidence, right),
    )
    yield (
        "Brier decomposition, its miscalibration",
        "scikit-learn",
        lambda: brier_decomposition(q, votes)["miscalibration"],
        lambda: isotonic_parts(q, p)["brier_miscalibration"],
    )
