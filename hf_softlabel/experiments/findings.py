"""Sentences about tables, made from their numbers: a difference is claimed only where the test supports it."""

from __future__ import annotations

from collections.abc import Sequence

from .setting import Setting
from .stats import ALPHA, seeds_to_reach
from .tables import Column, Entry, Table, number, p_value, shown_holm, shown_p, value_text

# Tables whose comparisons are worth a sentence in the summary, in this order.
SUMMARISED = ("sweep", "main", "family", "resampling", "hessian")


def section_findings(setting: Setting, tables: Sequence[Table]) -> list[str]:
    """What the tables of a setting show, and what they cannot."""
    by_key = {table.key: table for table in tables}
    sentences = [_best(by_key[key]) for key in ("main", "sweep") if key in by_key]
    for key in [*SUMMARISED, *(key for key in by_key if key.startswith("ood_"))]:
        if key in by_key:
            sentences += compared(by_key[key])
    if not any(table.tests for table in tables):
        seeds = sorted({run.seed for run in setting.runs})
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
    return (
        f"{chosen} has the {'lowest' if column.lower else 'highest'} mean {what}: {value_text(means[chosen], column)}."
    )


def compared(table: Table) -> list[str]:
    """A sentence for each column, or for the whole table, on what passes Holm; and on what nothing can."""
    tests = [
        (table.rows[i], table.columns[j], entry)
        for (i, j), entry in sorted(table.entries.items())
        if entry.test is not None
    ]
    if not tests:
        return []
    passed = [test for test in tests if shown_holm(table, test[2]) <= ALPHA]
    sentences = [_claim(table, *test) for test in passed]
    rest = len(tests) - len(passed)
    if rest and not passed:
        sentences.append(_nothing(table, tests))
    elif rest:
        sentences.append(
            f"{table.title}: the other {rest} comparison{'s' * (rest != 1)} with {table.reference} "
            "show no significant difference, which does not show that there is none."
        )
    return sentences


def _claim(table: Table, row: str, column: Column, entry: Entry) -> str:
    test = entry.test
    direction = "lower" if test.mean < 0 else "higher"
    side = "one-sided" if table.one_sided and entry.p_better is not None else "two-sided"
    what = f"soft NLL at {column.title}" if table.key == "sweep" else column.title
    return (
        f"{table.title}: {row} has a {direction} {what} than {table.reference}, by "
        f"{number(abs(test.mean), column.digits)} on average ({test.agree} of {test.n} paired seeds; {side} "
        f"p {p_value(shown_p(table, entry))}, Holm {p_value(shown_holm(table, entry))})."
    )


def _nothing(table: Table, tests: Sequence[tuple[str, Column, Entry]]) -> str:
    pairs = max(entry.test.n for _, _, entry in tests)
    size = len(tests)
    if table.family_by_column:
        size = max(sum(column == other for _, other, _ in tests) for _, column, _ in tests)
    needed = seeds_to_reach(size, not table.one_sided)
    agree = sum(entry.test.agree == entry.test.n for _, _, entry in tests)
    sentence = f"{table.title}: no comparison with {table.reference} passes Holm"
    if pairs < needed:
        return (
            f"{sentence}, and with {pairs} paired seeds none could: {size} test{'s' * (size != 1)} need {needed}. In "
            f"{agree} of {len(tests)} all seeds agree on the direction."
        )
    return f"{sentence} ({pairs} paired seeds). That does not show that the deliveries are equal."
