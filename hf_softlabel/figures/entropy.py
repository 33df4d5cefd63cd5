"""How unsure people and models are: the entropies of their distributions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..metrics import entropy, entropy_correlation
from ..metrics.arrays import human, model
from .cloud import POINTS, draw_cloud
from .sources import Source, read_source, read_votes
from .style import FONT, GUIDE, LOOKS, legend_below, new_figure, panel_figure, styled

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
    figure, ((ax,),) = new_figure(5.4 if len(people) > POINTS else 4.5, 4.7)
    ax.plot([0, most], [0, most], color=GUIDE, linewidth=0.8)
    # Rounding leaves log C + 1e-16, which no square would hold.
    quartiles = draw_cloud(ax, np.minimum(people, most), np.minimum(machine, most), [(0, most)] * 2)
    margin = 0.03 * most
    ax.set(xlim=(-margin, most + margin), ylim=(-margin, most + margin), aspect="equal")
    ax.set(xlabel="entropy of the annotators (nats)", ylabel="entropy of the model (nats)")
    shown = "undefined" if math.isnan(rho) else f"{rho:.3f}"
    ax.set_title(f"{source.name}: Spearman's ρ {shown}, {len(people):,} examples")
    legend_below(figure, [quartiles])
    return figure


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
