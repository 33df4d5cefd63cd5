"""The tables of `Same Target, Different Basins`, for the runs of any setting; the paper's figures for CIFAR-10H's."""

from __future__ import annotations

from dataclasses import replace

from ..metrics.summary import NAMES, TITLES
from . import published
from .geometry_tables import between_runs, gradient_variance, hessian, hessian_sweep, ood_tables
from .published import BASINS
from .reference_table import reference_table
from .runs import Run
from .score_tables import caption, metrics, score_table, sweep_table
from .setting import HARD_DELIVERIES, Setting, at_last_epoch, metric, title_of
from .sparse import sparse_target
from .stats import seeds_to_reach, smallest_p
from .tables import Cells, Column, Entry, Table, p_value, with_tests

TAKEN_OVER = "taken over from an earlier report, as the predictions are no longer there."
LAST_EPOCH = "scores of the last evaluation during training, not of the best checkpoint."


def setting_tables(setting: Setting, earlier_sparse: Cells | None = None) -> list[Table]:
    """Every table for which the setting has runs.

    Args:
        earlier_sparse: of [`sparse_correlations`] when there were more predictions than now.
    """
    made = [
        annotator_count_sweep(setting),
        main_comparison(setting),
        reference_table(setting, _main_scores(setting)),
        last_epoch(setting),
        last_epoch_sweep(setting),
        family_comparison(setting),
        hessian(setting),
        scoring_rules(setting),
        calibration(setting),
        hessian_sweep(setting),
        *ood_tables(setting),
        resampling(setting),
        sparse_correlations(setting, earlier_sparse or {}),
        dynamics(setting),
        gradient_variance(setting),
        *between_runs(setting),
    ]
    return [table for table in made if table is not None]


def _main_scores(setting: Setting) -> tuple[str, ...]:
    """Table 2's, and where classes are ordered their distance too."""
    ordinal = ("wasserstein",) if "wasserstein" in setting.runs[0].metrics else ()
    return ("soft_nll", "accuracy", "ece_equal_mass", "entropy_correlation", *ordinal)


def main_comparison(setting: Setting) -> Table | None:
    """Table 2."""
    scores = metrics(*_main_scores(setting))
    what = "All votes of each training example."
    return score_table(setting, "main", "Main comparison", what, scores, published.MAIN, f"{BASINS}, Table 2")


def last_epoch(setting: Setting) -> Table | None:
    """Table 2's scores when training has ended, and its targets may have been learnt by heart."""
    if not _goes_past_its_best(setting, None):
        return None
    scores = {name: (Column(TITLES[name], NAMES[name]), at_last_epoch(name)) for name in _main_scores(setting)}
    what = f"All votes of each training example; {LAST_EPOCH}"
    return score_table(setting, "last_epoch", "At the last epoch", what, scores, {}, None)


def last_epoch_sweep(setting: Setting) -> Table | None:
    """The annotator-count sweep when training has ended."""
    counts = [k for k in setting.votes_per_example if _goes_past_its_best(setting, k)]
    columns = [(Column(f"soft NLL, K = {k}", True), k, at_last_epoch("soft_nll")) for k in counts]
    title, what = "At the last epoch, with K votes", f"K votes of each training example; {LAST_EPOCH}"
    return sweep_table(setting, "last_epoch_sweep", title, what, columns, {}, None, one_sided=False)


def _goes_past_its_best(setting: Setting, k: int | None) -> bool:
    """Whether any run was evaluated after its best checkpoint: if none was, the last epoch shows nothing new."""
    runs = [run for method in setting.methods(k) for run in setting.get(method, k).values()]
    return any(_ends_after_its_best(run) for run in runs)


def _ends_after_its_best(run: Run) -> bool:
    history, best = run.history(), run.metrics.get("best_step")
    return bool(run.config["load_best_model_at_end"] and history and best is not None and best < history[-1]["step"])


