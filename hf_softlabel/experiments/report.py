"""`hf-softlabel report`: from run directories alone to tables, figures, findings and examples."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError
from ..examples import choose_examples, read_examples
from ..metrics import entropy
from ..metrics.arrays import human, model
from ..metrics.summary import NAMES
from .content import AnyPicture, Example, Report, Section
from .findings import compared, headline, section_findings
from .kept import earlier_sparse, keep_pictures
from .page import write_page
from .pictures import report_pictures, setting_pictures
from .provenance import provenance, versions
from .published import BASINS, BASINS_SCALE
from .runs import Run, find_runs
from .same_target import setting_tables
from .scale import scale_pictures, scale_tables
from .setting import Setting, settings_of
from .soft_vs_hard import soft_against_majority
from .tables import Cells, Table, to_csv, to_latex, to_markdown

# The file by which a folder is known to be a report of ours, which may be replaced.
MARK = "report.json"


def build_report(
    folder: str | Path, title: str | None = None, progress: bool = False, earlier: str | Path | None = None
) -> Report:
    """Everything that the runs below a folder give.

    Args:
        earlier: the folder of a report of these runs, from which values are taken whose predictions are gone.
    """
    found = find_runs(folder)
    if not found.runs:
        cut_off = f" {len(found.missing)} were not finished." if found.missing else ""
        raise VotesError(
            f"There is no finished run below {folder}.{cut_off} `hf-softlabel train` or `grid` makes some."
        )
    settings, notes = settings_of(found.runs, found.pairs)
    numbers = sum(not run.has_predictions for run in found.runs)
    if numbers:
        notes.append(
            f"Of {numbers} of {len(found.runs)} runs only the numbers were kept (metrics.json, history.jsonl, "
            "diagnostics.json): figures that are drawn from predictions, and examples, are of the others."
        )
    keys = _keys(_short_names(settings))
    sections = [
        _section(setting, key, earlier_sparse(Path(earlier), key) if earlier is not None else {})
        for setting, key in tqdm(
            list(zip(settings, keys, strict=True)), "settings", unit="setting", disable=None if progress else True
        )
    ]
    table = soft_against_majority(settings)
    name = Path(folder).resolve().name
    return Report(
        title or f"Learning from votes: {name}",
        Path(folder),
        _summary(list(zip(settings, sections, strict=True)), _short_names(settings), table),
        [*([] if table is None else [table]), *scale_tables(settings)],
        [*report_pictures(settings), *scale_pictures(settings)],
        sections,
        found.runs,
        found.missing,
        found.copies,
        notes,
    )


def _short_names(settings: Sequence[Setting]) -> list[str]:
    """Data and model, as `cifar10h, resnet18`; the whole name where that would be another's too."""
    short = [", ".join(setting.name.split(", ")[:2]) for setting in settings]
    return [name if short.count(name) == 1 else s.name for name, s in zip(short, settings, strict=True)]


def _keys(names: Sequence[str]) -> list[str]:
    """Names for files and anchors, all different."""
    slugs: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        slugs.append(slug if slug not in slugs else f"{slug}-{len(slugs)}")
    return slugs


def _section(setting: Setting, key: str, sparse: Cells) -> Section:
    tables, examples = setting_tables(setting, sparse), setting_examples(setting)
    return Section(
        key,
        setting.name,
        _scale(setting),
        section_findings(setting, tables),
        tables,
        setting_pictures(setting),
        examples,
        # They are the model's, which is not there where only numbers were kept.
        next(run for run in setting.runs if run.has_predictions).class_names if examples else [],
        not all(run.has_predictions for run in setting.runs),
    )


def _scale(setting: Setting) -> str:
    """How large our runs were, and the paper's."""
    first = setting.runs[0]
    seeds, sizes = {run.seed for run in setting.runs}, {run.metrics.get("train_examples") for run in setting.runs}
    trained = "" if None in sizes else f" on {' or '.join(f'{size:,}' for size in sorted(sizes))} training examples"
    other_people = first.config.get("eval_annotators") is not None
    scored = "of them with other people's votes" if other_people else "held-out examples each"
    ours = (
        f"{len(setting.runs)} runs, {len(seeds)} seed{'s' * (len(seeds) != 1)}{trained}, scored on "
        f"{first.metrics['eval_examples']:,} {scored}."
    )
    return f"{ours} {BASINS}: {BASINS_SCALE}." if setting.has_paper else ours


