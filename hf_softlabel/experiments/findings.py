"""Sentences about tables, made from their numbers: a difference is claimed only where the test supports it."""

from __future__ import annotations

from collections.abc import Sequence

from .setting import Setting
from .stats import ALPHA, seeds_to_reach
from .tables import Column, Entry, Table, number, p_value, shown_holm, shown_p, value_text

# Tables whose comparisons are worth a sentence in the summary, in this order.
SUMMARISED = ("sweep", "main", "family", "resampling", "hessian")


def headline(setting: Setting, tables: Sequence[Table]) -> list[str]:
    """A few sentences for the summary: the first column of the tables that answer the papers' main questions."""
    by_key = {table.key: table for table in tables}
    sentences = [_best(by_key["main"])] if "main" in by_key else []
    for key in ("sweep", "main", "hessian"):
        if key in by_key:
            sentences += compared(by_key[key], None if key == "sweep" else 0)
    return [sentence for sentence in sentences if sentence] or section_findings(setting, tables)[:1]


def section_findings(setting: Setting, tables: Sequence[Table]) -> list[str]:
    """What the tables of a setting show, and what they cannot."""
    by_key = {table.key: table for table in tables}
    sentences = [_best(by_key[key]) for key in ("main", "sweep") if key in by_key]
    for key in [*SUMMARISED, *(key for key in by_key if key.startswith("ood_"))]:
        if key in by_key:
            sentences += compared(by_key[key])
    if not any(table.tests for table in tables):
        seeds = {run.seed for run in setting.runs}
        sentences.append(
            f"No test was made: {len(seeds)} seed{'s' * (len(seeds) != 1)} and the methods at hand leave no paired "
            "comparison. Means are descriptive."
        )
    return [sentence for sentence in sentences if sentence]


def _best(table: Table) -> str:
    """Which row has the best mean of the first column: a description, and called that."""
    column = table.columns[0]
    means = {row: table.entry(i, 0) for i, row in enumerate(table.rows) if table.entry(i, 0).values}
    if len(means) < 2 or column.lower is None:
        return ""
    chosen = (min if column.lower else max)(means, key=lambda row: means[row].mean)
    what = column.title if table.key != "sweep" else f"soft NLL at {column.title}"
    most = "lowest" if column.lower else "highest"
    return f"The {most} mean {what} is that of {chosen}: {value_text(means[chosen], column)}."


def compared(table: Table, only: int | None = None) -> list[str]:
    """A sentence for each column and direction on the rows that pass Holm, and one on the rest.

    Args:
        only: the tests of this column only.
    """
    tests = [
        (table.rows[i], table.columns[j], entry)
        for (i, j), entry in sorted(table.entries.items())
        if entry.test is not None and only in (None, j)
    ]
    if not tests:
        return []
    passed = [test for test in tests if shown_holm(table, test[2]) <= ALPHA]
    if not passed:
        return [_nothing(table, tests)]
    claims: dict[tuple[Column, bool], list[tuple[str, Entry]]] = {}
    for row, column, entry in passed:
        claims.setdefault((column, entry.test.mean < 0), []).append((row, entry))
    sentences = [_claim(table, column, lower, rows) for (column, lower), rows in claims.items()]
    rest = len(tests) - len(passed)
    if rest:
        which = "the other comparison with" if rest == 1 else f"the other {rest} comparisons with"
        verb = "shows" if rest == 1 else "show"
        sentences.append(
            f"{table.title}: {which} {table.reference} {verb} no significant difference, which does not show that "
            "there is none."
        )
    return sentences


def _claim(table: Table, column: Column, lower: bool, rows: Sequence[tuple[str, Entry]]) -> str:
    one_sided = table.one_sided and rows[0][1].p_better is not None
    what = f"soft NLL at {column.title}" if table.key == "sweep" else column.title
    names = [row for row, _ in rows]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    sizes = sorted({number(abs(entry.test.mean), column.digits) for _, entry in rows}, key=float)
    by = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    worst = max(rows, key=lambda row: shown_holm(table, row[1]))[1]
    at_most = "at most " if len(rows) > 1 else ""
    return (
        f"{table.title}: {what} is {'lower' if lower else 'higher'} than that of {table.reference} with {listed}, by "
        f"{by} on average ({'one' if one_sided else 'two'}-sided p {at_most}{p_value(shown_p(table, worst))}, "
        f"Holm {at_most}{p_value(shown_holm(table, worst))}; {worst.test.n} paired seeds)."
    )


def _nothing(table: Table, tests: Sequence[tuple[str, Column, Entry]]) -> str:
    pairs, size = max(entry.test.n for _, _, entry in tests), len(tests)
    if table.family_by_column:
        size = max(sum(column == other for _, other, _ in tests) for _, column, _ in tests)
    needed = seeds_to_reach(size, not table.one_sided)
    agree = sum(entry.test.agree == entry.test.n for _, _, entry in tests)
    on = ""
    if len({column for _, column, _ in tests}) == 1 and len(table.columns) > 1:
        on = f" {'at' if table.key == 'sweep' else 'on'} {tests[0][1].title}"
    sentence = f"{table.title}: no comparison with {table.reference}{on} passes Holm"
    if pairs < needed:
        return (
            f"{sentence}, and with {pairs} paired seeds none could: a family of {size} "
            f"test{'s' * (size != 1)} needs {needed}. In {agree} of {len(tests)} all seeds agree on the direction."
        )
    return f"{sentence} ({pairs} paired seeds). That does not show that they are equal."
