"""The figures of a report: those of `Same Target, Different Basins` for one setting, and what else its runs show.

Each is drawn only if the runs for it exist, from all their seeds. The paper's numbers stand beside ours where the data
set is the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..figures.bands import band_curves
from ..figures.reliability import reliability_diagram
from ..figures.seeds import seed_bars
from ..figures.sources import Source
from ..figures.sweep import Gain, gain_panels, seed_lines
from ..metrics.arrays import model
from ..metrics.summary import TITLES
from . import published
from .captions import count, hollow, means
from .content import Picture
from .dataset_pictures import example_pictures, report_pictures
from .pair_pictures import pair_pictures
from .published import BASINS, EPISTEMIC
from .runs import Run
from .setting import HARD_DELIVERIES, Setting, in_order, measured, metric, title_of
from .sparse import SparseTarget, correlation, sparse_target
from .tables import Published

__all__ = ["report_pictures", "setting_pictures"]

SWEEP_SCORES = ("soft_nll", "accuracy", "entropy_correlation")
RELIABILITY = ("majority", "soft", "sls", "multipass")
# Predictions of all seeds are pooled for a curve: so many are as good as more, and quick.
POOLED = 20_000
# The control that must fail: its loss is so high that no other curve could be told from another.
NOT_IN_CURVES = ("shuffled_sls",)
# Figures 2, 5 and 6: distance, whether of the high-disagreement slice, title and the axis's label.
SPARSE = (
    ("js", False, "Sparse-target diagnostic", "JS distance", 2),
    ("l1", False, "Sparse-target diagnostic by L1", "L1 distance", 5),
    ("js", True, "Sparse-target diagnostic where people disagree most", "JS distance", 6),
)


def setting_pictures(setting: Setting) -> list[Picture]:
    """Every figure for which the setting has runs."""
    made = [
        annotator_count_sweep(setting),
        *sparse_pictures(setting),
        reliability(setting),
        resampling(setting),
        dynamics(setting),
        brier(setting),
        hessian(setting),
        gradient_variance(setting),
        *pair_pictures(setting),
        *example_pictures(setting),
    ]
    return [picture for picture in made if picture is not None]


def annotator_count_sweep(setting: Setting) -> Picture | None:
    panels: dict[str, dict[str, dict[float, list[float]]]] = {}
    for k in setting.votes_per_example:
        for method in setting.methods(k):
            for key in SWEEP_SCORES:
                values = setting.values(metric(key), method, k)
                if values:
                    panels.setdefault(TITLES[key], {}).setdefault(method, {})[k] = list(values.values())
    if not panels:
        return None
    first = TITLES["soft_nll"]
    series = {name: panels[first][name] for name in in_order(panels[first])}
    paper = {}
    if setting.has_paper:
        known = {name: points for name, points in series.items() if name in published.SWEEP}
        paper = {first: {name: means(published.SWEEP[name], points) for name, points in known.items()}}
    n = count(len(values) for points in series.values() for values in points.values())
    return Picture(
        "annotator-count-sweep",
        "Annotator-count sweep",
        f"Scores on the eval split, whose votes are all kept, by votes per training example (log scale). Marks: means "
        f"over {n}; bars: ± SD over seeds; faint points: seeds. Methods stand slightly beside each other."
        + hollow(paper, "means of 5 seeds, in a panel of their own"),
        seed_lines({**panels, first: series}, "votes per example", paper),
        f"{BASINS}, Figure 1",
    )


def sparse_pictures(setting: Setting) -> list[Picture]:
    """Figures 2, 5 and 6; the files are read once for all three."""
    found: dict[str, dict[str, dict[str, SparseTarget]]] = {"train": {}, "eval": {}}
    for k in setting.votes_per_example:
        soft = setting.get("soft", k)
        for method in (method for method in setting.methods(k) if method in HARD_DELIVERIES):
            train = sparse_target(soft, setting.get(method, k), "train")
            placebo = sparse_target(soft, setting.get(method, k), "eval") if train is not None else None
            for split, target in (("train", train), ("eval", placebo)):
                if target is not None:
                    found[split].setdefault(f"K = {k}", {})[method] = target
    return [_sparse_picture(setting, found, *kind) for kind in SPARSE] if found["train"] else []


def _sparse_picture(
    setting: Setting,
    found: Mapping[str, Mapping[str, Mapping[str, SparseTarget]]],
    measure: str,
    high_only: bool,
    title: str,
    xlabel: str,
    number: int,
) -> Picture:
    gains: dict[str, dict[str, dict[str, Gain]]] = {}
    correlations: dict[str, list[float]] = {}
    for split, panels in found.items():
        for panel, targets in panels.items():
            for method, target in targets.items():
                by_seed = _correlations(target, measure, high_only)
                bins = target.bins(measure, high_only)
                correlations.setdefault(split, []).extend(by_seed)
                gain = Gain(bins.distance, bins.gain, float(np.mean(by_seed)))
                gains.setdefault(split, {}).setdefault(panel, {})[method] = gain
    every = [target for targets in found["train"].values() for target in targets.values()]
    paper = " (the paper: {} to {})".format(*published.SPARSE_CORRELATION) if setting.has_paper and number == 2 else ""
    where = ", of the tenth of the examples that people disagree on most" if high_only else ""
    caption = (
        f"soft NLL(soft labels) - soft NLL(delivery), both against all votes, by bins of the {xlabel} between the K "
        f"votes that were trained on and all of them{where}; targets without an error are a bin of their own. Thick: "
        f"training split, means over {count(len(target.seeds) for target in every)}; bars: ± SD over seeds. ρ: "
        f"Spearman's correlation of distance and gain, the mean over seeds; of single seeds it is "
        f"{_range(correlations['train'])}{paper}."
    )
    if "eval" in gains:
        caption += (
            " Thin: the same on the eval split, with K votes drawn that no model has seen (a placebo: it shows "
            f"what ambiguity alone does); its ρ: {_range(correlations['eval'])}."
        )
    figure = gain_panels(gains["train"], gains.get("eval", {}), xlabel)
    key = f"sparse-target-{measure}{'-high' * high_only}"
    return Picture(key, title, caption, figure, f"{BASINS}, Figure {number}")


def _correlations(target: SparseTarget, measure: str, high_only: bool) -> list[float]:
    if not high_only:
        return list(target.correlations(measure).values())
    chosen = [(getattr(examples, measure), examples) for examples in target.seeds.values()]
    return [correlation(distance[examples.high], examples.gain[examples.high]) for distance, examples in chosen]


def _range(values: Sequence[float]) -> str:
    defined = [value for value in values if np.isfinite(value)]
    return f"{min(defined):.2f} to {max(defined):.2f}" if defined else "no defined value"


def reliability(setting: Setting) -> Picture | None:
    runs = {method: setting.predicted(method) for method in RELIABILITY if setting.predicted(method)}
    if not runs:
        return None
    sources = [_pooled(method, list(by_seed.values())) for method, by_seed in runs.items()]
    target = "hard" if all(source.label is not None for source in sources) else "annotators"
    against = "the gold label" if target == "hard" else "the annotators' share of the predicted class"
    paper = ""
    if setting.has_paper:
        known = [f"{figure.mean} ({name})" for name, figure in published.SMOOTH_ECE.items() if name in runs]
        paper = f" The paper's smooth ECE: {', '.join(known)}." if known else ""
    return Picture(
        "reliability",
        "Smooth reliability",
        f"Confidence against {against}, smoothed with the bandwidth of smooth ECE. The eval predictions of all seeds "
        f"of a delivery ({count(len(by_seed) for by_seed in runs.values())}) are pooled, up to {POOLED:,} of them, so "
        f"that smECE here is that of the pool, not the mean over seeds.{paper}",
        reliability_diagram(*sources, target=target, smooth=True),
        f"{BASINS}, Figure 3",
    )


def _pooled(method: str, runs: Sequence[Run]) -> Source:
    """All runs' predictions as one source, evenly thinned to POOLED rows."""
    read = [run.predictions() for run in runs]
    q, votes = (
        np.concatenate(x) for x in zip(*((model(p.values, p.from_logits), p.votes) for p in read), strict=True)
    )
    gold = all(p.label is not None and (p.label >= 0).all() for p in read)
    rows = np.linspace(0, len(q) - 1, min(len(q), POOLED)).astype(int)
    label = np.concatenate([p.label for p in read])[rows] if gold else None
    return Source(method, q[rows], votes[rows], label=label)


