"""The scores of `hf-softlabel score` as a table, as JSON, and as pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from .metrics import entropy
from .metrics.arrays import model
from .metrics.summary import NAMES, TITLES
from .score import Score, Scored

REFERENCES = {"floor": "own votes", "uniform": "uniform", "train_mean": "train mean", "human": "human half"}
NOTES = """Less is better where the arrow points down. "own votes": the votes themselves as predictions, whose soft NLL
is the entropy floor. "human half": one half of each example's annotators as predictors of the other half (for soft NLL
and KL with one vote more, spread over all classes); both are small samples, and with few votes this is no ceiling."""
INFINITE = "infinite, for a class that somebody voted for has probability 0"
APPROXIMATE = "Intervals of calibration errors are made for errors near 0; of large ones they are somewhat too narrow."
CALIBRATED = '"calibrated": the error by chance, if the predictions were each example\'s own distribution.'


def format_scores(scored: Scored) -> str:
    """The table that the command prints."""
    lines = [_head(scored), ""]
    if len(scored.predictions) == 1:
        lines += _single(scored)
    else:
        lines += [*_side_by_side(scored), ""]
        for file, differences in zip(scored.predictions[1:], scored.differences, strict=True):
            lines += _differences(file.name, scored.predictions[0].name, differences)
            lines.append("")
    for file, coverage in zip(scored.predictions, scored.coverage, strict=False):
        low, high = coverage["covered_interval"]
        lines += [
            "",
            f"{file.name}: sets of {coverage['set_size']:.2f} classes cover {coverage['covered']:.4f} "
            f"[{low:.4f}, {high:.4f}] of the votes, and all votes on {coverage['all_covered']:.4f} of the examples",
        ]
    every = [item for scores in [*scored.scores, *scored.differences] for item in scores.items()]
    reasons = {f"{TITLES[name]}: {score.undefined}" for name, score in every if score.undefined}
    values = [(key, value) for scores in scored.references.values() for key, value in scores.items()]
    if not reasons and any(key == "entropy_correlation" and math.isnan(value) for key, value in values):
        reasons.add("entropy correlation: a constant prediction has none")
    notes = [NOTES]
    if scored.resamples:
        notes.append(APPROXIMATE)
    single = int((scored.examples.votes.sum(-1) < 2).sum())
    if "human" in scored.references and single:
        notes.append(f"It leaves out {single:,} example(s) with a single vote, which the other columns have.")
    if any(score.interval is not None and any(map(math.isnan, score.interval)) for _, score in every):
        notes.append("An interval is left out where a score is undefined in some resamples.")
    if len(scored.predictions) == 1 and any(score.calibrated is not None for score in scored.scores[0].values()):
        notes.append(CALIBRATED)
    if any(math.isinf(value) for value in [score.value for _, score in every] + [value for _, value in values]):
        notes.append(f'"inf": {INFINITE}.')
    undefined = [f'"-" is undefined ({reason}).' for reason in sorted(reasons)]
    return "\n".join([*lines, *([""] if lines[-1] else []), *notes, *undefined])


def _head(scored: Scored) -> str:
    votes, n = scored.examples.votes, len(scored.examples.votes)
    per_example = votes.sum(-1)
    if (votes % 1).any():
        kind = "distributions"
    elif (per_example == 1).all():
        kind = "single votes"
    elif per_example.min() == per_example.max():
        kind = f"{per_example[0]:.0f} votes each"
    else:
        kind = f"{per_example.min():.0f} to {per_example.max():.0f} votes each"
    rest = scored.examples.available - n
    unscored = f" ({rest:,} more have votes but no prediction)" if rest else ""
    bootstrap = f"; 95% intervals from {scored.resamples:,} resamples of the examples" if scored.resamples else ""
    label = {"gold": "gold label", "majority": "majority of the votes"}[scored.hard_label]
    return f"{n:,} examples{unscored}, {votes.shape[1]} classes, {kind}; hard label: {label}{bootstrap}"


def _arrow(name: str) -> str:
    return {True: "↓", False: "↑", None: " "}[NAMES[name]]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if math.isnan(value):
        return "-"
    return "inf" if math.isinf(value) else f"{value:.4f}"


def _interval(score: Score, sign: str = "") -> str:
    if score.interval is None or any(math.isnan(end) for end in score.interval):
        return ""
    return "[" + ", ".join(f"{_rounded(end):{sign}.4f}" for end in score.interval) + "]"


def _rounded(value: float) -> float:
    """To four decimals, and never -0."""
    return round(value, 4) + 0.0


def _single(scored: Scored) -> list[str]:
    (scores,) = scored.scores
    shown = {key: title for key, title in REFERENCES.items() if key in scored.references}
    titles = ["score", "95% interval", *shown.values(), "calibrated"]
    rows = []
    for name, score in scores.items():
        cells = [_number(score.value), _interval(score)]
        cells += [_number(scored.references[key].get(name)) for key in shown]
        rows.append((f"{TITLES[name]} {_arrow(name)}", [*cells, _number(score.calibrated)]))
    filled = [i for i in range(len(titles)) if any(cells[i] for _, cells in rows)]
    rows = [(name, [cells[i] for i in filled]) for name, cells in rows]
    return _grid(scored.predictions[0].name, [titles[i] for i in filled], rows)


def _side_by_side(scored: Scored) -> list[str]:
    shown = {key: title for key, title in REFERENCES.items() if key in scored.references}
    titles = [*(f"[{i}]" for i in range(1, len(scored.scores) + 1)), *shown.values()]
    rows = []
    for name in scored.scores[0]:
        cells = [f"{_number(scores[name].value)} {_interval(scores[name])}".strip() for scores in scored.scores]
        cells += [_number(scored.references[key].get(name)) for key in shown]
        rows.append((f"{TITLES[name]} {_arrow(name)}", cells))
    files = [f"[{i}] {file.name}" for i, file in enumerate(scored.predictions, 1)]
    return [*files, "", *_grid("", titles, rows)]


def _differences(name: str, first: str, differences: dict[str, Score]) -> list[str]:
    rows = []
    for key, score in differences.items():
        lower = NAMES[key]
        verdict = ""
        if lower is not None and score.interval is not None and not any(map(math.isnan, score.interval)):
            low, high = score.interval
            if low > 0 or high < 0:
                verdict = "better" if (high < 0) == lower else "worse"
        value = "-" if math.isnan(score.value) else f"{_rounded(score.value):+.4f}"
        rows.append((f"{TITLES[key]} {_arrow(key)}", [value, _interval(score, "+"), verdict]))
    return [f"{name} - {first}", *_grid("", ["difference", "95% interval", ""], rows)]


def _grid(corner: str, titles: list[str], rows: list[tuple[str, list[str]]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(titles, *(cells for _, cells in rows), strict=True)]
    left = max(len(corner), *(len(name) for name, _ in rows))
    lines = [(corner, titles), *rows]
    return [
        (f"{name:{left}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))).rstrip()
        for name, cells in lines
    ]


def as_json(scored: Scored) -> dict[str, Any]:
    """Plain values; null where a number is undefined or infinite, with the reason beside it but for references."""

    def entry(score: Score) -> dict[str, Any]:
        found: dict[str, Any] = {"value": _plain(score.value)}
        if score.interval is not None:
            found["interval"] = [_plain(end) for end in score.interval]
        if score.calibrated is not None:
            found["calibrated"] = _plain(score.calibrated)
        if score.undefined or math.isinf(score.value):
            found["undefined"] = score.undefined or INFINITE
        return found

    examples = scored.examples
    return {
        "examples": len(examples.votes),
        "examples_with_votes": examples.available,
        "classes": examples.names,
        "hard_label": scored.hard_label,
        "resamples": scored.resamples,
        "predictions": [
            {"name": file.name, "scores": {name: entry(score) for name, score in scores.items()}}
            for file, scores in zip(scored.predictions, scored.scores, strict=True)
        ],
        "differences": [
            {"name": file.name, "minus": scored.predictions[0].name, "scores": {k: entry(v) for k, v in gaps.items()}}
            for file, gaps in zip(scored.predictions[1:], scored.differences, strict=True)
        ],
        **({"vote_coverage": scored.coverage} if scored.coverage else {}),
        "references": {
            key: {name: _plain(value) for name, value in scores.items()} for key, scores in scored.references.items()
        },
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def plot_scores(scored: Scored, folder: str | Path) -> list[Path]:
    """Draw the pictures of the predictions into a folder; returns the files."""
    from .figures import (
        Source,
        distribution_bars,
        entropy_histograms,
        entropy_scatter,
        reliability_diagram,
        save,
        validation_curves,
    )
    from .figures.sources import run_name

    folder, examples = Path(folder), scored.examples
    folder.mkdir(parents=True, exist_ok=True)
    # A run is named by its delivery and seed, which has a look of its own.
    titles = [file.name if file.run is None else run_name(file.run) for file in scored.predictions]
    if len(set(titles)) < len(titles):
        titles = [f"{title}, {file.name}" for title, file in zip(titles, scored.predictions, strict=True)]
    sources = [
        Source(title, file.values, examples.votes, file.from_logits, examples.gold_label)
        for title, file in zip(titles, scored.predictions, strict=True)
    ]
    most = np.argsort(-entropy(examples.votes).round(12), kind="stable")[:4]
    figures = {
        "reliability": reliability_diagram(*sources),
        "reliability_smooth": reliability_diagram(*sources, smooth=True),
        "entropy_histogram": entropy_histograms({"votes": examples.votes}),
        "examples": distribution_bars(
            examples.votes,
            {title: model(f.values, f.from_logits) for title, f in zip(titles, scored.predictions, strict=True)},
            examples.names,
            most,
            [f"example {scored.predictions[0].ids[row]}" for row in most],
        ),
    }
    runs = {title: [f.run] for title, f in zip(titles, scored.predictions, strict=True) if f.run is not None}
    if runs:
        figures["validation_curves"] = validation_curves(runs, ["soft_nll", "kl", "accuracy", "entropy_correlation"])
    for i, source in enumerate(sources, 1):
        figures["entropy_scatter" if len(sources) == 1 else f"entropy_scatter_{i}"] = entropy_scatter(source)
    return [path for name, figure in figures.items() for path in save(figure, folder / name)]
