"""A grid of runs: a recipe, axes whose products are the cells, and a run directory for each cell.

```yaml
recipe: ../cifar10h/small/soft.yaml  # relative to this file; or an axis, with a list of recipes
output_dir: runs/sweep               # default: runs/<folder>-<grid file>
options:                             # for every cell; they win over the recipe
  num_train_epochs: 20
axes:                                # a product, or a list of such mappings: the union of their products
  delivery: [soft, sls]
  seed: [0, 1, 2, 3, 4]
```

Below `output_dir` lie `grid.json`, which lists the cells, a run directory for each, and `logs/`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..checkpoint import write_text_atomically
from ..config import (
    DataConfig,
    ModelConfig,
    SoftLabelConfig,
    UniqueKeyLoader,
    as_words,
    nearest_key,
    parse_recipe,
    recipe_keys,
    recipe_name,
    resolved,
)
from ..data.errors import VotesError

GRID_KEYS = ("recipe", "output_dir", "options", "axes")
GRID_FILE = "grid.json"
# File names have at most 255 bytes, and those of logs are a cell's name and an ending.
LONGEST_NAME = 180


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        name: the values on the axes, fit for a file name: `sls-votes_per_example5-seed0`.
        recipe: the recipe that it starts from.
        options: the keys that win over the recipe, but for `output_dir`.
        output_dir: its run directory.
    """

    name: str
    recipe: Path
    options: dict[str, Any]
    output_dir: Path


@dataclass(frozen=True)
class Grid:
    """All cells of a grid file, in the order of its axes; `axes` are mappings of a key to its values."""

    name: str
    path: Path
    output_dir: Path
    axes: tuple[dict[str, list[Any]], ...]
    cells: tuple[Cell, ...]


def read_grid(path: str | Path, arguments: Sequence[str] = ()) -> Grid:
    """Read a grid file, and parse every cell so that wrong input stops before the first one starts.

    Args:
        arguments: words of the command line, `--KEY VALUE`; they win over all but the axes.
    """
    path = Path(path)
    values = _read(path)
    given = _options_of(arguments)
    output_dir = Path(given.pop("output_dir", None) or values["output_dir"] or f"runs/{recipe_name(path)}")
    axes = _axes(path, values["axes"])
    common = {**values["options"], **given}
    if any("hub_token" in keys for keys in (common, *axes)):
        # It would stand in grid.json, in logs, and in every cell's list of words.
        raise VotesError(f"{path}: a grid takes no hub_token. Log in with `hf auth login`, or set HF_TOKEN.")
    for key in dict.fromkeys(key for product in axes for key in product):
        if key in common:
            where = "the command line" if key in given else "options"
            raise VotesError(f"{path}: {key} is an axis and stands in {where} too. Leave it out of one of them.")
    if all("recipe" in product for product in axes) == (values["recipe"] is not None):
        raise VotesError(f"{path} needs one `recipe`, either for all cells or in `axes`, as a list of recipes.")
    cells = [_cell(path, values["recipe"], common, point, output_dir) for point in _points(axes)]
    _check(path, cells)
    return Grid(recipe_name(path), path, output_dir, axes, tuple(cells))


def cell_command(cell: Cell, launcher: Sequence[str] = ()) -> list[str]:
    """The words that train a cell; a launcher such as `accelerate launch --num_processes 4` comes first."""
    start = [*launcher, "-m"] if launcher else [sys.executable, "-m"]
    words = _cell_words(cell)
    return [*start, "hf_softlabel", "train", str(cell.recipe), *words, f"--output_dir={cell.output_dir}"]


