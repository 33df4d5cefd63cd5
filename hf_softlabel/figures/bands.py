"""Curves of several seeds: validation scores over epochs, and losses between two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..data.errors import VotesError
from .style import GUIDE, LOOKS, legend_below, legend_line, looks, new_figure, styled
from .sweep import mean_and_sd, shown

# The first losses are far above all others: the y axis is made for what comes after one of so many parts of training.
START = 10
CHORD = (0, (5, 3))
History = tuple[np.ndarray, np.ndarray]


@styled()
def band_curves(runs: Mapping[str, Sequence[History]], ylabel: str) -> Figure:
    """A score, of which less is better, over epochs: means over runs in bands of their SD.

    A small mark is a run's best evaluation, a large one the best of the mean. Means are at the epochs that all runs of
    a name have. The first tenth of training can lie above the panel.

    Args:
        runs: epochs and values (E,) of each run, by name.
    """
    if not runs:
        raise VotesError("There is nothing to draw.")
    figure, ((ax,),) = new_figure(6.6, 3.8)
    top = -np.inf
    for histories, look in zip(runs.values(), looks(list(runs)), strict=True):
        epochs, values = shared_epochs(histories)
        mean, sd = mean_and_sd(values)
        ax.fill_between(epochs, mean - sd, mean + sd, color=look.colour, alpha=0.18, linewidth=0)
        ax.plot(epochs, mean, color=look.colour, linestyle=look.line, linewidth=1.8)
        later = (mean + np.nan_to_num(sd))[len(epochs) // START :]
        top = np.nanmax([top, *later])
        dot = {"color": look.colour, "marker": look.marker, "linestyle": "none", "markeredgecolor": "white"}
        best = [(e[np.nanargmin(v)], np.nanmin(v)) for e, v in histories if np.isfinite(v).any()]
        ax.plot(*np.array(best).reshape(-1, 2).T, **dot, markersize=5, markeredgewidth=0.4, alpha=0.7)
        if np.isfinite(mean).any():
            ax.plot(epochs[np.nanargmin(mean)], np.nanmin(mean), **dot, markersize=10, zorder=3)
    if np.isfinite(top):
        lowest, highest = ax.get_ylim()
        ax.set_ylim(top=min(highest, top + 0.05 * (top - lowest)))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="epoch", ylabel=ylabel)
    handles = [
        legend_line(look, f"{shown(name)} ({len(histories)} run{'s' * (len(histories) != 1)})")
        for (name, histories), look in zip(runs.items(), looks(list(runs)), strict=True)
    ]
    legend_below(figure, handles, "band: ± SD; small marks: each run's best epoch; large: the mean's")
    return figure


def shared_epochs(histories: Sequence[History]) -> tuple[np.ndarray, np.ndarray]:
    """The epochs (E,) that all runs have, and the runs' values (R, E) there."""
    shared = sorted(set.intersection(*(set(epochs.tolist()) for epochs, _ in histories)))
    curves = [dict(zip(epochs.tolist(), values, strict=True)) for epochs, values in histories]
    return np.array(shared), np.array([[curve[epoch] for epoch in shared] for curve in curves])


@styled()
def barrier_lines(alphas: np.ndarray, curves: Mapping[str, np.ndarray], ends: tuple[str, str]) -> Figure:
    """The loss along straight lines between pairs of models: each pair thin, the mean thick.

    Args:
        alphas: (P,), the places on the line.
        curves: losses (R, P) of the pairs, by what was done to batch norm.
        ends: what is at 0 and at 1.
    """
    figure, ((ax,),) = new_figure(5.6, 3.6)
    handles = []
    for (name, losses), look, mark in zip(curves.items(), (LOOKS["majority"], LOOKS["soft"]), "os", strict=False):
        if losses.shape[1:] != alphas.shape:
            raise VotesError(f"{name}: losses {losses.shape} at alphas {alphas.shape} are not curves.")
        for one in losses:
            ax.plot(alphas, one, color=look.colour, linewidth=0.7, alpha=0.6)
        mean = losses.mean(0)
        face = look.colour if mark == "o" else "white"
        style = {"color": look.colour, "marker": mark, "markerfacecolor": face, "markersize": 5, "linewidth": 2.2}
        ax.plot(alphas, mean, **style)
        ax.plot(alphas[[0, -1]], mean[[0, -1]], color=look.colour, linestyle=CHORD, linewidth=0.9)
        handles.append(Line2D([], [], **style, label=name))
    chord = {"color": GUIDE, "linestyle": CHORD, "linewidth": 0.9}
    handles.append(Line2D([], [], **chord, label="straight between the mean's ends"))
    ax.set(xlabel=f"α, from {shown(ends[0])} to {shown(ends[1])}", ylabel="soft cross-entropy")
    legend_below(figure, handles, "thin: each seed; thick: their mean")
    return figure