def resampling(setting: Setting) -> Picture | None:
    held = {
        every: list(setting.values(metric("soft_nll"), "sls", None, every).values()) for every in setting.resampling
    }
    held = {every: values for every, values in held.items() if values}
    if len(held) < 2:
        return None
    label = TITLES["soft_nll"]
    paper = {label: {"sls": means(published.RESAMPLING, held)}} if setting.has_paper else {}
    n = count(map(len, held.values()))
    return Picture(
        "resampling",
        "Resampling probe",
        f"Soft NLL of SLS whose labels are drawn anew only every n-th epoch (log scale). Marks: means over {n}; bars: "
        f"± SD over seeds; faint points: seeds." + hollow(paper, "means of 5 seeds, in a panel of their own"),
        seed_lines({label: {"sls": held}}, "a label is held for n epochs", paper),
        f"{BASINS}, Figure 4",
    )


def dynamics(setting: Setting) -> Picture | None:
    curves = {}
    for method in setting.methods():
        lines = [[line for line in run.history() if "soft_nll" in line] for run in setting.get(method).values()]
        histories = [_curve(some) for some in lines if len(some) > 1]
        if histories and method not in NOT_IN_CURVES:
            curves[method] = histories
    if not curves:
        return None
    left_out = ", ".join(title_of(method) for method in NOT_IN_CURVES if setting.get(method))
    return Picture(
        "training-dynamics",
        "Training dynamics",
        f"Eval soft NLL after each epoch, all votes; lines: means over {count(map(len, curves.values()))}; bands: ± "
        "SD over seeds. Small marks: the best epoch of each seed; large: of the mean. The first tenth of training can "
        "lie above the panel." + (f" Without {left_out}, the control that must fail." if left_out else ""),
        band_curves(curves, f"eval {TITLES['soft_nll']}"),
        f"{BASINS}, Figure 8; {EPISTEMIC}, Figure 4",
    )


