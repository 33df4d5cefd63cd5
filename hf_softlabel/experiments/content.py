"""What a report consists of, before it becomes a page, Markdown, CSV or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from ..figures.style import render
from .runs import Missing, Run
from .tables import Table


@dataclass(frozen=True)
class Picture:
    """A figure: `source` is the figure of a paper that it repeats, if any."""

    key: str
    title: str
    caption: str
    figure: Figure
    source: str | None = None

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        width, height = self.figure.get_size_inches()
        return float(width), float(height)

    @cached_property
    def png(self) -> bytes:
        return render(self.figure, "png")

    @cached_property
    def svg(self) -> bytes:
        # Once it is drawn, everything is in its place: laying it out again takes as long as drawing it.
        _ = self.png
        self.figure.set_layout_engine("none")
        return render(self.figure, "svg")


@dataclass(frozen=True)
class KeptPicture:
    """A figure of an earlier report, of which only the files are left."""

    key: str
    title: str
    caption: str
    png: bytes
    svg: bytes
    source: str | None = None

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches: an SVG of matplotlib has them in points."""
        width, height = re.findall(rb'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"', self.svg)[0]
        return float(width) / 72, float(height) / 72


AnyPicture = Picture | KeptPicture


@dataclass(frozen=True)
class Example:
    """A held-out example: what people voted, and what the models of each method predict.

    Args:
        text: of a text example; lines are its parts (premise and hypothesis, for instance).
        image: of an image example, a PNG or JPEG file.
        human: the votes' distribution (C,).
        votes: how many votes there are; None where only a distribution is known.
        entropy: of the votes, divided by log C: from 0 to 1.
        predictions: the mean probabilities (C,) of each method over the seeds that held the example out.
        seeds: how many seeds these are, by method.
    """

    example_id: int
    text: str | None
    image: bytes | None
    human: Sequence[float]
    votes: int | None
    entropy: float
    predictions: Mapping[str, Sequence[float]]
    seeds: Mapping[str, int]


@dataclass(frozen=True)
class Section:
    """All runs of one setting: one data set, model and scale.

    Args:
        key: for files and anchors.
        scale: how large the runs were, beside the paper's where there is one.
        findings: sentences made from the numbers.
        numbers_only: whether some of its runs have kept no predictions.
    """

    key: str
    title: str
    scale: str
    findings: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[AnyPicture]
    examples: Sequence[Example]
    class_names: Sequence[str]
    numbers_only: bool = False


@dataclass(frozen=True)
class Report:
    """Everything of a folder of runs.

    Args:
        tables: those that compare settings, such as soft against hard labels on several data sets.
        missing: cells of grids that were not run, and runs that were cut off.
        copies: runs that have the configuration of another and are left out, with the path of that one.
        notes: remarks on the runs, such as seeds that could not be paired.
    """

    title: str
    folder: Path
    findings: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[AnyPicture]
    sections: Sequence[Section]
    runs: Sequence[Run]
    missing: Sequence[Missing]
    copies: Sequence[tuple[Path, Path]]
    notes: Sequence[str]
