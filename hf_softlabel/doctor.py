"""`hf-softlabel doctor`: a dry run of a batch or two that finds the known traps in a recipe, a data set or a Trainer.

The traps are in [`hf_softlabel.doctor_checks`] (what can be read), [`hf_softlabel.doctor_columns`] (which columns are
votes), [`hf_softlabel.doctor_losses`] (what a training step shows) and [`hf_softlabel.doctor_workers`] (what worker
processes see).
"""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from datasets import Dataset
from datasets import IterableDataset as StreamingDataset
from transformers import Trainer

from .build import build_trainer
from .config import DataConfig, ModelConfig, SoftLabelConfig, as_words, parse_recipe
from .data.errors import VotesError
from .data.images import VotesImages
from .data.table import open_table
from .data.votes import dense_votes
from .delivery import NEED_COUNTS
from .doctor_checks import (
    Finding,
    check_class_order,
    check_common_ids,
    check_common_inputs,
    check_counts,
    check_launch,
    check_rows,
    input_digests,
    names_in,
    raw_inputs,
)
from .doctor_columns import LABELS, forward_names, num_classes, table_column, vote_columns
from .doctor_losses import check_losses
from .doctor_workers import check_epochs
from .experiments.grid import cell_configs, read_grid
from .preparation import votes_and_ids
from .run import VERIFIED
from .score import VotesSource
from .splits import Splits, load_splits
from .trainer import VotesTrainer

# For the dry run of a recipe, whatever it says: on the CPU, a small batch, nothing logged and nothing published.
DRY_RUN = {
    **{"use_cpu": True, "fp16": False, "bf16": False, "tf32": False},
    **{"report_to": "none", "push_to_hub": False, "disable_tqdm": True},
}
_BATCH, _EXAMPLES = 8, 64


def examine_trainer(trainer: Trainer) -> list[Finding]:
    """Find the traps that a `transformers.Trainer` (or one of ours) would step into.

    One or two batches are run forwards and backwards. The trainer is left as it was and can be trained afterwards;
    `on_epoch_begin` of callbacks that are neither transformers' nor ours is called, with the epochs 0 to 2.

    Returns:
        The findings, those that are `wrong` first.
    """
    if trainer.train_dataset is None:
        raise VotesError("There is no train_dataset: the doctor runs a training step.")
    if isinstance(trainer.train_dataset, Sized) and not len(trainer.train_dataset):
        raise VotesError("The train_dataset is empty: the doctor runs a training step.")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise VotesError("The doctor runs a step without DeepSpeed and FSDP: make the trainer without them.")
    return _sorted([*_examine_data(trainer), *_examine_steps(trainer)])


def _examine_steps(trainer: Trainer) -> list[Finding]:
    found = check_losses(trainer)
    if not any(finding.name == "votes_dropped" and finding.severity == "wrong" for finding in found):
        found += check_epochs(trainer)
    names = names_in(getattr(trainer.train_dataset, "features", None)) or getattr(trainer.train_dataset, "names", None)
    if names is not None:
        found += check_class_order(names, getattr(getattr(trainer.model, "config", None), "id2label", None))
    return found + check_launch(trainer.args.world_size)


def _examine_data(trainer: Trainer) -> list[Finding]:
    """The rows of the training split, and what it has in common with the eval splits."""
    train, found = trainer.train_dataset, []
    if isinstance(train, StreamingDataset):
        return []
    votes = _targets(trainer)
    if votes is not None:
        found += check_rows(votes, "train")
    held_out = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"eval": trainer.eval_dataset}
    taken = [name for name in forward_names(trainer.model) if name not in LABELS]
    for split, dataset in held_out.items():
        if dataset is None or type(dataset) is not type(train):
            continue
        known, others = _columns(train), _columns(dataset)
        found += _common(train, dataset, split, [name for name in taken if name in known and name in others])
    return found


