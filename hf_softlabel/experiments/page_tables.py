"""Tables of the report's page: results with their tests and the paper's figures, and the list of all runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape

from .content import Report
from .page_data import data_block
from .provenance import provenance
from .stats import ALPHA
from .tables import (
    Table,
    best_rows,
    column_titles,
    comparison_text,
    number,
    paper_text,
    seeds_text,
    shown_holm,
    to_csv,
    to_latex,
    to_markdown,
    value_text,
)

FORMS = {"csv": "CSV", "latex": "LaTeX", "markdown": "Markdown"}
# Keys of metrics.json in the list of runs, with their heads and digits.
SCORES = (
    ("soft_nll", "soft NLL", 4),
    ("kl", "KL", 4),
    ("accuracy", "accuracy", 4),
    ("entropy_correlation", "entropy correlation", 4),
    ("world_size", "processes", 0),
    ("train_seconds", "training s", 1),
)


def results_html(table: Table, anchor: str) -> str:
    """A table with everything that is said about it, and buttons that copy it."""
    titles = column_titles(table)
    heads = [_head(table.row_title, "text"), _head(table.unit), *(_head(title) for title in titles)]
    best = [best_rows(table, j) for j in range(len(table.columns))]
    rows = "\n".join(_row(table, i, best) for i in range(len(table.rows)))
    name = escape(table.title)
    missing = listing("Not run", table.missing())
    return f"""<section class="sheet" id="{anchor}">
<h3 dir="auto">{name}{source_html(table.source)}</h3>
{paragraph(table.caption, "caption")}
<div class="scroll" tabindex="0" role="region" aria-label="{name}">
<table class="results sortable">
<thead><tr>{"".join(heads)}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{_legend(table, any(best))}
{remarks(table.notes)}
{missing}
{_copy_html(table)}
</section>"""


def _head(title: str, kind: str = "number") -> str:
    words = ' class="words"' if kind == "text" else ""
    button = f'<button type="button">{escape(title)}</button>'
    return f'<th scope="col" aria-sort="none" data-kind="{kind}"{words}>{button}</th>'


def _row(table: Table, i: int, best: Sequence[set[int]]) -> str:
    name, seeds = escape(table.rows[i]), seeds_text(table, i)
    cells = [f'<th scope="row" class="words" dir="auto" data-value="{name}">{name}</th>']
    cells.append(_cell(float(seeds.split("-")[0]) if seeds else None, seeds))
    for j, column in enumerate(table.columns):
        entry = table.entry(i, j)
        value, test, paper = value_text(entry, column), comparison_text(table, entry), paper_text(entry)
        parts = [f'<span class="{"value best" if i in best[j] else "value"}">{escape(value)}</span>'] if value else []
        if test:
            passes = " passes" if shown_holm(table, entry) <= ALPHA else ""
            parts.append(f'<small class="test{passes}">{escape(test)}</small>')
        if paper:
            parts.append(f'<small class="published">paper <span>{escape(paper)}</span></small>')
        cells.append(_cell(entry.mean, "".join(parts), escaped=True))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(value: float | None, text: str, escaped: bool = False) -> str:
    """A cell that sorts by a number, and last if there is none."""
    key = "" if value is None or math.isnan(value) else repr(float(value)).replace("inf", "Infinity")
    return f'<td data-value="{key}">{text if escaped else escape(text)}</td>'


def _legend(table: Table, has_best: bool) -> str:
    """What the looks of a cell mean; what its numbers are is said by the caption."""
    parts = []
    if has_best:
        parts.append("<b>Bold</b>: the best mean of its column.")
    if table.tests:
        family = "of its column" if table.family_by_column else "of this table"
        parts.append(
            f'<b class="test">p</b> of the paired test, corrected by Holm over the tests {family}: '
            f"dark where it passes {ALPHA:g}."
        )
    if any(entry.paper for entry in table.entries.values()):
        parts.append('<b class="published">paper</b>: the published figure.')
    return f'<p class="legend">{" ".join(parts)}</p>' if parts else ""


def _copy_html(table: Table) -> str:
    forms = {"csv": to_csv([table]), "latex": to_latex(table), "markdown": to_markdown(table)}
    buttons = "".join(f'<button type="button" data-form="{form}">{name}</button>' for form, name in FORMS.items())
    return f'<div class="copy">Copy as {buttons}<span role="status"></span>{data_block(forms)}</div>'


def runs_html(report: Report) -> str:
    """All runs, the cells that are missing, and the copies that were left out."""
    heads = [_head(title, "text") for title in ("run", "delivery")] + [_head(title) for title in ("seed", "K")]
    heads += [_head(title) for _, title, _ in SCORES] + [_head("label stream", "text")]
    rows = []
    for run in report.runs:
        path, k = os.path.relpath(run.path, report.folder), run.votes_per_example
        cells = [_word(path, "th"), _word(run.method), _cell(run.seed, str(run.seed))]
        # All votes sort behind any number of them.
        cells.append(_cell(k, "all" if k is None else str(k)))
        for key, _, digits in SCORES:
            value = run.metrics.get(key)
            cells.append(_cell(value, number(value, digits)))
        rows.append(f"<tr>{''.join([*cells, _word(run.metrics.get('ledger_digest') or '', code=True)])}</tr>")
    listed = [
        f"{os.path.relpath(one.path, report.folder)} ({', '.join(filter(None, (one.grid, one.state)))})"
        for one in report.missing
    ]
    copies = [
        f"{os.path.relpath(copy, report.folder)} has the configuration of {os.path.relpath(kept, report.folder)}"
        for copy, kept in report.copies
    ]
    body = "\n".join(rows)
    return f"""<section class="part" id="runs">
<h2>Runs</h2>
<p class="scale">K: votes per training example. Label stream: runs with one digest saw the same labels.</p>
<div class="scroll tall" tabindex="0" role="region" aria-label="All runs">
<table class="runs sortable">
<thead><tr>{"".join(heads)}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
{remarks([*provenance(report.runs), *report.notes])}
{listing("Not finished", listed)}
{listing("Copies, left out", copies)}
</section>"""


def _word(text: str, tag: str = "td", code: bool = False) -> str:
    scope, inside = (' scope="row"' if tag == "th" else ""), escape(text)
    shown = f"<code>{inside}</code>" if code else inside
    return f'<{tag}{scope} class="words" data-value="{inside}">{shown}</{tag}>'


def source_html(source: str | None) -> str:
    return f' <span class="source">{escape(source)}</span>' if source else ""


def paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}" dir="auto">{escape(text)}</p>' if text else ""


def remarks(sentences: Sequence[str], kind: str = "remarks") -> str:
    items = "".join(f'<li dir="auto">{escape(sentence)}</li>' for sentence in sentences)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def listing(title: str, names: Sequence[str]) -> str:
    return f'<p class="missing"><b>{title} ({len(names)}):</b> {escape("; ".join(names))}.</p>' if names else ""
