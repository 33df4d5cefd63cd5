"""The `hf-softlabel` command. Sub-commands import what they need when they run, so that --help is instant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .data.errors import VotesError

DESCRIPTION = "Learn from annotator votes: train, compare and measure."
EXAMPLES = """examples:
  hf-softlabel demo
  hf-softlabel train recipes/cifar10h/multipass.yaml --seed 3 --num_train_epochs 5
  accelerate launch --num_processes 4 -m hf_softlabel train recipes/cifar10h/multipass.yaml
"""
TRAIN_HELP = """usage: hf-softlabel train RECIPE.yaml [--KEY VALUE ...] [--overwrite] [--keys]

Train the model of a recipe and write a run directory: config.yaml, metrics.json, history.jsonl, predictions.parquet,
model/, and DONE as the last. A run that was cut off goes on from its last whole checkpoint when it is started again.

RECIPE.yaml holds `key: value` lines. Every key can be given as an option, which wins over the recipe:
  --delivery NAME           soft, sls, multipass, deterministic_control, shuffled_sls, majority, label_smoothing,
                            mixup, posterior_sls
  --dataset NAME            cifar10h, chaosnli, popquorn, synthetic, table (with --subset, --sources)
  --votes_per_example K     train on K votes for each example, drawn from all
  --model NAME              resnet18, resnet34, or any Hub id or folder; --width for our ResNets
  --seed N                  split, subsample, initial weights, order of the data and label stream
  --output_dir DIR          default: runs/<folder>-<recipe>-seed<N>
  ... and every field of transformers.TrainingArguments.

  --overwrite               start anew where a run directory exists already
  --keys                    list every key with its default and meaning, and stop

examples:
  hf-softlabel train recipes/synthetic/sls.yaml
  hf-softlabel train recipes/cifar10h/small/multipass.yaml --seed 3 --num_train_epochs 5
  hf-softlabel train recipes/chaosnli/soft.yaml --sources ~/votes --votes_per_example 5
  accelerate launch --num_processes 4 -m hf_softlabel train recipes/cifar10h/multipass.yaml
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code: 0, or 2 for input that is wrong."""
    parser = argparse.ArgumentParser(
        prog="hf-softlabel",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="train four deliveries on generated votes and compare them")
    demo.add_argument("--output_dir", default="runs/demo", help="where tables and figure go (default: %(default)s)")
    demo.add_argument("--seeds", type=int, default=2, help="runs of each delivery (default: %(default)s)")
    # The recipe's keys are parsed by config.py: there are two hundred of them.
    commands.add_parser("train", help="train the model of a recipe", add_help=False)
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = parser.parse_known_args(words)
    if options.command == "train":
        rest = words[: words.index("train")]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if options.command == "demo":
            from .demo import run_demo

            run_demo(options.output_dir, options.seeds)
            return 0
        return _train(words[words.index("train") + 1 :])
    except VotesError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"hf-softlabel: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # A full disk, a folder that cannot be written to: nothing that a traceback would explain better.
        print(f"hf-softlabel: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hf-softlabel: interrupted. The same command goes on from the last checkpoint.", file=sys.stderr)
        return 130


def _train(words: list[str]) -> int:
    if not words or "-h" in words or "--help" in words:
        print(TRAIN_HELP, end="")
        return 0 if words else 2
    if "--keys" in words:
        from .config import describe_keys

        print(describe_keys())
        return 0
    if words[0].startswith("-"):
        raise VotesError(f"The recipe comes first: hf-softlabel train RECIPE.yaml {' '.join(words)}")
    from .config import parse_recipe
    from .run import run_recipe, summary

    overwrite = "--overwrite" in words
    configs = parse_recipe(words[0], [word for word in words[1:] if word != "--overwrite"])
    metrics = run_recipe(*configs, overwrite=overwrite)
    if configs[2].process_index == 0:
        print(summary(metrics, configs[2].output_dir))
    return 0