def _ids(dataset: Any) -> np.ndarray | None:
    if isinstance(dataset, VotesImages):
        return dataset.column("example_id").numpy()
    if not {"votes", "example_id"} <= set(_columns(dataset)):
        return None
    return np.asarray(dataset.with_format("numpy")["example_id"][:])


def _columns(dataset: Any) -> list[str]:
    return dataset.column_names if isinstance(dataset, Dataset) else []


def _targets(trainer: Trainer) -> np.ndarray | None:
    """The whole (N, C) column of votes beside the labels; None if there is none, or it can only be read row by row."""
    train = trainer.train_dataset
    if isinstance(trainer, VotesTrainer):
        known = votes_and_ids(train)
        return None if known is None else known[0]
    names = vote_columns(train, trainer.model)
    values = table_column(train, names[0]) if names else None
    return values if values is not None and num_classes(trainer.model) in (None, values.shape[1]) else None


def _common(train: Any, held_out: Any, split: str, columns: Sequence[str]) -> list[Finding]:
    """Examples in common, by their ids; if there are none, by their inputs."""
    # Ids are unique over splits by the votes contract only: others number each split from 0.
    ids = [_ids(train), _ids(held_out)]
    found = check_common_ids(*ids, split) if ids[0] is not None and ids[1] is not None else []
    return found or check_common_inputs(input_digests(train, columns), input_digests(held_out, columns), split)


def examine_splits(
    splits: Mapping[str, Any], text_columns: Sequence[str] | None = None, same_items: Sequence[str] = ()
) -> list[Finding]:
    """The rows of all splits by the votes contract, and what the first has in common with the others.

    Args:
        same_items: splits that are meant to hold the first one's items, with the votes of other people.
    """
    found = []
    first, *others = splits
    for split, dataset in splits.items():
        if not isinstance(dataset, StreamingDataset):
            found += check_rows(dense_votes(dataset), split)
    for split in others:
        if split not in same_items and not isinstance(splits[split], StreamingDataset):
            found += _common(splits[first], splits[split], split, raw_inputs(splits[first], text_columns))
    return found


def examine_data(source: VotesSource) -> list[Finding]:
    """A data set by its name, a table or a Hub id.

    Raises:
        VotesError: it cannot be read as votes, and not because of rows that a finding could name.
    """
    try:
        splits = source.load()
    except VotesError as error:
        return _examine_table(source, error)
    if source.split is not None:
        splits = {source.split: splits[source.split]}
    found = examine_splits(splits)
    return _sorted(found + check_counts(dense_votes(next(iter(splits.values()))), None))


def _examine_table(source: VotesSource, error: VotesError) -> list[Finding]:
    """What is wrong with the rows of a table that was refused; if its rows are in order, the refusal itself."""
    if "item" in source.options or source.data in VERIFIED:
        raise error
    path = source.sources if source.data == "table" else source.data
    raw = open_table(path, source.subset, None, streaming=False)
    columns = source.options.get("label_columns") or ["votes"]
    found, ids = [], {}
    for split, dataset in raw.items():
        if not set(columns) <= set(dataset.column_names):
            raise error
        try:
            values = np.asarray([dataset[name][:] for name in columns], np.float64)
            votes = values[0] if values.ndim == 3 else values.T
        except (TypeError, ValueError):
            raise error from None
        # As the contract says: integers are counts.
        found += check_rows(votes if np.any(votes % 1) else votes.astype(np.int64), split, tolerance=1e-6)
        if "example_id" in dataset.column_names:
            ids[split] = np.asarray(dataset["example_id"][:])
    first, *others = ids or [None]
    for split in others:
        found += check_common_ids(ids[first], ids[split], split)
    if not any(finding.severity == "wrong" for finding in found):
        raise error
    return _sorted(found)


def examine_recipe(path: str | Path, words: Sequence[str] = ()) -> list[Finding]:
    """The data, the model and a training step of a recipe with the command line's options."""
    dry = [word for key, value in DRY_RUN.items() for word in as_words(key, value)]
    with tempfile.TemporaryDirectory() as folder:
        return _examine_run(*parse_recipe(path, [*words, *dry, f"--output_dir={folder}"]))


