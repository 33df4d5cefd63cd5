"""Single examples as a page shows them: two panels beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .bars import draw_bars
from .style import legend_below, panel_figure, styled
from .sweep import WIDTH

COLUMNS = 2


@styled()
def example_panels(examples: Mapping[str, Mapping[str, np.ndarray]], class_names: Sequence[str]) -> Figure:
    """Bars of the annotators' and each model's distribution, a panel per example with each model's KL(p || q).

    Args:
        examples: distributions (C,) by name, the annotators' first, by the panel's title.
        class_names: C names.
    """
    figure, axes = panel_figure(len(examples), WIDTH / COLUMNS, 2.9, COLUMNS, sharey=True)
    for ax, (title, distributions) in zip(axes, examples.items(), strict=True):
        draw_bars(ax, distributions, class_names, title)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("probability")
    legend_below(figure, axes[0].containers)
    return figure
