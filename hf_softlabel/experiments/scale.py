"""Where the sign turns: settings that differ in one number, as training size or epochs, beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..figures.sweep import seed_lines
from .captions import count
from .content import Picture
from .runs import Run
from .setting import HARD_DELIVERIES, Setting, at_last_epoch, metric, title_of
from .tables import Column, Entry, Table, with_tests

# What a setting may differ in, and the unit of its rows.
SCALES = {"train_size": "training examples", "num_train_epochs": "epochs", "width": "times the width"}
METHODS = ("soft", *HARD_DELIVERIES)


class Scale(NamedTuple):
    """Settings that are the same but for `key`, by its value, in its order; `k` votes per example, None for all."""

    key: str
    k: int | None
    settings: Mapping[float, Setting]

    @property
    def title(self) -> str:
        first = next(iter(self.settings.values()))
        return f"Where it turns: {SCALES[self.key]} ({', '.join(first.name.split(', ')[:2])})"

    @property
    def methods(self) -> list[str]:
        return [m for m in METHODS if any(s.get(m, self.k) for s in self.settings.values())]

    @property
    def votes(self) -> str:
        return "All votes of each training example." if self.k is None else f"{self.k} votes per training example."


def scales(settings: Sequence[Setting]) -> Iterator[Scale]:
    """Every family of settings that differ in one of SCALES only, and have soft labels and a hard delivery."""
    for key in SCALES:
        families: dict[tuple, dict[float, Setting]] = {}
        for setting in settings:
            rest = tuple(pair for pair in setting.runs[0].setting if pair[0] != key)
            value = setting.runs[0].config.get(key)
            value = setting.runs[0].metrics.get("train_examples") if value is None else value
            if value is not None:
                families.setdefault(rest, {})[value] = setting
        for family in families.values():
            for k in sorted({k for s in family.values() for k in (None, *s.votes_per_example)}, key=lambda k: k or 0):
                kept = {x: s for x, s in sorted(family.items()) if s.get("soft", k) and _hard(s, k)}
                if len(kept) > 1:
                    yield Scale(key, k, kept)


def _hard(setting: Setting, k: int | None) -> list[str]:
    return [method for method in HARD_DELIVERIES if setting.get(method, k)]


def memorised(run: Run) -> float | None:
    """The training loss of the last epoch less the least that the training votes allow, their entropy: 0 is by heart.

    All deliveries of METHODS have this floor. Images were augmented, as they are in training.
    """
    losses = [line["train_loss"] for line in run.history() if line.get("train_loss") is not None]
    floor = run.metrics.get("train_entropy")
    return None if not losses or floor is None else float(losses[-1] - floor)


MEASURES: dict[str, tuple[str, Callable[[Run], float | None]]] = {
    "best": ("best checkpoint", metric("soft_nll")),
    "last": ("last epoch", at_last_epoch("soft_nll")),
}


def _named(settings: Sequence[Setting]) -> Iterator[tuple[str, Scale]]:
    """Each with a name of its own for files: `scale_train_size_k5`, and `..._2` for a second data set."""
    seen: Counter[str] = Counter()
    for scale in scales(settings):
        name = f"scale_{scale.key}" + ("" if scale.k is None else f"_k{scale.k}")
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}_{seen[name]}"), scale


def scale_tables(settings: Sequence[Setting]) -> list[Table]:
    return [_table(scale, name) for name, scale in _named(settings)]


def _table(scale: Scale, name: str) -> Table:
    wanted = [
        (m, name, Column(f"{title_of(m)}, {words}", True), score)
        for name, (words, score) in MEASURES.items()
        for m in scale.methods
    ]
    wanted += [
        (m, "memorised", Column(f"{title_of(m)}, training loss above its floor"), memorised) for m in scale.methods
    ]
    cells = [[setting.values(score, m, scale.k) for setting in scale.settings.values()] for m, _, _, score in wanted]
    # Runs of earlier versions have not kept their training loss: nothing is missing then.
    kept = [(one, values) for one, values in zip(wanted, cells, strict=True) if any(values)]
    soft = {name: j for j, ((m, name, _, _), _) in enumerate(kept) if m == "soft" and name in MEASURES}
    references = {j: soft.get(name) for j, ((m, name, _, _), _) in enumerate(kept) if m != "soft"}
    unit = SCALES[scale.key]
    table = Table(
        name,
        scale.title,
        f"Soft NLL by {unit}, all else the same. {scale.votes} Training loss above its floor: 0 is a network that "
        "knows its targets by heart. Mean ± SD over seeds. p: paired Wilcoxon against soft labels at the same scale, "
        "two-sided; Holm over all tests of the table.",
        unit,
        tuple(column for (_, _, column, _), _ in kept),
        tuple(f"{value:,g}" for value in scale.settings),
        {(i, j): Entry(found) for j, (_, values) in enumerate(kept) for i, found in enumerate(values)},
        None,
        "soft labels",
        compares_rows=False,
    )
    return with_tests(table, lambda i, j: (i, references[j]) if references.get(j) is not None else None)


def scale_pictures(settings: Sequence[Setting]) -> list[Picture]:
    return [_picture(scale, name) for name, scale in _named(settings)]


def _picture(scale: Scale, name: str) -> Picture:
    panels: dict[str, dict[str, dict[float, list[float]]]] = {}
    for words, score in MEASURES.values():
        for method in scale.methods[1:]:
            for value, setting in scale.settings.items():
                soft, other = (setting.values(score, name, scale.k) for name in ("soft", method))
                gains = [soft[seed] - other[seed] for seed in sorted(soft.keys() & other.keys())]
                if gains:
                    panels.setdefault(f"gain in soft NLL, {words}", {}).setdefault(method, {})[value] = gains
    seeds = (len(gains) for panel in panels.values() for points in panel.values() for gains in points.values())
    n = count(seeds, "paired seed")
    return Picture(
        name,
        scale.title,
        f"Soft NLL of soft labels less that of each delivery, paired by seed: above 0 the delivery is better. "
        f"{scale.votes} Mean ± SD of {n}; points are seeds.",
        seed_lines(panels, SCALES[scale.key], zero=True),
    )
