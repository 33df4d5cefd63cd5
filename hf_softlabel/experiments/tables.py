"""A table of a report: scores over seeds, tests against a reference, the paper's figures; as text, CSV and LaTeX.

Every form shows the same numbers: each cell is written by [`value_text`], [`comparison_text`] and [`paper_text`].
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .stats import (
    ALPHA,
    PairedTest,
    holm,
    paired_differences,
    paired_test,
    seeds_for_power,
    seeds_to_reach,
    smallest_p,
)

# Values by seed of the cells of a table, which are known by the names of their row and column.
Cells = Mapping[tuple[str, str], Mapping[int, float]]
ARROWS = {True: " ↓", False: " ↑", None: ""}


class Published(NamedTuple):
    """A figure of a paper: its mean over seeds and, where it is given, the SD and the p-value; its decimals."""

    mean: float
    sd: float | None = None
    p: float | None = None
    digits: int = 4


class Column(NamedTuple):
    """A column: `lower` is True if lower is better, False if higher is, None if neither."""

    title: str
    lower: bool | None = None
    digits: int = 4


@dataclass(frozen=True)
class Entry:
    """A cell: a score of each seed, ours; its test against the table's reference; the paper's figure.

    Args:
        values: by seed; empty for a cell that was not run.
        test: of the differences from the reference, on the seeds that both have.
        p_better: one-sided, that the cell is better than the reference; None where neither direction is better.
        holm_better, holm_two_sided: adjusted over all tests of the table's family.
    """

    values: Mapping[int, float] = field(default_factory=dict)
    test: PairedTest | None = None
    p_better: float | None = None
    holm_better: float | None = None
    holm_two_sided: float | None = None
    paper: Published | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values()))) if self.values else math.nan

    @property
    def sd(self) -> float:
        """Over the seeds, with n - 1; NaN for one seed."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Table:
    """Rows and columns of entries.

    Args:
        entries: by (row, column); a place that has none is not meant to be filled.
        key: the name of its files.
        caption: what the cells are.
        source: the table or figure of a paper that it repeats, if any.
        reference: what the tests compare with, in words: a row, or a column for `across=True` tables.
        one_sided: the tests are shown one-sided (better than the reference), as the paper's; else two-sided.
        family_by_column: Holm corrects over the tests of each column, where these are different scores; else over all.
        unit: what the values of a cell are of.
        compares_rows: the rows of a column compete, so that the best of them is marked.
        notes: sentences about it, made from its numbers.
    """

    key: str
    title: str
    caption: str
    row_title: str
    columns: tuple[Column, ...]
    rows: tuple[str, ...]
    entries: Mapping[tuple[int, int], Entry]
    source: str | None = None
    reference: str | None = None
    one_sided: bool = False
    family_by_column: bool = False
    unit: str = "seeds"
    compares_rows: bool = True
    notes: tuple[str, ...] = ()

    def entry(self, row: int, column: int) -> Entry:
        return self.entries.get((row, column), Entry())

    @property
    def tests(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.test is not None]

    def missing(self) -> list[str]:
        """The cells that were not run, as `row / column`; a row or column that is wholly missing by its name."""
        blank = {place for place, entry in self.entries.items() if not entry.values}
        filled = self.entries.keys() - blank
        rows = sorted({i for i, _ in blank} - {i for i, _ in filled})
        columns = sorted({j for _, j in blank} - {j for _, j in filled})
        cells = [
            f"{self.rows[i]} / {self.columns[j].title}" for i, j in sorted(blank) if i not in rows and j not in columns
        ]
        return [self.rows[i] for i in rows] + [self.columns[j].title for j in columns] + cells


def with_tests(table: Table, reference_of: Callable[[int, int], tuple[int, int] | None]) -> Table:
    """The table with each cell tested against its reference cell, corrected by Holm over each family of tests.

    Seeds are paired: only those that both cells have count, and at least two.
    """
    entries = dict(table.entries)
    for (i, j), entry in table.entries.items():
        place = reference_of(i, j)
        other = table.entries.get(place) if place is not None and place != (i, j) else None
        if other is None:
            continue
        seeds = sorted(entry.values.keys() & other.values.keys())
        differences = paired_differences([entry.values[s] for s in seeds], [other.values[s] for s in seeds])
        if len(seeds) < 2 or not np.isfinite(differences).all():
            continue
        test, lower = paired_test(differences), table.columns[j].lower
        better = None if lower is None else test.p_less if lower else test.p_greater
        entries[i, j] = replace(entry, test=test, p_better=better)
    for places in _families(table, entries):
        for place, adjusted in zip(places, holm([entries[place].test.p_two_sided for place in places]), strict=True):
            entries[place] = replace(entries[place], holm_two_sided=adjusted)
        sided = [place for place in places if entries[place].p_better is not None]
        for place, adjusted in zip(sided, holm([entries[place].p_better for place in sided]), strict=True):
            entries[place] = replace(entries[place], holm_better=adjusted)
    tested_table = replace(table, entries=entries)
    return replace(tested_table, notes=(*table.notes, *comparison_notes(tested_table)))


