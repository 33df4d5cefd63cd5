"""Reliability diagrams: how often the predicted class is right, or chosen by people, at each confidence."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..data.errors import VotesError
from ..metrics import confidence_and_target, equal_mass_bins, equal_mass_ece, smooth_ece
from ..metrics.calibration import smooth_reliability
from .sources import Source, read_sources
from .style import GUIDE, Look, legend_below, legend_line, looks, new_figure, styled

SHARE = {"annotators": "annotators' share of the predicted class", "hard": "accuracy of the predicted class"}
NOTE_BINNED = "area of marks: examples; bars: normal 95% interval"
NOTE_SMOOTH = "marks: deciles of the confidences; band: their density"
# The area, in points squared, of the mark of a bin that holds its equal share.
MARK = 36
# The smooth curve is drawn at every 64th point of the kernel's grid: 512 points.
STEP = 64
HISTOGRAM_EDGES = np.linspace(0, 1, 41)
# Half the height of the band where confidences are densest.
BAND = 0.05


class Bins(NamedTuple):
    """Non-empty bins (B,) of a reliability diagram: `half` is half the 95% interval, NaN where it cannot be known."""

    confidence: np.ndarray
    target: np.ndarray
    half: np.ndarray
    count: np.ndarray


def reliability_bins(confidence: np.ndarray, target: np.ndarray, bins: int) -> Bins:
    """Means per equal-mass bin of confidences and targets (N,).

    The interval is the normal one of a mean, 1.96 s / sqrt(n). Wilson's would need targets of 0 and 1, and the
    annotators' share is any number between. It has no length where all targets of a bin are the same.
    """
    bin_of = equal_mass_bins(confidence, bins)
    counts = np.bincount(bin_of)
    filled = np.flatnonzero(counts)
    n = counts[filled]
    c, t = (np.bincount(bin_of, x)[filled] / n for x in (confidence, target))
    squares = np.bincount(bin_of, np.square(target - np.bincount(bin_of, target)[bin_of] / counts[bin_of]))[filled]
    with np.errstate(invalid="ignore", divide="ignore"):
        half = 1.96 * np.sqrt(squares / (n - 1) / n)
    return Bins(c, t, half, n)


@styled()
def reliability_diagram(
    *sources: str | Path | Source, target: str = "annotators", smooth: bool = False, bins: int = 15
) -> Figure:
    """The predicted class's mean target against its confidence, for one or several models; confidences below.

    Args:
        sources: run directories, or (name, predictions, votes, from_logits, label).
        target: `annotators`, their share of the predicted class; or `hard`, whether it is the gold label.
        smooth: the kernel curve of smooth ECE, marked at the deciles of the confidences, in a band as high as these
            are dense. Otherwise a mark per equal-mass bin, its area in proportion to the bin's examples, with the
            normal 95% interval of the mean.
        bins: the number of bins; not used if smooth.
    """
    models = read_sources(sources)
    figure, ((above,), (below,)) = new_figure(5.2, 5, rows=2, sharex=True, height_ratios=[3.4, 1])
    above.plot([0, 1], [0, 1], color=GUIDE, linewidth=0.8)
    lowest, handles = 1.0, []
    for source, look in zip(models, looks([source.name for source in models]), strict=True):
        truth = source.label if target == "hard" else source.votes
        if truth is None:
            raise VotesError(f"{source.name} has no gold labels, which target='hard' needs.")
        arguments = (source.predictions, truth, source.from_logits, target)
        confidence, outcome = confidence_and_target(*arguments)
        if smooth:
            error = smooth_ece(*arguments)
            _draw_curve(above, confidence, outcome, error, look)
        else:
            error = equal_mass_ece(*arguments, bins)
            _draw_bins(above, reliability_bins(confidence, outcome, bins), len(confidence) / bins, look)
        share, edges = np.histogram(confidence, HISTOGRAM_EDGES)
        below.stairs(share / len(confidence), edges, color=look.colour, linestyle=look.line, linewidth=1.4)
        lowest = min(lowest, confidence.min())
        handles.append(legend_line(look, f"{source.name} ({'smECE' if smooth else 'ECE'} {error:.3f})"))
    # From the tenth below the least confidence: of C classes none is below 1 / C.
    above.set_xlim(np.floor(lowest * 10) / 10, 1.01)
    above.set_ylim(0, 1.02)
    above.set_ylabel(SHARE[target])
    below.set_ylim(bottom=0)
    below.set_ylabel("share of\nexamples")
    below.set_xlabel("confidence (largest probability)")
    legend_below(figure, handles, NOTE_SMOOTH if smooth else NOTE_BINNED)
    return figure


def _draw_bins(ax: Axes, marks: Bins, share: float, look: Look) -> None:
    """`share`: how many examples a bin has if all have the same."""
    # As far as a share can go.
    half = [np.minimum(marks.half, marks.target), np.minimum(marks.half, 1 - marks.target)]
    ax.errorbar(marks.confidence, marks.target, half, fmt="none", ecolor=look.colour, elinewidth=1, capsize=2)
    ax.plot(marks.confidence, marks.target, color=look.colour, linestyle=look.line, linewidth=1)
    area = MARK * marks.count / share
    edge = {"edgecolor": "white", "linewidth": 0.5, "zorder": 3}
    ax.scatter(marks.confidence, marks.target, area, color=look.colour, marker=look.marker, **edge)


def _draw_curve(ax: Axes, confidence: np.ndarray, outcome: np.ndarray, bandwidth: float, look: Look) -> None:
    # smECE is the bandwidth; that of a calibrated model is 0, which leaves no curve between the confidences.
    grid, mean, density = (x[STEP // 2 :: STEP] for x in smooth_reliability(confidence, outcome, max(bandwidth, 1e-3)))
    first, last = np.searchsorted(grid, [confidence.min(), confidence.max()])
    seen = slice(max(first - 1, 0), last + 1)
    grid, mean, half = grid[seen], mean[seen], BAND * density[seen] / density.max()
    ax.fill_between(grid, mean - half, mean + half, color=look.colour, alpha=0.25, linewidth=0)
    # The last point lies half a step before 1.
    deciles = np.searchsorted(grid[:-1], np.quantile(confidence, np.linspace(0.1, 0.9, 9)))
    ax.plot(grid, mean, color=look.colour, linestyle=look.line, marker=look.marker, markevery=deciles.tolist())
