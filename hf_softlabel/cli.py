"""The `hf-softlabel` command. Sub-commands import what they need when they run, so that --help is instant."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .cli_data import add_data, run_data
from .cli_doctor import add_doctor, is_recipe, run_doctor
from .cli_experiments import add_grid, add_report, run_grid, run_report, show
from .cli_help import (
    CALIBRATE_DESCRIPTION,
    CALIBRATE_EXAMPLES,
    DESCRIPTION,
    DIAGNOSE_DESCRIPTION,
    DIAGNOSE_EXAMPLES,
    EXAMPLES,
    SCORE_DESCRIPTION,
    SCORE_EXAMPLES,
    TRAIN_HELP,
)
from .cli_hub import add_push, run_push
from .cli_votes import add_reading, votes_source
from .data.errors import VotesError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code: 0, 1 for what it found or could not finish, 2 for wrong input."""
    parser, run = _parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = parser.parse_known_args(words)
    if options.command == "train":
        # The recipe's keys are parsed by config.py: there are two hundred of them.
        rest = words[: words.index("train")]
        options.words = words[words.index("train") + 1 :]
    elif options.command == "grid":
        options.words, rest = rest, []
    elif options.command == "doctor" and is_recipe(options.target):
        options.words, rest = words, []
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code = run[options.command](options)
        sys.stdout.flush()
        return code
    except VotesError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"hf-softlabel: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `| head` has read enough. What is left in the buffer must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        # A full disk, a folder that cannot be written to: nothing that a traceback would explain better.
        print(f"hf-softlabel: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resumes = options.command in ("train", "grid")
        more = " The same command goes on from the last checkpoint." if resumes else ""
        print(f"hf-softlabel: interrupted.{more}", file=sys.stderr)
        return 130


def _parser() -> tuple[argparse.ArgumentParser, dict[str, Callable[[argparse.Namespace], int]]]:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="hf-softlabel", description=DESCRIPTION, epilog=EXAMPLES, **style)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="train four deliveries on generated votes and compare them")
    demo.add_argument("--output_dir", default="runs/demo", help="where tables and figure go (default: %(default)s)")
    demo.add_argument("--seeds", type=int, default=2, help="runs of each delivery (default: %(default)s)")
    commands.add_parser("train", help="train the model of a recipe", add_help=False)
    add_doctor(commands, style)
    add_grid(commands, style)
    score = commands.add_parser(
        "score",
        help="score predictions of any program against votes",
        description=SCORE_DESCRIPTION,
        epilog=SCORE_EXAMPLES,
        **style,
    )
    score.add_argument("--predictions", nargs="+", required=True, metavar="FILE", help="one, or several to compare")
    _add_data(score)
    score.add_argument("--train_votes", metavar="DATA", help="votes whose mean is a reference; read as --votes is")
    scaling = score.add_mutually_exclusive_group()
    scaling.add_argument("--temperature", type=float, nargs="+", metavar="T", help="divide the logits by T")
    scaling.add_argument("--scaling", nargs="+", metavar="FILE", help="scaling.json, or a model's folder or Hub id")
    score.add_argument("--vote_coverage", metavar="FILE", help="vote_coverage.json: measure its sets (before scaling)")
    score.add_argument("--ordinal", action="store_true", help="classes are steps of a scale: adds Wasserstein")
    score.add_argument("--resamples", type=int, default=1000, help="for intervals; 0 for none (default: %(default)s)")
    score.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)")
    score.add_argument("--json", action="store_true", help="print JSON instead of a table")
    score.add_argument("--plot", metavar="DIR", help="draw reliability, entropies and examples into this folder")
    calibrate = commands.add_parser(
        "calibrate",
        help="fit a temperature, vector scaling and vote-coverage sets to votes",
        description=CALIBRATE_DESCRIPTION,
        epilog=CALIBRATE_EXAMPLES,
        **style,
    )
    calibrate.add_argument("--predictions", required=True, metavar="FILE", help="on the calibration split")
    _add_data(calibrate)
    calibrate.add_argument(
        "--method", choices=("temperature", "vector"), default="temperature", help="(default: %(default)s)"
    )
    calibrate.add_argument(
        "--coverage", type=float, default=0.9, help="share of annotators that sets cover (default: %(default)s)"
    )
    calibrate.add_argument("--output", default=".", metavar="DIR", help="where the files go (default: here)")
    diagnose = commands.add_parser(
        "diagnose",
        help="Hessian, OOD detection and representations of finished runs",
        description=DIAGNOSE_DESCRIPTION,
        epilog=DIAGNOSE_EXAMPLES,
        **style,
    )
    diagnose.add_argument("runs", nargs="+", metavar="RUN", help="directories of finished runs")
    diagnose.add_argument("--no_hessian", action="store_true", help="leave the Hessian out, which takes the longest")
    diagnose.add_argument("--rtol", type=float, default=0.05, help="relative error to reach (default: %(default)s)")
    diagnose.add_argument("--hessian_examples", type=int, metavar="N", help="of the first N eval examples only")
    diagnose.add_argument("--ood", nargs="+", default=(), metavar="NAME=SOURCE", help="OOD sets")
    diagnose.add_argument("--ood_examples", type=int, metavar="N", help="N examples of each OOD set")
    diagnose.add_argument("--slice", type=float, default=0.1, help="high-disagreement share (default: %(default)s)")
    diagnose.add_argument("--points", type=int, default=11, help="on the line between two runs (default: %(default)s)")
    diagnose.add_argument("--sources", help="where the votes lie now, if not where they were")
    diagnose.add_argument("--ood_sources", help="folder with the authors' files, for OOD sets such as popquorn")
    diagnose.add_argument("--output_dir", metavar="DIR", help="for numbers and pictures (default: RUN/diagnostics)")
    add_report(commands, style)
    add_push(commands, style)
    add_data(commands, style)
    return parser, {
        "demo": _demo,
        "train": _train,
        "doctor": run_doctor,
        "grid": run_grid,
        "report": run_report,
        "push": run_push,
        "data": run_data,
        "score": _score,
        "calibrate": _calibrate,
        "diagnose": _diagnose,
    }