def _curve(lines: Sequence[Mapping]) -> tuple[np.ndarray, np.ndarray]:
    values = [np.nan if line["soft_nll"] is None else line["soft_nll"] for line in lines]
    return np.array([line["epoch"] for line in lines], float), np.array(values, float)


def _score_bars(
    setting: Setting,
    key: str,
    title: str,
    what: str,
    scores: Mapping[str, Callable[[Run], float | None]],
    source: str,
    paper: Mapping[str, Mapping[str, Published]] | None = None,
    from_zero: bool = False,
) -> Picture | None:
    """Methods with all votes; `scores` and the paper's figures (by method) by the panel's title."""
    panels = {
        panel: {method: list(setting.values(score, method).values()) for method in setting.methods()}
        for panel, score in scores.items()
    }
    panels = {panel: {name: some for name, some in values.items() if some} for panel, values in panels.items()}
    if not any(panels.values()):
        return None
    theirs = {}
    if setting.has_paper and paper:
        theirs = {panel: means(paper[panel], values) for panel, values in panels.items() if panel in paper}
    n = count(len(some) for values in panels.values() for some in values.values())
    marks = "Bars" if from_zero else "Large marks"
    caption = f"{what} {marks}: means over {n}, with ± SD over seeds; points: seeds." + hollow(theirs)
    return Picture(key, title, caption, seed_bars(panels, theirs, from_zero=from_zero), source)


def brier(setting: Setting) -> Picture | None:
    scores = {
        "miscalibration (lower is better)": metric("brier_miscalibration"),
        "discrimination (higher is better)": metric("brier_discrimination"),
    }
    what = (
        "The soft Brier score's parts: what recalibration could mend (reliability), and what predictions tell apart "
        "(resolution)."
    )
    return _score_bars(setting, "brier-decomposition", "Brier decomposition", what, scores, f"{BASINS}, Figure 10")


def hessian(setting: Setting) -> Picture | None:
    scores, paper = {}, {}
    splits = ((("hessian",), "eval split", ""), (("hessian", "high_disagreement"), "high slice", "_high"))
    for path, where, suffix in splits:
        for key, name in (("lambda_max", "largest eigenvalue"), ("trace", "trace")):
            panel = f"{name}, {where}"
            scores[panel] = measured(*path, key)
            paper[panel] = {method: row[f"{key}{suffix}"] for method, row in published.HESSIAN.items()}
    what = "The Hessian of the soft cross-entropy, best checkpoint, on the eval split and its high-disagreement slice."
    return _score_bars(
        setting, "hessian", "Hessian geometry", what, scores, f"{BASINS}, Table 4", paper, from_zero=True
    )


def gradient_variance(setting: Setting) -> Picture | None:
    panel = "Spearman's ρ"
    scores = {panel: measured("gradient_variance", "entropy_correlation")}
    # The paper gives one mean, over its runs of any method.
    paper = {panel: dict.fromkeys(setting.methods(), published.GRADIENT_VARIANCE)}
    what = (
        "Correlation over eval examples of the last layer's gradient variance under label sampling and the "
        "annotators' entropy."
    )
    return _score_bars(setting, "gradient-variance", "Gradient variance", what, scores, f"{BASINS}, Figure 7", paper)
