"""Which columns of a Trainer's data are votes, by their names and by all of their rows, and whether they are kept.

A wrong guess is worse than none: three numbers beside three classes may be a date or a box.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import Trainer

from .doctor_checks import FLOAT32_TOLERANCE, Finding

LABELS = ("labels", "label", "label_ids")
OURS = "train with hf_softlabel's SoftLabelTrainer, or"
# votes, counts; and whose or which, before what: label_dist, soft_labels, annotator_counts, human_probs.
_VOTE_NAME = re.compile(
    r"^(votes?|counts)$|(soft|human|crowd|annotat|rater|label|class|vote).*(label|vote|prob|count|dist(?!anc))", re.I
)

Kind = Literal["one-hot", "yes/no", "distribution", "counts", "fractions", "numbers"]


def target_kind(targets: np.ndarray) -> Kind:
    """What (N, C) numbers are, by all rows: a few bad rows do not make a distribution something else.

    `one-hot` and `yes/no` (a multi-label task) hold only 0 and 1; `fractions` lie between these without summing to 1,
    and are several yes/no questions as well; `numbers` are anything else, such as the targets of a regression.
    """
    if np.isin(targets, (0, 1)).all():
        return "one-hot" if (targets.sum(1) == 1).all() else "yes/no"
    counted = (targets >= 0).all(1) & (targets.sum(1) > 0)
    if np.mean(counted & (np.abs(targets.sum(1) - 1) < FLOAT32_TOLERANCE)) > 0.5:
        return "distribution"
    if np.mean(counted & (targets % 1 == 0).all(1)) > 0.5:
        return "counts"
    return "fractions" if ((targets >= 0) & (targets <= 1)).all() else "numbers"


def is_votes(name: str, values: np.ndarray) -> bool:
    """Whether a column of (N, C) numbers is votes: by its name, or because most of its rows are distributions."""
    if _VOTE_NAME.search(name):
        return bool(np.mean((values >= 0).all(1) & (values.sum(1) > 0)) > 0.5)
    return target_kind(values) == "distribution"


def num_classes(model: nn.Module) -> int | None:
    return getattr(getattr(model, "config", None), "num_labels", None)


def forward_names(model: nn.Module) -> list[str]:
    """The names of what a model's forward takes."""
    return list(inspect.signature(model.forward).parameters)


def first_row(dataset: Any) -> dict[str, Any]:
    """The first example as it is in the data set, before columns are removed."""
    if isinstance(dataset, Dataset):
        return dataset.with_format(None)[0]
    row = next(iter(dataset)) if isinstance(dataset, IterableDataset) else dataset[0]
    return dict(row) if isinstance(row, Mapping) else {}


def table_column(dataset: Any, name: str) -> np.ndarray | None:
    """A whole column of lists as (N, C) numbers, without the user's transform; None if it is no such column."""
    if not isinstance(dataset, Dataset) or name not in dataset.column_names or not len(dataset):
        return None
    # From Arrow's buffers: a million rows through Python lists would take a minute.
    rows = dataset.with_format("arrow")[name][:].combine_chunks()
    kind = rows.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        return None
    widths = pc.unique(pc.list_value_length(rows)).to_pylist()
    values = rows.flatten()
    if len(widths) != 1 or not widths[0] or values.null_count:
        return None
    return values.to_numpy(zero_copy_only=False).reshape(len(dataset), widths[0])


def labels_column(dataset: Any, classes: int) -> np.ndarray | None:
    """The whole column of labels, (N, C), under any of its names; None if it can only be read row by row."""
    columns = (table_column(dataset, name) for name in LABELS)
    return next((values for values in columns if values is not None and values.shape[1] == classes), None)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (np.ndarray, Tensor)) and value.ndim == 1)


def _candidates(dataset: Any, model: nn.Module) -> dict[str, np.ndarray]:
    """The columns of as many numbers as there are classes that are neither inputs nor labels.

    They are (N, C) for a table, and (1, C), the first row, for anything else.
    """
    classes, taken, found = num_classes(model), (*forward_names(model), *LABELS), {}
    for name, value in first_row(dataset).items():
        if name in taken or not _is_list(value) or len(value) < 2 or classes not in (None, len(value)):
            continue
        if isinstance(dataset, Dataset):
            found[name] = table_column(dataset, name)
        elif all(isinstance(number, (int, float, np.number, Tensor)) for number in value):
            found[name] = np.asarray(value)[None]
    return {name: values for name, values in found.items() if values is not None}


def vote_columns(dataset: Any, model: nn.Module) -> list[str]:
    """The columns of votes beside the labels: `votes` in any form, or else C numbers that are votes."""
    votes = first_row(dataset).get("votes")
    if _is_list(votes) or isinstance(votes, Mapping):  # a single number is a sum, of a review's readers perhaps
        return ["votes"]
    return [name for name, values in _candidates(dataset, model).items() if is_votes(name, values)]


def _unnamed_counts(dataset: Any, model: nn.Module) -> list[str]:
    """The columns that have a whole number for each class, and may be votes or not."""
    known = _candidates(dataset, model) if num_classes(model) is not None else {}
    return [name for name, values in known.items() if target_kind(values) == "counts"]


def check_columns(trainer: Trainer) -> list[Finding]:
    """Whether the votes of a row are still there when the collator gets it."""
    dataset, model = trainer.train_dataset, trainer.model
    columns = vote_columns(dataset, model)
    unnamed = [] if columns else _unnamed_counts(dataset, model)
    if not trainer.args.remove_unused_columns or not (columns or unnamed):
        return []
    seen = _seen_by_collator(trainer)
    notes = [_unnamed_note(name, num_classes(model)) for name in unnamed if name not in seen]
    if not columns or set(columns) & set(seen):
        return notes
    left = [name for name in LABELS if name in seen]
    if any(_is_list(first_row(dataset).get(name)) for name in left):
        return []  # the labels are made of the votes already
    instead = f"it trains on `{left[0]}` instead" if left else "there is nothing to train on"
    return [
        Finding(
            "votes_dropped",
            "wrong",
            f"remove_unused_columns drops {' and '.join(columns)}, which the model's forward does not take: the votes "
            f"never reach the loss, and {instead}.",
            f"train split, column {' and '.join(columns)}",
            f"{OURS} set remove_unused_columns=False (or label_names={columns}) and use the votes in compute_loss",
        )
    ]


def _unnamed_note(name: str, classes: int | None) -> Finding:
    return Finding(
        "votes_dropped",
        "note",
        f"remove_unused_columns drops {name}, which holds {classes} whole numbers for {classes} classes.",
        f"train split, column {name}",
        f"nothing, if they are no votes; else {OURS} set remove_unused_columns=False and use them in compute_loss",
    )


def _seen_by_collator(trainer: Trainer) -> list[str]:
    """The columns of a batch's rows as the collator gets them."""
    seen: list[str] = []
    collator = trainer.data_collator

    def record(features: Any) -> Any:
        seen.extend(features if isinstance(features, Mapping) else features[0])
        return collator(features)

    trainer.data_collator = record
    try:
        next(iter(trainer.get_train_dataloader()))
    except Exception:  # whatever a transform or collator raises without its columns: see what it was given
        if not seen:
            loader = trainer.get_train_dataloader()
            known = isinstance(loader.dataset, Dataset)
            seen.extend(loader.dataset.column_names if known else first_row(trainer.train_dataset))
    finally:
        trainer.data_collator = collator
    return seen
