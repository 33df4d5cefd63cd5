"""The scores of each evaluation as a line of a table, where `Trainer` would print a dict of twenty numbers."""

from __future__ import annotations

import math

from transformers import PrinterCallback, ProgressCallback, TrainerState

from ..metrics.summary import NAMES

# In words that fit above a number. What follows from another column is left to history.jsonl and the tracker:
# manhattan is twice DistCE, and brier_uncertainty is the same at every evaluation.
COLUMNS = {
    "soft_nll": "NLL",
    "kl": "KL",
    "soft_brier": "Brier",
    "accuracy": "acc",
    "accuracy_majority": "accMaj",
    "ece_equal_mass": "ECE",
    "ece_equal_mass_soft": "ECEs",
    "smooth_ece": "smECE",
    "smooth_ece_soft": "smECEs",
    "entropy_correlation": "Hcorr",
    "js_distance": "JS",
    "dist_ce": "DistCE",
    "wasserstein": "Wass",
    "ent_ce": "EntCE",
    "rank_cs": "RankCS",
    "brier_miscalibration": "BrMis",
    "brier_discrimination": "BrDis",
}
# Of the evaluation, not of the model.
TIMES = ("loss", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
# The header is repeated after so many lines.
PAGE = 20


class EvaluationTable:
    """Turns the logs of evaluations into lines."""

    def __init__(self):
        self.header: str | None = None
        self.lines = 0

    def rows(self, logs: dict[str, float], state: TrainerState) -> list[str] | None:
        """The lines to print for these logs, or None if they are not of an evaluation."""
        if any("/" in key for key in logs):
            return _diagnostics(logs)
        key = next((key for key in logs if key.endswith("_soft_nll")), None)
        if key is None:
            return None
        prefix = key.removesuffix("soft_nll")
        shown = {name: title for name, title in COLUMNS.items() if prefix + name in logs}
        header = f"{'epoch':>6} {'step':>6}" + "".join(f"{title:>{_width(name)}}" for name, title in shown.items())
        cells = "".join(f"{_cell(logs[prefix + name]):>{_width(name)}}" for name in shown)
        line = f"{state.epoch or 0:6.4g} {state.global_step:6}{cells}"
        # What compute_metrics of the user added, and the data set's name if there are several.
        for key in logs:
            if key.startswith(prefix) and key.removeprefix(prefix) not in (*NAMES, *TIMES):
                line += f"  {key.removeprefix(prefix)} {_cell(logs[key])}"
        line += f"  {prefix.removeprefix('eval').strip('_')}".rstrip()
        rows = [line] if header == self.header and self.lines % PAGE else [header, line]
        self.lines = self.lines + 1 if header == self.header else 1
        self.header = header
        return rows


def _diagnostics(logs: dict[str, float]) -> list[str]:
    """A line for each group of numbers: `ood/svhn/energy  auroc 0.9120  fpr95 0.3100`."""
    groups: dict[str, list[str]] = {}
    for key, value in logs.items():
        group, slash, name = key.removeprefix("eval_").rpartition("/")
        if slash:
            groups.setdefault(group, []).append(f"{name} {value:.4g}")
    return [f"{group:24}  " + "  ".join(cells) for group, cells in groups.items()]


def _width(name: str) -> int:
    # A correlation may have a sign.
    return 8 if name == "entropy_correlation" else 7


def _cell(value: float) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4f}"


class VotesProgressCallback(ProgressCallback):
    """The progress bar of [`Trainer`], with a table of evaluations."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.table = EvaluationTable()

    def on_log(self, args, state, control, logs=None, **kwargs):
        rows = self.table.rows(logs or {}, state)
        if rows is None:
            super().on_log(args, state, control, logs=logs, **kwargs)
        elif state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.write("\n".join(rows))


class VotesPrinterCallback(PrinterCallback):
    """Without a progress bar: the table, and other logs as [`Trainer`] prints them."""

    def __init__(self):
        self.table = EvaluationTable()

    def on_log(self, args, state, control, logs=None, **kwargs):
        rows = self.table.rows(logs or {}, state)
        if rows is None:
            super().on_log(args, state, control, logs=logs, **kwargs)
        elif state.is_local_process_zero:
            print("\n".join(rows), flush=True)