def family_comparison(setting: Setting) -> Table | None:
    """Table 3: the hard deliveries and the control that must fail, against SLS."""
    scores = metrics("soft_nll", "accuracy", "ece_equal_mass", "entropy_correlation")
    methods = ("soft", *HARD_DELIVERIES, "shuffled_sls")
    if not {"sls"} < set(setting.methods()) & set(methods) - {"soft"}:
        return None
    return score_table(
        setting,
        "family",
        "Hard-label family",
        "All votes of each training example; soft labels for context.",
        scores,
        published.FAMILY,
        f"{BASINS}, Table 3",
        "sls",
        methods,
        untested=("soft",),
    )


def scoring_rules(setting: Setting) -> Table | None:
    """Table 5."""
    return score_table(
        setting,
        "scoring",
        "Further proper scoring rules",
        "All votes of each training example.",
        metrics("kl", "soft_brier"),
        published.SCORING,
        f"{BASINS}, Table 5",
    )


def calibration(setting: Setting) -> Table | None:
    """The numbers of Figures 3 and 10."""
    scores = metrics(
        "smooth_ece", "smooth_ece_soft", "ece_equal_mass_soft", "brier_miscalibration", "brier_discrimination"
    )
    figures = {method: {"smooth_ece": figure} for method, figure in published.SMOOTH_ECE.items()}
    what = "Smooth and equal-mass ECE against the hard label and the annotators; Brier parts (CORP)."
    return score_table(
        setting, "calibration", "Calibration", what, scores, figures, f"{BASINS}, Section 5.2, Figures 3 and 10"
    )


def annotator_count_sweep(setting: Setting) -> Table | None:
    """Table 1."""
    if not setting.votes_per_example:
        return None
    counts = sorted({*setting.votes_per_example, *(published.SWEEP["soft"] if setting.has_paper else ())})
    columns = [(Column(f"K = {k}", True), k, metric("soft_nll")) for k in counts]
    figures = {
        (method, counts.index(k)): figure
        for method, row in published.SWEEP.items()
        for k, figure in row.items()
        if k in counts
    }
    what = "Soft NLL after training on K votes per example."
    table = sweep_table(
        setting, "sweep", "Annotator-count sweep", what, columns, figures, f"{BASINS}, Table 1 and Figure 1", True
    )
    if table is None or not setting.has_paper:
        return table
    tests = sum(figure.p is not None for row in published.SWEEP.values() for figure in row.values())
    least = min(1.0, tests * smallest_p(published.SWEEP_SEEDS))
    note = (
        f"The paper's {tests} tests of {published.SWEEP_SEEDS} seeds cannot pass Holm either: the smallest p, "
        f"{p_value(smallest_p(published.SWEEP_SEEDS))}, becomes {p_value(least)}; {seeds_to_reach(tests)} seeds would "
        "be needed."
    )
    return replace(table, notes=(*table.notes, note))


def resampling(setting: Setting) -> Table | None:
    """The resampling probe of Section 5.1 and Figure 4."""
    every = setting.resampling
    if every in ([], [1]):
        return None
    figures = published.RESAMPLING if setting.has_paper else {}
    every = sorted({*every, *figures})
    columns = tuple(Column(TITLES[name], NAMES[name]) for name in ("soft_nll", "entropy_correlation"))
    entries = {}
    for i, n in enumerate(every):
        entries[i, 0] = Entry(setting.values(metric("soft_nll"), "sls", None, n), paper=figures.get(n))
        entries[i, 1] = Entry(setting.values(metric("entropy_correlation"), "sls", None, n))
    scale = " The paper's are of 200 epochs." if setting.has_paper else ""
    rows = tuple("every epoch" if n == 1 else f"every {n} epochs" for n in every)
    reference = "every epoch" if 1 in every else None
    table = Table(
        "resampling",
        "Resampling probe",
        caption(f"SLS whose sampled labels are held for several epochs.{scale}", reference, False, True),
        "labels drawn",
        columns,
        rows,
        entries,
        f"{BASINS}, Section 5.1 and Figure 4" if setting.has_paper else None,
        reference,
        family_by_column=True,
    )
    return with_tests(table, lambda i, j: (0, j) if reference else None)


