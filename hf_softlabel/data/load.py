"""`load_votes`: every data set of votes by its name."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import VotesError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDatasetDict

NAMES = ("cifar10h", "chaosnli", "popquorn", "synthetic", "table")


def load_votes(
    name: str,
    subset: str | None = None,
    sources: str | os.PathLike | None = None,
    revision: str | None = None,
    streaming: bool = False,
    **options: Any,
) -> DatasetDict | IterableDatasetDict:
    """Load a data set of annotator votes.

    Args:
        name: `cifar10h`, `chaosnli`, `popquorn`, `synthetic`, `table`, or the path or Hub id of a table.
        subset: `snli`, `mnli`, `snli+mnli` or `alphanli` of chaosnli; `offensiveness` or `politeness` of popquorn;
            `vision` or `text` of synthetic; the configuration of a Hub set.
        sources: a folder that holds the authors' files by their own names at any depth; by default the environment
            variable HF_SOFTLABEL_SOURCES, else the files are downloaded. For `table`: its path or Hub id.
        revision: a branch, tag or commit of the Hub set.
        streaming: return an `IterableDatasetDict`. cifar10h, tables and Hub sets are then read as they are used;
            the other sets are small and are read at once.
        options: of [`load_table`] and of `load_synthetic`.

    Returns:
        The one split `train` (the sources are not split: see [`split_votes`]), or the splits that the table has. Rows
        hold the inputs, `votes`, `example_id`, `label` and what else the source says about them.
    """
    match name:
        case "cifar10h":
            from .cifar10h import load_cifar10h

            _refuse(name, subset=subset, **options)
            return load_cifar10h(sources, revision, streaming)
        case "chaosnli":
            from .chaosnli import load_chaosnli

            _refuse(name, revision=revision, **options)
            return _train(load_chaosnli(subset, sources), streaming)
        case "popquorn":
            from .popquorn import load_popquorn

            _refuse(name, revision=revision, **options)
            return _train(load_popquorn(subset, sources), streaming)
        case "synthetic":
            from .synthetic import load_synthetic

            _refuse(name, revision=revision, sources=sources)
            _known(load_synthetic, options)
            return _train(load_synthetic(subset, **options), streaming)
        case "table":
            from .table import load_table

            if sources is None:
                raise VotesError("For a table `sources` is its path or its id on the Hub: it is missing.")
            _known(load_table, options)
            return load_table(sources, subset, revision=revision, streaming=streaming, **options)
        case _ if "/" in name or Path(name).exists():
            from .table import load_table

            _refuse(name, sources=sources)
            _known(load_table, options)
            return load_table(name, subset, revision=revision, streaming=streaming, **options)
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0)[0]
    raise VotesError(
        f"There is no data set {name!r} (nor a file or folder of that name). Did you mean {near!r}? The names are "
        f"{', '.join(NAMES)}; anything else is the path of a table or the id owner/name of a Hub set."
    )


def _train(dataset: Dataset, streaming: bool) -> DatasetDict | IterableDatasetDict:
    from datasets import DatasetDict, IterableDatasetDict

    if streaming:
        return IterableDatasetDict(train=dataset.to_iterable_dataset())
    return DatasetDict(train=dataset)


def _known(function: Callable, options: dict[str, Any]) -> None:
    """Refuse an option that a loader does not have, with the nearest that it has."""
    names = [name for name in inspect.signature(function).parameters if name != "subset"]
    for option in options:
        if option not in names:
            near = difflib.get_close_matches(option, names, n=1, cutoff=0)[0]
            raise VotesError(f"There is no option {option!r}. Did you mean {near!r}?")


def _refuse(data_set: str, **arguments: Any) -> None:
    """Refuse what a data set has no use for, instead of leaving it aside in silence."""
    for argument, value in arguments.items():
        if value is not None:
            raise VotesError(f"{data_set} takes no `{argument}`; {value!r} was given. Leave it out.")
