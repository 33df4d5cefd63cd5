"""Sentences about tables, made from their numbers: a difference is claimed only where the test supports it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .reference_table import ROWS
from .setting import Setting
from .stats import ALPHA, seeds_to_reach
from .tables import Column, Entry, Table, number, p_value, shown_holm, shown_p, value_text

# The reference that knows the votes but not the examples.
CONSTANT = ROWS["train_mean"]
# Row, column and cell of a comparison.
Test = tuple[str, Column, Entry]
# Tables whose comparisons are worth a sentence in the summary, in this order.
SUMMARISED = ("sweep", "main", "last_epoch", "last_epoch_sweep", "family", "resampling", "hessian")


def headline(setting: Setting, tables: Sequence[Table]) -> list[str]:
    """A few sentences for the summary: the first column of the tables that answer the papers' main questions."""
    by_key = {table.key: table for table in tables}
    sentences = [_best(by_key["main"]), _no_better_than_a_constant(by_key)] if "main" in by_key else []
    silent = []
    for key in ("sweep", "main", "hessian"):
        if key in by_key:
            tests = _tests(by_key[key], None if key == "sweep" else 0)
            if tests and not _passed(by_key[key], tests):
                silent.append((by_key[key], tests))
            else:
                sentences += compared(by_key[key], None if key == "sweep" else 0)
    if silent:
        sentences.append(_nothing_in(silent))
    if not any(table.tests for table in tables):
        sentences.append(_no_test(setting))
    return [sentence for sentence in sentences if sentence]


def section_findings(setting: Setting, tables: Sequence[Table]) -> list[str]:
    """What the tables of a setting show, and what they cannot."""
    by_key = {table.key: table for table in tables}
    sentences = [_best(by_key[key]) for key in ("main", "sweep") if key in by_key]
    sentences.append(_no_better_than_a_constant(by_key))
    for key in [*SUMMARISED, *(key for key in by_key if key.startswith("ood_"))]:
        if key in by_key:
            sentences += compared(by_key[key])
    if not any(table.tests for table in tables):
        sentences.append(_no_test(setting))
    return [sentence for sentence in sentences if sentence]


def _no_test(setting: Setting) -> str:
    seeds = len({run.seed for run in setting.runs})
    return (
        f"No test was made: {seeds} seed{'s' * (seeds != 1)} and the methods at hand leave no comparison with the "
        "reference of a table. Means are descriptive."
    )


def _best(table: Table) -> str:
    """Which row has the best mean of the first column: a description, and called that."""
    column = table.columns[0]
    means = {row: table.entry(i, 0) for i, row in enumerate(table.rows) if math.isfinite(table.entry(i, 0).mean)}
    if len(means) < 2 or column.lower is None:
        return ""
    chosen = (min if column.lower else max)(means, key=lambda row: means[row].mean)
    what = column.title if table.key != "sweep" else f"soft NLL at {column.title}"
    most = "lowest" if column.lower else "highest"
    return f"The {most} mean {what} is that of {chosen}: {value_text(means[chosen], column)}."


def _no_better_than_a_constant(tables: Mapping[str, Table]) -> str:
    """Which rows of the main comparison have no better mean than one prediction for every example."""
    if not {"main", "references"} <= tables.keys() or CONSTANT not in tables["references"].rows:
        return ""
    main, references = tables["main"], tables["references"]
    constant = references.entry(references.rows.index(CONSTANT), 0)
    seeds = constant.values.keys()
    rows = [
        row
        for row, values in ((row, main.entry(i, 0).values) for i, row in enumerate(main.rows))
        # On the same seeds, since eval splits differ.
        if values.keys() & seeds and sum(values[s] - constant.values[s] for s in values.keys() & seeds) >= 0
    ]
    if not rows:
        return ""
    return (
        f"No better in mean {main.columns[0].title} than the mean of the training votes for every example, on the "
        f"same seeds: {', '.join(rows)}."
    )