def _summary(sections: Sequence[tuple[Setting, Section]], keys: Sequence[str], table: Table | None) -> list[str]:
    """The headlines of all settings, each with the setting that it is of where there are several."""
    lines = []
    for (setting, section), key in zip(sections, keys, strict=True):
        prefix = f"{key}: " if len(sections) > 1 else ""
        lines += [prefix + finding for finding in headline(setting, section.tables)]
    return lines + ([] if table is None else compared(table))


def setting_examples(setting: Setting) -> list[Example]:
    """Held-out examples with what each method at full votes predicts on them, the most ambiguous first."""
    inputs: dict[int, str | bytes] = {}
    votes: dict[int, np.ndarray] = {}
    total: dict[str, dict[int, np.ndarray]] = {}
    seeds: dict[str, dict[int, int]] = {}
    for method in setting.methods():
        for run in setting.get(method).values():
            kept = read_examples(run.path)
            if not kept or not run.has_predictions:
                continue
            inputs.update(kept)
            read = run.predictions()
            rows = np.flatnonzero(np.isin(read.ids, list(kept)))
            q = model(read.values[rows], read.from_logits)
            for row, example, probabilities in zip(rows, read.ids[rows].tolist(), q, strict=True):
                votes[example] = read.votes[row]
                sums, counts = total.setdefault(method, {}), seeds.setdefault(method, {})
                sums[example] = sums.get(example, 0) + probabilities
                counts[example] = counts.get(example, 0) + 1
    if not votes:
        return []
    ids, matrix = np.array(list(votes)), np.array(list(votes.values()))
    return [
        _example(int(ids[row]), inputs, matrix[row], total, seeds)
        for row in choose_examples(matrix, 200, 100).tolist()
    ]


def _example(example: int, inputs: dict, votes: np.ndarray, total: dict, seeds: dict) -> Example:
    shown, p = inputs[example], human(votes[None])[0]
    predictions = {
        method: (sums[example] / seeds[method][example]).tolist() for method, sums in total.items() if example in sums
    }
    return Example(
        example,
        shown if isinstance(shown, str) else None,
        shown if isinstance(shown, bytes) else None,
        p.tolist(),
        int(votes.sum()) if votes.dtype.kind in "iu" else None,
        float(entropy(p[None])[0] / np.log(len(p))),
        predictions,
        {method: seeds[method][example] for method in predictions},
    )


def write_report(report: Report, output_dir: str | Path, progress: bool = False) -> list[Path]:
    """Write report.html, report.md, tables/ (CSV, LaTeX, Markdown), figures/ (PNG, SVG) and runs.csv.

    Nothing appears in the folder before all is made. An earlier report in it is replaced, but for figures whose
    predictions are gone; a folder that holds anything but a report is refused.
    """
    check_output(output_dir)
    out = Path(output_dir).resolve()
    report = keep_pictures(report, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        _write_files(report, Path(folder), progress)
        names = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
        content = {
            "title": report.title,
            "findings": list(report.findings),
            "runs": len(report.runs),
            "seeds": sorted({run.seed for run in report.runs}),
            "versions": versions(report.runs),
            "files": names,
        }
        # Of an earlier report only what it wrote is removed: people put notes beside it.
        for name in _files_of(out):
            (out / name).unlink(missing_ok=True)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(folder, name), out / name)
        write_text_atomically(out / MARK, json.dumps(content, indent=1))
    return [out / name for name in [*names, MARK]]


def _write_files(report: Report, part: Path, progress: bool) -> None:
    for inside in ("tables", "figures"):
        (part / inside).mkdir(parents=True)
    for name, tables in _named_tables(report):
        for table in tables:
            stem = str(part / "tables" / f"{name}{table.key}")
            Path(f"{stem}.csv").write_text(to_csv([table]), encoding="utf-8")
            Path(f"{stem}.tex").write_text(to_latex(table), encoding="utf-8")
            Path(f"{stem}.md").write_text(to_markdown(table), encoding="utf-8")
    pictures = list(_named_pictures(report))
    for name, picture in tqdm(pictures, "figures", unit="figure", disable=None if progress else True):
        (part / "figures" / f"{name}{picture.key}.png").write_bytes(picture.png)
        (part / "figures" / f"{name}{picture.key}.svg").write_bytes(picture.svg)
    write_page(report, part / "report.html")
    (part / "report.md").write_text(report_markdown(report), encoding="utf-8")
    (part / "runs.csv").write_text(runs_csv(report.runs, report.folder), encoding="utf-8")