def _add_data(parser: argparse.ArgumentParser) -> None:
    """Where the votes are, and how to read the predictions."""
    votes = parser.add_argument_group("votes")
    votes.add_argument("--votes", metavar="DATA", help="cifar10h, chaosnli, popquorn, a table, a Hub id")
    add_reading(votes)
    reading = parser.add_argument_group("predictions")
    reading.add_argument("--id_column", help="the column that matches predictions with votes, in both")
    reading.add_argument("--column", help="the column with the predictions")
    reading.add_argument("--classes", nargs="+", metavar="NAME", help="the classes in the order of the file's lists")
    reading.add_argument("--logits", action="store_true", help="they are logits, though no column's name says so")
    reading.add_argument("--normalize", action="store_true", help="divide rounded probabilities by their sum")


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "order": options.classes,
        "id_column": options.id_column,
        "column": options.column,
        "logits": True if options.logits else None,
        "normalize": options.normalize,
    }


def _demo(options: argparse.Namespace) -> int:
    from .demo import run_demo

    run_demo(options.output_dir, options.seeds)
    return 0


def _score(options: argparse.Namespace) -> int:
    from .conformal import VoteCoverage
    from .scaling import Scaling
    from .score import score_predictions
    from .score_table import as_json, format_scores, plot_scores

    if options.resamples < 0:
        raise VotesError(f"--resamples must not be negative, as {options.resamples} is; 0 is for none.")
    for temperature in options.temperature or ():
        if not 0 < temperature < math.inf:
            raise VotesError(f"--temperature must be above 0 and finite, not {temperature}.")
    if options.plot and os.path.exists(options.plot) and not os.path.isdir(options.plot):
        raise VotesError(f"--plot {options.plot} is a file: name a folder for the pictures.")
    for path in options.scaling or ():
        if path.endswith(".json") and not os.path.exists(path):
            raise VotesError(f"There is no file {path}.")  # and no use in asking the Hub for it
    scalings = [Scaling(scale=1 / t, bias=None, examples=0) for t in options.temperature or ()]
    scalings += [Scaling.load(_model_folder(path)) for path in options.scaling or ()]
    sets = VoteCoverage.load(_model_folder(options.vote_coverage)) if options.vote_coverage else None
    scored = score_predictions(
        options.predictions,
        votes_source(options, options.votes, options.split),
        votes_source(options, options.train_votes),
        scalings,
        sets,
        ordinal=options.ordinal,
        resamples=options.resamples,
        seed=options.seed,
        progress=True,
        **_reading(options),
    )
    if options.json:
        print(json.dumps(as_json(scored), indent=1, allow_nan=False))
    else:
        show(format_scores(scored))
    if options.plot:
        files = plot_scores(scored, options.plot)
        print(f"{len(files)} pictures in {options.plot}", file=sys.stderr)
    return 0


def _model_folder(path: str) -> str:
    """A run directory's model, which such files lie beside; else the path itself."""
    model = os.path.join(path, "model")
    return model if os.path.isdir(model) else path


def _calibrate(options: argparse.Namespace) -> int:
    from .calibrate import calibrate_predictions

    text = calibrate_predictions(
        options.predictions,
        votes_source(options, options.votes, options.split),
        options.method,
        options.coverage,
        options.output,
        **_reading(options),
    )
    show(text)
    return 0


def _diagnose(options: argparse.Namespace) -> int:
    from .diagnose import DiagnoseOptions, diagnose, format_diagnosis
    from .diagnose_figures import plot_diagnosis

    chosen = DiagnoseOptions(
        hessian=not options.no_hessian,
        rtol=options.rtol,
        hessian_examples=options.hessian_examples,
        ood_sets=tuple(options.ood),
        ood_examples=options.ood_examples,
        slice_share=options.slice,
        points=options.points,
        sources=options.sources,
        ood_sources=options.ood_sources,
    )
    folder = options.output_dir or (
        os.path.join(options.runs[0], "diagnostics") if len(options.runs) == 1 else "diagnostics"
    )
    diagnosis = diagnose(options.runs, chosen, folder)
    if diagnosis.runs[0].trainer.args.process_index == 0:
        print(format_diagnosis(diagnosis))
        plot_diagnosis(diagnosis, folder)
        print(f"written to {folder}")
    return 0


def _train(options: argparse.Namespace) -> int:
    words = options.words
    if not words or "-h" in words or "--help" in words:
        print(TRAIN_HELP, end="")
        return 0 if words else 2
    if "--keys" in words:
        from .config import describe_keys

        print(describe_keys())
        return 0
    if words[0].startswith("-"):
        raise VotesError(f"The recipe comes first: hf-softlabel train RECIPE.yaml {' '.join(words)}")
    from .experiments.cell_lock import join

    # Before the imports, which take seconds: from now on a grid knows that this process is at work.
    join()
    from .config import parse_recipe, recipe_name
    from .run import run_recipe, summary

    overwrite = "--overwrite" in words
    configs = parse_recipe(words[0], [word for word in words[1:] if word != "--overwrite"])
    metrics = run_recipe(*configs, overwrite=overwrite, recipe=recipe_name(words[0]))
    if configs[2].process_index == 0:
        print(summary(metrics, configs[2].output_dir))
    return 0