def cell_environment(grid: Grid, cell: Cell) -> dict[str, str]:
    """What a cell's process finds in its environment: the grid that it belongs to, and where to say how far it is."""
    return {
        "HF_SOFTLABEL_GRID": grid.name,
        "HF_SOFTLABEL_PROGRESS": str(log_file(grid, cell, ".progress.json")),
        # Logs are read when something went wrong: no progress bars, and nothing lost in a buffer.
        "TQDM_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def log_file(grid: Grid, cell: Cell, ending: str = ".log") -> Path:
    """A file beside a cell's log."""
    return grid.output_dir / "logs" / (cell.name + ending)


def is_done(cell: Cell) -> bool:
    """Whether a cell's run is finished."""
    return (cell.output_dir / "DONE").exists()


def refuse_changed_runs(grid: Grid) -> None:
    """Raise [`VotesError`] where a cell's directory holds a run with other settings than the cell has now."""
    begun = [cell for cell in grid.cells if (cell.output_dir / "config.yaml").exists()]
    if not begun:
        return
    from ..run import changed_keys, run_config

    for cell in begun:
        configs = cell_configs(cell)
        before = run_config(cell.output_dir)
        changed = changed_keys(before, resolved(*configs)) if before else []
        if changed and (is_done(cell) or not configs[2].allow_changed_resume):
            raise VotesError(
                f"{grid.path}, cell {cell.name}: {cell.output_dir} holds a run with another configuration (different: "
                f"{', '.join(changed)}). Choose another --output_dir for the grid, or remove that folder."
            )


def write_grid(grid: Grid) -> None:
    """Write `grid.json`, from which a report knows the cells that were not run."""
    grid.output_dir.mkdir(parents=True, exist_ok=True)
    cells = [
        {
            "name": cell.name,
            "output_dir": os.path.relpath(cell.output_dir, grid.output_dir),
            "recipe": str(cell.recipe),
            "options": cell.options,
        }
        for cell in grid.cells
    ]
    content = {"name": grid.name, "grid": grid.path.name, "axes": list(grid.axes), "cells": cells}
    write_text_atomically(grid.output_dir / GRID_FILE, json.dumps(content, indent=1, default=str))


def _read(path: Path) -> dict[str, Any]:
    """The four keys of a grid file."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), UniqueKeyLoader)
    except OSError as error:
        raise VotesError(f"The grid {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise VotesError(f"The grid {path} cannot be read: it is not a text file in UTF-8.") from None
    except yaml.YAMLError as error:
        raise VotesError(f"{path} is not valid YAML: {error}") from None
    except VotesError as error:
        raise VotesError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise VotesError(f"{path} must have the keys {', '.join(GRID_KEYS)}.")
    if "axes" not in values and values.keys() & recipe_keys():
        raise VotesError(f"{path} is a recipe, for `hf-softlabel train`: a grid has a `recipe` and `axes`.")
    for key in values:
        if key not in GRID_KEYS:
            inside = " In a grid it stands under `options` or `axes`." if key in recipe_keys() else ""
            raise VotesError(f"{path}: unknown key {key!r}. {inside or nearest_key(str(key), GRID_KEYS)}")
    options = values.get("options") or {}
    if not isinstance(options, dict):
        raise VotesError(f"{path}: options must be `key: value` lines, not a {type(options).__name__}.")
    _check_keys(path, "options", options)
    return {**dict.fromkeys(GRID_KEYS), **values, "options": options}


def _check_keys(path: Path, where: str, mapping: dict[str, Any]) -> None:
    for key in mapping:
        if key == "output_dir":
            raise VotesError(f"{path}: output_dir stands beside {where}, not in it: every cell has a folder there.")
        if key not in recipe_keys() and not (key == "recipe" and where == "axes"):
            raise VotesError(f"{path}: unknown key {key!r} in {where}. {nearest_key(str(key), recipe_keys())}")


def _axes(path: Path, axes: Any) -> tuple[dict[str, list[Any]], ...]:
    """The axes as a list of products, checked."""
    products = axes if isinstance(axes, list) else [axes]
    if not products or not all(isinstance(product, dict) and product for product in products):
        raise VotesError(f"{path}: axes must be lines of `key: [value, ...]`, or a list of such mappings.")
    for product in products:
        _check_keys(path, "axes", product)
        for key, values in product.items():
            if not isinstance(values, list) or not values:
                raise VotesError(f"{path}: the axis {key} must be a list of at least one value, not {values!r}.")
    return tuple(products)


def _points(axes: Sequence[dict[str, list[Any]]]) -> Iterator[dict[str, Any]]:
    """Every combination of the axes' values, the last axis running fastest."""
    for product in axes:
        for values in itertools.product(*product.values()):
            yield dict(zip(product, values, strict=True))


def _options_of(arguments: Sequence[str]) -> dict[str, Any]:
    """`--key value`, `--key=value`, `--key a b` and `--flag` as a mapping."""
    found: dict[str, list[str]] = {}
    key = None
    for word in arguments:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            if key not in recipe_keys():
                raise VotesError(f"Unknown argument {word!r}. {nearest_key(key, recipe_keys())}")
            found[key] = [value] if equals else []
        elif key is None:
            raise VotesError(f"Unknown argument {word!r}: options are written --KEY VALUE.")
        else:
            found[key].append(word)
    return {
        key: _value(words[0]) if len(words) == 1 else [_value(word) for word in words] or True
        for key, words in found.items()
    }


def _value(word: str) -> Any:
    """A word as the number, truth value or mapping that it is, if that has no other spelling."""
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, (dict, bool)) or str(value) == word else word


