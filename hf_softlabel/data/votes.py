"""The votes contract: what a data set of annotator votes looks like, and what is refused.

A row has the model's inputs and
- `votes`: C integers (counts), or C floats that sum to 1 (a distribution), or the sparse form
  `{"labels": [...], "counts": [...]}` for many classes;
- `example_id`: int64, unique, the same through splits, shuffles and subsampling;
- `label`, a `ClassLabel`: the gold label, or null where the source has none. Its names are the classes' names, which
  in this place survive save, load and push (the sparse form has them in `votes.labels` too).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from datasets import IterableDataset as StreamingDataset

from ..delivery import majority_label, sample_label, vote_at
from ..hashing import SIZE_LIMIT, hash64, permuted_position
from .errors import VotesError, some
from .votes_column import drawn_to_arrow, entries, from_arrow, to_arrow, with_votes_column

SUM_TOLERANCE = 1e-6
# Of a whole data set so many numbers are held at a time, 8 MB: sparse votes on many classes are small, (N, C) is not.
_CHUNK = 1 << 20


def votes_features(names: Sequence[str], counts: bool = True, sparse: bool = False) -> Features:
    """The features of `votes`, `example_id` and `label` for the classes `names`."""
    names = list(names)
    if sparse:
        votes: Any = {"labels": List(ClassLabel(names=names)), "counts": List(Value("int32"))}
    else:
        votes = List(Value("int32" if counts else "float64"), length=len(names))
    return Features({"votes": votes, "example_id": Value("int64"), "label": ClassLabel(names=names)})


def is_sparse(features: Features) -> bool:
    """Whether the `votes` column has the sparse form."""
    return isinstance(features["votes"], Mapping)


def class_names(dataset: Dataset | StreamingDataset) -> list[str]:
    """The classes' names, in the order of the votes."""
    features = dataset.features
    if features is None:
        raise VotesError("The stream does not know its columns: give it features with dataset.cast(features).")
    if "votes" not in features:
        raise VotesError(f"There is no column `votes` among: {', '.join(features)}.")
    if isinstance(features.get("label"), ClassLabel):
        return list(features["label"].names)
    if is_sparse(features):
        labels = features["votes"]["labels"].feature
        if isinstance(labels, ClassLabel):
            return list(labels.names)
        raise VotesError(
            "Sparse votes do not say how many classes there are: give `votes.labels` the feature "
            "List(ClassLabel(names=[...])), or add a `label` column of type ClassLabel."
        )
    length = features["votes"].length
    if length < 0:
        if isinstance(dataset, StreamingDataset) or len(dataset) == 0:
            raise VotesError("The number of classes is unknown: cast `votes` to List(Value(...), length=C).")
        length = len(dataset[0]["votes"])
    return [str(i) for i in range(length)]


def densify(labels: Any, counts: Any, num_classes: int, first: int = 0) -> np.ndarray:
    """Sparse rows, as sequences or as Arrow lists -> (N, C) int64 counts. `first` is the first row's number."""
    (flat, lengths), (numbers, others) = entries(labels), entries(counts)
    wrong = np.flatnonzero(lengths != others)
    if len(wrong):
        raise VotesError(f"`votes.labels` and `votes.counts` differ in length in rows {some(wrong + first)}.")
    out = np.zeros((len(lengths), num_classes), np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    wrong = np.flatnonzero((flat < 0) | (flat >= num_classes))
    if len(wrong):
        raise VotesError(
            f"Unknown label in rows {some(np.unique(rows[wrong]) + first)}: labels must lie in 0..{num_classes - 1}."
        )
    np.add.at(out, (rows, flat), numbers)
    wrong = numbers < 0
    out[rows[wrong], flat[wrong]] = -1  # which check_votes names, though another entry of the class may outweigh it
    return out


def votes_array(votes: Any, num_classes: int, first: int = 0) -> np.ndarray:
    """A batch or a column of votes, dense or sparse -> checked (N, C) array, int64 for counts or float64.

    Args:
        first: the number that the first row has in messages.

    Raises:
        VotesError: the rows are not votes; the message names up to five of them.
    """
    if isinstance(votes, Mapping):
        array = densify(votes["labels"], votes["counts"], num_classes, first)
    elif len(votes) and isinstance(votes[0], Mapping):
        array = densify([row["labels"] for row in votes], [row["counts"] for row in votes], num_classes, first)
    else:
        if not isinstance(votes, (np.ndarray, torch.Tensor)):
            ragged = [i for i, row in enumerate(votes, first) if row is None or len(row) != num_classes]
            if ragged:
                raise VotesError(
                    f"`votes` must have {num_classes} entries in each row, one for each class; "
                    f"rows {some(ragged)} have not."
                )
        array = np.asarray(votes)
        if array.dtype == object and (missing := [i for i, row in enumerate(votes, first) if None in list(row)]):
            raise VotesError(f"`votes` has missing entries in rows {some(missing)}: write 0, or remove these rows.")
        if array.dtype == object or (len(array) and array.dtype.kind not in "iuf"):
            raise VotesError(f"`votes` must be numbers, not {array.dtype}.")
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)
        array = array.reshape(len(array), num_classes) if array.size == len(array) * num_classes else array
    check_votes(array, num_classes, first)
    return array


