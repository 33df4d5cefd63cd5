"""Tables of diagnostics: the Hessian, OOD detection, gradient variance, and what was measured between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..diagnostics.ood import DETECTORS
from . import published
from .published import BASINS
from .score_tables import Score, score_table, sweep_table, with_digits
from .setting import Setting, in_order, measured, title_of
from .tables import Column, Entry, Published, Table

DETECTOR_TITLES = dict(
    zip(DETECTORS, ("Energy", "MSP", "ODIN", "Predictive entropy", "Logit margin", "KNN"), strict=True)
)


def _hessian_scores() -> dict[str, tuple[Column, Score]]:
    return {
        "lambda_max": (Column("λ max"), measured("hessian", "lambda_max")),
        "trace": (Column("trace"), measured("hessian", "trace")),
        "lambda_max_high": (
            Column("λ max, high disagreement"),
            measured("hessian", "high_disagreement", "lambda_max"),
        ),
        "trace_high": (Column("trace, high disagreement"), measured("hessian", "high_disagreement", "trace")),
    }


def hessian(setting: Setting) -> Table | None:
    """Table 4."""
    what = "Hessian of the soft cross-entropy on the eval split and on its high-disagreement slice, best checkpoint."
    table = score_table(
        setting, "hessian", "Hessian geometry", what, _hessian_scores(), published.HESSIAN, f"{BASINS}, Table 4"
    )
    if table is not None and setting.has_paper:
        note = f"The paper has SLS twice: here of 10 seeds; of 5 seeds it has {published.HESSIAN_ABLATION}."
        table = replace(table, notes=(*table.notes, note))
    return with_digits(_with_convergence(table, setting))


def _with_convergence(table: Table | None, setting: Setting) -> Table | None:
    """A remark on numbers that did not reach the error that was asked for."""
    if table is None:
        return None
    hessians = [run.diagnostics["hessian"] for run in setting.runs if "hessian" in run.diagnostics]
    parts = [part for found in hessians for part in (found, found.get("high_disagreement", {}))]
    open_ends = sum(part.get(f"{name}_converged") is False for part in parts for name in ("lambda_max", "trace"))
    if not open_ends:
        return table
    note = f"{open_ends} of {2 * len(parts)} numbers did not reach the asked relative error: see diagnostics.json."
    return replace(table, notes=(*table.notes, note))


def hessian_sweep(setting: Setting) -> Table | None:
    """Table 6."""
    counts = sorted({*setting.votes_per_example, *(published.HESSIAN_SWEEP["soft"] if setting.has_paper else ())})
    scores = _hessian_scores()
    names = ("lambda_max", "lambda_max_high")
    columns = [
        (scores[name][0]._replace(title=f"{scores[name][0].title}, K = {k}"), k, scores[name][1])
        for name in names
        for k in counts
    ]
    figures = {
        (method, part * len(counts) + counts.index(k)): pair[part]
        for method, row in published.HESSIAN_SWEEP.items()
        for k, pair in row.items()
        for part in range(2)
        if k in counts
    }
    what = "Largest Hessian eigenvalue after training on K votes per example."
    return with_digits(
        sweep_table(
            setting, "hessian_sweep", "Hessian by annotator count", what, columns, figures, f"{BASINS}, Table 6", False
        )
    )


def ood_tables(setting: Setting) -> list[Table]:
    """Tables 7 to 9: AUROC on each OOD set, by delivery and detector."""
    names = sorted({name for run in setting.runs for name in run.diagnostics.get("ood", {})})
    sources = {"svhn": f"{BASINS}, Table 7", "cifar100": f"{BASINS}, Tables 8 and 9"}
    tables = []
    for name in names:
        scores = {
            detector: (Column(DETECTOR_TITLES[detector], False), measured("ood", name, detector, "auroc"))
            for detector in DETECTORS
        }
        figures: dict[str, dict[str, Published]] = {}
        for detector, row in published.OOD.get(name, {}).items():
            for method, figure in row.items():
                figures.setdefault(method, {})[detector] = figure
        what = f"AUROC of telling the eval split from {name}."
        table = score_table(setting, f"ood_{name}", f"OOD detection: {name}", what, scores, figures, sources.get(name))
        if table is not None:
            notes = [published.OOD_NOTES[name]] if setting.has_paper and name in published.OOD_NOTES else []
            tables.append(replace(table, notes=(*table.notes, *notes)))
    return tables


def gradient_variance(setting: Setting) -> Table | None:
    """Figure 7's number."""
    scores = {
        "correlation": (
            Column("Spearman with annotator entropy"),
            measured("gradient_variance", "entropy_correlation"),
        ),
        "labels": (Column("of the votes alone"), measured("gradient_variance", "label_entropy_correlation")),
    }
    what = (
        "Last-layer gradient variance under label sampling, ||h||² (1 - ||p||²), over eval examples; of the votes "
        "alone: 1 - ||p||², which no model enters."
    )
    figures = {"sls": {"correlation": published.GRADIENT_VARIANCE}}
    return score_table(
        setting, "gradient_variance", "Gradient variance", what, scores, figures, f"{BASINS}, Figure 7", None
    )