def _files_of(out: Path) -> list[str]:
    """What an earlier report in a folder wrote."""
    path = out / MARK
    names = json.loads(path.read_text(encoding="utf-8")).get("files", []) if path.exists() else []
    return [name for name in names if (out / name).resolve().is_relative_to(out)]


def check_output(output_dir: str | Path) -> None:
    """Refuse a place that is not free for a report."""
    out = Path(output_dir)
    if out.exists() and not out.is_dir():
        raise VotesError(f"{out} is a file: choose another --output_dir.")
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise VotesError(f"{out} holds files that are not of a report: choose another --output_dir.")


def _named_tables(report: Report) -> Iterator[tuple[str, Sequence[Table]]]:
    yield "", report.tables
    for section in report.sections:
        yield f"{section.key}-", section.tables


def _named_pictures(report: Report) -> Iterator[tuple[str, AnyPicture]]:
    for name, pictures in [("", report.pictures), *((f"{s.key}-", s.pictures) for s in report.sections)]:
        for picture in pictures:
            yield name, picture


def runs_csv(runs: Sequence[Run], folder: Path) -> str:
    """A line per run: what it was, and every score."""
    out = io.StringIO()
    keys = ("delivery", "seed", "dataset", "subset", "model", "votes_per_example", "resample_every")
    keys += ("train_size", "num_train_epochs")
    about = ("world_size", "train_seconds", "best_step", "ledger_digest")
    writer = csv.DictWriter(out, ("run", "grid", *keys, *NAMES, *about), lineterminator="\n")
    writer.writeheader()
    for run in runs:
        line = {"run": os.path.relpath(run.path, folder), "grid": run.grid}
        line |= {key: run.config.get(key) for key in keys}
        line |= {key: run.metrics.get(key) for key in (*NAMES, *about)}
        writer.writerow({key: "" if value is None else value for key, value in line.items()})
    return out.getvalue()


def report_markdown(report: Report) -> str:
    """The report as one Markdown text, with links to the figures' files."""
    lines = [f"# {report.title}", "", f"{len(report.runs)} runs below `{report.folder.name}`.", "", "## Findings", ""]
    lines += [f"- {finding}" for finding in report.findings]
    lines += _blocks("", report.tables, report.pictures)
    for section in report.sections:
        lines += ["", f"## {section.title}", "", section.scale, "", *(f"- {finding}" for finding in section.findings)]
        lines += _blocks(f"{section.key}-", section.tables, section.pictures)
    lines += ["", "## How the runs were made", "", *(f"- {sentence}" for sentence in provenance(report.runs))]
    if report.missing:
        lines += ["", "## Not run", ""]
        lines += [f"- `{os.path.relpath(one.path, report.folder)}`: {one.state}" for one in report.missing]
    remarks = [*report.notes, *(f"{copy} is the same run as {first}." for copy, first in report.copies)]
    if remarks:
        lines += ["", "## Remarks", "", *(f"- {remark}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def _blocks(prefix: str, tables: Sequence[Table], pictures: Sequence[AnyPicture]) -> list[str]:
    lines = []
    for table in tables:
        source = f" ({table.source})" if table.source else ""
        lines += ["", f"### {table.title}{source}", "", table.caption, "", to_markdown(table)]
        lines += [f"- {note}" for note in table.notes]
        missing = table.missing()
        if missing:
            lines.append(f"- Not run: {', '.join(missing)}.")
    for picture in pictures:
        source = f" ({picture.source})" if picture.source else ""
        lines += ["", f"### {picture.title}{source}", "", f"![{picture.title}](figures/{prefix}{picture.key}.png)", ""]
        lines.append(picture.caption)
    return lines
