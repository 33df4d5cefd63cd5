"""All results as one Markdown table of ratios."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


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


def markdown(folder: Path, names: Sequence[str]) -> str:
    """The table of all `NAME.json` in `folder`, in the order of `names`."""
    header = ["what", "against", "ratio (lowest to highest of the rounds)", "target", "", "sizes", "same work?"]
    lines = [
        "# Results",
        "",
        "Made by `make bench`; do not edit. Ratios of medians taken in turn in one run, one thread; they hold for the",
        "machine that ran them. Versions are in the JSON files.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
    ]
    for name in names:
        path = folder / f"{name}.json"
        if path.exists():
            for row in json.loads(path.read_text(encoding="utf-8")):
                lines.append("| " + " | ".join(_cells(row)) + " |")
    return "\n".join(lines) + "\n"
