"""`hf-softlabel report` on 200 run directories: 2,000 held-out and training examples of 10 classes in each.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/report.py

The directories are those of the tests, with made-up numbers: four deliveries at four K with five seeds, eight
deliveries at full votes with ten, and four at another number of epochs with ten. Prints and writes the seconds.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from pathlib import Path

from tqdm.auto import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from run_directories import write_run

from hf_softlabel.experiments.report import build_report, write_report

RESULTS = Path(__file__).parent / "results" / "report.csv"
FAMILY = ("soft", "sls", "multipass", "deterministic_control")
EVERY = (*FAMILY, "majority", "label_smoothing", "mixup", "shuffled_sls")


def make_runs(root: Path, examples: int) -> int:
    cells = [(d, seed, {"votes_per_example": k}) for d in FAMILY for k in (5, 10, 25, 50) for seed in range(5)]
    cells += [(d, seed, {}) for d in EVERY for seed in range(10)]
    cells += [(d, seed, {"num_train_epochs": 40.0}) for d in FAMILY for seed in range(10)]
    names = tuple(f"class {k}" for k in range(10))
    for i, (delivery, seed, options) in enumerate(tqdm(cells, "making runs")):
        write_run(root / f"{i:03}", delivery, seed, examples=examples, classes=names, **options)
    return len(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=2000, help="in each run (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = make_runs(Path(folder) / "runs", options.examples)
        start = time.perf_counter()
        report = build_report(Path(folder) / "runs")
        built = time.perf_counter()
        write_report(report, Path(folder) / "report")
        end = time.perf_counter()
        size = (Path(folder) / "report" / "report.html").stat().st_size
    row = {"runs": runs, "examples": options.examples, "build_seconds": f"{built - start:.1f}"}
    row |= {
        "write_seconds": f"{end - built:.1f}",
        "total_seconds": f"{end - start:.1f}",
        "page_mb": f"{size / 1e6:.1f}",
    }
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)
    print(row)


if __name__ == "__main__":
    main()
