"""Votes from any table: CSV, TSV, JSON (Lines), Parquet, a folder of `save_to_disk`, or a set on the Hub."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    IterableDatasetDict,
    Value,
    concatenate_datasets,
    load_dataset,
    load_from_disk,
)

from .annotations import (
    CSV_OPTIONS,
    RESERVED,
    check_names,
    class_name,
    constant_columns,
    dataset_of,
    votes_from_annotations,
)
from .errors import VotesError, some
from .votes import check_example_ids, checked_chunks, class_names, votes_array, votes_features

logger = logging.getLogger(__name__)

_BUILDERS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
# Rows without an id get (split << 40) + row: unique over the splits, and the same whether streamed or not, which no
# running number over splits of unknown length could be.
_SPLIT_SHIFT = 40
_PEEK = 1000


def load_table(
    path_or_id: str | os.PathLike,
    subset: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
    *,
    votes: str | None = None,
    label_columns: Sequence[str] | None = None,
    item: str | None = None,
    label: str | None = None,
    annotator: str | None = None,
    names: Sequence[str] | None = None,
    example_id: str | None = None,
    keep: Sequence[str] | None = None,
    allow_repeated: bool = False,
) -> DatasetDict | IterableDatasetDict:
    """Load votes that a table has in one of three forms.

    - canonical: a column `votes` with a list of C numbers, or of {labels, counts}; another name as `votes=`;
    - wide: `label_columns=`, one column per class; integers are counts, floats probabilities;
    - long: `item=`, `label=` and perhaps `annotator=`, one row per annotation; see [`votes_from_annotations`].

    Args:
        path_or_id: a file, a folder, or the id `owner/name` of a Hub set.
        subset: the configuration of a Hub set or of a folder.
        split: load only this split.
        revision: a branch, tag or commit of the Hub set.
        streaming: read as the rows are used; each batch is checked when it is read. Not for the long form.
        names: the classes in order. Of the wide form, either the `label_columns` in another order, or new names for
            them one by one.
        example_id: the column with the examples' ids; by default `example_id`, else the rows are numbered.
        keep: of the long form, the columns to keep; by default all that are the same throughout each item.
        allow_repeated: of the long form, count all votes of an annotator who labelled an item more than once.

    A column `label` of the canonical and wide forms is the gold label: a class name, or its index if no class is named
    by a number.
    """
    is_long = item is not None or label is not None or annotator is not None
    if is_long and (item is None or label is None):
        raise VotesError("A table of annotations needs both `item` and `label`: the columns of what and of the vote.")
    if (votes is not None) + (label_columns is not None) + is_long > 1:
        raise VotesError("Say where the votes are in one way: `votes`, `label_columns`, or `item` and `label`.")
    if is_long and streaming:
        raise VotesError(
            "Annotations, one per row, cannot be streamed: counting an item's votes needs a pass over the data. Load "
            "without streaming, save the result with `to_parquet`, and stream that."
        )
    raw = open_table(path_or_id, subset, revision, streaming)
    if split is not None and split not in raw:
        raise VotesError(f"{path_or_id} has no split {split!r}, only {', '.join(raw)}.")
    result: DatasetDict | IterableDatasetDict = IterableDatasetDict() if streaming else DatasetDict()
    for number, (key, dataset) in enumerate(raw.items()):
        if split not in (None, key):
            continue
        first_id = number << _SPLIT_SHIFT
        if is_long:
            result[key] = _from_long(dataset, item, label, annotator, names, keep, allow_repeated, first_id)
        else:
            layout = _layout(dataset, votes, label_columns, names, example_id, first_id)
            result[key] = _stream(dataset, layout) if streaming else _whole(dataset, layout)
    _check_splits(result)
    return result


def open_table(
    path_or_id: str | os.PathLike, subset: str | None, revision: str | None, streaming: bool
) -> DatasetDict | IterableDatasetDict:
    """The table as it is, by splits."""
    path = Path(path_or_id)
    options: dict = {"streaming": streaming}
    if path.is_file():
        builder = _BUILDERS.get(path.suffix.lower())
        if builder is None:
            raise VotesError(f"{path}: the suffix must be one of {', '.join(_BUILDERS)}.")
        if subset is not None or revision is not None:
            raise VotesError(f"{path} is a file: it has no `subset` and no `revision`. Leave them out.")
        if builder == "csv":
            # In one piece, so that each column's type is that of all its rows and not of the first 10,000.
            options |= CSV_OPTIONS | ({} if streaming else {"chunksize": 1 << 30})
            options["sep"] = "\t" if path.suffix.lower() == ".tsv" else ","
        target, options["data_files"] = builder, str(path)
    elif path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
        saved = load_from_disk(str(path))
        saved = DatasetDict(train=saved) if isinstance(saved, Dataset) else saved
        if not streaming:
            return saved
        return IterableDatasetDict({key: dataset.to_iterable_dataset() for key, dataset in saved.items()})
    else:
        target = str(path_or_id)
        if not path.is_dir() and (path.suffix in _BUILDERS or not re.fullmatch(r"[\w.-]+/[\w.-]+", target)):
            raise VotesError(f"There is no file or folder {target}, and it is no id owner/name of a Hub set.")
        options |= {"name": subset, "revision": revision}
    try:
        return load_dataset(target, **options)
    except Exception as error:  # the Hub's clients and the parsers raise many kinds; the cause is in the message
        cause = error.__cause__ or error
        raise VotesError(f"{path_or_id} could not be loaded as a table: {cause}") from error


@dataclass(frozen=True)
class _Layout:
    """Where the votes, ids and gold labels are in a table's columns, and what the classes are."""

    features: Features  # of the source
    votes: str | None  # the one column of the canonical form,
    columns: list[str]  # or the columns of the wide form in the classes' order
    names: list[str]
    counts: bool
    sparse: bool
    id_column: str | None
    first_id: int

    @property
    def used(self) -> list[str]:
        own = [*self.columns, self.votes, self.id_column, "votes", "example_id", "label"]
        return [column for column in self.features if column in own]

    @property
    def rest(self) -> list[str]:
        return [column for column in self.features if column not in self.used]

    @property
    def made(self) -> Features:
        return votes_features(self.names, self.counts, self.sparse)

    def read(self, table: pa.Table, rows: Sequence[int]) -> dict[str, pa.Array]:
        """The columns `votes`, `example_id` and `label`, checked, from those of the source."""
        if self.id_column is None:
            ids = np.asarray(rows, np.int64) + self.first_id
        else:
            ids = table[self.id_column].to_numpy()
            check_example_ids(ids)
        label = _gold(table["label"], self.features["label"], self.names) if "label" in self.features else None
        return {
            "votes": self._sparse_votes(table) if self.sparse else self._dense_votes(table),
            "example_id": pa.array(ids, pa.int64()),
            "label": pa.nulls(len(table), pa.int64()) if label is None else label,
        }

    def _sparse_votes(self, table: pa.Table) -> pa.Array:
        rows = table[self.votes].to_pylist()
        if missing := [i for i, row in enumerate(rows) if not row or None in (row["labels"], row["counts"])]:
            raise VotesError(f"`{self.votes}` is missing in row(s) {some(missing)}: remove these rows.")
        place = {name: i for i, name in enumerate(self.names)}
        for row in rows:
            row["labels"] = [place.get(x, -1) if isinstance(x, str) else x for x in row["labels"]]
        for _ in checked_chunks(rows.__getitem__, len(rows), len(self.names)):
            pass
        return pa.array(rows, self.made.arrow_schema.field("votes").type)

    def _dense_votes(self, table: pa.Table) -> pa.Array:
        num_classes = len(self.names)
        if self.votes is not None:
            column = table[self.votes].combine_chunks()
            flat = column.flatten()
            whole = column.null_count == 0 and flat.null_count == 0 and len(flat) == len(column) * num_classes
            # Straight from Arrow's buffers where that can be; else row by row, to name the rows that are wrong.
            values = flat.to_numpy(zero_copy_only=False).reshape(-1, num_classes) if whole else column.to_pylist()
        else:
            for column in self.columns:
                missing = np.flatnonzero(pc.is_null(table[column], nan_is_null=True).to_numpy())
                if len(missing):
                    raise VotesError(
                        f"The column `{column}` is missing in {len(missing)} row(s): {some(missing)}. "
                        "Write 0 where nobody voted for the class, or remove these rows."
                    )
            values = np.stack([table[column].to_numpy() for column in self.columns], axis=1)
            if self.counts and not np.any(values % 1):
                # A batch of a CSV that pandas read as floats, because of a missing value in one of the next batches.
                values = values.astype(np.int64)
        array = votes_array(values, num_classes)
        if self.counts and array.dtype.kind == "f":
            raise VotesError("`votes` holds floats here and integers in the rows before: use one kind throughout.")
        value_type = pa.int32() if self.counts else pa.float64()
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()).cast(value_type), num_classes)


