"""`hf-softlabel grid` with two cells at once against a shell loop over the same runs, each with one thread."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from .measure import Row, alternate

RECIPE = Path(__file__).parents[1] / "recipes" / "synthetic" / "soft.yaml"
DELIVERIES, SEEDS, EPOCHS, JOBS = ("soft", "sls", "multipass", "majority"), 2, 20, 2


def rows(scale: float) -> Iterator[Row]:
    deliveries, seeds, epochs = (max(1, round(number * scale)) for number in (len(DELIVERIES), SEEDS, EPOCHS))
    cells = list(product(DELIVERIES[:deliveries], range(seeds)))
    with TemporaryDirectory() as folder:
        together, loop = Path(folder) / "grid", Path(folder) / "loop"
        times = alternate(lambda: run_grid(together, cells, epochs), lambda: run_loop(loop, cells, epochs), rounds=1)
        if (found := labels_and_scores(together)) != labels_and_scores(loop) or len(found) != len(cells):
            raise AssertionError("the grid's runs are not those of the loop")
    yield times.row(
        f"a grid of {len(cells)} cells, {JOBS} at once",
        "a shell loop, one after another",
        "times as fast",
        ">= 1.6",
        sizes={"cells": len(cells), "epochs": epochs, "processes at once": JOBS},
        checked="the same labels (ledger_digest) and the same soft NLL in every run",
    )


def command() -> str:
    return str(Path(sys.executable).with_name("hf-softlabel"))


def run_grid(folder: Path, cells: list[tuple[str, int]], epochs: int) -> None:
    folder.mkdir()
    deliveries, seeds = zip(*cells, strict=True)
    grid = {
        "recipe": str(RECIPE),
        "output_dir": str(folder / "runs"),
        "options": {"num_train_epochs": epochs},
        "axes": {"delivery": list(dict.fromkeys(deliveries)), "seed": list(dict.fromkeys(seeds))},
    }
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid), encoding="utf-8")
    words = [command(), "grid", folder / "grid.yaml", "--jobs", str(JOBS)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_loop(folder: Path, cells: list[tuple[str, int]], epochs: int) -> None:
    words = f"{shlex.quote(command())} train {shlex.quote(str(RECIPE))} --num_train_epochs {epochs}"
    names = " ".join(f"{delivery}:{seed}" for delivery, seed in cells)
    script = f"""
    set -e
    for cell in {names}; do
        {words} --delivery "${{cell%:*}}" --seed "${{cell#*:}}" --output_dir {shlex.quote(str(folder))}/"$cell"
    done
    """
    subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def labels_and_scores(folder: Path) -> dict[tuple[str, int], tuple[str, float]]:
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("metrics.json")]
    return {(run["delivery"], run["seed"]): (run["ledger_digest"], run["soft_nll"]) for run in runs}
