"""The sub-command `push`: a finished run as a model of the Hub."""

from __future__ import annotations

import argparse
from typing import Any

from .cli_help import PUSH_DESCRIPTION, PUSH_EXAMPLES


def add_push(commands: Any, style: dict[str, Any]) -> None:
    """The options of `push`."""
    push = commands.add_parser(
        "push",
        help="push the model of a run to the Hub, with a card",
        description=PUSH_DESCRIPTION,
        epilog=PUSH_EXAMPLES,
        **style,
    )
    push.add_argument("run", metavar="RUN_DIR", help="the directory of a finished run")
    push.add_argument("--repo", required=True, metavar="OWNER/NAME", help="made if it does not exist")
    push.add_argument("--public", action="store_true", help="let everybody see it (default: private)")
    push.add_argument("--overwrite", action="store_true", help="replace another model that the repository holds")
    push.add_argument("--token", help="with write access (default: HF_TOKEN, or that of `hf auth login`)")


def run_push(options: argparse.Namespace) -> int:
    from .hub.push import push_run

    address = push_run(options.run, options.repo, not options.public, options.token, options.overwrite)
    print(f"pushed to {address}")
    return 0