def _layout(
    dataset: Dataset | IterableDataset,
    votes: str | None,
    label_columns: Sequence[str] | None,
    names: Sequence[str] | None,
    example_id: str | None,
    first_id: int,
) -> _Layout:
    head = list(dataset.take(1 if dataset.features else _PEEK))
    if not head:
        raise VotesError("The table is empty: there is no example to use.")
    # A streamed CSV does not say its columns' types before it is read.
    features = dataset.features or Dataset.from_list(head).features
    wanted = [*(label_columns or [votes or "votes"]), *([example_id] if example_id else [])]
    if missing := [column for column in wanted if column not in features]:
        raise VotesError(
            f"There is no column {', '.join(missing)} among: {', '.join(features)}. Say where the votes are: "
            "votes= (a column of lists), label_columns= (a column per class), or item= and label= (a row per vote)."
        )
    id_column = example_id or ("example_id" if "example_id" in features else None)
    if label_columns is not None:
        columns = list(label_columns)
        names = check_names(columns if names is None else names)
        if set(names) == set(columns):
            columns = names
        elif len(names) != len(columns):
            raise VotesError(f"`names` has {len(names)} entries for {len(columns)} label_columns: name each of them.")
        kinds = {column: _kind(features[column]) for column in columns}
        if wrong := [column for column, kind in kinds.items() if kind is None]:
            raise VotesError(f"The column(s) {', '.join(wrong)} must be numbers, not {features[wrong[0]]}.")
        return _Layout(features, None, columns, names, "f" not in kinds.values(), False, id_column, first_id)

    column = votes or "votes"
    feature = features[column]
    sparse = isinstance(feature, Mapping)
    if sparse and (set(feature) != {"labels", "counts"} or _kind(_element(feature["counts"])) != "i"):
        raise VotesError(f"Sparse `{column}` must be {{labels: [...], counts: [integers]}}, not {feature}.")
    if not sparse and _kind(_element(feature)) is None:
        raise VotesError(
            f"`{column}` must be a list of numbers, not {feature}. CSV has no lists: use one column per class "
            "(label_columns=), or JSON Lines or Parquet."
        )
    if names is None:
        holders = [features.get("label"), _element(feature["labels"]) if sparse else None]
        known = [holder.names for holder in holders if isinstance(holder, ClassLabel)]
        if sparse and not known:
            raise VotesError("Sparse votes do not say how many classes there are: give `names`.")
        names = known[0] if known else range(len(head[0][column] or ()))
    counts = sparse or _kind(_element(feature)) == "i"
    return _Layout(features, column, [], check_names(names), counts, sparse, id_column, first_id)


