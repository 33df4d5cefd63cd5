"""The one style of all figures: readable in colour-blind vision and in grey print, whatever the user's rc is."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from ..data.errors import VotesError

FONT = 10
SMALL = 9
DPI = 200
GUIDE = "#666666"  # diagonals, means and notes: what is not data
STYLE = {
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "legend.frameon": False,
    # Dashed and dotted lines are told apart by their dashes, so that a legend must show several of them.
    "legend.handlelength": 3.2,
    "figure.titlesize": FONT + 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.8,
}


def styled() -> AbstractContextManager:
    """For every function that draws, as `@styled()` or `with styled():`.

    The style holds while artists are made, and nothing of it stays behind.
    """
    return matplotlib.style.context(["default", STYLE])


class Look(NamedTuple):
    """How one series is drawn: a colour, and in each kind of picture a second channel that needs none."""

    colour: str
    line: Any
    marker: str
    hatch: str


# The palette of Okabe and Ito (2008), but for its yellow, which is lost on white: grey stands in. Two variants have
# their parent's colour (deterministic_control that of multipass, posterior_sls of sls); the second channel is their
# own.
LOOKS = {
    "annotators": Look("#000000", "-", "o", ""),
    "soft": Look("#0072B2", (0, (6, 1.5)), "s", "//"),
    "sls": Look("#56B4E9", (0, (1, 1)), "^", ".."),
    "multipass": Look("#009E73", (0, (5, 1.5, 1, 1.5)), "D", "\\\\"),
    "majority": Look("#D55E00", (0, (3, 1, 1, 1, 1, 1)), "X", "xx"),
    "shuffled_sls": Look("#CC79A7", (0, (2, 2)), "v", "---"),
    "label_smoothing": Look("#E69F00", (0, (9, 2, 2, 2)), "P", "|||"),
    "mixup": Look("#999999", (0, (4, 3)), "*", "++"),
    "deterministic_control": Look("#009E73", (0, (1, 2.5)), "<", "oo"),
    "posterior_sls": Look("#56B4E9", (0, (9, 3)), ">", "**"),
}


def looks(names: Sequence[str]) -> list[Look]:
    """A look for each name, all different while there are enough.

    A delivery ("sls", a run of it, "sls, seed 3", or a variant, "mixup (mixup_alpha 0.4)") has its own, wherever it
    comes; further names, and further runs or variants of a delivery, take in turn those that are free.
    """
    fixed: dict[str, int] = {}
    for i, name in enumerate(names):
        if _delivery(name) in LOOKS:
            fixed.setdefault(_delivery(name), i)
    # From the last on, which are the least used; and black is for people.
    free = [LOOKS[key] for key in reversed(LOOKS) if key not in fixed and key != "annotators"] or list(LOOKS.values())
    chosen, taken = [], 0
    for i, name in enumerate(names):
        if fixed.get(_delivery(name)) == i:
            chosen.append(LOOKS[_delivery(name)])
        else:
            chosen.append(free[taken % len(free)])
            taken += 1
    return chosen


def _delivery(name: str) -> str:
    return name.split(",")[0].split(" (")[0]


def legend_line(look: Look, label: str) -> Line2D:
    """A legend's entry with both channels of a line: its dashes and its mark."""
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, label=label)


def legend_below(figure: Figure, handles: Sequence[Artist], title: str | None = None) -> None:
    """A legend below the panels, in as many columns as its labels leave room for; the figure grows by its height."""
    # In inches: half an em per character, and 5 for the handle and the gaps.
    entry = (0.5 * max(len(handle.get_label()) for handle in handles) + 5) * SMALL / 72
    columns = min(len(handles), max(1, int(figure.get_figwidth() / entry)))
    rows = -(-len(handles) // columns) + (title is not None)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.1)
    figure.legend(handles=handles, title=title, loc="outside lower center", ncols=columns)


def legend_under(ax: Axes) -> None:
    """A panel's own legend below its axis, where no curve can be."""
    inches = ScaledTranslation(0, -0.45, ax.figure.dpi_scale_trans)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=ax.transAxes + inches)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any) -> tuple[Figure, Any]:
    """A figure of so many inches and its axes (rows, columns), without pyplot: no global state and no backend.

    Args:
        grid: further arguments of `Figure.subplots`.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # inches
    return figure, figure.subplots(rows, columns, squeeze=False, **grid)


def panel_figure(count: int, width: float, height: float, widest: int, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each of so many inches, in rows of at most `widest` that are as even as can be."""
    if not count:
        raise VotesError("There is nothing to draw.")
    rows = -(-count // widest)
    columns = -(-count // rows)
    figure, axes = new_figure(width * columns, height * rows, rows, columns, **grid)
    for ax in axes.flat[count:]:
        ax.remove()
    for ax in axes.flat[count - columns : count]:
        # The last of its column, though not of the grid.
        ax.tick_params(labelbottom=True)
    return figure, list(axes.flat[:count])


def render(figure: Figure, kind: str) -> bytes:
    """The figure as a `png`, `pdf` (fonts embedded as TrueType) or `svg` file (letters as shapes)."""
    out = io.BytesIO()
    # Without dates and random ids, so that the same figure gives the same file.
    metadata = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "hf_softlabel"}):
        figure.savefig(out, format=kind, dpi=DPI, metadata=metadata[kind])
    return out.getvalue()


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write `path`.png and `path`.pdf, each whole or not at all; returns both paths."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("png", "pdf"):
        target = path.with_name(f"{path.name}.{kind}")
        part = path.with_name(f"{path.name}.{kind}.part")
        part.write_bytes(render(figure, kind))
        os.replace(part, target)
        written.append(target)
    return written
