"""What people voted and what models predict on single examples, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..data.errors import VotesError
from ..metrics import entropy, kl_to_annotators
from ..metrics.arrays import model
from .sources import read_source, read_votes
from .style import SMALL, legend_below, looks, panel_figure, styled

EXAMPLES = 4
COLUMNS = 4
# More classes than this are unreadable in a panel: those with the most mass are shown.
CLASSES = 12
# A class whose every bar is lower is not shown, where there are too many.
VISIBLE = 0.01
# Of a panel's width, in characters of its small text.
CHARACTERS = 44


@styled()
def distribution_bars(
    votes: Any,
    models: Mapping[str, Any],
    class_names: Sequence[str],
    examples: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Bars of the annotators' and each model's distribution, a panel per example with each model's KL(p || q).

    Args:
        votes: (N, C), or a run directory.
        models: probabilities (N, C), or a run directory, by name; a delivery's name gives it that delivery's look.
        class_names: C names.
        examples: the rows to show; the four whose votes have the largest entropy if not given.
        titles: a title per shown example; its row if not given.
    """
    p = read_votes(votes)
    q = {name: _probabilities(name, source, p) for name, source in models.items()}
    if len(class_names) != p.shape[1]:
        raise VotesError(f"There are {len(class_names)} class names, and votes for {p.shape[1]} classes.")
    if examples is None:
        # Rounding, so that rows that are as much disagreed on come in their own order.
        examples = np.argsort(-entropy(p).round(12), kind="stable")[:EXAMPLES].tolist()
    titles = [f"example {row}" for row in examples] if titles is None else titles
    if len(titles) != len(examples):
        raise VotesError(f"There are {len(titles)} titles, and {len(examples)} examples.")
    figure, axes = panel_figure(len(examples), 3.8, 3.1, COLUMNS, sharey=True)
    for ax, row, title in zip(axes, examples, titles, strict=True):
        draw_bars(ax, {"annotators": p[row], **{name: values[row] for name, values in q.items()}}, class_names, title)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("probability")
    legend_below(figure, axes[0].containers)
    return figure


def draw_bars(
    ax: Axes, distributions: Mapping[str, np.ndarray], class_names: Sequence[str], title: str | None = None
) -> None:
    """Distributions (C,) by name as grouped bars, the annotators' first; each other's KL stands below the title."""
    names, values = list(distributions), np.array(list(distributions.values()))
    shown = np.arange(values.shape[1])
    if len(shown) > CLASSES:
        most = np.argsort(-values.max(0), kind="stable")[:CLASSES]
        shown = np.sort(most[values.max(0)[most] >= VISIBLE])
        rest = max(0, 1 - values[:, shown].sum(1).min())
        note = f"{len(shown)} of {values.shape[1]} classes; the others together: at most {rest:.1%}"
        ax.set_xlabel(note, fontsize=SMALL)
    width = 0.84 / len(names)
    for i, (name, look) in enumerate(zip(names, looks(names), strict=True)):
        places = np.arange(len(shown)) + (i - (len(names) - 1) / 2) * width
        # White hatches and edges: the second channel for print in grey.
        ax.bar(places, values[i, shown], width, color=look.colour, hatch=look.hatch, edgecolor="white", label=name)
    labels = [class_names[k] for k in shown]
    slanted = sum(len(label) + 2 for label in labels) > CHARACTERS
    ax.set_xticks(range(len(shown)), labels, rotation=40 if slanted else 0, ha="right" if slanted else "center")
    ax.set_ylim(0, 1)
    lines = [] if title is None else [title]
    if len(names) > 1:
        scores = kl_to_annotators(values[1:], np.repeat(values[:1], len(names) - 1, 0), per_example=True)
        # Spaces that do not break: a name and its score stay on one line.
        text = "KL: " + ", ".join(f"{name}\u00a0{score:.2f}" for name, score in zip(names[1:], scores, strict=True))
        lines += textwrap.wrap(text, CHARACTERS, break_on_hyphens=False)
    ax.set_title("\n".join(lines), fontsize=SMALL)


def _probabilities(name: str, source: Any, p: np.ndarray) -> np.ndarray:
    """(N, C) of a model, on the examples that the votes p (N, C) are of."""
    if isinstance(source, (str, Path)):
        run = read_source(source)
        if not np.array_equal(read_votes(source), p):
            raise VotesError(f"{name}: the run {source} was evaluated on other examples than the votes are of.")
        return model(run.predictions, run.from_logits)
    q = model(source)
    if q.shape != p.shape:
        raise VotesError(f"{name}: probabilities {q.shape} and votes {p.shape} must have one shape.")
    return q