def _cell(path: Path, recipe: str | None, common: dict[str, Any], point: dict[str, Any], output_dir: Path) -> Cell:
    options = {**common, **point}
    recipe = str(options.pop("recipe", recipe))
    file = Path(os.path.normpath(path.parent / recipe))
    name = _name({**point, "recipe": recipe_name(file)} if "recipe" in point else point)
    return Cell(name, file, options, output_dir / name)


def _name(point: dict[str, Any]) -> str:
    """A point on the axes as a file name: the recipe first, then the axes in their order."""
    parts = [point["recipe"]] if "recipe" in point else []
    for key, value in point.items():
        if key != "recipe":
            text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(text if key == "delivery" else f"{key}{text}")
    name = re.sub(r"[^\w.,+=-]+", "_", "-".join(parts))
    if len(name.encode()) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME // 4]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return name


def _cell_words(cell: Cell) -> list[str]:
    # `null` and `[]` have no form on the command line: `_check` sees that the recipe has them anyway.
    return [word for key, value in cell.options.items() if value not in (None, []) for word in as_words(key, value)]


def cell_configs(cell: Cell) -> tuple[ModelConfig, DataConfig, SoftLabelConfig]:
    return parse_recipe(cell.recipe, [*_cell_words(cell), f"--output_dir={cell.output_dir}"])


def _check(path: Path, cells: Sequence[Cell]) -> None:
    """Parse every cell, and refuse two that are the same run or have the same name."""
    seen: dict[str, str] = {}
    for cell in cells:
        try:
            configs = cell_configs(cell)
            configs[2].make_delivery()
        except VotesError as error:
            raise VotesError(f"{path}, cell {cell.name}: {error}") from None
        parsed = {key: value for config in configs for key, value in vars(config).items() if key in cell.options}
        for key, value in cell.options.items():
            if value in (None, []) and parsed[key] not in (None, []):
                raise VotesError(
                    f"{path}, cell {cell.name}: {key} is {parsed[key]!r} in {cell.recipe} or by default, and a grid "
                    "cannot set it to nothing. Leave it out of the recipe, or give it a value here."
                )
        same = json.dumps([str(cell.recipe.resolve()), parsed], sort_keys=True, default=str)
        for mark, what in ((same, "the same run as"), (f"name {cell.name}", "named like")):
            if mark in seen:
                raise VotesError(f"{path}: the cell {cell.name} is {what} {seen[mark]}. Each cell must occur once.")
            seen[mark] = cell.name
