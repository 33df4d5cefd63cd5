"""`hf-softlabel report` on 200 run directories of 2,000 held-out examples each, beside reading their files.

The directories are those of the tests, with made-up numbers: four deliveries at four K with five seeds, eight
deliveries at full votes with ten, and four at another number of epochs with ten. There is no peer; what is reported is
how the time compares with reading all metrics and predictions once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from hf_softlabel.experiments.report import build_report, write_report

from .measure import Row, alternate

FAMILY = ("soft", "sls", "multipass", "deterministic_control")
EVERY = (*FAMILY, "majority", "label_smoothing", "mixup", "shuffled_sls")
EXAMPLES = 2000


def rows(scale: float) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        runs, report = Path(folder) / "runs", Path(folder) / "report"
        examples = max(50, int(EXAMPLES * scale))
        number = make_runs(runs, examples, scale)
        times = alternate(lambda: make_report(runs, report), lambda: read_runs(runs), rounds=1)
        page = (report / "report.html").stat().st_size
    row = times.row(
        "hf-softlabel report",
        "reading the metrics and predictions of all runs once",
        "times as long",
        sizes={"runs": number, "examples each": examples, "bytes of the page": page},
    )
    row.sizes["seconds per run"] = round(row.seconds["ours"] / number, 3)
    yield row


def make_runs(root: Path, examples: int, scale: float) -> int:
    """Write the run directories; with a smaller scale those of fewer seeds."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from run_directories import write_run

    five, ten = (range(max(2, round(seeds * scale))) for seeds in (5, 10))
    cells = [(d, seed, {"votes_per_example": k}) for d in FAMILY for k in (5, 10, 25, 50) for seed in five]
    cells += [(d, seed, {}) for d in EVERY for seed in ten]
    cells += [(d, seed, {"num_train_epochs": 40.0}) for d in FAMILY for seed in ten]
    names = tuple(f"class {k}" for k in range(10))
    for i, (delivery, seed, options) in enumerate(cells):
        write_run(root / f"{i:03}", delivery, seed, examples=examples, classes=names, **options)
    return len(cells)


def make_report(runs: Path, folder: Path) -> None:
    write_report(build_report(runs), folder)


def read_runs(runs: Path) -> None:
    for run in runs.iterdir():
        json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        pq.read_table(run / "predictions.parquet")