def check_votes(votes: np.ndarray, num_classes: int | None = None, first: int = 0) -> None:
    """Raise [`VotesError`] unless (N, C) `votes` are counts or distributions. `first` is the first row's number."""
    if votes.ndim != 2 or (num_classes is not None and votes.shape[1] != num_classes):
        raise VotesError(f"`votes` has the shape {votes.shape}; (examples, {num_classes or 'classes'}) was expected.")
    if votes.shape[1] < 2:
        raise VotesError("Votes on a single class say nothing: at least two classes are needed.")
    is_float = votes.dtype.kind == "f"

    def refuse(wrong: np.ndarray, what: str, remedy: str) -> None:
        rows = np.flatnonzero(wrong) + first
        if len(rows):
            raise VotesError(f"`votes` is {what} in {len(rows)} row(s): {some(rows)}. What to do: {remedy}.")

    if is_float:
        refuse(~np.isfinite(votes).all(1), "not a number or infinite", "remove these rows or mend their votes")
    refuse((votes < 0).any(1), "negative", "votes are counts or probabilities")
    total = votes.sum(1)
    if not is_float:
        # The entries too, as a sum of very large ones overflows.
        refuse(
            (total >= SIZE_LIMIT) | (votes >= SIZE_LIMIT).any(1),
            f"{SIZE_LIMIT} votes or more",
            "mend these counts, or give probabilities",
        )
    refuse(total == 0, "all zero", "nobody voted on these examples: remove them")
    if is_float:
        refuse(
            np.abs(total - 1) > SUM_TOLERANCE,
            "floats that do not sum to 1",
            "divide by the row's sum, or, if these are counts, cast the column to integers",
        )


def votes_chunks(dataset: Dataset) -> Iterator[tuple[slice, np.ndarray]]:
    """The `votes` column, checked, some rows at a time: which rows, and their votes (n, C), int64 or float64."""
    num_classes, column = len(class_names(dataset)), dataset.select_columns("votes").with_format("arrow")
    return checked_chunks(lambda rows: from_arrow(column[rows]["votes"], num_classes), len(dataset), num_classes)


