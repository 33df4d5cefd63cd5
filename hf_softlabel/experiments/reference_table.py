"""What the scores of a setting are to be compared with: predictors that learn nothing, and people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..metrics.summary import NAMES, TITLES
from .runs import Run
from .setting import Setting
from .tables import Column, Entry, Table

# The references of metrics.json.
ROWS = {
    "floor": "The votes themselves",
    "human": "One half of the annotators",
    "train_mean": "Mean of the training votes",
    "uniform": "Uniform",
}


def reference_table(setting: Setting, names: Sequence[str]) -> Table | None:
    """The references of some scores of metrics.json; None for runs that have kept none."""
    kept = [run for run in setting.runs if run.metrics.get("references")]
    # References are of an eval split, which the runs of a seed share. But the mean of the training votes is of the
    # votes that a run was given: in all seeds as many as possible.
    most = max((run.votes_per_example or math.inf for run in kept), default=None)
    of_seed = {run.seed: run for run in kept if (run.votes_per_example or math.inf) == most}
    runs = [of_seed[seed] for seed in sorted(of_seed)]
    rows = [row for row in ROWS if any(row in run.metrics["references"] for run in runs)]
    if not rows:
        return None
    return Table(
        "references",
        "What the scores are to be compared with",
        "Predictors on the same eval splits. The votes themselves: their soft NLL is the annotators' entropy, the "
        "least that is possible. One half of an example's annotators for the other half (for soft NLL with one more "
        "vote, spread over all classes): with few votes this is no ceiling. Mean of the training votes, and uniform: "
        "the same for every example. Mean ± SD over seeds.",
        "predictor",
        tuple(Column(TITLES[name], NAMES[name]) for name in names),
        tuple(ROWS[row] for row in rows),
        {(i, j): Entry(_values(runs, row, name)) for i, row in enumerate(rows) for j, name in enumerate(names)},
        compares_rows=False,
    )


def _values(runs: Sequence[Run], row: str, name: str) -> dict[int, float]:
    """By seed: NaN where the score is undefined."""
    found = {run.seed: run.metrics["references"].get(row, {}) for run in runs}
    return {s: math.nan if of[name] is None else float(of[name]) for s, of in found.items() if name in of}
