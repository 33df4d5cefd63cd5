"""What the doctor sees without running anything: votes, ids, inputs, class names, and how the processes were started.

Each check returns a list of [`Finding`]; an empty one means that the check found nothing to say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value

from .data.errors import VotesError, some
from .data.images import IMAGE_COLUMNS, VotesImages
from .data.text import text_columns_of
from .delivery import NEED_COUNTS

# Distributions that were computed or stored in float32 miss 1 by more than the contract's 1e-6.
FLOAT32_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Finding:
    """Something that training would do wrong, or that is worth knowing.

    Args:
        name: of the check, for machines.
        severity: `wrong` is a fault; a `note` is not.
        what: the observation, with its numbers.
        where: split, rows, column or key.
        fix: what to do.
    """

    name: str
    severity: Literal["wrong", "note"]
    what: str
    where: str
    fix: str


def check_rows(votes: np.ndarray, split: str, tolerance: float = FLOAT32_TOLERANCE) -> list[Finding]:
    """Rows of (N, C) votes that are no distribution, and rows with a tie. Integers are counts."""
    found = []
    total = votes.sum(1)
    bad = ~np.isfinite(total) | (votes < 0).any(1) | (total == 0)
    if votes.dtype.kind == "f":
        bad |= np.abs(total - 1) > tolerance
    if bad.any():
        rows = np.flatnonzero(bad)
        sums = ", ".join(f"{value:.4g}" for value in total[rows][:5])
        found.append(
            Finding(
                "unnormalised_votes",
                "wrong",
                f"{len(rows)} of {len(votes)} rows of votes are neither counts nor a distribution: they sum to {sums}"
                f"{', ...' if len(rows) > 5 else ''}, so they would weigh more or less than the others in the loss.",
                f"{split} split, rows {some(rows)}",
                "divide each row by its sum, or store counts as integers; remove rows without votes",
            )
        )
    tied = ~bad & ((votes == votes.max(1, keepdims=True)).sum(1) > 1)
    if tied.any():
        rows = np.flatnonzero(tied)
        found.append(
            Finding(
                "tied_votes",
                "note",
                f"{len(rows)} of {len(votes)} rows ({len(rows) / len(votes):.1%}) have no single majority.",
                f"{split} split, rows {some(rows)}",
                "nothing: only `majority` has to choose, and it draws among the tied classes",
            )
        )
    return found


def check_counts(votes: np.ndarray, delivery: str | None) -> list[Finding]:
    """Probabilities where a delivery needs counts; without a delivery, which ones are out of reach."""
    if votes.dtype.kind != "f" or (delivery is not None and delivery not in NEED_COUNTS):
        return []
    if delivery is None:
        return [
            Finding(
                "counts_missing",
                "note",
                "The votes are probabilities, which do not say how many people voted.",
                "train split, `votes`",
                f"give integer counts for the deliveries {', '.join(NEED_COUNTS)}; the others need none",
            )
        ]
    return [
        Finding(
            "counts_missing",
            "wrong",
            f"The delivery {delivery!r} needs integer vote counts, but the votes are probabilities.",
            "train split, `votes`; key `delivery`",
            "give counts, set votes_per_example to draw some, or choose delivery: soft or sls",
        )
    ]


def check_common_ids(train: np.ndarray, held_out: np.ndarray, split: str) -> list[Finding]:
    """Ids (N,) of training examples that are held out as well."""
    common = np.intersect1d(train, held_out)
    if not len(common):
        return []
    return [
        Finding(
            "common_examples",
            "wrong",
            f"{len(common)} of the {len(held_out)} examples in {split} are trained on: their scores mean nothing.",
            f"train and {split} splits, example_id {some(common)}",
            "keep each example in one split: split_votes, or remove these from the training split",
        )
    ]


def check_common_inputs(train: Sequence[bytes], held_out: Sequence[bytes], split: str) -> list[Finding]:
    """Inputs, as one digest for each example, that are in both splits under whatever id."""
    places = {digest: row for row, digest in reversed(list(enumerate(train)))}
    pairs = [(places[digest], row) for row, digest in enumerate(held_out) if digest in places]
    if not pairs:
        return []
    return [
        Finding(
            "common_inputs",
            "wrong",
            f"{len(pairs)} of the {len(held_out)} inputs in {split} are equal to one of the training split.",
            f"rows of train = rows of {split}: {some(f'{a} = {b}' for a, b in pairs)}",
            "remove the copies, or give all votes on one input to one example (votes_from_annotations does)",
        )
    ]


def check_class_order(data: Sequence[str], model: Mapping[int, str] | None) -> list[Finding]:
    """The data's class names against the model's id2label, without regard to upper and lower case."""
    if not model:
        return []
    theirs = [str(model[key]).lower() for key in sorted(model, key=int)]
    ours = [str(name).lower() for name in data]
    # transformers' LABEL_0, ... and our own 0, 1, ... are no names.
    numbers = [str(i) for i in range(len(ours))]
    nameless = ours == numbers or theirs == [f"label_{i}" for i in numbers]
    if ours == theirs or nameless:
        return []
    both = f"The data's classes are {', '.join(map(str, data))}; the model's are {', '.join(model.values())}"
    if sorted(ours) == sorted(theirs):
        return [
            Finding(
                "class_order",
                "wrong",
                f"{both}: the same in another order, so that the head's outputs are taken for other classes.",
                "`label` names of the data, model.config.id2label",
                "load the model with hf_softlabel.load_model(..., names=...), which reorders its head",
            )
        ]
    return [
        Finding(
            "class_names",
            "note",
            f"{both}. The saved config would name the outputs wrongly.",
            "`label` names of the data, model.config.id2label",
            "set id2label and label2id to the data's names when the model is loaded",
        )
    ]


def names_in(features: Features | None) -> list[str] | None:
    """The class names that a data set's features have, in its label column or in sparse votes."""
    for name in ("label", "labels"):
        feature = (features or {}).get(name)
        if isinstance(feature, ClassLabel):
            return list(feature.names)
    votes = (features or {}).get("votes")
    inner = getattr(votes["labels"], "feature", None) if isinstance(votes, Mapping) and "labels" in votes else None
    return list(inner.names) if isinstance(inner, ClassLabel) else None


