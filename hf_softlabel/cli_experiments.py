"""The sub-commands `grid` and `report`: from one recipe to many runs, and from runs to a report."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from typing import Any

from .cli_help import GRID_DESCRIPTION, GRID_EXAMPLES, REPORT_DESCRIPTION, REPORT_EXAMPLES
from .data.errors import VotesError


def add_grid(commands: Any, style: dict[str, Any]) -> None:
    """The options of `grid`, which takes every key of a recipe besides."""
    grid = commands.add_parser(
        "grid",
        help="run a recipe with every combination of deliveries, seeds and other settings",
        description=GRID_DESCRIPTION,
        epilog=GRID_EXAMPLES,
        usage="hf-softlabel grid GRID.yaml [options] [--KEY VALUE ...]",
        allow_abbrev=False,
        **style,
    )
    grid.add_argument("grid", metavar="GRID.yaml", help="a base recipe and axes")
    grid.add_argument("--jobs", type=int, metavar="N", help="cells at once (default: one per GPU, else per core)")
    grid.add_argument("--launcher", default="", metavar="WORDS", help="what starts a cell: 'accelerate launch ...'")
    grid.add_argument(
        "--retries", type=int, default=2, metavar="N", help="start a killed cell again so often (default: %(default)s)"
    )
    grid.add_argument("--dry_run", "--dry-run", action="store_true", help="list the cells and what they would cost")
    grid.add_argument("--executor", choices=("local", "slurm"), default="local", help="(default: %(default)s)")
    grid.add_argument("--slurm", nargs="+", default=[], metavar="KEY=VALUE", help="slurm: what a job asks for")
    grid.add_argument("--no_wait", action="store_true", help="slurm: submit the jobs and return")


def add_report(commands: Any, style: dict[str, Any]) -> None:
    """The options of `report`."""
    report = commands.add_parser(
        "report",
        help="tables, figures and a page from run directories",
        description=REPORT_DESCRIPTION,
        epilog=REPORT_EXAMPLES,
        **style,
    )
    report.add_argument("runs", metavar="RUNS_DIR", help="a folder with run directories at any depth")
    report.add_argument("--output_dir", metavar="DIR", help="where the report goes (default: RUNS_DIR/report)")
    report.add_argument("--title", help="of the page (default: from the folder's name)")
    report.add_argument("--wandb", metavar="ENTITY/PROJECT", help="make a W&B Report of the runs too")


def show(text: str) -> None:
    """Print a text, without its arrows where the terminal or the pipe cannot show them."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate({ord("↓"): "v", ord("↑"): "^"})
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    print(text)


def run_grid(options: argparse.Namespace) -> int:
    if options.words and not options.words[0].startswith("-"):
        raise VotesError("The grid comes first, and options after it: hf-softlabel grid GRID.yaml --KEY VALUE")
    for name, least in (("jobs", 1), ("retries", 0)):
        if getattr(options, name) is not None and getattr(options, name) < least:
            raise VotesError(f"--{name} must be at least {least}, not {getattr(options, name)}.")
    if options.executor == "local" and (options.slurm or options.no_wait):
        raise VotesError("--slurm and --no_wait are for --executor slurm.")
    launcher = shlex.split(options.launcher)
    if launcher and shutil.which(launcher[0]) is None:
        raise VotesError(f"--launcher: there is no program {launcher[0]!r}.")
    from .experiments.grid import read_grid, refuse_changed_runs, write_grid
    from .experiments.launch import LocalRun, default_jobs

    grid = read_grid(options.grid, options.words)
    refuse_changed_runs(grid)
    jobs = options.jobs or default_jobs(len(grid.cells), launcher)
    if options.dry_run:
        from .experiments.cost import dry_run

        show(dry_run(grid, jobs, launcher))
        return 0
    if options.executor == "slurm":
        from .experiments.slurm import SlurmRun, parse_parameters

        slurm = SlurmRun(grid, parse_parameters(options.slurm, options.jobs), launcher, options.retries)
        write_grid(grid)
        return slurm.run(wait=not options.no_wait)
    write_grid(grid)
    return LocalRun(grid, jobs, launcher, options.retries).run()


def run_report(options: argparse.Namespace) -> int:
    from .experiments.report import build_report, check_output, write_report

    folder = options.output_dir or os.path.join(options.runs, "report")
    check_output(folder)
    publish = None
    if options.wandb:
        from .experiments.wandb_report import check_login, publish_report

        # Before the work, which takes a minute.
        check_login(options.wandb)
        publish = publish_report
    report = build_report(options.runs, options.title, progress=True, earlier=folder)
    files = write_report(report, folder, progress=True)
    for finding in report.findings:
        show(f"- {finding}")
    for note in report.notes:
        show(note)
    if report.missing:
        print(f"{len(report.missing)} runs are missing: they are listed in the report.")
    print(f"{len(files)} files of {len(report.runs)} runs in {folder}: open {os.path.join(folder, 'report.html')}")
    if publish is not None:
        summary = "\n".join(f"- {finding}" for finding in report.findings)
        print(f"W&B Report: {publish(report.runs, options.wandb, report.title, summary)}")
    return 0
