"""Curvature, the line between two models, their representations, where they look, and their gradients' variance."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.Image
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..data.errors import VotesError
from .cloud import POINTS, draw_cloud
from .style import FONT, GUIDE, LOOKS, SMALL, Look, legend_below, legend_under, looks, new_figure, panel_figure, styled

if TYPE_CHECKING:
    from ..diagnostics.barrier import LossBarrier

# Of the Hessian: the results' keys, and what the axes say.
CURVATURE = {"lambda_max": "largest eigenvalue", "trace": "trace"}
BAR = 0.38
BARS = "; bars: the mean over runs"
COLUMNS = 3
CHORD = (0, (5, 3))
# Perceptually uniform, the same to colour-blind eyes, and evenly grey in print.
SIMILARITY = "cividis"
HEAT = "inferno"
# The image must be seen through the map.
OPACITY = 0.55
# Of a panel's width, in characters of its small text.
CHARACTERS = 17


@styled()
def hessian_bars(runs: Mapping[str, Mapping[str, Any]]) -> Figure:
    """lambda_max and trace of the whole split and of the high-disagreement slice, in a panel each.

    A bar is the mean over a delivery's runs, a mark with its error is a run. The mark is open where the requested
    accuracy was not reached.

    Args:
        runs: the results "hessian" of diagnostics.json by name. Runs whose names are the same up to a comma ("sls,
            seed 0" and "sls, seed 1") share a bar.
    """
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, results in runs.items():
        groups.setdefault(name.split(",")[0], []).append((name, results))
    labels = [f"{name}, {len(some)} runs" if len(some) > 1 else name for name, some in groups.items()]
    longest = max(map(len, labels), default=0)
    slanted = longest > 12
    width, height = max(3.4, 1 + 0.75 * len(groups)), 3.2 + slanted * 0.045 * longest
    figure, axes = panel_figure(len(CURVATURE) if groups else 0, width, height, 2)
    converged: list[bool] = []
    for ax, (key, label) in zip(axes, CURVATURE.items(), strict=True):
        for place, (look, members) in enumerate(zip(looks(list(groups)), groups.values(), strict=True)):
            for is_slice in (False, True):
                values = np.array([_curvature(name, results, key, is_slice) for name, results in members])
                _draw_bar(ax, place + (is_slice - 0.5) * BAR, values, look, is_slice)
                converged += values[:, 2].astype(bool).tolist()
        ax.axhline(0, color="black", linewidth=0.8)
        slant = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        ax.set_xticks(range(len(groups)), labels, **slant)
        ax.set_xlim(-0.6, len(groups) - 0.4)
        ax.set_ylabel(f"{label} of the Hessian")
    handles = [
        Patch(facecolor=GUIDE, edgecolor=GUIDE, label="whole split"),
        Patch(facecolor="white", edgecolor=GUIDE, hatch="////", label="high-disagreement slice"),
    ]
    if not all(converged):
        open_mark = {"color": "black", "markerfacecolor": "white", "linestyle": "none", "marker": "o"}
        handles.append(Line2D([], [], **open_mark, label="not converged"))
    several = any(len(members) > 1 for members in groups.values())
    legend_below(figure, handles, f"marks: {'runs' if several else 'values'} with their errors{BARS * several}")
    return figure


def _curvature(name: str, results: Mapping[str, Any], key: str, is_slice: bool) -> tuple[float, float, bool]:
    """Value, error (NaN if they are unknown) and whether it converged."""
    try:
        found = results["high_disagreement"] if is_slice else results
        value, error, converged = found[key], found[f"{key}_error"], found[f"{key}_converged"]
    except (KeyError, TypeError) as missing:
        raise VotesError(f"{name}: the Hessian's results have no {missing}, as diagnostics.json has.") from None
    # null in the file: it was not finite.
    value, error = (math.nan if x is None else float(x) for x in (value, error))
    return value, error, bool(converged)


def _draw_bar(ax: Axes, place: float, values: np.ndarray, look: Look, is_slice: bool) -> None:
    """A delivery's runs (R, 3), each its value, error and whether it converged."""
    face = {"facecolor": "white", "hatch": "////"} if is_slice else {"facecolor": look.colour}
    mean = values[:, 0].mean()
    if not math.isfinite(mean):
        ax.text(place, 0, "undefined", rotation=90, ha="center", va="bottom", fontsize=SMALL, color=GUIDE)
    ax.bar(place, mean, 0.9 * BAR, edgecolor=look.colour, linewidth=1.2, **face)
    spread = np.linspace(-0.28, 0.28, len(values)) * BAR if len(values) > 1 else np.zeros(1)
    for shift, (value, error, converged) in zip(spread, values, strict=True):
        mark = {"markerfacecolor": "black" if converged else "white", "marker": "o", "markersize": 4.5}
        ax.errorbar(place + shift, value, error, color="black", elinewidth=1, capsize=2.5, zorder=3, **mark)


@styled()
def interpolation_curves(pairs: Mapping[str, LossBarrier]) -> Figure:
    """The loss along the straight line between two models, a panel per pair; dashed is what has no barrier.

    Args:
        pairs: alphas and losses (points,), with re-estimated batch norm too if there are such, by name.
    """
    figure, axes = panel_figure(len(pairs), 3.9, 3.5, COLUMNS, sharey=True)
    for ax, (name, pair) in zip(axes, pairs.items(), strict=True):
        alphas = np.asarray(pair.alphas, float)
        curves = [("batch norm interpolated", pair.losses, pair.barrier, LOOKS["majority"], "o")]
        if pair.reestimated_losses is not None:
            again = "batch norm re-estimated"
            curves.append((again, pair.reestimated_losses, pair.reestimated_barrier, LOOKS["soft"], "s"))
        for label, losses, barrier, look, marker in curves:
            losses = np.asarray(losses, float)
            if alphas.ndim != 1 or len(alphas) < 2 or losses.shape != alphas.shape:
                raise VotesError(f"{name}: losses {losses.shape} at alphas {alphas.shape} are not a curve.")
            text = f"barrier {barrier:.3f}" if len(curves) == 1 else f"{label}: barrier {barrier:.3f}"
            face = look.colour if marker == "o" else "white"
            ax.plot(alphas, losses, color=look.colour, marker=marker, markerfacecolor=face, markersize=5, label=text)
            ax.plot(alphas[[0, -1]], losses[[0, -1]], color=look.colour, linestyle=CHORD, linewidth=0.9)
        ax.plot([], [], color=GUIDE, linestyle=CHORD, linewidth=0.9, label="straight between the ends")
        ax.set_title("\n".join(textwrap.wrap(name, 44)))
        ax.set_xlabel("α, from the first to the second model")
        legend_under(ax)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("soft cross-entropy")
    return figure


@styled()
def cka_heatmap(names: Sequence[str], matrix: Any) -> Figure:
    """The similarity of every two models' representations, with the numbers.

    Args:
        names: of the R models.
        matrix: (R, R), symmetric, from 0 to 1; NaN where it is undefined, which is left white.
    """
    values = np.asarray(matrix, float)
    count = len(names)
    if not count or values.shape != (count, count):
        raise VotesError(f"The CKA of {count} models is a square matrix, not one of shape {values.shape}.")
    if not np.allclose(values, values.T, equal_nan=True):
        raise VotesError("The CKA matrix is not symmetric.")
    if (values < -1e-6).any() or (values > 1 + 1e-6).any():
        raise VotesError("CKA is between 0 and 1, and some values of the matrix are not.")
    side = max(2.2, 0.46 * count)
    # Slanted names below, straight ones on the left, and the bar.
    margin = 0.07 * max(len(name) for name in names)
    figure, ((ax,),) = new_figure(side + margin + 1.3, side + 0.7 * margin + 0.3)
    # From the tenth below the least value: models are often all alike, and differ in the second digit.
    finite = values[np.isfinite(values)]
    least = min(0.9, math.floor(10 * finite.min()) / 10) if len(finite) else 0
    image = ax.imshow(values, cmap=SIMILARITY, vmin=max(0, least), vmax=1)
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        # Of the luminance that print shows.
        dark = np.isfinite(value) and 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        text = f"{value:.2f}" if np.isfinite(value) else "–"
        ax.text(column, row, text, ha="center", va="center", fontsize=SMALL, color="white" if dark else "black")
    ax.set_xticks(range(count), names, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(count), names)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    figure.colorbar(image, label="linear CKA", shrink=0.8, fraction=0.05, pad=0.02)
    return figure


@styled()
def gradcam_overlays(images: Any, models: Mapping[str, Any], titles: Sequence[str] | None = None) -> Figure:
    """Where each model looks: a row per example, with the image and each model's map on it.

    Args:
        images: (N, H, W, 3) uint8.
        models: maps (N, h, w) by model; h and w can differ between models.
        titles: a title per example.
    """
    pixels = np.asarray(images)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3 or not len(pixels):
        raise VotesError(f"images must be (N, H, W, 3) uint8, not {pixels.shape} {pixels.dtype}.")
    titles = [f"example {row}" for row in range(len(pixels))] if titles is None else list(titles)
    if len(titles) != len(pixels):
        raise VotesError(f"There are {len(titles)} titles, and {len(pixels)} images.")
    maps = {name: upsampled(name, values, pixels.shape[:3]) for name, values in models.items()}
    rows, columns = len(pixels), 1 + len(maps)
    # Beside the images are the titles, below them the bar.
    margin = 0.068 * max(len(line) for title in titles for line in title.split("\n"))
    figure, axes = new_figure(1.5 * columns + margin, 1.5 * rows + 1, rows, columns)
    for row, title in enumerate(titles):
        axes[row, 0].imshow(pixels[row])
        axes[row, 0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=SMALL)
        # In grey, so that every colour is the map's.
        grey = pixels[row] @ [0.299, 0.587, 0.114]
        for ax, values in zip(axes[row, 1:], maps.values(), strict=True):
            ax.imshow(grey, cmap="gray", vmin=0, vmax=255)
            ax.imshow(values[row], cmap=HEAT, vmin=0, vmax=1, alpha=OPACITY)
            if values[row].any():
                # The second channel, for print in grey; from edge to edge, not only between the pixels' centres.
                y, x = (np.arange(-1, size + 1) for size in values[row].shape)
                ax.set_autoscale_on(False)
                ax.contour(x, y, np.pad(values[row], 1, "edge"), [0.5], colors="white", linewidths=1.2)
    for ax, name in zip(axes[0], ["image", *maps], strict=True):
        ax.set_title("\n".join(textwrap.wrap(name, CHARACTERS)), fontsize=SMALL)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    scale = ScalarMappable(cmap=HEAT)
    scale.set_clim(0, 1)
    label = "Grad-CAM, from each map's least to its largest; line: half-way"
    bar = figure.colorbar(scale, ax=axes, location="bottom", aspect=40, shrink=0.8, alpha=OPACITY, pad=0.02)
    bar.set_label("\n".join(textwrap.wrap(label, 22 * columns)), fontsize=SMALL)
    return figure


def upsampled(name: str, maps: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """Maps (N, h, w) -> `shape` (N, H, W), bilinear, each from 0 to 1; a constant one is 0."""
    maps = np.asarray(maps, np.float32)
    if maps.ndim != 3 or len(maps) != shape[0] or not maps.size:
        raise VotesError(f"{name}: {shape[0]} images need maps of shape ({shape[0]}, h, w), not {maps.shape}.")
    if not np.isfinite(maps).all():
        raise VotesError(f"{name}: some maps are not finite.")
    size = shape[:0:-1]  # width and height
    large = np.stack([PIL.Image.fromarray(values).resize(size, PIL.Image.Resampling.BILINEAR) for values in maps])
    least, most = (edge(large, axis=(1, 2), keepdims=True) for edge in (np.min, np.max))
    return np.divide(large - least, most - least, out=np.zeros_like(large), where=most > least)


@styled()
def gradient_variance_scatter(variance: Any, entropy: Any, correlation: float, name: str | None = None) -> Figure:
    """The last layer's gradient variance against the annotators' entropy, with medians over tenths of the examples.

    Args:
        variance, entropy: (N,).
        correlation: Spearman's, of the two; NaN where it is undefined.
        name: of the run.
    """
    variance, entropy = (np.asarray(values, float) for values in (variance, entropy))
    if variance.ndim != 1 or variance.shape != entropy.shape or not len(variance):
        raise VotesError(f"Variance {variance.shape} and entropy {entropy.shape} must be of the same examples, (N,).")
    if not (np.isfinite(variance).all() and np.isfinite(entropy).all()):
        raise VotesError("Some gradient variances or entropies are not finite. Leave these examples out.")
    figure, ((ax,),) = new_figure(5.6 if len(variance) > POINTS else 4.8, 4.2)
    quartiles = draw_cloud(ax, entropy, variance)
    ax.set(xlabel="entropy of the annotators (nats)", ylabel="variance of the last layer's gradient")
    shown = "undefined" if math.isnan(correlation) else f"{correlation:.3f}"
    ax.set_title(f"{'' if name is None else f'{name}: '}Spearman's ρ {shown}, {len(variance):,} examples", size=FONT)
    legend_below(figure, [quartiles])
    return figure