def raw_inputs(dataset: Dataset, columns: Sequence[str] | None = None) -> list[str]:
    """The columns by which two examples of a data set are the same: its texts or its image."""
    if columns:
        return [name for name in columns if name in dataset.column_names]
    images = [name for name in dataset.column_names if name in IMAGE_COLUMNS]
    if images:
        return images[:1]
    try:
        return list(text_columns_of(dataset.column_names))
    except VotesError:
        return [name for name, feature in dataset.features.items() if feature == Value("string")]


def input_digests(dataset: Any, columns: Sequence[str]) -> list[bytes]:
    """One digest of the inputs for each example; [] for what can only be streamed, or has none of the columns."""
    if isinstance(dataset, VotesImages):
        return [_digest(row.tobytes()) for row in dataset.column("pixel_values").numpy()]
    if not isinstance(dataset, Dataset) or not columns:
        return []
    # Without the user's transform, which may be random, and without decoding images.
    dataset = dataset.with_format(None).select_columns(list(columns))
    for name in columns:
        if isinstance(dataset.features[name], Image):
            dataset = dataset.cast_column(name, Image(decode=False))
    return [_digest(*row) for row in zip(*(dataset[name][:] for name in columns), strict=True)]


def _digest(*values: Any) -> bytes:
    found = blake2b(digest_size=16)
    for value in values:
        if isinstance(value, Mapping):  # an image that was not decoded
            value = value["bytes"] or value["path"]
        found.update(value if isinstance(value, bytes) else repr(value).encode())
        found.update(b"\0")
    return found.digest()


def check_launch(world_size: int) -> list[Finding]:
    """Fewer processes than the launcher was asked for: `accelerate launch --cpu --num_processes 2` starts one."""
    asked = asked_processes()
    if asked is None or asked[0] <= world_size:
        return []
    return [
        Finding(
            "fewer_processes",
            "wrong",
            f"{asked[0]} processes were asked for, but the world size is {world_size}: each would train by itself.",
            asked[1],
            "on CPU use distributed_type MULTI_GPU (--multi_gpu) and use_cpu: true, or torchrun",
        )
    ]


def asked_processes() -> tuple[int, str] | None:
    """How many processes the launcher of this one was asked for, and where; None if there is no launcher."""
    import psutil

    found = []
    if os.environ.get("WORLD_SIZE", "").isdigit():
        found.append((int(os.environ["WORLD_SIZE"]), "the environment variable WORLD_SIZE"))
    for process in psutil.Process().parents():
        try:
            words, folder = process.cmdline(), process.cwd()
        except psutil.Error:  # it has ended, or is somebody else's
            continue
        start = _after_launch(words)
        if start is not None:
            found += _asked_of_accelerate(words[start:], folder)
            break
    return max(found, default=None)


def _after_launch(words: Sequence[str]) -> int | None:
    """Where the options of `accelerate launch` begin in a command line; None if it is another command."""
    for place, word in enumerate(words[:4]):
        if Path(word).name == "accelerate" and words[place + 1 : place + 2] == ["launch"]:
            return place + 2
        if Path(word).name == "accelerate-launch" or words[place : place + 2] == ["-m", "accelerate.commands.launch"]:
            return place + 1 + word.startswith("-m")
    return None


def _asked_of_accelerate(words: Sequence[str], folder: str) -> Iterable[tuple[int, str]]:
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    options, _ = launch_command_parser().parse_known_args(list(words))
    if options.num_processes is not None:
        return [(options.num_processes, f"accelerate launch --num_processes {options.num_processes}")]
    path = Path(folder, options.config_file or default_config_file)
    if not path.is_file() or (options.cpu and options.config_file is None):
        return []
    asked = load_config_from_file(str(path)).num_processes
    return (
        []
        if asked is None
        else [(asked, f"num_processes in {options.config_file or 'the default accelerate config'}")]
    )
