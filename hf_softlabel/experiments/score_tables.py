"""Tables of scores over the runs of a setting: methods by scores, and methods by votes per example."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..metrics.summary import NAMES, TITLES
from .runs import Run
from .setting import Setting, in_order, metric, title_of
from .tables import Column, Entry, Published, Table, with_tests

Score = Callable[[Run], float | None]
PAIRED = "p: paired Wilcoxon against {reference}, {side}; Holm over {family}."


def caption(what: str, reference: str | None, one_sided: bool, by_column: bool) -> str:
    text = f"{what} Mean ± SD over seeds."
    if reference is None:
        return text
    side = "one-sided (better)" if one_sided else "two-sided"
    family = "the tests of a column" if by_column else "all tests of the table"
    return f"{text} {PAIRED.format(reference=reference, side=side, family=family)}"


def score_table(
    setting: Setting,
    key: str,
    title: str,
    what: str,
    scores: Mapping[str, tuple[Column, Score]],
    figures: Mapping[str, Mapping[str, Published]],
    source: str | None,
    reference: str | None = "soft",
    methods: Sequence[str] | None = None,
) -> Table | None:
    """Rows are methods at full votes, columns are scores; None if none of them was measured."""
    figures = figures if setting.has_paper else {}
    rows = [method for method in in_order([*setting.methods(), *figures]) if methods is None or method in methods]
    entries = {
        (i, j): Entry(setting.values(score, method), paper=figures.get(method, {}).get(name))
        for i, method in enumerate(rows)
        for j, (name, (_, score)) in enumerate(scores.items())
    }
    if not any(entry.values for entry in entries.values()):
        return None
    if reference is not None and (reference not in rows or len(rows) < 2):
        reference = None
    table = Table(
        key,
        title,
        caption(what, reference and title_of(reference), False, True),
        "delivery",
        tuple(column for column, _ in scores.values()),
        tuple(map(title_of, rows)),
        entries,
        source if setting.has_paper else None,
        reference and title_of(reference),
        family_by_column=True,
    )
    table = _measured_rows(table) if not setting.has_paper else table
    if reference is None:
        return table
    row = table.rows.index(title_of(reference)) if title_of(reference) in table.rows else None
    return with_tests(table, lambda i, j: None if row is None else (row, j))


def _measured_rows(table: Table) -> Table:
    """Without the rows in which nothing was measured: a score of few methods need not list all others as missing."""
    kept = [i for i in range(len(table.rows)) if any(table.entry(i, j).values for j in range(len(table.columns)))]
    entries = {(kept.index(i), j): entry for (i, j), entry in table.entries.items() if i in kept}
    return replace(table, rows=tuple(table.rows[i] for i in kept), entries=entries)


def metrics(*names: str) -> dict[str, tuple[Column, Score]]:
    return {name: (Column(TITLES[name], NAMES[name]), metric(name)) for name in names}


def _digits(values: Sequence[float]) -> int:
    """Decimals that leave about four significant digits of the largest."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=1.0)
    return 4 if largest < 1 else max(0, 3 - math.floor(math.log10(largest)))


def with_digits(table: Table | None) -> Table | None:
    """The table with as many decimals in each column as its numbers are worth."""
    if table is None:
        return None
    columns = []
    for j, column in enumerate(table.columns):
        entries = [table.entry(i, j) for i in range(len(table.rows))]
        columns.append(column._replace(digits=_digits([entry.mean for entry in entries if entry.values])))
    return replace(table, columns=tuple(columns))


def sweep_table(
    setting: Setting,
    key: str,
    title: str,
    what: str,
    columns: Sequence[tuple[Column, int, Score]],
    figures: Mapping[tuple[str, int], Published],
    source: str,
    one_sided: bool,
) -> Table | None:
    """Rows are methods, columns are a score at K votes per example: soft labels are the reference of each column."""
    figures = figures if setting.has_paper else {}
    methods = in_order([*(m for k in setting.votes_per_example for m in setting.methods(k)), *(m for m, _ in figures)])
    entries = {
        (i, j): Entry(setting.values(score, method, k), paper=figures.get((method, j)))
        for i, method in enumerate(methods)
        for j, (_, k, score) in enumerate(columns)
    }
    if not any(entry.values for entry in entries.values()):
        return None
    reference = "soft" if "soft" in methods and len(methods) > 1 else None
    table = Table(
        key,
        title,
        caption(what, reference and title_of(reference), one_sided, False),
        "delivery",
        tuple(column for column, _, _ in columns),
        tuple(map(title_of, methods)),
        entries,
        source if setting.has_paper else None,
        reference and title_of(reference),
        one_sided,
    )
    return with_tests(table, lambda i, j: (methods.index("soft"), j) if reference else None)