def _element(feature: object) -> object:
    """The feature of a list's elements; None if it is no list."""
    return getattr(feature, "feature", None)


def _kind(feature: object) -> str | None:
    """'i' for integers, 'f' for floats, None for all else."""
    if not isinstance(feature, Value) or not feature.dtype.startswith(("int", "uint", "float")):
        return None
    return "f" if feature.dtype.startswith("float") else "i"


def _gold(column: pa.ChunkedArray, feature: object, names: list[str]) -> pa.Array:
    """The gold labels as class indices (int64), null where there are none."""
    place: dict[str, int | None] = {"-1": None}  # the Hub's sign for "no label"
    if not any(re.fullmatch(r"-?\d+", name) for name in names):
        place |= {str(i): i for i in range(len(names))}
    place |= {name: i for i, name in enumerate(names)}
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if isinstance(feature, ClassLabel):
        values = [feature.names[value] if value >= 0 else -1 for value in values]
    labels = [class_name(value) for value in values]
    if unknown := [label for label in labels if label not in place]:
        raise VotesError(f"Unknown `label`(s) {some(unknown)}: the classes are {', '.join(names)}.")
    return pa.array([place[label] for label in labels], pa.int64()).take(encoded.indices)


def _whole(dataset: Dataset, layout: _Layout) -> Dataset:
    table = dataset.select_columns(layout.used).with_format("arrow")[:]
    made = dataset_of(layout.read(table, range(len(table))), layout.made)
    if not layout.rest:
        return made
    return concatenate_datasets([dataset.select_columns(layout.rest), made], axis=1)