def sparse_correlations(setting: Setting, earlier: Cells) -> Table | None:
    """Section 5.1 and Figures 2 and 5: per-seed Spearman correlation of the sparse target's error and the gain.

    It needs the predictions of both runs. Where one has kept its numbers only, what an earlier table has is taken.
    """
    columns = [Column(f"{split}, {name}") for split in ("training", "eval (placebo)") for name in ("JS", "L1")]
    rows, entries, taken = [], {}, set()
    for k in setting.votes_per_example:
        for method in setting.methods(k):
            if method == "soft":
                continue
            row = f"{title_of(method)}, K = {k}"
            soft, other = setting.get("soft", k), setting.get(method, k)
            gone = {
                s for s in soft.keys() & other.keys() if not (soft[s].has_predictions and other[s].has_predictions)
            }
            found = {split: sparse_target(soft, other, split) for split in ("train", "eval")}
            for j, (split, measure) in enumerate((s, m) for s in ("train", "eval") for m in ("js", "l1")):
                values = {} if found[split] is None else found[split].correlations(measure)
                before = earlier.get((row, columns[j].title), {})
                kept = {seed: value for seed, value in before.items() if seed in gone}
                taken |= kept.keys()
                if values or kept:
                    entries[len(rows), j] = Entry(dict(sorted((values | kept).items())))
            if any(i == len(rows) for i, _ in entries):
                rows.append(row)
    if not rows:
        return None
    low, high = published.SPARSE_CORRELATION
    paper = f" The paper: {low} to {high} by JS distance." if setting.has_paper else ""
    return Table(
        "sparse",
        "Sparse-target diagnostic",
        "Spearman correlation, over examples, of how far K votes are from all votes (JS distance, L1) with the gain "
        "in soft NLL over soft labels. Training examples were trained on these K votes. Eval examples are a placebo: "
        "their K votes were drawn alike but never seen, so that a correlation there is one with ambiguity. "
        f"Mean ± SD over seeds.{paper}",
        "delivery",
        tuple(columns),
        tuple(rows),
        entries,
        f"{BASINS}, Section 5.1, Figures 2 and 5" if setting.has_paper else None,
        notes=(f"Of seed {', '.join(map(str, sorted(taken)))}: {TAKEN_OVER}",) if taken else (),
    )


def epochs_to_95(run: Run) -> float | None:
    """The first epoch whose eval soft NLL is at most the best / 0.95; None without evaluations."""
    history = [line for line in run.history() if line.get("soft_nll") is not None]
    if len(history) < 2:
        return None
    best = min(line["soft_nll"] for line in history)
    return float(next(line["epoch"] for line in history if line["soft_nll"] <= best / 0.95))


def best_epoch(run: Run) -> float | None:
    history = [line for line in run.history() if line.get("soft_nll") is not None]
    return float(min(history, key=lambda line: line["soft_nll"])["epoch"]) if len(history) > 1 else None


def dynamics(setting: Setting) -> Table | None:
    """Figure 8's numbers."""
    scores = {
        "near": (Column("epoch within 5% of the best", None, 1), epochs_to_95),
        "best": (Column("best epoch", None, 1), best_epoch),
    }
    paper = (
        f" The paper: SLS is {published.EARLIER_95} and {published.EARLIER_BEST} epochs earlier than soft labels."
        if setting.has_paper
        else ""
    )
    what = f"Eval soft NLL during training; near is at most the best / 0.95.{paper}"
    return score_table(setting, "dynamics", "Training dynamics", what, scores, {}, f"{BASINS}, Figure 8")
