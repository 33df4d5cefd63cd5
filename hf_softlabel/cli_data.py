"""The sub-command `data`: build, show and push data sets of votes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from .cli_experiments import show
from .cli_help import DATA_DESCRIPTION, DATA_EXAMPLES
from .cli_votes import add_reading, votes_source
from .data.errors import VotesError


def add_data(commands: Any, style: dict[str, Any]) -> None:
    """The options of `data build`, `data show` and `data push`."""
    data = commands.add_parser(
        "data",
        help="build, show or push a data set of votes",
        description=DATA_DESCRIPTION,
        epilog=DATA_EXAMPLES,
        **style,
    )
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="write it as Parquet with a data card")
    build.add_argument("--output_dir", metavar="DIR", help="default: votes/NAME-SUBSET")
    shown = actions.add_parser("show", help="print what is in it, and the most disagreed-on examples")
    shown.add_argument("--examples", type=int, default=5, metavar="N", help="so many examples (default: %(default)s)")
    push = actions.add_parser("push", help="build it and push it to the Hub")
    push.add_argument("--repo", required=True, metavar="OWNER/NAME", help="made if it does not exist")
    push.add_argument("--public", action="store_true", help="let everybody see it (default: private)")
    push.add_argument("--overwrite", action="store_true", help="replace what the repository holds")
    push.add_argument("--token", help="with write access (default: HF_TOKEN, or that of `hf auth login`)")
    for action in (build, shown, push):
        action.add_argument("name", metavar="NAME", help="cifar10h, chaosnli, popquorn, synthetic, a table, a Hub id")
        add_reading(action.add_argument_group("reading"))


def run_data(options: argparse.Namespace) -> int:
    return {"build": _build, "show": _show, "push": _push}[options.action](options)


def _build(options: argparse.Namespace) -> int:
    from .hub.data import build_data

    source = votes_source(options, options.name, options.split)
    words = [Path(options.name).stem, options.subset, options.split]
    folder = options.output_dir or Path("votes", "-".join(word for word in words if word))
    print(f"built in {build_data(source, folder)}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from .data.show import describe_votes, format_description

    if options.examples < 0:
        raise VotesError(f"--examples must not be negative, as {options.examples} is; 0 is for none.")
    splits = votes_source(options, options.name, options.split).load()
    if options.split is not None:
        splits = {options.split: splits[options.split]}
    title = f"{options.name} ({options.subset})" if options.subset else options.name
    show(format_description(title, describe_votes(splits, options.examples), _shows_blocks()))
    return 0


def _shows_blocks() -> bool:
    try:
        "█▏".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _push(options: argparse.Namespace) -> int:
    from .hub.data import build_data, check_push, is_built, push_data

    check_push(options.repo, not options.public, options.token, options.overwrite)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.name)
        if not is_built(folder):
            source = votes_source(options, options.name, options.split)
            folder = build_data(source, Path(scratch) / "votes")
        address, pushed = push_data(folder, options.repo, not options.public, options.token, options.overwrite)
    print(f"pushed to {address}" if pushed else f"{address} holds these votes already: left as it is")
    return 0
