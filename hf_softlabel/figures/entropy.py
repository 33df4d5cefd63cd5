"""How unsure people and models are: the entropies of their distributions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..metrics import entropy, entropy_correlation, equal_mass_bins
from ..metrics.arrays import human, model
from .sources import Source, read_source, read_votes
from .style import FONT, GUIDE, LOOKS, legend_below, new_figure, panel_figure, styled

# More points than this lie on top of each other: they are counted on a grid of squares. (Hexagons would zigzag where
# people's entropies are few, as they are with few votes.)
POINTS = 1500
SQUARES = 45
MEDIANS = 10
BINS = 20
COLUMNS = 3


@styled()
def entropy_scatter(source: str | Path | Source) -> Figure:
    """Model entropy against human entropy, in nats, with medians (and quartiles) over tenths of the examples.

    Args:
        source: a run directory, or (name, predictions, votes, from_logits).
    """
    source = read_source(source)
    people, machine = entropy(human(source.votes)), entropy(model(source.predictions, source.from_logits))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it is undefined, the title says so
        rho = entropy_correlation(source.predictions, source.votes, source.from_logits)
    most = math.log(np.shape(source.votes)[1])
    crowded = len(people) > POINTS
    figure, ((ax,),) = new_figure(5.4 if crowded else 4.5, 4.7)
    if crowded:
        # Rounding leaves log C + 1e-16, which no square would hold.
        x, y = (np.minimum(values, most) for values in (people, machine))
        # Without the palest blues, so that a square with one example is seen.
        blues = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.25, 1, 256)))
        counts, edges, _ = np.histogram2d(x, y, SQUARES, range=[(0, most)] * 2)
        shown = np.ma.masked_equal(counts.T, 0)
        squares = ax.pcolormesh(edges, edges, shown, norm=LogNorm(), cmap=blues)
        figure.colorbar(squares, label="examples", shrink=0.8)
    else:
        ax.scatter(people, machine, 14, color=LOOKS["soft"].colour, alpha=0.35, linewidth=0)
    ax.plot([0, most], [0, most], color=GUIDE, linewidth=0.8)
    x, quartiles = _medians(people, machine)
    low, middle, high = quartiles
    medians = ax.errorbar(
        x,
        middle,
        yerr=[middle - low, high - middle],
        color=LOOKS["majority"].colour,
        marker="o",
        capsize=2,
        label="median and quartiles",
    )
    margin = 0.03 * most
    ax.set(xlim=(-margin, most + margin), ylim=(-margin, most + margin), aspect="equal")
    ax.set(xlabel="entropy of the annotators (nats)", ylabel="entropy of the model (nats)")
    shown = "undefined" if math.isnan(rho) else f"{rho:.3f}"
    ax.set_title(f"{source.name}: Spearman's ρ {shown}, {len(people):,} examples")
    legend_below(figure, [medians])
    return figure


def _medians(people: np.ndarray, machine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean human entropy (B,) and the quartiles of model entropy (3, B) over tenths of the examples by the former.

    Equal entropies stay together, so that there are fewer groups where people's entropies are few.
    """
    group = equal_mass_bins(people, MEDIANS)
    groups = [group == i for i in np.unique(group)]
    x = np.array([people[rows].mean() for rows in groups])
    return x, np.array([np.quantile(machine[rows], [0.25, 0.5, 0.75]) for rows in groups]).T


@styled()
def entropy_histograms(datasets: Mapping[str, Any]) -> Figure:
    """Annotator entropy over log C, from 0 to 1, in a panel per data set; the mean is marked.

    Args:
        datasets: votes (N, C), or a run directory (then of its eval split), by name.
    """
    figure, axes = panel_figure(len(datasets), 3.2, 2.6, COLUMNS, sharex=True, sharey=True)
    for ax, (name, votes) in zip(axes, datasets.items(), strict=True):
        p = read_votes(votes, name)
        # Rounding leaves 1 + 1e-16 for even votes, which no bin would hold.
        values = np.minimum(entropy(p) / math.log(p.shape[1]), 1)
        counts, edges = np.histogram(values, BINS, range=(0, 1))
        ax.stairs(counts / len(values), edges, fill=True, color=LOOKS["soft"].colour)
        ax.axvline(values.mean(), color=LOOKS["majority"].colour, linestyle="--")
        ax.set_title(
            f"{name}\nmean {values.mean():.2f}, unanimous {(p.max(-1) == 1).mean():.0%}\n"
            f"{len(p):,} examples, {p.shape[1]} classes"
        )
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_xlim(0, 1)
    figure.supxlabel("entropy of the annotators / log(classes)", fontsize=FONT)
    figure.supylabel("share of examples", fontsize=FONT)
    return figure