def compared(table: Table, only: int | None = None) -> list[str]:
    """A sentence for each column and direction on the rows that pass Holm, and one on the rest.

    Args:
        only: the tests of this column only.
    """
    tests = _tests(table, only)
    if not tests:
        return []
    passed = _passed(table, tests)
    if not passed:
        return [_nothing(table, tests)]
    claims: dict[tuple[Column, bool], list[tuple[str, Entry]]] = {}
    sentences = []
    for row, column, entry in passed:
        if entry.test.lower == (entry.test.mean < 0):
            claims.setdefault((column, entry.test.lower), []).append((row, entry))
        else:
            sentences.append(
                f"{table.title}: {row} and {table.reference} differ in {column.title} by ranks (Holm "
                f"{p_value(shown_holm(table, entry))}), but a few seeds turn the mean difference to the other side: "
                "no direction is claimed."
            )
    sentences = [_claim(table, column, lower, rows) for (column, lower), rows in claims.items()] + sentences
    rest = len(tests) - len(passed)
    if rest:
        which = "the other comparison with" if rest == 1 else f"the other {rest} comparisons with"
        verb = "shows" if rest == 1 else "show"
        sentences.append(
            f"{table.title}: {which} {table.reference} {verb} no significant difference, which does not show that "
            "there is none."
        )
    return sentences


def _tests(table: Table, only: int | None) -> list[Test]:
    return [
        (table.rows[i], table.columns[j], entry)
        for (i, j), entry in sorted(table.entries.items())
        if entry.test is not None and only in (None, j)
    ]


def _passed(table: Table, tests: Sequence[Test]) -> list[Test]:
    return [test for test in tests if shown_holm(table, test[2]) <= ALPHA]


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


def _family(table: Table, tests: Sequence[Test]) -> tuple[int, int, int]:
    """Paired seeds, tests that are corrected together, and the seeds that these need before one can pass."""
    pairs, size = max(entry.test.n for _, _, entry in tests), len(tests)
    if table.family_by_column:
        size = max(sum(column == other for _, other, _ in tests) for _, column, _ in tests)
    return pairs, size, seeds_to_reach(size, not table.one_sided)


def _where(table: Table, tests: Sequence[Test]) -> str:
    """` on soft NLL` or ` at K = 5` where the tests are of one column among several."""
    if len({column for _, column, _ in tests}) > 1 or len(table.columns) == 1:
        return ""
    return f" {'at' if table.key == 'sweep' else 'on'} {tests[0][1].title}"


def _nothing(table: Table, tests: Sequence[Test]) -> str:
    pairs, size, needed = _family(table, tests)
    agree = sum(entry.test.agree == entry.test.n for _, _, entry in tests)
    sentence = f"{table.title}: no comparison with {table.reference}{_where(table, tests)} passes Holm"
    if pairs < needed:
        return (
            f"{sentence}, and with {pairs} paired seeds none could: a family of {size} "
            f"test{'s' * (size != 1)} needs {needed}. In {agree} of {len(tests)} all seeds agree on the direction."
        )
    return f"{sentence} ({pairs} paired seeds). That does not show that they are equal."


def _nothing_in(silent: Sequence[tuple[Table, Sequence[Test]]]) -> str:
    """One sentence for several tables in which nothing passes."""
    parts, hopeless = [], []
    for table, tests in silent:
        pairs, _, needed = _family(table, tests)
        parts.append(f"{table.title}{_where(table, tests)} ({pairs} paired seeds)")
        if pairs < needed:
            hopeless.append(needed)
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    sentence = f"Nothing passes Holm in: {listed}."
    if len(hopeless) < len(parts):
        return f"{sentence} That does not show that the deliveries are equal."
    seeds = str(min(hopeless)) if min(hopeless) == max(hopeless) else f"{min(hopeless)} to {max(hopeless)}"
    return f"{sentence} With so few seeds nothing could: at least {seeds} would be needed."
