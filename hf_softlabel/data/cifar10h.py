"""CIFAR-10H (Peterson et al., 2019): about 51 human labels for each of the 10,000 CIFAR-10 test images."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Image, IterableDataset, IterableDatasetDict, load_dataset

from .errors import VotesError
from .sources import Source, check_totals, find_in_folder, find_source, sources_folder
from .votes import votes_features

COUNTS = Source(
    name="cifar10h-counts.npy",
    address="https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/cifar10h-counts.npy",
    sha256="9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff",
)
IMAGES = "uoft-cs/cifar10"
LOCAL_IMAGES = "uoft-cs/cifar10/plain_text/test-00000-of-00001.parquet"
TOTALS = {"images": 10_000, "classes": 10, "votes": 511_000, "votes at least": 47, "votes at most": 63}
# 99.21% of the majorities are the CIFAR-10 label, and 96% in the worst run of 100 images; in a wrong order it is 10%.
LEAST_AGREEMENT = 0.95
_STREAM_BATCH = 100


def load_cifar10h(
    sources: str | os.PathLike | None = None, revision: str | None = None, streaming: bool = False
) -> DatasetDict | IterableDatasetDict:
    """Columns `image`, `votes` (10 counts), `example_id` (the row in CIFAR-10's test set) and `label` (CIFAR-10's).

    The images are those of a sources folder laid out as the Hub, else the Hub's. A `revision` is one of the Hub's, so
    with it the Hub is asked.
    """
    counts = _counts(sources)
    images = _images(sources, revision, streaming)
    names = images.features["label"].names
    features = Features({"image": Image(), **votes_features(names)})
    votes_type = features.arrow_schema.field("votes").type

    def join(batch: pa.Table, rows: list[int]) -> pa.Table:
        _check_order(counts, batch["label"].to_numpy(), rows)
        votes = pa.array(list(counts[rows]), votes_type)
        return pa.table({"image": batch["img"], "votes": votes, "example_id": rows, "label": batch["label"]})

    # As Arrow tables the images pass through as they are; as Python rows each would be decoded and encoded again.
    arrow = images.with_format("arrow")
    options = {"batched": True, "with_indices": True, "features": features, "remove_columns": ["img"]}
    if isinstance(images, IterableDataset):
        return IterableDatasetDict(train=arrow.map(join, batch_size=_STREAM_BATCH, **options).with_format(None))
    check_totals(IMAGES, {"images": len(images)}, {"images": TOTALS["images"]})
    return DatasetDict(train=arrow.map(join, **options).with_format(None))


def _counts(sources: str | os.PathLike | None) -> np.ndarray:
    """(10000, 10) int64 votes in the order of CIFAR-10's test set."""
    path = find_source(COUNTS, sources)
    counts = np.load(path)
    each = counts.sum(1)
    found = [len(counts), counts.shape[1], each.sum(), each.min(), each.max()]
    check_totals(path, dict(zip(TOTALS, map(int, found), strict=True)), TOTALS)
    return counts


def _images(sources: str | os.PathLike | None, revision: str | None, streaming: bool) -> Dataset | IterableDataset:
    folder = sources_folder(sources)
    local = find_in_folder(folder, [LOCAL_IMAGES]) if folder is not None and revision is None else None
    if local is not None:
        return load_dataset("parquet", data_files={"test": str(local)}, split="test", streaming=streaming)
    try:
        return load_dataset(IMAGES, split="test", revision=revision, streaming=streaming)
    except Exception as error:  # the Hub's clients raise many kinds, and each of them means the same to the user
        raise VotesError(
            f"The CIFAR-10 images could not be loaded from the Hub ({IMAGES}): {error}. Mend the connection, or put "
            f"the set's test file at {LOCAL_IMAGES} below a sources folder."
        ) from error


def _check_order(counts: np.ndarray, labels: np.ndarray, rows: list[int]) -> None:
    """Refuse images that are not in the order of the votes: nothing else would show it."""
    if rows[-1] >= len(counts):
        raise VotesError(f"{IMAGES} has more test images than the {len(counts)} that were voted on.")
    agreement = float((counts[rows].argmax(1) == labels).mean())
    if agreement < LEAST_AGREEMENT:
        raise VotesError(
            f"The majority vote is the CIFAR-10 label for only {agreement:.1%} of the images {rows[0]} to {rows[-1]} "
            f"(99.21% of all was expected): {IMAGES} is not in its original order. Load the original test split."
        )
