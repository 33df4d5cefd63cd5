"""The options that say where votes are and how to read them, for all sub-commands that take a data set."""

from __future__ import annotations

import argparse
from typing import Any


def add_reading(group: Any) -> None:
    """How to read the votes of a data set that is named elsewhere."""
    group.add_argument("--subset", help="for instance mnli for chaosnli")
    group.add_argument("--sources", help="folder with the authors' files (default: $HF_SOFTLABEL_SOURCES)")
    group.add_argument("--split", help="only this split")
    group.add_argument("--label_columns", nargs="+", metavar="COLUMN", help="wide table: one column per class")
    group.add_argument("--item_column", metavar="COLUMN", help="long table: what was labelled")
    group.add_argument("--label_column", metavar="COLUMN", help="long table: the label given")
    group.add_argument("--annotator_column", metavar="COLUMN", help="long table: who gave it")
    group.add_argument("--allow_repeated", action="store_true", help="long table: count an annotator's repeated votes")
    group.add_argument("--class_names", nargs="+", metavar="NAME", help="table: the classes in their order")


def votes_source(options: argparse.Namespace, data: str | None, split: str | None = None) -> Any:
    """The [`VotesSource`] of these options; None without data."""
    from .score import VotesSource

    if data is None:
        return None
    reading = {
        "label_columns": options.label_columns,
        "item": options.item_column,
        "label": options.label_column,
        "annotator": options.annotator_column,
        "names": options.class_names,
        "allow_repeated": options.allow_repeated or None,
    }
    given = {key: value for key, value in reading.items() if value is not None}
    return VotesSource(data, options.subset, options.sources, split, given)