def between_runs(setting: Setting) -> list[Table]:
    """Figures 9, 11 and 12: what was measured between two runs, within a method across seeds, and between methods."""
    within: dict[str, list] = {}
    across: dict[tuple[str, str], dict[int, dict]] = {}
    for pair in setting.pairs:
        one, two = pair.first, pair.second
        if (one.votes_per_example, two.votes_per_example) != (None, None) or max(
            one.resample_every, two.resample_every
        ) > 1:
            continue
        if one.method == two.method:
            within.setdefault(one.method, []).append(pair.results)
        elif one.seed == two.seed:
            names = tuple(in_order([one.method, two.method]))
            across.setdefault(names, {})[one.seed] = pair.results
    tables = []
    if within:
        methods = in_order(within)
        columns = (
            Column("linear CKA", False),
            Column("Grad-CAM", False),
            Column("Grad-CAM, high disagreement", False),
        )
        entries = {}
        for i, method in enumerate(methods):
            gradcam = published.GRADCAM.get(method, (None, None))
            figures = (published.CKA.get(method), *gradcam) if setting.has_paper else (None, None, None)
            for j, path in enumerate((("cka",), ("gradcam", "correlation"), ("gradcam", "high_disagreement"))):
                found = {n: _inside(results, path) for n, results in enumerate(within[method])}
                values = {n: value for n, value in found.items() if value is not None}
                entries[i, j] = Entry(values, paper=figures[j])
        tables.append(
            Table(
                "within",
                "Reproducibility across seeds",
                "Between the runs of one delivery with different seeds, on examples that both held out: linear CKA "
                "of penultimate features and correlation of Grad-CAM maps. Mean ± SD over pairs of seeds; pairs "
                "share runs, so that no test is made.",
                "delivery",
                columns,
                tuple(map(title_of, methods)),
                {place: entry for place, entry in entries.items() if entry.values or entry.paper},
                f"{BASINS}, Figures 9 and 12" if setting.has_paper else None,
                unit="pairs",
            )
        )
    if across:
        entries = {}
        for i, (names, by_seed) in enumerate(across.items()):
            paper = published.BARRIER if setting.has_paper and set(names) == {"soft", "sls"} else None
            for j, path in enumerate((("barrier", "barrier"), ("barrier", "reestimated_barrier"), ("cka",))):
                found = {seed: _inside(results, path) for seed, results in by_seed.items()}
                values = {seed: value for seed, value in found.items() if value is not None}
                entries[i, j] = Entry(values, paper=paper if j == 0 else None)
        tables.append(
            Table(
                "across",
                "Between deliveries",
                "Between two deliveries' runs of one seed: the loss barrier on the line between them, as it is and "
                "with re-estimated batch norm, and linear CKA. Mean ± SD over seeds.",
                "deliveries",
                (Column("loss barrier"), Column("with batch norm re-estimated"), Column("linear CKA")),
                tuple(f"{title_of(a)} and {title_of(b)}" for a, b in across),
                entries,
                f"{BASINS}, Figure 11" if setting.has_paper else None,
            )
        )
    return tables


def _inside(results: Mapping, path: Sequence[str]) -> float | None:
    value: object = results
    for key in path:
        if not isinstance(value, Mapping) or value.get(key) is None:
            return None
        value = value[key]
    return float(value) if np.isfinite(float(value)) else None  # type: ignore[arg-type]
