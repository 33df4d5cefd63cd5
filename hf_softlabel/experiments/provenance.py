"""How the runs of a report were made: which grid or recipe, seeds, time and versions, in a sentence for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .captions import count
from .runs import Run


def provenance(runs: Sequence[Run]) -> list[str]:
    """A sentence for each grid, and one for the runs that no grid has."""
    grids: dict[str | None, list[Run]] = {}
    for run in runs:
        grids.setdefault(run.grid, []).append(run)
    return [_sentence(grid, members) for grid, members in grids.items()]


def versions(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Every version of each package with which the runs were made."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for package, version in run.metrics.get("versions", {}).items():
            found.setdefault(package, set()).add(version)
    return {package: sorted(known) for package, known in found.items()}


def _sentence(grid: str | None, runs: Sequence[Run]) -> str:
    seeds = sorted({run.seed for run in runs})
    times = [run.metrics["train_seconds"] for run in runs if run.metrics.get("train_seconds") is not None]
    parts = [
        f"Grid {grid}: {count([len(runs)], 'run')}" if grid else f"{count([len(runs)], 'run')} of no grid",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
    ]
    if times:
        # A run that was cut off and resumed has not timed its first part.
        known = "" if len(times) == len(runs) else f" in the {len(times)} that ran without a break"
        parts.append(
            f"{sum(times) / 3600:.2f} hours of training{known}, {np.median(times) / 60:.1f} minutes the median"
        )
    packages = [f"{package} {' or '.join(known)}" for package, known in versions(runs).items()]
    return "; ".join([*parts, *([", ".join(packages)] if packages else [])]) + "."
