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
    """What a table's cells are, and how they were tested."""
    text = f"{what} Mean ± SD over seeds."
    if reference is None:
        return text
    side = "one-sided (better)" if one_sided else "two-sided"
    family = "the tests of a column" if by_column else "all tests of the table"
    return f"{text} {PAIRED.format(reference=reference, side=side, family=family)}"


def metrics(*names: str) -> dict[str, tuple[Column, Score]]:
    """Columns and scores of metrics.json, by name."""
    return {name: (Column(TITLES[name], NAMES[name]), metric(name)) for name in names}


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
    untested: Sequence[str] = (),
) -> Table | None:
    """Rows are methods at full votes, columns are scores; None if none of them was measured.

    Args:
        scores: column and score, by a name that `figures`, the paper's by method, has too.
        reference: the method that the others are tested against.
        methods: only these.
        untested: methods that stand there for context.
    """
    figures = figures if setting.has_paper else {}
    rows = {
        method: [
            Entry(setting.values(score, method), paper=figures.get(method, {}).get(name))
            for name, (_, score) in scores.items()
        ]
        for method in in_order([*setting.methods(), *figures])
        if methods is None or method in methods
    }
    columns = tuple(column for column, _ in scores.values())
    return _table(setting, key, title, what, columns, rows, source, reference, False, True, untested)


def sweep_table(
    setting: Setting,
    key: str,
    title: str,
    what: str,
    columns: Sequence[tuple[Column, int, Score]],
    figures: Mapping[tuple[str, int], Published],
    source: str | None,
    one_sided: bool,
) -> Table | None:
    """Rows are methods, columns are a score at K votes per example: soft labels are the reference of each column.

    Args:
        figures: the paper's, by method and the column's place.
    """
    figures = figures if setting.has_paper else {}
    run = [method for k in setting.votes_per_example for method in setting.methods(k)]
    rows = {
        method: [
            Entry(setting.values(score, method, k), paper=figures.get((method, j)))
            for j, (_, k, score) in enumerate(columns)
        ]
        for method in in_order([*run, *(method for method, _ in figures)])
    }
    titles = tuple(column for column, _, _ in columns)
    return _table(setting, key, title, what, titles, rows, source, "soft", one_sided, False)


def _table(
    setting: Setting,
    key: str,
    title: str,
    what: str,
    columns: tuple[Column, ...],
    rows: Mapping[str, Sequence[Entry]],
    source: str | None,
    reference: str | None,
    one_sided: bool,
    by_column: bool,
    untested: Sequence[str] = (),
) -> Table | None:
    # Of a method that neither we nor the paper have measured here, nothing is missing.
    kept = {method: row for method, row in rows.items() if any(entry.values or entry.paper for entry in row)}
    if not any(entry.values for row in kept.values() for entry in row):
        return None
    # The paper's figure alone is nothing that ours can be tested against.
    if reference not in kept or not any(entry.values for entry in kept[reference]) or len(kept) < 2:
        reference = None
    methods = list(kept)
    table = Table(
        key,
        title,
        caption(what, reference and title_of(reference), one_sided, by_column),
        "delivery",
        columns,
        tuple(map(title_of, methods)),
        {(i, j): entry for i, row in enumerate(kept.values()) for j, entry in enumerate(row)},
        source if setting.has_paper else None,
        reference and title_of(reference),
        one_sided,
        by_column,
    )
    if reference is None:
        return table
    place = methods.index(reference)
    return with_tests(table, lambda i, j: None if methods[i] in untested else (place, j))


def with_digits(table: Table | None) -> Table | None:
    """The table with as many decimals in each column as leave about four significant digits of its largest mean."""
    if table is None:
        return None
    columns = []
    for j, column in enumerate(table.columns):
        means = [table.entry(i, j).mean for i in range(len(table.rows))]
        largest = max((abs(mean) for mean in means if math.isfinite(mean)), default=0.0)
        digits = 4 if largest < 1 else max(0, 3 - math.floor(math.log10(largest)))
        columns.append(column._replace(digits=digits))
    return replace(table, columns=tuple(columns))