def _stream(dataset: IterableDataset, layout: _Layout) -> IterableDataset:
    if layout.id_column is None and dataset.num_shards > 1:
        raise VotesError(
            f"The rows of {dataset.num_shards} files that are streamed in parallel cannot be numbered: add a column "
            "with the examples' ids (example_id=), or load without streaming."
        )

    def read(batch: pa.Table, rows: list[int]) -> pa.Table:
        try:
            made = layout.read(batch, rows)
        except VotesError as error:
            raise VotesError(f"In the batch of rows {rows[0]} to {rows[-1]}, counted from 0: {error}") from None
        return pa.table({**{column: batch[column] for column in layout.rest}, **made})

    made = Features({**{column: layout.features[column] for column in layout.rest}, **layout.made})
    # `remove_columns` would also remove, without a word, what `read` returns under the same name.
    gone = [column for column in layout.features if column not in made]
    options = {"batched": True, "with_indices": True, "remove_columns": gone, "features": made}
    return dataset.with_format("arrow").map(read, **options).with_format(None)


def _from_long(
    dataset: Dataset,
    item: str,
    label: str,
    annotator: str | None,
    names: Sequence[str] | None,
    keep: Sequence[str] | None,
    allow_repeated: bool,
    first_id: int,
) -> Dataset:
    if keep is None and item in dataset.column_names:
        others = [column for column in dataset.column_names if column not in (item, label, annotator)]
        keep = constant_columns(dataset, item, [column for column in others if column not in RESERVED])
        if left_out := [column for column in others if column not in keep]:
            logger.warning(
                "Left out, for they vary within an item or are named like the result's: %s.", ", ".join(left_out)
            )
    result = votes_from_annotations(
        dataset,
        item=item,
        label=label,
        annotator=annotator,
        names=names,
        keep=keep or (),
        allow_repeated=allow_repeated,
    )
    if item in result.column_names and first_id:  # the items were numbered, from 0 in each split
        place = result.column_names
        ids = np.asarray(result.with_format("numpy")["example_id"][:]) + first_id
        result = result.remove_columns("example_id").add_column("example_id", ids).select_columns(place)
    return result


def _check_splits(splits: DatasetDict | IterableDatasetDict) -> None:
    """The classes must be the same in all splits, and no id may be in two of them."""
    names = {key: class_names(dataset) for key, dataset in splits.items()}
    if len({tuple(value) for value in names.values()}) > 1:
        listed = "; ".join(f"{key}: {', '.join(value)}" for key, value in names.items())
        raise VotesError(f"The splits have different classes ({listed}). Give all of them as `names`.")
    if isinstance(splits, DatasetDict) and len(splits) > 1:
        ids = [np.asarray(dataset.with_format("numpy")["example_id"][:]) for dataset in splits.values()]
        try:
            check_example_ids(np.concatenate(ids))
        except VotesError as error:
            raise VotesError(f"Over the splits {', '.join(splits)}: {error} Or load one split (split=).") from None
