"""The comparison of `Soft-Label Training Preserves Epistemic Uncertainty`: soft labels against the majority label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .published import CORRELATION_GAIN, EPISTEMIC, KL_REDUCTION
from .setting import Setting, metric
from .stats import mean_interval
from .tables import Column, Entry, Published, Table, with_tests

# (title, score, lower is better), each of majority and of soft labels.
SCORES = (("KL", "kl", True), ("entropy correlation", "entropy_correlation", False), ("accuracy", "accuracy", False))
AVERAGE = "average over settings"


def relative_change(soft: Mapping[int, float], majority: Mapping[int, float]) -> dict[int, float]:
    """(soft - majority) / majority by seed, for the seeds that both have.

    Nothing if the majority's score is not above 0 in each of them: a change relative to a correlation around 0 says
    nothing.
    """
    seeds = sorted(soft.keys() & majority.keys())
    if not all(majority[seed] > 0 and np.isfinite(soft[seed]) for seed in seeds):
        return {}
    return {seed: (soft[seed] - majority[seed]) / majority[seed] for seed in seeds}


def soft_against_majority(settings: Sequence[Setting]) -> Table | None:
    """A row per setting that has both; and the averages over them, with the paper's, in the last row."""
    kept = [s for s in settings if s.get("soft") and s.get("majority")]
    if not kept:
        return None
    columns: list[Column] = []
    for title, _, lower in SCORES:
        columns += [Column(f"{title}, majority", lower), Column(f"{title}, soft", lower)]
        if title != "accuracy":
            columns.append(Column(f"{title}, change in %", lower, 1))
    entries: dict[tuple[int, int], Entry] = {}
    reference_of: dict[int, int] = {}
    changes: dict[int, list[dict[int, float]]] = {}
    for i, setting in enumerate(kept):
        j = 0
        for title, key, _ in SCORES:
            majority, soft = (setting.values(metric(key), method) for method in ("majority", "soft"))
            entries[i, j], entries[i, j + 1] = Entry(majority), Entry(soft)
            reference_of[j + 1] = j
            j += 2
            if title != "accuracy":
                change = {seed: 100 * value for seed, value in relative_change(soft, majority).items()}
                if change:
                    entries[i, j] = Entry(change)
                    changes.setdefault(j, []).append(change)
                else:
                    changes.setdefault(j, [])
                j += 1
    rows = [setting.name for setting in kept]
    published = {
        "KL": Published(-100 * KL_REDUCTION, digits=0),
        "entropy correlation": Published(100 * CORRELATION_GAIN, digits=0),
    }
    for j, parts in changes.items():
        seeds = set.intersection(*(set(part) for part in parts)) if parts else set()
        mean = {seed: float(np.mean([part[seed] for part in parts])) for seed in sorted(seeds)}
        paper = published[columns[j].title.split(",")[0]]
        entries[len(kept), j] = Entry(mean, paper=paper)
    table = Table(
        "soft_vs_hard",
        "Soft labels against the majority's label",
        "All votes of each training example. Change: (soft - majority) / majority, by seed, where the majority's is "
        "above 0 in each. Mean ± SD over seeds. "
        "p: paired Wilcoxon of soft against majority, two-sided; Holm over all tests of the table. The paper's are "
        "averages over ChaosNLI, POPQUORN and CIFAR-10H at its own scale.",
        "setting",
        tuple(columns),
        (*rows, AVERAGE),
        entries,
        f"{EPISTEMIC}, abstract",
        "majority vote",
        compares_rows=False,
    )
    table = replace(table, notes=tuple(_intervals(table, changes)))
    return with_tests(table, lambda i, j: (i, reference_of[j]) if j in reference_of and i < len(kept) else None)


def _intervals(table: Table, columns: Iterable[int]) -> Iterator[str]:
    """A sentence for each row on its changes, with intervals over seeds."""
    for i, row in enumerate(table.rows):
        parts = []
        for j in columns:
            values = list(table.entry(i, j).values.values())
            if len(values) > 1:
                low, high = mean_interval(values)
                score = table.columns[j].title.split(",")[0]
                parts.append(f"{score} by {np.mean(values):+.1f}% (95% interval {low:+.1f}% to {high:+.1f}%)")
        if parts:
            yield f"{row}: soft labels change {' and '.join(parts)}."