def _families(table: Table, entries: Mapping[tuple[int, int], Entry]) -> list[list[tuple[int, int]]]:
    """The places of the tests that Holm corrects together."""
    tested = [place for place, entry in entries.items() if entry.test is not None]
    if not table.family_by_column:
        return [tested] if tested else []
    columns = sorted({column for _, column in tested})
    return [[place for place in tested if place[1] == column] for column in columns]


def comparison_notes(table: Table) -> list[str]:
    """What the tests of a table can and cannot show, in words."""
    families = _families(table, table.entries)
    if not families:
        return []
    tests = [table.entries[place] for family in families for place in family]
    size, pairs = max(map(len, families)), max(entry.test.n for entry in tests)
    two_sided = not table.one_sided
    least, needed = smallest_p(pairs, two_sided), seeds_to_reach(size, two_sided)
    side = "two-sided" if two_sided else "one-sided"
    per = " of a column" if table.family_by_column and len(families) > 1 else ""
    notes = [f"With {pairs} paired seeds the smallest {side} p is {p_value(least)}."]
    if pairs < needed:
        family = f"The {size} tests{per} need" if size > 1 else f"A test{per} needs"
        notes.append(
            f"{family} {needed} seeds before any can pass Holm at {ALPHA:g}: nothing in this table can be "
            "significant, even where every seed agrees."
        )
    agree = sum(entry.test.agree == entry.test.n for entry in tests)
    notes.append(f"In {agree} of {len(tests)} comparisons all paired seeds agree on the direction.")
    if all(shown_holm(table, entry) > ALPHA for entry in tests):
        largest = max((abs(entry.test.mean) / entry.test.sd for entry in tests if entry.test.sd > 0), default=0.0)
        wanted = seeds_for_power(largest, size, two_sided)
        if wanted is not None:
            notes.append(
                f"No comparison passes Holm. If the largest effect seen here ({largest:.2g} SDs of the paired "
                f"differences) were the true one, {wanted} seeds would show it with 80% power."
            )
    return notes


def shown_p(table: Table, entry: Entry) -> float:
    """The p-value that the table shows of a tested cell."""
    return entry.p_better if table.one_sided and entry.p_better is not None else entry.test.p_two_sided


def shown_holm(table: Table, entry: Entry) -> float:
    one_sided = table.one_sided and entry.p_better is not None
    return entry.holm_better if one_sided else entry.holm_two_sided


def best_rows(table: Table, column: int) -> set[int]:
    """The rows with the best mean of a column, as the column rounds it; none if neither direction is better."""
    if not table.compares_rows:
        return set()
    lower, digits = table.columns[column].lower, table.columns[column].digits
    means = {
        row: round(table.entry(row, column).mean, digits)
        for row in range(len(table.rows))
        if math.isfinite(table.entry(row, column).mean)
    }
    if lower is None or len(means) < 2:
        return set()
    best = min(means.values()) if lower else max(means.values())
    return {row for row, mean in means.items() if mean == best}


def number(value: float | None, digits: int) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def p_value(p: float) -> str:
    """Four significant digits, so that the smallest p of a few seeds is exact: 0.03125, 0.0625, 1; or <0.0001."""
    return "<0.0001" if p < 0.0001 else f"{p:.4g}"


def value_text(entry: Entry, column: Column) -> str:
    """`0.5052 ± 0.0263`, and blank for a cell that was not run."""
    if not entry.values:
        return ""
    if not math.isfinite(entry.mean):
        return "undefined"
    spread = number(entry.sd, column.digits)
    return number(entry.mean, column.digits) + (f" ± {spread}" if spread else "")


def comparison_text(table: Table, entry: Entry) -> str:
    """`p 0.03125, Holm 0.375`, and blank for a cell without a test."""
    if entry.test is None:
        return ""
    return f"p {p_value(shown_p(table, entry))}, Holm {p_value(shown_holm(table, entry))}"


def paper_text(entry: Entry) -> str:
    """`0.5052 ± 0.0263 (p 0.031)` of the paper, blank where it has none."""
    if entry.paper is None:
        return ""
    mean, sd, p, digits = entry.paper
    spread = "" if sd is None else f" ± {sd:.{digits}f}"
    return f"{mean:.{digits}f}{spread}" + ("" if p is None else f" (p {p_value(p)})")


