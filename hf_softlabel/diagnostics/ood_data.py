"""OOD sets: any images or texts, brought to the model as its own examples are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, concatenate_datasets

from ..data.errors import VotesError
from ..data.load import NAMES, load_votes
from ..data.sources import find_in_folder, sources_folder
from ..data.table import open_table
from ..data.text import tokenize_votes
from ..data.votes import votes_features
from .batches import TrainerBatches

if TYPE_CHECKING:
    from ..trainer import VotesTrainer


def parse_ood_set(text: str) -> tuple[str, str, str | None, str | None]:
    """`svhn=ufldl-stanford/svhn:cropped_digits#test` -> (name, source, subset, split); both ends may be left out."""
    name, equals, source = text.partition("=")
    if not equals or not name or not source:
        raise VotesError(f"An OOD set is written NAME=SOURCE[:SUBSET][#SPLIT], as svhn=owner/svhn is, not {text!r}.")
    if name in ("in", "settings") or "/" in name:
        raise VotesError(f"An OOD set cannot be named {name!r}: choose another name.")
    source, _, split = source.partition("#")
    source, _, subset = source.partition(":")
    return name, source, subset or None, split or None


def load_ood_set(
    source: str,
    subset: str | None = None,
    split: str | None = None,
    examples: int | None = None,
    seed: int = 0,
    sources: str | None = None,
) -> Dataset:
    """The images or texts of a data set of votes by its name (`popquorn`), a file, a folder or a Hub id.

    Args:
        split: by default `test`, or the only one.
        examples: so many of them, drawn at random.
        sources: the folder with the authors' files of a data set of votes, or a copy of the Hub's.
    """
    if examples is not None and examples < 1:
        raise VotesError(f"ood_examples must be at least 1, not {examples}.")
    if source in NAMES:
        splits = load_votes(source, subset, sources)
    elif (local := _local_copy(source, subset, split, sources)) is not None:
        splits = {split or "test": open_table(local, None, None, False)["train"]}
    else:
        splits = open_table(source, subset, None, False)
    split = split or ("test" if "test" in splits else next(iter(splits)) if len(splits) == 1 else None)
    if split not in splits:
        missing = "" if split is None else f" and no {split!r}"
        raise VotesError(f"{source} has the splits {', '.join(splits)}{missing}: say which with #SPLIT.")
    dataset = splits[split]
    if examples is not None and examples < len(dataset):
        rows = np.random.default_rng(seed).permutation(len(dataset))[:examples]
        dataset = dataset.select(np.sort(rows))
    kept = [column for column in dataset.column_names if column not in ("votes", "example_id", "label")]
    return dataset.select_columns(kept)


def _local_copy(source: str, subset: str | None, split: str | None, sources: str | None) -> Path | None:
    """The file of a Hub set below the sources folder, if that has it laid out as the Hub does."""
    folder = sources_folder(sources)
    if folder is None or Path(source).exists() or source.count("/") != 1:
        return None
    name = f"{source}/{subset or source.split('/')[1]}/{split or 'test'}-00000-of-00001.parquet"
    return find_in_folder(folder, [name])


def prepare_ood_set(trainer: VotesTrainer, dataset: Dataset, name: str) -> Any:
    """Images or texts as the trainer prepares its own. Nobody voted on them: each class gets one vote, unused."""
    n, classes = len(dataset), trainer.num_classes
    features = votes_features([str(k) for k in range(classes)])
    columns = {"votes": np.ones((n, classes), np.int32).tolist(), "example_id": range(n), "label": [None] * n}
    votes = Dataset.from_dict(columns, features=features)
    dataset = concatenate_datasets([dataset, votes], axis=1)
    own_columns = trainer.text_columns
    if own_columns and set(own_columns) <= set(dataset.column_names):
        dataset = tokenize_votes(dataset, trainer.processing_class, trainer._max_length, own_columns)
    prepared = trainer._prepare(dataset, trainer.processing_class, name)
    # Texts for a model of images would be found out only when the training is over.
    own, other = (
        sorted(next(iter(TrainerBatches(trainer, some, [0])))[0]) for some in (trainer.eval_dataset, prepared)
    )
    if own != other:
        raise VotesError(f"The OOD set {name} gives the model {', '.join(other)}, but it takes {', '.join(own)}.")
    return prepared
