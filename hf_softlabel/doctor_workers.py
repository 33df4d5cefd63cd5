"""What the doctor sees of the data loader's worker processes: epochs that do not reach them, and random labels."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import Trainer

from .doctor_checks import Finding
from .doctor_columns import LABELS, OURS, vote_columns

_EPOCHS, _ROWS = 3, 16


def check_epochs(trainer: Trainer) -> list[Finding]:
    """Labels that change from epoch to epoch here, but not in the data loader's worker processes; random labels."""
    dataset = trainer.get_train_dataloader().dataset
    if isinstance(dataset, IterableDataset) or not len(dataset):
        return []
    args, rows = trainer.args, range(min(_ROWS, len(dataset)))
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        try:
            return _check_epochs(trainer, Subset(dataset, rows), args.dataloader_num_workers > 0)
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def _check_epochs(trainer: Trainer, rows: Subset, workers: bool) -> list[Finding]:
    args, targets = trainer.args, (*LABELS, *trainer.label_names, *vote_columns(rows.dataset, trainer.model))
    loader = trainer.get_train_dataloader()
    through = DataLoader(
        rows,
        batch_size=len(rows),
        collate_fn=list,
        num_workers=1 if workers else 0,
        persistent_workers=workers and args.dataloader_persistent_workers,
        multiprocessing_context=args.dataloader_multiprocessing_context if workers else None,
    )
    here, there, again = [], [], []
    # The workers first: reading here would move on a generator that the data set holds, and so change their copies.
    for epoch in range(_EPOCHS if workers else 0):
        _begin_epoch(trainer, loader, epoch)
        there.append(_plain(next(iter(through))))
    for epoch in range(_EPOCHS):
        _begin_epoch(trainer, loader, epoch)
        here.append(_plain([rows[i] for i in range(len(rows))]))
        again.append(_plain([_only(rows[i], targets) for i in range(len(rows))]))
        again.append(_plain([_only(rows[i], targets) for i in range(len(rows))]))
    _begin_epoch(trainer, loader, 0)
    if len(set(here)) == 1 and _wants_epochs(rows, here[0]):
        return [
            Finding(
                "epoch_not_told",
                "wrong",
                f"The data set's set_epoch changes its examples, but Trainer does not call it with a world size of "
                f"{args.world_size}: every epoch would be the first.",
                "train split, set_epoch",
                f"{OURS} draw labels in compute_loss from (seed, epoch, example), not in the data set",
            )
        ]
    if len(set(here)) > 1 and len(set(there)) == 1:
        kept = (
            "they are kept alive with the data set's first state"
            if args.dataloader_persistent_workers
            else ("each starts with a copy of the data set's state")
        )
        return [
            Finding(
                "epoch_not_seen",
                "wrong",
                f"The examples change from epoch to epoch in this process, but in worker processes they were the same "
                f"in {_EPOCHS} epochs: {kept}.",
                "train split; dataloader_num_workers, dataloader_persistent_workers",
                f"{OURS} draw labels in compute_loss from (seed, epoch, example), not in the data set",
            )
        ]
    if any(a != b for a, b in zip(again[::2], again[1::2], strict=True)):
        return [
            Finding(
                "random_labels",
                "note",
                "Labels are drawn from a random generator when an example is read: they depend on the number of "
                "workers and processes, and a resumed run sees others.",
                "train split",
                f"{OURS} draw labels in compute_loss from (seed, epoch, example)",
            )
        ]
    return []


def _wants_epochs(rows: Subset, first: Any) -> bool:
    """Whether a data set has a `set_epoch`, as accelerate looks for it, and gives other examples after it."""
    tell = getattr(rows.dataset, "set_epoch", None)
    if tell is None:
        return False
    tell(1)
    changed = _plain([rows[i] for i in range(len(rows))]) != first
    tell(0)
    return changed


def _begin_epoch(trainer: Trainer, loader: Any, epoch: int) -> None:
    """What Trainer does when an epoch begins, with the user's callbacks but not those of libraries (trackers)."""
    loader.set_epoch(epoch)
    state = copy(trainer.state)
    state.epoch = float(epoch)
    for callback in trainer.callback_handler.callbacks:
        if type(callback).__module__.split(".")[0] not in ("transformers", "hf_softlabel"):
            callback.on_epoch_begin(trainer.args, state, copy(trainer.control), model=trainer.model)


def _only(row: Any, names: Sequence[str]) -> Any:
    return {name: row[name] for name in names if name in row} if isinstance(row, Mapping) else row


def _plain(value: Any) -> Any:
    """A form of an example that can be compared, in which equal examples are equal."""
    if isinstance(value, Mapping):
        return tuple((name, _plain(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_plain(part) for part in value)
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, PIL.Image.Image)):
        return np.asarray(value).tobytes()
    return value