def checked_chunks(read: Callable[[slice], Any], n: int, num_classes: int) -> Iterator[tuple[slice, np.ndarray]]:
    """The same for n rows of which `read` gives those of a slice, in any form that [`votes_array`] takes."""
    step = max(1, _CHUNK // num_classes)
    for start in range(0, max(n, 1), step):
        rows = slice(start, min(start + step, n))
        try:
            votes = votes_array(read(rows), num_classes, start)
        except VotesError as error:
            unseen = f" Rows from {rows.stop} on were not looked at." if rows.stop < n else ""
            raise VotesError(f"{error}{unseen}") from None
        yield rows, votes


def dense_votes(dataset: Dataset) -> np.ndarray:
    """The whole `votes` column, checked: (N, C), int64 counts or float64 probabilities."""
    return _joined(votes_chunks(dataset), len(dataset))


def _joined(chunks: Iterable[tuple[slice, np.ndarray]], n: int) -> np.ndarray:
    """The chunks of n rows as one array (n, C)."""
    out = np.empty((n, 0))
    for rows, votes in chunks:
        if rows.start == 0:
            out = np.empty((n, votes.shape[1]), votes.dtype)
        out[rows] = votes
    return out


def validate_votes(dataset: Dataset, need_counts: bool = False) -> np.ndarray:
    """Check a data set against the whole contract and return its votes (N, C).

    Raises:
        VotesError: missing columns, an empty data set, bad votes, duplicate `example_id`, or (with `need_counts`)
            probabilities where counts are needed.
    """
    return _joined(_contract_chunks(dataset, need_counts), len(dataset))


def check_dataset(dataset: Dataset, need_counts: bool = False) -> int:
    """As [`validate_votes`], but no (N, C) array is made. Returns the number of classes."""
    for _, votes in _contract_chunks(dataset, need_counts):
        classes = votes.shape[1]
    return classes


def _contract_chunks(dataset: Dataset, need_counts: bool) -> Iterator[tuple[slice, np.ndarray]]:
    for column in ("votes", "example_id"):
        if column not in dataset.column_names:
            raise VotesError(f"There is no column `{column}` among: {', '.join(dataset.column_names)}.")
    if len(dataset) == 0:
        raise VotesError("The data set is empty: there is no example to use.")
    check_example_ids(example_ids(dataset))
    for rows, votes in votes_chunks(dataset):
        if need_counts and votes.dtype.kind == "f":
            raise VotesError(
                "Integer vote counts are needed, but `votes` holds probabilities. "
                "Give counts, or choose a delivery that needs only probabilities ('soft', 'sls')."
            )
        yield rows, votes


def example_ids(dataset: Dataset) -> np.ndarray:
    """(N,), as they are in the column."""
    return np.asarray(dataset.with_format("numpy")["example_id"][:])


def check_example_ids(ids: np.ndarray) -> None:
    """Raise [`VotesError`] unless the ids are integers and unique."""
    if ids.dtype.kind not in "iu":
        raise VotesError(f"`example_id` must be integers, not {ids.dtype}: number the examples of the source.")
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        raise VotesError(f"`example_id` must be unique; these occur more than once: {some(unique[counts > 1])}.")


def gold_labels(dataset: Dataset) -> np.ndarray:
    """(N,) int64: the gold label, or -1 where there is none."""
    if "label" not in dataset.column_names:
        return np.full(len(dataset), -1, np.int64)
    return dataset.with_format("arrow")["label"][:].cast(pa.int64()).fill_null(-1).to_numpy().copy()


def hard_labels(dataset: Dataset, seed: int = 0) -> np.ndarray:
    """(N,) int64: the gold label where there is one, else the majority of the votes."""
    ids, gold = torch.from_numpy(example_ids(dataset).astype(np.int64)), gold_labels(dataset)
    # Not a list of each chunk's labels: small arrays that stay would break up the memory that large ones leave.
    labels = np.empty(len(dataset), np.int64)
    for rows, votes in votes_chunks(dataset):
        labels[rows] = majority_label(torch.from_numpy(votes), ids[rows], seed).numpy()
    return np.where(gold >= 0, gold, labels)


def split_votes(dataset: Dataset, eval_fraction: float = 0.2, seed: int = 0) -> DatasetDict:
    """Split into `train` and `eval`, stratified on the hard label; `round(N * eval_fraction)` examples in `eval`.

    Systematic sampling from the rows in the order (label, random): each class is held out in proportion to within one
    example, and classes with a single example are no error.
    """
    n = len(dataset)
    held_out = round(n * eval_fraction)
    if not 0 < held_out < n:
        raise VotesError(
            f"eval_fraction={eval_fraction} of {n} example(s) leaves an empty split: choose another fraction."
        )
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(n), hard_labels(dataset, seed)))
    start = rng.integers(n)
    ticks = (np.arange(n + 1) * held_out + start) // n
    chosen = np.zeros(n, bool)
    chosen[order[np.diff(ticks) > 0]] = True
    return DatasetDict(
        train=dataset.select(np.flatnonzero(~chosen)),
        eval=dataset.select(np.flatnonzero(chosen)),
    )


def split_stream(dataset: StreamingDataset, eval_fraction: float = 0.2, seed: int = 0) -> dict[str, StreamingDataset]:
    """The same for a stream, example by example by its id: not stratified, and sizes are only near the fraction."""

    def held_out(ids: list[int]) -> list[bool]:
        bits = hash64("split", seed, torch.tensor(ids))
        return ((bits >> 11) & ((1 << 53) - 1)).lt(eval_fraction * 2**53).tolist()

    options = {"input_columns": "example_id", "batched": True}
    return {
        "train": dataset.filter(lambda ids: [not x for x in held_out(ids)], **options),
        "eval": dataset.filter(held_out, **options),
    }