def seeds_text(table: Table, row: int) -> str:
    """How many seeds a row has: `5`, or `3-5` where its cells differ."""
    counts = [len(table.entry(row, j).values) for j in range(len(table.columns))]
    counts = [count for count in counts if count]
    if not counts:
        return ""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"


def column_titles(table: Table) -> list[str]:
    return [column.title + ARROWS[column.lower] for column in table.columns]


def to_markdown(table: Table) -> str:
    """A GitHub table; the paper's figures in rows of their own."""
    lines = [
        "| " + " | ".join([table.row_title, table.unit, *column_titles(table)]) + " |",
        "|" + "---|" * (len(table.columns) + 2),
    ]
    for i, row in enumerate(table.rows):
        cells = []
        for j, column in enumerate(table.columns):
            entry = table.entry(i, j)
            text = value_text(entry, column)
            text = f"**{text}**" if i in best_rows(table, j) else text
            cells.append("<br>".join(part for part in (text, comparison_text(table, entry)) if part))
        lines.append("| " + " | ".join([row, seeds_text(table, i), *cells]) + " |")
        paper = [paper_text(table.entry(i, j)) for j in range(len(table.columns))]
        if any(paper):
            lines.append("| " + " | ".join([f"*{row}, paper*", "", *paper]) + " |")
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A `tabular` with booktabs, in a `table` with caption and label."""
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_latex(f'{table.title}. {table.caption}')}}}",
        rf"\label{{tab:{table.key}}}",
        rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(_latex(title) for title in [table.row_title, table.unit, *column_titles(table)]) + r" \\",
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        cells = []
        for j, column in enumerate(table.columns):
            entry = table.entry(i, j)
            text = _latex(value_text(entry, column))
            text = rf"\textbf{{{text}}}" if i in best_rows(table, j) else text
            test = _latex(comparison_text(table, entry))
            cells.append(text + (rf" \scriptsize({test})" if test else ""))
        lines.append(" & ".join([_latex(row), seeds_text(table, i), *cells]) + r" \\")
        paper = [_latex(paper_text(table.entry(i, j))) for j in range(len(table.columns))]
        if any(paper):
            lines.append(" & ".join([r"\quad\textit{paper}", "", *paper]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{mark: f"\\{mark}" for mark in "&%#_${}"},
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "²": "$^2$",
        "±": r"$\pm$",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
        "λ": r"$\lambda$",
    }
)


def _latex(text: str) -> str:
    return text.translate(_LATEX)


CSV_FIELDS = (
    *("table", "row", "column", "n", "mean", "sd", "seeds", "values", "reference", "pairs", "difference"),
    *("difference_sd", "agree", "p_better", "p_two_sided", "holm_better", "holm_two_sided"),
    *("paper_mean", "paper_sd", "paper_p"),
)


def to_csv(tables: Sequence[Table]) -> str:
    """A line per cell, in full precision; empty fields where there is nothing."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for i, row in enumerate(table.rows):
            for j, column in enumerate(table.columns):
                writer.writerow(_csv_line(table, row, column, table.entry(i, j)))
    return out.getvalue()


def _csv_line(table: Table, row: str, column: Column, entry: Entry) -> dict[str, object]:
    line: dict[str, object] = {"table": table.key, "row": row, "column": column.title, "n": len(entry.values)}
    if entry.values:
        line |= {"mean": entry.mean, "sd": entry.sd}
        if table.unit == "seeds":
            line["seeds"] = " ".join(map(str, entry.values))
        line["values"] = " ".join(map(repr, entry.values.values()))
    if entry.test is not None:
        test = entry.test
        line |= {"reference": table.reference, "pairs": test.n, "difference": test.mean, "difference_sd": test.sd}
        line |= {"agree": test.agree, "p_better": entry.p_better, "p_two_sided": test.p_two_sided}
        line |= {"holm_better": entry.holm_better, "holm_two_sided": entry.holm_two_sided}
    if entry.paper is not None:
        line |= {"paper_mean": entry.paper.mean, "paper_sd": entry.paper.sd, "paper_p": entry.paper.p}
    return {
        key: "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
        for key, value in line.items()
    }


def values_of_csv(text: str) -> Cells:
    """The values of a table whose cells are of seeds, from what [`to_csv`] wrote."""
    lines = csv.DictReader(io.StringIO(text))
    return {
        (line["row"], line["column"]): dict(
            zip(map(int, line["seeds"].split()), map(float, line["values"].split()), strict=True)
        )
        for line in lines
    }
