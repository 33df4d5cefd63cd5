"""The sub-command `doctor`: a dry run that finds the known traps."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from .cli_experiments import show
from .cli_help import DOCTOR_DESCRIPTION, DOCTOR_EXAMPLES
from .cli_votes import add_reading, votes_source
from .data.errors import VotesError


def add_doctor(commands: Any, style: dict[str, Any]) -> None:
    """The options of `doctor`, which for a recipe or a grid takes every key besides."""
    doctor = commands.add_parser(
        "doctor",
        help="find the known traps in a recipe or a data set, by a dry run",
        description=DOCTOR_DESCRIPTION,
        epilog=DOCTOR_EXAMPLES,
        usage="hf-softlabel doctor RECIPE.yaml|GRID.yaml|DATA [options] [--KEY VALUE ...]",
        allow_abbrev=False,
        **style,
    )
    doctor.add_argument("target", metavar="RECIPE_OR_DATA", help="a recipe, a grid, chaosnli, ..., a table, a Hub id")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_reading(doctor.add_argument_group("data"))


def is_recipe(target: str) -> bool:
    """Whether the target is a recipe or a grid of one."""
    return target.endswith((".yaml", ".yml"))


def _recipe_words(words: Sequence[str]) -> list[str]:
    """The recipe's keys on a command line: what is after the recipe, but for the doctor's own option."""
    rest = list(words)[list(words).index("doctor") + 1 :]
    own = [word for word in rest if word != "--json"]
    if not is_recipe(own[0]):
        raise VotesError("The recipe comes first, and options after it: hf-softlabel doctor RECIPE.yaml --KEY VALUE")
    return own[1:]


def run_doctor(options: argparse.Namespace) -> int:
    from .doctor import as_json, examine_data, examine_grid, examine_recipe, format_findings, is_grid

    if is_recipe(options.target):
        examine = examine_grid if is_grid(options.target) else examine_recipe
        found = examine(options.target, _recipe_words(options.words))
    else:
        found = examine_data(votes_source(options, options.target, options.split))
    if os.environ.get("RANK", "0") == "0":
        show(as_json(options.target, found) if options.json else format_findings(options.target, found))
    return int(any(finding.severity == "wrong" for finding in found))
