"""The runs of one setting, asked for by what a table compares: delivery, votes per example, resampling, seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .runs import Pair, Run, by_setting

# In the order of tables, with the papers' names.
TITLES = {
    "soft": "Soft labels",
    "sls": "SLS",
    "multipass": "Multipass",
    "deterministic_control": "Deterministic control",
    "posterior_sls": "Posterior SLS",
    "majority": "Majority vote",
    "label_smoothing": "Label smoothing",
    "mixup": "Mixup",
    "shuffled_sls": "Shuffled SLS",
}
HARD_DELIVERIES = ("sls", "multipass", "deterministic_control")


def title_of(method: str) -> str:
    """`mixup (mixup_alpha 0.4)` -> `Mixup (mixup_alpha 0.4)`."""
    delivery, _, own = method.partition(" ")
    return f"{TITLES[delivery]} {own}".strip()


def in_order(methods: Iterable[str]) -> list[str]:
    places = list(TITLES)
    return sorted(set(methods), key=lambda method: (places.index(method.split(" ")[0]), method))


@dataclass(frozen=True)
class Setting:
    """Runs of one data set, model and scale, which differ only in what tables compare.

    Args:
        pairs: those of its runs that were compared with each other.
    """

    name: str
    runs: Sequence[Run]
    pairs: Sequence[Pair] = ()

    @cached_property
    def _by_key(self) -> dict[tuple[str, int | None, int], dict[int, Run]]:
        table: dict[tuple[str, int | None, int], dict[int, Run]] = {}
        for run in self.runs:
            table.setdefault((run.method, run.votes_per_example, run.resample_every), {})[run.seed] = run
        return table

    def get(self, method: str, k: int | None = None, resample_every: int = 1) -> dict[int, Run]:
        """Runs by seed, in the seeds' order."""
        return dict(sorted(self._by_key.get((method, k, resample_every), {}).items()))

    def predicted(self, method: str) -> dict[int, Run]:
        """Those of its runs with all votes whose predictions were kept, by seed."""
        return {seed: run for seed, run in self.get(method).items() if run.has_predictions}

    def methods(self, k: int | None = None) -> list[str]:
        """The methods that were run with K votes per example, or with all."""
        return in_order(method for method, votes, resample in self._by_key if votes == k and resample == 1)

    @property
    def votes_per_example(self) -> list[int]:
        """The K of its sparse runs."""
        return sorted({k for _, k, _ in self._by_key if k is not None})

    @property
    def resampling(self) -> list[int]:
        """After how many epochs SLS with all votes draws anew."""
        return sorted({every for method, k, every in self._by_key if method == "sls" and k is None})

    @property
    def dataset(self) -> str:
        return self.runs[0].config["dataset"]

    @property
    def has_paper(self) -> bool:
        """Whether `Same Target, Different Basins` has figures for this data set."""
        return self.dataset == "cifar10h"

    def values(
        self, score: Callable[[Run], float | None], method: str, k: int | None = None, resample_every: int = 1
    ) -> dict[int, float]:
        """A score by seed: NaN where it is undefined, and without the seeds in which it was not measured.

        Args:
            score: of a run; None if it was not measured.
        """
        found = {seed: score(run) for seed, run in self.get(method, k, resample_every).items()}
        return {seed: value for seed, value in found.items() if value is not None}


def metric(key: str) -> Callable[[Run], float | None]:
    """A score of metrics.json: NaN where it was undefined."""

    def score(run: Run) -> float | None:
        if key not in run.metrics:
            return None
        value = run.metrics[key]
        return float("nan") if value is None else float(value)

    return score


def at_last_epoch(key: str) -> Callable[[Run], float | None]:
    """A score of the last evaluation during training, not of the best checkpoint: NaN where it was undefined."""

    def score(run: Run) -> float | None:
        scores = [line[key] for line in run.history() if key in line]
        return None if not scores else float("nan") if scores[-1] is None else float(scores[-1])

    return score


def measured(*path: str) -> Callable[[Run], float | None]:
    """A number of diagnostics.json; None where it was not measured."""

    def score(run: Run) -> float | None:
        value: object = run.diagnostics
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return float("nan") if value is None else float(value)  # type: ignore[arg-type]

    return score


def settings_of(runs: Sequence[Run], pairs: Sequence[Pair]) -> tuple[list[Setting], list[str]]:
    """The settings, and remarks on runs that are left out because they held out other examples than their pairs."""
    settings, notes = [], []
    for name, group in by_setting(runs).items():
        kept, held_out = [], {}
        for run in group:
            first = held_out.setdefault(run.seed, run)
            if first.eval_fingerprint == run.eval_fingerprint:
                kept.append(run)
            else:
                notes.append(
                    f"{run.path} is left out: it has another eval split, or other votes on it, than {first.path} of "
                    "the same seed, so the two cannot be paired."
                )
        inside = {run.path for run in kept}
        own = [pair for pair in pairs if pair.first.path in inside and pair.second.path in inside]
        settings.append(Setting(name, kept, own))
    return settings, notes