def is_grid(path: str | Path) -> bool:
    """Whether a YAML file is a grid of runs; what cannot be read is left to whoever reads it as a recipe."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(values, dict) and "axes" in values


def examine_grid(path: str | Path, words: Sequence[str] = ()) -> list[Finding]:
    """The first cell of each recipe in a grid, and the first whose delivery needs counts; all cells are parsed."""
    cells = read_grid(path, words).cells
    # What one delivery can do without, the next may need.
    kinds = {(cell.recipe, cell.options.get("delivery") in NEED_COUNTS): cell for cell in reversed(cells)}
    found = []
    for cell in reversed(kinds.values()):
        found.append(
            Finding(
                "grid",
                "note",
                f"A grid of {len(cells)} cells: {cell.name} was examined, the first of its kind with {cell.recipe}.",
                f"cell {cell.name}",
                "nothing; for another cell, give the recipe and the cell's options: hf-softlabel doctor RECIPE.yaml "
                "--KEY VALUE",
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            dry = replace(cell, options={**cell.options, **DRY_RUN}, output_dir=Path(folder))
            try:
                of_cell = _examine_run(*cell_configs(dry))
            except VotesError as error:
                raise VotesError(f"{path}, cell {cell.name}: {error}") from error
        found += [replace(finding, where=f"cell {cell.name}: {finding.where}") for finding in of_cell]
    return _sorted(found)


def _examine_run(model_config: ModelConfig, data_config: DataConfig, training: SoftLabelConfig) -> list[Finding]:
    training.per_device_train_batch_size = min(_BATCH, training.per_device_train_batch_size)
    try:
        splits = load_splits(data_config, training.seed)
    except VotesError as error:
        if data_config.dataset in VERIFIED:
            raise
        options = {"label_columns": data_config.label_columns, "item": data_config.item_column}
        options = {key: value for key, value in options.items() if value is not None}
        source = VotesSource(data_config.dataset, data_config.subset, data_config.sources, None, options)
        return _examine_table(source, error)
    named = {name: split for name, split in splits._asdict().items() if split is not None}
    same_items = () if data_config.eval_annotators is None else ("eval",)
    found = examine_splits(named, data_config.text_columns, same_items)
    if not isinstance(splits.train, StreamingDataset):
        found += check_counts(dense_votes(splits.train), training.delivery or "soft")
        # The first examples are as good as all for a batch or two, and need no minute of decoding.
        splits = Splits(*(split and split.select(range(min(_EXAMPLES, len(split)))) for split in splits))
    if any(finding.name == "counts_missing" for finding in found):
        training.delivery = "soft"  # to see the rest
    trainer, _ = build_trainer(model_config, data_config, training, splits)
    return _sorted(found + _examine_steps(trainer))


def _sorted(found: Sequence[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: finding.severity != "wrong")


def format_findings(target: str, found: Sequence[Finding]) -> str:
    """For a person: each finding with where and fix, and a last line with the numbers."""
    lines = []
    for finding in found:
        lines += textwrap.wrap(f"{finding.severity:5}  {finding.what}", 110, subsequent_indent=" " * 7)
        lines += textwrap.wrap(f"where: {finding.where}", 110, initial_indent=" " * 7, subsequent_indent=" " * 14)
        lines += textwrap.wrap(f"fix:   {finding.fix}", 110, initial_indent=" " * 7, subsequent_indent=" " * 14)
    wrong = sum(finding.severity == "wrong" for finding in found)
    notes = len(found) - wrong
    return "\n".join([*lines, f"{target}: {wrong or 'nothing'} wrong, {notes} note{'' if notes == 1 else 's'}."])


def as_json(target: str, found: Sequence[Finding]) -> str:
    """For machines."""
    wrong = sum(finding.severity == "wrong" for finding in found)
    return json.dumps({"target": target, "wrong": wrong, "findings": [asdict(finding) for finding in found]}, indent=1)
