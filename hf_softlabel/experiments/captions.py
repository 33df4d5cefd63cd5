"""What captions of several figures say in the same words, and the paper's marks that they speak of."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from .tables import Published

Key = TypeVar("Key", bound=Hashable)


def count(numbers: Iterable[int], unit: str = "seed") -> str:
    """`5 seeds`, or `3 to 5 seeds` where they are not the same everywhere."""
    ordered = sorted(numbers)
    units = unit if ordered[-1] == 1 else f"{unit}s"
    return f"{ordered[-1]} {units}" if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]} {units}"


def means(figures: Mapping[Key, Published], keys: Iterable[Key]) -> dict[Key, float]:
    """The paper's means of those keys that it has."""
    return {key: figures[key].mean for key in keys if key in figures}


def hollow(paper: Mapping[str, Mapping], what: str = "means") -> str:
    """A sentence on the paper's marks, if there are any."""
    return f" Hollow: the paper's {what}." if any(paper.values()) else ""
