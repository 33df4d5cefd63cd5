"""Scores against a number: votes per example, epochs that a label is held, the distance of a sparse target."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from ..data.errors import VotesError
from .style import GUIDE, SMALL, Look, legend_below, legend_line, looks, panel_figure, styled

# Inches: a page shows a figure of this width with its text as large as its own.
WIDTH = 7.4
COLUMNS = 3
# A panel that stands alone.
WIDEST = 4.8
# Series stand beside each other at each place, not on top of each other: over so much of
# the least gap between places, and of no more than GAP.
SPREAD, GAP = 0.3, 0.5
# The same where x is not logarithmic: of the range of x.
OFFSET = 0.012
# Characters of small text per inch, so that a title does not reach into the next panel.
PER_INCH = 14


class Gain(NamedTuple):
    """The gain over soft labels by bins (B,) of the target's distance: of S seeds (S, B), NaN where one has no
    example there; and the correlation of distance and gain, the mean over seeds."""

    distance: np.ndarray
    gain: np.ndarray
    correlation: float


def shown(name: str) -> str:
    """A delivery's name in words."""
    return name.replace("_", " ")


def mean_and_sd(values: Any, absent: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Over the first axis (S, ...) of seeds; the SD is NaN for one seed.

    Args:
        absent: NaN is a seed without a value, which is left out. Otherwise it is an undefined value, and what holds it
            is undefined.
    """
    values = np.asarray(values, float)
    n = np.isfinite(values).sum(0) if absent else np.full(values.shape[1:], len(values))
    total = np.nansum if absent else np.sum
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total(values, 0) / n
        sd = np.sqrt(total(np.square(values - mean), 0) / np.where(n > 1, n - 1, np.nan))
    return mean, sd


def panels_of(count: int, height: float, **grid: Any) -> tuple[Figure, list[Axes]]:
    """As `panel_figure`, as wide together as a page shows without making text smaller."""
    rows = -(-count // COLUMNS)
    columns = max(1, -(-count // max(rows, 1)))
    return panel_figure(count, min(WIDEST, WIDTH / columns), height, COLUMNS, **grid)


@styled()
def seed_lines(
    panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]],
    xlabel: str,
    paper: Mapping[str, Mapping[str, Mapping[float, float]]] | None = None,
    zero: bool = False,
) -> Figure:
    """Means over seeds with SD bars, joined by a line per name; seeds are faint points; x is logarithmic.

    Args:
        panels: values of seeds by place on the x axis, by name, by the panel's y label.
        paper: a paper's means by place, by name, by panel. They stand in a panel beside it, as hollow marks: on one
            axis with runs of another scale, nothing else would be seen than how far these are from each other.
        zero: the values are differences: draw a line at 0.
    """
    paper = {label: series for label, series in (paper or {}).items() if any(series.values())}
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    chosen = dict(zip(names, looks(names), strict=True))
    figure, axes = panels_of(len(panels) + len(paper), 2.9)
    left = iter(axes)
    for label, series in panels.items():
        places = np.unique([x for points in series.values() for x in points])
        shifts = dict(zip(names, _shifts(places, len(names)), strict=True))
        ax = next(left)
        _logarithmic(ax, places, xlabel)
        ax.set_ylabel(label)
        if zero:
            ax.axhline(0, color=GUIDE, linewidth=0.8)
        for name, points in series.items():
            _draw_series(ax, points, shifts[name], chosen[name])
        if label in paper:
            ax = next(left)
            _logarithmic(ax, places, xlabel)
            ax.set_ylabel(f"{label}, the paper")
            for name, points in paper[label].items():
                x, look = sorted(points), chosen[name]
                hollow = {"marker": look.marker, "markersize": 7, "markerfacecolor": "white"}
                y = [points[place] for place in x]
                ax.plot(np.array(x) * shifts[name], y, color=look.colour, linestyle=look.line, linewidth=1.1, **hollow)
    legend_below(figure, [legend_line(look, shown(name)) for name, look in chosen.items()])
    return figure


def _logarithmic(ax: Axes, places: np.ndarray, xlabel: str) -> None:
    """An x axis with its ticks at the places (P,)."""
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(places))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(places[0] / 1.35, places[-1] * 1.35)
    ax.set_xlabel(xlabel)


def _shifts(places: np.ndarray, count: int) -> np.ndarray:
    """Factors (count,) that part series on a logarithmic axis."""
    gap = min([*np.log(places[1:] / places[:-1]), GAP])
    return np.exp(np.linspace(-0.5, 0.5, count) * SPREAD * gap) if count > 1 else np.ones(1)


def _draw_series(ax: Axes, points: Mapping[float, Sequence[float]], shift: float, look: Look) -> None:
    places = sorted(points)
    for place in places:
        ax.plot(
            np.full(len(points[place]), place * shift),
            points[place],
            color=look.colour,
            marker="o",
            markersize=3,
            markeredgewidth=0,
            alpha=0.45,
            linestyle="none",
        )
    mean, sd = np.array([mean_and_sd(points[place]) for place in places]).T
    style = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "markeredgecolor": "white"}
    ax.errorbar(np.array(places) * shift, mean, sd, **style, markersize=7, capsize=2.5, elinewidth=1.1, zorder=3)


@styled()
def gain_panels(
    panels: Mapping[str, Mapping[str, Gain]], placebo: Mapping[str, Mapping[str, Gain]], xlabel: str
) -> Figure:
    """The gain over soft labels against the distance of the sparse target, a panel per number of votes.

    Lines are means over seeds with SD bars. Thin lines without marks are the placebo's.

    Args:
        panels: by delivery, by the panel's title.
        placebo: the same on examples that no model was trained on.
    """
    figure, axes = panels_of(len(panels), 3.1, sharey=True)
    names = list(dict.fromkeys(name for gains in panels.values() for name in gains))
    chosen = dict(zip(names, looks(names), strict=True))
    for ax, (title, gains) in zip(axes, panels.items(), strict=True):
        ax.axhline(0, color=GUIDE, linewidth=0.8)
        for name, found in placebo.get(title, {}).items():
            mean, _ = mean_and_sd(found.gain, absent=True)
            ax.plot(found.distance, mean, color=chosen[name].colour, linestyle=chosen[name].line, linewidth=0.8)
        shift = OFFSET * max(np.ptp(found.distance) for found in gains.values())
        for place, (name, found) in enumerate(gains.items()):
            if found.gain.shape[1:] != found.distance.shape:
                raise VotesError(f"{name}: gains {found.gain.shape} are not of {len(found.distance)} bins.")
            mean, sd = mean_and_sd(found.gain, absent=True)
            look = {"color": chosen[name].colour, "marker": chosen[name].marker, "markeredgecolor": "white"}
            x = found.distance + shift * (place - (len(gains) - 1) / 2)
            ax.errorbar(x, mean, sd, **look, markersize=7, capsize=2.5, elinewidth=1.1, zorder=3)
        # Spaces that do not break: a name and its correlation stay on one line.
        rho = [f"{shown(name)} {_number(found.correlation)}".replace(" ", "\u00a0") for name, found in gains.items()]
        lines = textwrap.wrap(f"ρ: {', '.join(rho)}", int(PER_INCH * figure.get_figwidth() / _columns(axes)))
        ax.set_title("\n".join([title, *lines]), fontsize=SMALL)
        ax.set_xlabel(xlabel)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("gain in soft NLL\nover soft labels")
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, label=shown(name)) for name, look in chosen.items()
    ]
    if any(placebo.values()):
        thin = {"color": GUIDE, "linewidth": 0.8, "linestyle": (0, (4, 2))}
        handles.append(Line2D([], [], **thin, label="thin: eval split (placebo)"))
    legend_below(figure, handles)
    return figure


def _number(value: float) -> str:
    return "undefined" if np.isnan(value) else f"{value:.2f}"


def _columns(axes: Sequence[Axes]) -> int:
    return axes[0].get_subplotspec().get_gridspec().ncols
