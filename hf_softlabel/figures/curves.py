"""Validation scores over training, of several runs of each delivery."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..data.errors import VotesError
from ..metrics.summary import NAMES, TITLES
from .style import Look, legend_below, legend_line, looks, panel_figure, styled

COLUMNS = 3


@styled()
def validation_curves(
    runs: Mapping[str, Sequence[str | Path] | str | Path], metric: str | Sequence[str] = "soft_nll"
) -> Figure:
    """A metric at each evaluation: a thin line per run, a thick one for their mean, a mark at the best mean.

    The mean is over all runs of a name, at the epochs that all of them have.

    Args:
        runs: run directories by delivery or another name.
        metric: a key of history.jsonl, or several: a panel each.
    """
    metrics = [metric] if isinstance(metric, str) else list(metric)
    groups = {name: [some] if isinstance(some, (str, Path)) else list(some) for name, some in runs.items()}
    figure, axes = panel_figure(len(metrics), 5.2 if len(metrics) == 1 else 4.2, 3.4, COLUMNS)
    chosen = looks(list(groups))
    for ax, key in zip(axes, metrics, strict=True):
        for look, folders in zip(chosen, groups.values(), strict=True):
            _draw_group(ax, [read_history(run, key) for run in folders], NAMES.get(key) is False, look)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="epoch", ylabel=TITLES.get(key, key))
    handles = [
        legend_line(look, f"{name} ({len(folders)} run{'s' * (len(folders) != 1)})")
        for look, (name, folders) in zip(chosen, groups.items(), strict=True)
    ]
    several = any(len(folders) > 1 for folders in groups.values())
    note = "thin: runs; thick: their mean; mark: the mean's best epoch" if several else "mark: the best epoch"
    legend_below(figure, handles, note)
    return figure


def read_history(run: str | Path, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values (E,) of a metric at a run's evaluations; NaN where it was undefined."""
    path = Path(run) / "history.jsonl"
    if not path.is_file():
        raise VotesError(f"{run} is not a run: there is no {path.name} in it, as `hf-softlabel train` writes.")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not lines:
        raise VotesError(f"{path} has no evaluations: train with eval_strategy: epoch.")
    missing = [line for line in lines if metric not in line]
    if missing:
        known = ", ".join(key for key in missing[0] if key not in ("step", "epoch"))
        raise VotesError(f"{path} has no {metric!r}. It has: {known}.")
    values = [np.nan if line[metric] is None else line[metric] for line in lines]
    return np.array([line["epoch"] for line in lines], float), np.array(values, float)


def _draw_group(ax: Axes, histories: list[tuple[np.ndarray, np.ndarray]], larger: bool, look: Look) -> None:
    if len(histories) > 1:
        for epochs, values in histories:
            ax.plot(epochs, values, color=look.colour, linestyle=look.line, linewidth=0.7, alpha=0.6)
    epochs, mean = mean_curve(histories)
    ax.plot(epochs, mean, color=look.colour, linestyle=look.line, linewidth=2)
    if np.isfinite(mean).any():
        best = np.nanargmax(mean) if larger else np.nanargmin(mean)
        ax.plot(
            epochs[best],
            mean[best],
            color=look.colour,
            marker=look.marker,
            markersize=9,
            markeredgecolor="white",
            zorder=3,
        )


def mean_curve(histories: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over runs at the epochs (E,) that all of them have; NaN where one of them is."""
    shared = sorted(set.intersection(*(set(epochs.tolist()) for epochs, _ in histories)))
    curves = [dict(zip(epochs.tolist(), values, strict=True)) for epochs, values in histories]
    return np.array(shared), np.array([np.mean([curve[epoch] for curve in curves]) for epoch in shared])
