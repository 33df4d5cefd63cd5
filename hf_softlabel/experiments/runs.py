"""Run directories as a report reads them: which runs there are, which are of one setting, and which are missing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..config import SoftLabelConfig
from ..data.errors import VotesError
from ..predictions import Predictions, read_predictions
from ..run import NOT_THE_RUN, NOT_THE_RUN_PREFIXES

# PyYAML's C loader is several times faster, and not in every build of it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a table compares; runs that differ in anything else that matters are of different settings.
COMPARED = ("delivery", "votes_per_example", "resample_every", "seed")
# Parameters of one delivery each: two runs of one delivery that differ in them are different methods.
OF_A_DELIVERY = {
    "label_smoothing": ("label_smoothing_epsilon",),
    "mixup": ("mixup_alpha", "mixup_targets"),
    "posterior_sls": ("prior_strength",),
}
SAMPLED = ("sls", "shuffled_sls", "posterior_sls")
_DELIVERY_KEYS = {key for keys in OF_A_DELIVERY.values() for key in keys}
# Folders of a run directory that hold no runs.
_INSIDE = ("model", "logs", "wandb", "diagnostics")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        config: config.yaml, fully resolved.
        metrics: metrics.json.
        diagnostics: diagnostics.json, empty if nothing was measured.
        grid: the name of the grid that it is a cell of, if any.
    """

    path: Path
    config: dict[str, Any]
    metrics: dict[str, Any]
    diagnostics: dict[str, Any] = field(default_factory=dict)
    grid: str | None = None

    @property
    def delivery(self) -> str:
        return self.config["delivery"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def votes_per_example(self) -> int | None:
        return self.config.get("votes_per_example")

    @property
    def resample_every(self) -> int:
        """For how many epochs a sampled label is held; of a delivery that samples none it says nothing."""
        return self.config.get("resample_every", 1) if self.delivery in SAMPLED else 1

    @cached_property
    def setting(self) -> tuple[tuple[str, str], ...]:
        """Everything that matters of the configuration, but what a table compares."""
        values = self.config.items()
        return tuple(sorted((key, json.dumps(value, sort_keys=True)) for key, value in values if _matters(key)))

    @cached_property
    def method(self) -> str:
        """The delivery, with parameters of its own that are not the default: `mixup (mixup_alpha 0.4)`."""
        known = SoftLabelConfig.__dataclass_fields__
        own = {key: self.config.get(key) for key in OF_A_DELIVERY.get(self.delivery, ())}
        changed = [f"{key} {value}" for key, value in own.items() if value not in (None, known[key].default)]
        return self.delivery + (f" ({', '.join(changed)})" if changed else "")

    @property
    def eval_fingerprint(self) -> str | None:
        """Of the eval split's votes: paired runs have the same. None for streams."""
        parts = (self.metrics.get("votes_fingerprint") or "").split("-")
        return parts[1] if len(parts) > 1 else None

    @cached_property
    def class_names(self) -> list[str]:
        """The model's; numbers where it was not kept."""
        path = self.path / "model" / "config.json"
        if not path.exists():
            return [str(label) for label in range(self.predictions().values.shape[1])]
        config = _read_json(path)
        return [name for _, name in sorted((int(key), name) for key, name in config["id2label"].items())]

    def history(self) -> list[dict[str, Any]]:
        """The evaluations during training, in their order."""
        path = self.path / "history.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]

    @property
    def has_predictions(self) -> bool:
        """Whether more than the numbers was kept: not every data set lets votes be passed on."""
        return (self.path / "predictions.parquet").exists()

    def predictions(self) -> Predictions:
        """Of the eval split."""
        return read_predictions(self.path)


class Missing(NamedTuple):
    """A run that a grid names and that is not finished, or a directory whose run was cut off."""

    path: Path
    grid: str | None
    state: str


class Pair(NamedTuple):
    """Two runs, and what `hf-softlabel diagnose` measured between them."""

    first: Run
    second: Run
    results: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What lies below a folder.

    Args:
        runs: finished runs, each configuration once.
        missing: cells of grids, and directories, without a finished run.
        copies: runs of the same configuration as one of `runs`, each with the path of that one.
        pairs: pairs of `runs` that were compared.
    """

    folder: Path
    runs: list[Run]
    missing: list[Missing]
    copies: list[tuple[Path, Path]]
    pairs: list[Pair]


def _matters(key: str) -> bool:
    if key in COMPARED or key in _DELIVERY_KEYS or key in NOT_THE_RUN:
        return False
    return key == "dataloader_drop_last" or not key.startswith(NOT_THE_RUN_PREFIXES)


def find_runs(folder: str | Path) -> Found:
    """Every run below a folder, at any depth."""
    folder = Path(folder)
    if not folder.is_dir():
        raise VotesError(f"There is no folder {folder}.")
    runs: dict[Any, Run] = {}
    by_place: dict[Path, Any] = {}
    unfinished: dict[Path, Missing] = {}
    copies: list[tuple[Path, Path]] = []
    compared: list[dict[str, Any]] = []
    files = list(_candidates(folder))
    cells = _grid_cells(path for path in files if path.name == "grid.json")
    for path in files:
        if path.name == "grid.json":
            continue
        if path.name == "diagnostics.json":
            compared += _read_json(path).get("pairs", [])
            continue
        place = path.parent.resolve()
        run = _read_run(path.parent, cells.get(place))
        if isinstance(run, Missing):
            unfinished[place] = run
        elif run is not None:
            key = by_place[place] = _identity(run)
            first = runs.setdefault(key, run)
            if first is not run:
                copies.append((run.path, first.path))
                # The same run in another grid may have been measured there.
                runs[key] = replace(first, diagnostics={**run.diagnostics, **first.diagnostics})
    for place, grid in cells.items():
        if place not in by_place and place not in unfinished:
            unfinished[place] = Missing(folder / os.path.relpath(place, folder.resolve()), grid, "not started")
    ordered = sorted(runs.values(), key=lambda run: (run.setting, run.method, run.votes_per_example or 0, run.seed))
    missing = sorted(unfinished.values(), key=lambda one: one.path)
    return Found(
        folder, ordered, missing, copies, _pairs(compared, {place: runs[key] for place, key in by_place.items()})
    )


def _candidates(folder: Path) -> Iterable[Path]:
    """config.yaml of each run, what `diagnose` and `grid` wrote; checkpoints and models are not walked through."""
    for root, folders, files in os.walk(folder):
        is_run = "config.yaml" in files
        folders[:] = sorted(
            name for name in folders if not name.startswith((".", "checkpoint-")) and not (is_run and name in _INSIDE)
        )
        if "grid.json" in files:
            yield Path(root, "grid.json")
        if is_run:
            yield Path(root, "config.yaml")
            inside = Path(root, "diagnostics", "diagnostics.json")
            if inside.exists():
                yield inside
        elif "diagnostics.json" in files:
            yield Path(root, "diagnostics.json")


def _grid_cells(paths: Iterable[Path]) -> dict[Path, str]:
    """The directories of all cells of grids, with the grids' names."""
    cells = {}
    for path in paths:
        grid = _read_json(path)
        # Other programs write files of this name too.
        if isinstance(grid, dict) and "name" in grid and isinstance(grid.get("cells"), list):
            for cell in grid["cells"]:
                cells[(path.parent / cell["output_dir"]).resolve()] = grid["name"]
    return cells


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VotesError(f"There is no {path}, which a finished run has.") from None
    except json.JSONDecodeError as error:
        raise VotesError(f"{path} is not valid JSON ({error}): write it again, or move it away.") from None


def _read_run(path: Path, grid: str | None) -> Run | Missing | None:
    try:
        config = yaml.load((path / "config.yaml").read_text(encoding="utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    if not isinstance(config, dict) or not {"delivery", "dataset", "model", "seed"} <= config.keys():
        return None
    if not (path / "DONE").exists():
        return Missing(path, grid, "cut off")
    diagnostics = path / "diagnostics.json"
    measured = _read_json(diagnostics) if diagnostics.exists() else {}
    return Run(path, config, _read_json(path / "metrics.json"), measured, grid)


def _identity(run: Run) -> Any:
    return (run.setting, run.method, run.votes_per_example, run.resample_every, run.seed)


def _pairs(compared: Sequence[dict[str, Any]], by_place: dict[Path, Run]) -> list[Pair]:
    """Pairs whose both runs are here; measured again, the last one counts.

    Paths are as they were given to `diagnose`: seen from where that was called, or, when the folder has been moved
    since, told by the directory's name if only one run has it.
    """
    by_name: dict[str, set[int]] = {}
    known = list(by_place.items())
    for i, (place, _) in enumerate(known):
        by_name.setdefault(place.name, set()).add(i)

    def look_up(text: str) -> Run | None:
        place = Path(text).resolve()
        if place in by_place or place.exists():
            return by_place.get(place)
        same = by_name.get(place.name, set())
        return known[next(iter(same))][1] if len(same) == 1 else None

    pairs = {}
    for results in compared:
        first, second = look_up(results["first"]), look_up(results["second"])
        if first is not None and second is not None:
            pairs[frozenset((first.path, second.path))] = Pair(first, second, results)
    return list(pairs.values())


def by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only in what tables compare, by a name such as `cifar10h, resnet18, width 0.25, 20 epochs`.

    The setting with the most runs comes first. Those that would have one name are told apart by the keys in which
    they differ.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    ordered = sorted(groups.values(), key=len, reverse=True)
    names = [setting_name(group[0].config) for group in ordered]
    named = {}
    for name, group in zip(names, ordered, strict=True):
        alike = [dict(other[0].setting) for other, given in zip(ordered, names, strict=True) if given == name]
        keys = sorted({key for one in alike for key in one})
        differ = [key for key in keys if len({one.get(key) for one in alike}) > 1]
        named[name + "".join(f", {key} {group[0].config.get(key)}" for key in differ)] = group
    return named


def setting_name(config: dict[str, Any]) -> str:
    """Data, model and scale in a few words."""
    dataset = "/".join(str(config[key]) for key in ("dataset", "subset") if config.get(key))
    if config["dataset"] == "table" and config.get("sources"):
        dataset = Path(str(config["sources"])).name
    parts = [dataset, Path(str(config["model"])).name]
    if parts[1].startswith("resnet") and config.get("width"):
        parts.append(f"width {config['width']:g}")
    if config.get("train_size"):
        parts.append(f"{config['train_size']} training examples")
    if (config.get("max_steps") or -1) > 0:
        parts.append(f"{config['max_steps']} steps")
    else:
        parts.append(f"{config['num_train_epochs']:g} epochs")
    return ", ".join(parts)
