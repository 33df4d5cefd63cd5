"""Scores of several methods as bars over their seeds, and of the seeds of two methods as pairs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .style import GUIDE, SMALL, Look, legend_below, looks, new_figure, panel_figure, styled
from .sweep import WIDEST, WIDTH, mean_and_sd, shown

COLUMNS = 2
BAR = 0.72
# Of a method's name beside its bar.
CHARACTERS = 22
PAPER = {"marker": "D", "color": "black", "markerfacecolor": "white", "markersize": 6, "linestyle": "none"}
POINT = {"marker": "o", "color": "black", "markersize": 4, "markeredgecolor": "white", "markeredgewidth": 0.5}


@styled()
def seed_bars(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    paper: Mapping[str, Mapping[str, float]] | None = None,
    unit: str = "seed",
    from_zero: bool = True,
) -> Figure:
    """A panel per score: a method's mean with its SD, and a point for each seed; NaN is undefined.

    Methods lie below each other, so that names are read however many there are.

    Args:
        panels: values by method, by the panel's title.
        paper: a paper's mean by method, by panel: hollow diamonds.
        unit: what a point is.
        from_zero: means are bars. Otherwise they are marks, and the axis has only the values' range, where scores that
            are far from 0 can be told apart.
    """
    names = list(dict.fromkeys(name for values in panels.values() for name in values))
    rows = -(-len(panels) // COLUMNS)
    columns = -(-len(panels) // max(rows, 1))
    width = WIDTH / columns if columns > 1 else WIDEST + 1
    figure, axes = panel_figure(len(panels) if names else 0, width, 0.75 + 0.34 * len(names), COLUMNS, sharey=True)
    chosen = looks(names)
    paper = paper or {}
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        for place, (name, look) in enumerate(zip(names, chosen, strict=True)):
            if len(values.get(name, ())):
                _draw_method(ax, place, np.asarray(values[name], float), look, from_zero)
            if name in paper.get(title, {}):
                ax.plot(paper[title][name], place, **PAPER, zorder=4)
        if from_zero:
            ax.axvline(0, color="black", linewidth=0.8)
        ax.set_xlabel(title)
        ax.set_yticks(range(len(names)), ["\n".join(textwrap.wrap(shown(name), CHARACTERS)) for name in names])
        ax.tick_params(axis="y", length=0)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    mark = {"color": GUIDE, "marker": "s", "markersize": 8, "linestyle": "none"}
    handles = [
        Patch(facecolor=GUIDE, label="mean") if from_zero else Line2D([], [], **mark, label="mean"),
        Line2D([], [], color="black", linewidth=1.2, label="± SD"),
        Line2D([], [], **POINT, linestyle="none", label=f"each {unit}"),
    ]
    if any(paper.values()):
        handles.append(Line2D([], [], **PAPER, label="the paper"))
    legend_below(figure, handles)
    return figure


def _draw_method(ax: Axes, place: float, values: np.ndarray, look: Look, from_zero: bool) -> None:
    defined = values[np.isfinite(values)]
    if len(defined) < len(values):
        missing = f" undefined in {len(values) - len(defined)} of {len(values)}"
        ax.text(0, place, missing, va="center", fontsize=SMALL, color=GUIDE, transform=ax.get_yaxis_transform())
    mean, sd = mean_and_sd(values)
    spread = np.linspace(-0.3, 0.3, len(defined)) * BAR if len(defined) > 1 else np.full(len(defined), 0.15 * BAR)
    if from_zero:
        ax.barh(place, mean, BAR, color=look.colour, hatch=look.hatch, edgecolor="white")
    else:
        # Points lie below the mark, which they would hide.
        spread = 0.3 + 0.4 * spread
        ax.axhline(place, color=GUIDE, linewidth=0.4, alpha=0.5, zorder=0)
        ax.plot(mean, place, color=look.colour, marker=look.marker, markersize=10, markeredgecolor="white", zorder=2.5)
    ax.errorbar(mean, place, xerr=sd, color="black", elinewidth=1.2, capsize=3, zorder=2)
    ax.plot(defined, place + spread, **POINT, linestyle="none", zorder=3)


@styled()
def paired_bars(panels: Mapping[str, Mapping[str, Mapping[str, Mapping[int, float]]]]) -> Figure:
    """A row per score, a group of bars per data set: means over seeds, with lines that join the values of each seed.

    Args:
        panels: values by seed, by method, by group, by the panel's y label.
    """
    groups = list(dict.fromkeys(group for score in panels.values() for group in score))
    names = list(dict.fromkeys(name for score in panels.values() for group in score.values() for name in group))
    width = min(WIDTH, 2.4 + 1.7 * len(groups))
    figure, axes = new_figure(width, 2.4 * len(panels), len(panels), 1, sharex=True)
    bar = 0.84 / len(names)
    chosen = looks(names)
    for ax, (label, score) in zip(axes[:, 0], panels.items(), strict=True):
        for place, group in enumerate(groups):
            found = score.get(group, {})
            at = {name: place + (i - (len(names) - 1) / 2) * bar for i, name in enumerate(names)}
            for name, look in zip(names, chosen, strict=True):
                mean, _ = mean_and_sd(list(found.get(name, {}).values()))
                ax.bar(at[name], mean, 0.92 * bar, color=look.colour, hatch=look.hatch, edgecolor="white")
            for seed in sorted({seed for by_seed in found.values() for seed in by_seed}):
                there = [name for name in names if seed in found.get(name, {})]
                ys = [found[name][seed] for name in there]
                ax.plot([at[name] for name in there], ys, **POINT, linewidth=0.8, zorder=3)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_ylabel(label)
        ax.tick_params(axis="x", length=0)
    room = int(14 * (width - 1) / len(groups))
    ax.set_xticks(range(len(groups)), ["\n".join(textwrap.wrap(group, room)) for group in groups])
    ax.set_xlim(-0.6, len(groups) - 0.4)
    handles = [
        Patch(facecolor=look.colour, edgecolor="white", hatch=look.hatch, label=f"{shown(name)}, mean")
        for name, look in zip(names, chosen, strict=True)
    ]
    legend_below(figure, [*handles, Line2D([], [], **POINT, linewidth=0.8, label="each seed")])
    return figure
