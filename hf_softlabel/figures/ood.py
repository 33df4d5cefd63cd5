"""Scores of examples in and out of the distribution: their histograms, and how well they tell the two apart."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import roc_auc_score, roc_curve

from ..data.errors import VotesError
from .style import GUIDE, LOOKS, legend_below, legend_line, legend_under, looks, new_figure, panel_figure, styled

INSIDE = "in"
BINS = 30
COLUMNS = 3
# Of the OOD sets' histograms, which lie over each other: those first whose hatches stay apart.
SETS = [LOOKS[name] for name in ("soft", "label_smoothing", "multipass", "majority", "shuffled_sls", "mixup")]


@styled()
def ood_histograms(scores: Mapping[str, Any], detector: str, name: str | None = None) -> Figure:
    """The density of a detector's scores on the in-distribution examples and on each OOD set.

    Args:
        scores: (N,) by set, higher where more out-of-distribution; "in" is the in-distribution one.
        detector: its name.
        name: of the run.
    """
    sets = _checked(scores)
    inside = sets.pop(INSIDE)
    edges = np.histogram_bin_edges(np.concatenate([inside, *sets.values()]), BINS)
    figure, ((ax,),) = new_figure(5.4, 3.3)
    density, _ = np.histogram(inside, edges, density=True)
    look = {"facecolor": "#dddddd", "edgecolor": LOOKS["annotators"].colour, "linewidth": 1.2}
    ax.stairs(density, edges, fill=True, **look)
    handles: list[Any] = [Patch(**look, label=f"in-distribution ({len(inside):,})")]
    for (title, outside), chosen in zip(sets.items(), cycle(SETS), strict=False):
        density, _ = np.histogram(outside, edges, density=True)
        # The hatch has the edge's colour, and nothing between: what is behind stays visible.
        line = {"edgecolor": chosen.colour, "linestyle": chosen.line, "linewidth": 1.8, "hatch": chosen.hatch}
        ax.stairs(density, edges, fill=True, facecolor="none", **line)
        label = f"{title} ({len(outside):,}), AUROC {auroc(inside, outside):.3f}"
        handles.append(Patch(facecolor="none", **line, label=label))
    ax.set(xlabel=f"{detector} score (higher: more out-of-distribution)", ylabel="density")
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.set_major_locator(MaxNLocator(6))  # ODIN's have many digits
    if name is not None:
        ax.set_title(name)
    legend_below(figure, handles)
    return figure


@styled()
def ood_roc(scores: Mapping[str, Mapping[str, Any]], name: str | None = None) -> Figure:
    """ROC curves of each detector, a panel per OOD set; the OOD examples are the positives.

    Args:
        scores: (N,) by set and by detector, higher where more out-of-distribution; "in" is the in-distribution set.
        name: of the run.
    """
    detectors = list(scores.get(INSIDE, {}))
    for title, some in scores.items():
        if set(some) != set(detectors):
            raise VotesError(f"{title}: all sets need scores of the same detectors, those of {INSIDE!r}: {detectors}.")
    by_detector = {key: _checked({title: some[key] for title, some in scores.items()}, key) for key in detectors}
    sets = [title for title in scores if title != INSIDE]
    figure, axes = panel_figure(len(sets) if detectors else 0, 3.8, 5.4, COLUMNS, sharey=True)
    for ax, title in zip(axes, sets, strict=True):
        ax.plot([0, 1], [0, 1], color=GUIDE, linewidth=0.8)
        for place, (detector, look) in enumerate(zip(detectors, looks(detectors), strict=True)):
            inside, outside = (by_detector[detector][key] for key in (INSIDE, title))
            truth = np.repeat([0, 1], [len(inside), len(outside)])
            false, true, _ = roc_curve(truth, np.concatenate([inside, outside]), drop_intermediate=False)
            ax.plot(false, true, color=look.colour, linestyle=look.line, linewidth=1.3)
            # Three marks, at other places than the other curves' marks.
            at = np.searchsorted(false, (np.arange(3) + (place + 0.5) / len(detectors)) / 3).clip(max=len(false) - 1)
            ax.plot(false[at], true[at], color=look.colour, linestyle="none", marker=look.marker, zorder=3)
            ax.add_line(legend_line(look, f"{detector}, AUROC {auroc(inside, outside):.3f}"))
        ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xticks=np.arange(6) / 5, yticks=np.arange(6) / 5)
        ax.set_title(f"{title} ({len(outside):,}) against in-distribution ({len(inside):,})")
        ax.set_xlabel("in-distribution examples flagged")
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("OOD examples flagged")
        legend_under(ax)
    if name is not None:
        figure.suptitle(name)
    return figure


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Of scores (N,) and (M,), the second of the positives."""
    return float(roc_auc_score(np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate([inside, outside])))


def _checked(scores: Mapping[str, Any], detector: str = "") -> dict[str, np.ndarray]:
    """The sets' scores as arrays (N,), the in-distribution ones and those of at least one other."""
    if INSIDE not in scores or len(scores) < 2:
        raise VotesError(f"Scores of the in-distribution set, {INSIDE!r}, and of an OOD set are needed.")
    sets = {title: np.asarray(values, float) for title, values in scores.items()}
    for title, values in sets.items():
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise VotesError(f"{title}: {detector} scores must be (N,) and finite; their shape is {values.shape}.")
    return sets
