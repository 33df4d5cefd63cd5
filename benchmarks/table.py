"""All results as two Markdown tables: of ratios, and of memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .measure import MEMORY


def _number(x: float) -> str:
    """Three digits, and no exponent: 23400, 21.4, 0.871."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def _cells(row: dict[str, Any]) -> list[str]:
    ratio = f"{_number(row['ratio'])} {row['unit']}"
    if row["spread"]:
        ratio += f" ({_number(row['spread'][0])} to {_number(row['spread'][1])})"
    met = {True: "met", False: "**missed**", None: ""}[row["met"]]
    sizes = ", ".join(
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in row["sizes"].items()
    )
    return [row["name"], row["peer"], ratio, row["target"] or "reported", met, sizes, row["checked"]]


def _memory_cells(row: dict[str, Any]) -> list[str]:
    name, peer, _, _, _, sizes, _ = _cells(row)
    return [name, peer, _number(row["ratio"]), sizes]


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *(f"| {' | '.join(row)} |" for row in rows)]


def markdown(folder: Path, names: Sequence[str]) -> str:
    """The tables of all `NAME.json` in `folder`, in the order of `names`."""
    paths = [folder / f"{name}.json" for name in names]
    rows = [row for path in paths if path.exists() for row in json.loads(path.read_text(encoding="utf-8"))]
    header = ["what", "against", "ratio (lowest to highest of the rounds)", "target", "", "sizes", "same work?"]
    lines = [
        "# Results",
        "",
        "Made by `make bench`, one benchmark or several at a time; do not edit. Medians of the rounds' ratios, both",
        "sides in turn in one run, one thread; they hold for the machine that ran them. The JSON files have the",
        "versions, and the load that the machine had when a row was made.",
        "",
        *_table(header, [_cells(row) for row in rows if row["unit"] != MEMORY]),
    ]
    if memory := [_memory_cells(row) for row in rows if row["unit"] == MEMORY]:
        lines += ["", "## Memory", "", "By how much the work raises the peak of a process that has its inputs.", ""]
        lines += _table(["what", "beyond", MEMORY, "sizes"], memory)
    return "\n".join(lines) + "\n"