def drawn_votes(
    votes: np.ndarray, example_id: np.ndarray, k: int, seed: int, without_replacement: bool = False
) -> np.ndarray:
    """(N, C) votes -> (N, k) int64: the labels of k of them.

    By default a multinomial draw from each row's distribution, as `np.random.multinomial(k, p)` in the paper; draws
    for different k are independent, not nested. Each row's draw depends only on its `example_id`, `k` and `seed`, not
    on the row's place or on which other rows there are.
    """
    if k < 1:
        raise VotesError(f"votes_per_example must be at least 1, not {k}.")
    tensor, ids = torch.from_numpy(votes), torch.from_numpy(np.asarray(example_id, np.int64))
    out = torch.empty((len(ids), k), dtype=torch.int64)
    if without_replacement:
        if tensor.is_floating_point():
            raise VotesError("Subsampling without replacement needs integer vote counts, not probabilities.")
        total = tensor.sum(-1)
        few = torch.nonzero(total < k).flatten()
        if len(few):
            raise VotesError(
                f"Cannot take {k} votes without replacement from examples with fewer, such as the example_id "
                f"{some(ids[few][:5].tolist())}. Lower votes_per_example or use subsample: multinomial."
            )
        key = hash64("subsample_without", seed, k, ids)
    for draw in range(k):
        if without_replacement:
            out[:, draw] = vote_at(tensor, permuted_position(torch.full_like(total, draw), total, key))
        else:
            out[:, draw] = sample_label(tensor, hash64("subsample", seed, k, draw, ids))
    return out.numpy()


def subsampled_votes(
    votes: np.ndarray, example_id: np.ndarray, k: int, seed: int, without_replacement: bool = False
) -> np.ndarray:
    """(N, C) votes -> (N, C) int64 counts that sum to `k`, see [`drawn_votes`]."""
    return _counted(drawn_votes(votes, example_id, k, seed, without_replacement), votes.shape[1])


def _counted(drawn: np.ndarray, num_classes: int) -> np.ndarray:
    """(N, k) labels -> (N, C) int64 counts."""
    out = np.zeros((len(drawn), num_classes), np.int64)
    np.add.at(out, (np.arange(len(drawn))[:, None], drawn), 1)
    return out


def subsample_votes(dataset: Dataset, k: int, seed: int, without_replacement: bool = False) -> Dataset:
    """The data set with `k` votes per example, drawn from its votes; see [`drawn_votes`]."""
    ids, drawn = example_ids(dataset), np.empty((len(dataset), max(k, 1)), np.int64)
    for rows, votes in votes_chunks(dataset):
        drawn[rows] = drawn_votes(votes, ids[rows], k, seed, without_replacement)
    if not is_sparse(dataset.features):
        return with_votes(dataset, _counted(drawn, len(class_names(dataset))))
    return with_votes_column(dataset, pa.chunked_array([drawn_to_arrow(drawn)]), dataset.features["votes"])


def votes_fingerprint(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> str:
    """16 hexadecimal digits of votes (n, C) and their ids (n,), in whatever parts and order the rows come."""
    total = 0
    for votes, example_id in parts:
        steps = torch.from_numpy(votes if votes.dtype.kind != "f" else (votes * 2**20).round().astype(np.int64))
        rows = hash64("vote", torch.arange(votes.shape[1]), steps).sum(-1)
        total += hash64("row", torch.from_numpy(np.array(example_id, np.int64)), rows).sum().item()
    return f"{total & ((1 << 64) - 1):016x}"


def with_votes(dataset: Dataset, votes: np.ndarray) -> Dataset:
    """The data set with other votes (N, C): float probabilities, or integer counts, which are sparse if they were."""
    counts = votes.dtype.kind != "f"
    sparse = counts and is_sparse(dataset.features)
    feature = dataset.features["votes"] if sparse else votes_features(class_names(dataset), counts)["votes"]
    return with_votes_column(dataset, pa.chunked_array([to_arrow(votes, sparse)]), feature)


def with_votes_of(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """The data set in which row i has the votes of row `rows[i]`."""
    votes = dataset.select_columns("votes").with_format("arrow")[:]["votes"]
    return with_votes_column(dataset, votes.take(pa.array(rows)), dataset.features["votes"])
