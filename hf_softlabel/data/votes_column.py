"""The `votes` column of a data set in Arrow's memory, to numpy and back.

Never through Python lists where the column is whole: a million rows would take a minute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .errors import VotesError


def from_arrow(column: pa.ChunkedArray, num_classes: int) -> Any:
    """What [`votes_array`] takes: an array (n, C), {labels, counts} of Arrow lists, or, if neither can be, lists."""
    column = column.combine_chunks()
    if isinstance(column, pa.StructArray):
        return dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    widths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    flat = column.flatten()
    if column.null_count or flat.null_count or (widths != num_classes).any():
        return column.to_pylist()
    return flat.to_numpy(zero_copy_only=False, writable=True).reshape(len(column), num_classes)


def to_arrow(votes: np.ndarray, sparse: bool) -> pa.Array:
    """(n, C) votes -> n rows of the column; if `sparse`, with the classes that have votes only."""
    if not sparse:
        return pa.FixedSizeListArray.from_arrays(pa.array(votes.ravel()), votes.shape[1])
    rows, labels = votes.nonzero()
    return _sparse_rows(rows, labels, votes[rows, labels], len(votes))


def drawn_to_arrow(drawn: np.ndarray) -> pa.Array:
    """(n, k) labels, each a vote -> n sparse rows of the column."""
    drawn = np.sort(drawn, 1)
    first = np.diff(drawn, prepend=-1) > 0  # of several votes for a class
    counts = np.diff(np.flatnonzero(first), append=drawn.size)
    return _sparse_rows(first.nonzero()[0], drawn[first], counts, len(drawn))


def _sparse_rows(rows: np.ndarray, labels: np.ndarray, counts: np.ndarray, n: int) -> pa.Array:
    """Entries (E,) in the order of their rows -> n rows of {labels, counts}."""
    ends = pa.array(np.searchsorted(rows, np.arange(n + 1)), pa.int32())
    lists = [pa.ListArray.from_arrays(ends, pa.array(values)) for values in (labels, counts)]
    return pa.StructArray.from_arrays(lists, ["labels", "counts"])


def entries(lists: Any) -> tuple[np.ndarray, np.ndarray]:
    """N lists of integers, in Arrow or any sequences -> all entries (E,) int64, and how many each list has (N,)."""
    if isinstance(lists, pa.Array):
        flat, lengths = lists.flatten(), pc.list_value_length(lists).fill_null(0).to_numpy()
        is_integer, kind = pa.types.is_integer(flat.type), flat.type
        # A list that is missing has no votes, and an entry that is missing is as wrong as -1.
        flat = flat.cast(pa.int64()).fill_null(-1).to_numpy() if is_integer else flat
    else:
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = np.concatenate([np.zeros(0, np.int64), *(np.asarray(row) for row in lists if len(row))])
        is_integer, kind = flat.dtype.kind in "iu", flat.dtype
    if not is_integer:
        raise VotesError(f"`votes.labels` and `votes.counts` must be integers, not {kind}.")
    return flat.astype(np.int64, copy=False), lengths


def with_votes_column(dataset: Dataset, votes: pa.ChunkedArray, feature: Any) -> Dataset:
    """The data set with another `votes` column, in its place."""
    names = dataset.column_names
    return dataset.remove_columns("votes").add_column("votes", votes, feature=feature).select_columns(names)
