"""Scores of a million examples: the time and memory of all of them, and ECEs side by side with netcal and relplot.

    .venv/bin/pip install --no-deps netcal relplot
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/scores.py

Every round runs ours and the peer after each other on the same arrays; the ratio is of the medians. netcal and relplot
are called as their documentation shows, for the hard label, which is all that they know.
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.special import softmax

from hf_softlabel.metrics import VoteScores, equal_mass_ece
from hf_softlabel.metrics.calibration import Confidences

RESULTS = Path(__file__).parent / "results" / "scores.csv"


def data(n: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits (N, C) float32, ten votes for each example, and a gold label."""
    rng = np.random.default_rng(0)
    truth = rng.normal(scale=2, size=(n, classes)).astype(np.float32)
    votes = rng.multinomial(10, softmax(truth.astype(np.float64), axis=1)).astype(np.int32)
    return truth + rng.normal(size=truth.shape).astype(np.float32), votes, votes.argmax(1)


def peak() -> float:
    """The largest resident size of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    n, classes = options.examples, options.classes
    logits, votes, labels = data(n, classes)
    rows = []

    before = peak()
    times = [seconds(lambda: VoteScores(logits, votes, labels, from_logits=True, ordinal=True).scores())]
    memory = peak() - before
    for _ in range(options.rounds - 1):
        times.append(seconds(lambda: VoteScores(logits, votes, labels, from_logits=True, ordinal=True).scores()))
    rows.append(["all scores", n, classes, statistics.median(times), memory, "", "", "", ""])

    q = softmax(logits.astype(np.float64), axis=1)
    for score, peer, ours, theirs in peers(q, labels):
        own, other, values = [], [], (ours(), theirs())
        for _ in range(options.rounds):
            own.append(seconds(ours))
            other.append(seconds(theirs))
        a, b = statistics.median(own), statistics.median(other)
        rows.append([score, n, classes, a, "", peer, b, b / a, f"{values[0]:.6f} {values[1]:.6f}"])

    header = [
        "score",
        "examples",
        "classes",
        "seconds",
        "gigabytes_beyond_inputs",
        "peer",
        "peer_seconds",
        "ratio",
        "values",
    ]
    shown = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *shown])
    widths = [max(map(len, column)) for column in zip(header, *shown, strict=True)]
    for row in (header, *shown):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"written to {RESULTS}", file=sys.stderr)


def peers(q: np.ndarray, labels: np.ndarray) -> Iterator[tuple[str, str, Callable, Callable]]:
    """(score, peer, our call, its call) for the packages that are installed."""
    confidence = q.max(1)
    right = (q.argmax(1) == labels).astype(np.float64)
    try:
        from netcal.metrics import ECE
    except ImportError:
        print("netcal is not installed: pip install --no-deps netcal", file=sys.stderr)
    else:
        ece = ECE(bins=15, equal_intervals=False)
        yield (
            "equal-mass ECE of probabilities",
            "netcal",
            lambda: equal_mass_ece(q, labels, target="hard"),
            lambda: ece.measure(q, labels),
        )
        yield (
            "equal-mass ECE of confidences",
            "netcal",
            lambda: Confidences(confidence).equal_mass_ece(right),
            lambda: ece.measure(confidence, right.astype(int)),
        )
    try:
        import relplot
    except ImportError:
        print("relplot is not installed: pip install --no-deps relplot", file=sys.stderr)
    else:
        yield (
            "smooth ECE of confidences",
            "relplot",
            lambda: Confidences(confidence).smooth_ece(right),
            lambda: relplot.smECE(confidence, right),
        )


if __name__ == "__main__":
    main()
