"""Benchmarks against named peers: all of them, or those that are named.

    make bench
    make bench NAMES="labels images"
    OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks labels --scale 0.01 --output /tmp/bench

Every benchmark runs in a process of its own, with one thread. It writes results/NAME.json, and all results together
make the tables in results/README.md. The exit code is 1 if a target was missed, and 2 if a benchmark crashed: that one
has no rows then, not even those of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from .table import markdown

HERE = Path(__file__).parent
NAMES = ("images", "steps", "epochs", "labels", "hessian", "knn", "scores", "imports", "grid", "text", "report")


MET, MISSED, CRASHED = 0, 1, 2


def measure(name: str, scale: float, output: Path) -> int:
    """Run one benchmark in this process and write its rows; the exit code."""
    path = output / f"{name}.json"
    output.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    rows = []
    try:
        for row in import_module(f"benchmarks.{name}").rows(scale):
            rows.append(row.as_json())
            against = f"{row.target}: {'met' if row.met else 'MISSED'}" if row.target else "reported"
            print(f"  {row.name} | {row.peer} | {row.ratio:.3g} {row.unit} | {against}", flush=True)
    except Exception:
        traceback.print_exc()
        return CRASHED
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return MISSED if any(row["met"] is False for row in rows) else MET


def measure_apart(name: str, scale: float, output: Path) -> int:
    """The same in a process of its own."""
    start = time.perf_counter()
    words = [name, "--scale", str(scale), "--output", str(output)]
    code = subprocess.run([sys.executable, "-m", "benchmarks", *words]).returncode
    print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    if code in (MET, MISSED):
        return code
    print(f"  {name} CRASHED, and has no rows", flush=True)
    (output / f"{name}.json").unlink(missing_ok=True)  # of a process that was killed before it began
    return CRASHED


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes; results are only meant at 1")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="(default: benchmarks/results)")
    options = parser.parse_args(words)
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r} among {', '.join(NAMES)}")
    if options.scale != 1 and options.output == HERE / "results":
        parser.error("results of another scale are not for benchmarks/results: give --output")
    os.environ["OMP_NUM_THREADS"] = "1"
    if len(options.names) == 1:
        code = measure(options.names[0], options.scale, options.output)
    else:
        code, names = MET, options.names or NAMES
        for number, name in enumerate(names, 1):
            print(f"{number}/{len(names)} {name}", flush=True)
            code = max(code, measure_apart(name, options.scale, options.output))
    (options.output / "README.md").write_text(markdown(options.output, NAMES), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
