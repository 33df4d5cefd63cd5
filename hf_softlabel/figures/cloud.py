"""Many examples as points, or as squares that count them, with medians over tenths of them."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.container import ErrorbarContainer

from ..metrics import equal_mass_bins
from .style import LOOKS

# More points than this lie on top of each other: they are counted on a grid of squares. (Hexagons would zigzag where
# people's entropies are few, as they are with few votes.)
POINTS = 1500
SQUARES = 45
MEDIANS = 10


def draw_cloud(
    ax: Axes, x: np.ndarray, y: np.ndarray, limits: list[tuple[float, float]] | None = None
) -> ErrorbarContainer:
    """Draw examples x, y (N,), and medians and quartiles of y; `limits` are the squares' ranges of both."""
    if len(x) > POINTS:
        # Without the palest blues, so that a square with one example is seen.
        blues = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.25, 1, 256)))
        counts, across, up = np.histogram2d(x, y, SQUARES, range=limits)
        squares = ax.pcolormesh(across, up, np.ma.masked_equal(counts.T, 0), norm=LogNorm(), cmap=blues)
        ax.figure.colorbar(squares, label="examples", shrink=0.8)
        ax.use_sticky_edges = False  # a margin, as points have
    else:
        ax.scatter(x, y, 14, color=LOOKS["soft"].colour, alpha=0.35, linewidth=0)
    places, (low, middle, high) = medians(x, y)
    look = {"color": LOOKS["majority"].colour, "marker": "o", "capsize": 2}
    return ax.errorbar(places, middle, [middle - low, high - middle], **look, label="median and quartiles")


def medians(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean x (B,) and the quartiles of y (3, B) over tenths of the examples by x.

    Equal x stay together, so that there are fewer groups where x has few values.
    """
    group = equal_mass_bins(x, MEDIANS)
    groups = [group == i for i in np.unique(group)]
    places = np.array([x[rows].mean() for rows in groups])
    return places, np.array([np.quantile(y[rows], [0.25, 0.5, 0.75]) for rows in groups]).T
