"""From long tables, one row per annotation, to votes, one row per item."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetInfo, Features, List, Value, concatenate_datasets
from datasets.table import InMemoryTable

from .errors import VotesError, some
from .votes import votes_features

# Only these mean "missing" in a CSV: pandas' own list has "None", "NA" and "null" too, which are real class names.
CSV_OPTIONS = {"keep_default_na": False, "na_values": ["", "nan", "NaN"]}
RESERVED = ("votes", "example_id", "label", "annotator_ids", "annotations")


def votes_from_annotations(
    table: str | os.PathLike | pd.DataFrame | Dataset | Mapping[str, Sequence],
    *,
    item: str,
    label: str,
    annotator: str | None = None,
    names: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    allow_repeated: bool = False,
) -> Dataset:
    """Count the annotations of each item.

    Args:
        table: one row per annotation; a CSV, TSV, JSON Lines or Parquet file, or a table in memory.
        item: the column that says what was annotated. Integers become the `example_id` and order the rows; other items
            are numbered in the order in which they first appear, and their column is kept.
        label: the column with the annotator's choice.
        annotator: the column that says who chose. With it the result has `annotator_ids` and, parallel to it,
            `annotations` (class indices), in the order of the table.
        names: the classes in order; by default all labels that occur, sorted (as numbers if they are). 1.0 is "1".
        keep: columns to keep, such as the text; they must be the same throughout an item.
        allow_repeated: count all votes of an annotator who labelled an item more than once.

    Raises:
        VotesError: a missing or unknown label, a missing item or annotator, a repeated annotator, or a kept column
            that varies within an item.
    """
    frame, names = _frame(table, [item, label, *([annotator] if annotator else []), *keep], label, names)
    if len(frame) == 0:
        raise VotesError("The table of annotations is empty.")
    items, ids = _items(frame[item])
    classes, names = _classes(frame[label], names)
    num_items = int(items.max()) + 1
    first = np.full(num_items, len(frame), np.int64)
    np.minimum.at(first, items, np.arange(len(frame)))

    kept = [*([item] if ids is None and item not in keep else []), *keep]
    if clash := [column for column in kept if column in RESERVED]:
        raise VotesError(f"The column(s) {', '.join(clash)} would be overwritten by the votes': rename them first.")
    for column in keep:
        varying = _varying_items(frame[column], items, first)
        if len(varying):
            raise VotesError(
                f"The column `{column}` is not the same throughout the item(s) "
                f"{some(frame[item].iloc[first[varying]])}: mend the table or leave it out of `keep`."
            )

    features = votes_features(names)
    counts = np.bincount(items * len(names) + classes, minlength=num_items * len(names))
    columns = {
        "votes": pa.FixedSizeListArray.from_arrays(pa.array(counts, pa.int32()), len(names)),
        "example_id": pa.array(np.arange(num_items) if ids is None else ids, pa.int64()),
        "label": pa.nulls(num_items, pa.int64()),
    }
    if annotator is not None:
        who, feature = _annotators(frame[annotator], frame[item], items, allow_repeated)
        order = np.argsort(items, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=num_items))])
        features["annotator_ids"] = List(feature)
        features["annotations"] = List(ClassLabel(names=names))
        columns["annotator_ids"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), who.take(pa.array(order)))
        columns["annotations"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(classes[order]))
    votes = dataset_of(columns, features)
    if not kept:
        return votes
    if isinstance(table, Dataset):
        inputs = table.select_columns(kept).select(first)  # with its features: images stay images
    else:
        inputs = Dataset.from_pandas(frame[kept].iloc[first], preserve_index=False)
        # What pandas 3 makes of text; `string` is what all other loaders give.
        large = [name for name, feature in inputs.features.items() if feature == Value("large_string")]
        inputs = inputs.cast(Features({**inputs.features, **dict.fromkeys(large, Value("string"))}))
    return concatenate_datasets([inputs, votes], axis=1)


def constant_columns(dataset: Dataset, item: str, columns: Sequence[str]) -> list[str]:
    """Those of `columns` that are the same throughout each item."""
    frame = dataset.select_columns(list({item, *columns})).to_pandas()
    items, _ = _items(frame[item])
    first = np.full(int(items.max()) + 1, len(frame), np.int64)
    np.minimum.at(first, items, np.arange(len(frame)))
    return [column for column in columns if not len(_varying_items(frame[column], items, first))]


def dataset_of(columns: Mapping[str, pa.Array], features: Features) -> Dataset:
    """A data set straight from Arrow arrays: a million rows through Python lists would take a minute."""
    arrays = [columns[name].cast(field.type) for name, field in zip(features, features.arrow_schema, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=features.arrow_schema)
    return Dataset(InMemoryTable(table), info=DatasetInfo(features=features))


def class_name(value: Any) -> str:
    """The name of a label: 1 and 1.0 are both "1"."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def check_names(names: Sequence) -> list[str]:
    """The classes' names as distinct strings."""
    names = [class_name(name) for name in names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise VotesError(f"`names` must be distinct and at least one; repeated: {some(repeated) or 'none'}.")
    return names


def _frame(table: Any, columns: Sequence[str], label: str, names: Sequence | None) -> tuple[pd.DataFrame, Any]:
    """The needed columns as a pandas table, and the classes' names where the table itself has them."""
    columns = list(dict.fromkeys(columns))
    if isinstance(table, (str, os.PathLike)):
        table = _read(Path(table))
    elif isinstance(table, Mapping):
        table = pd.DataFrame(dict(table))
    present = table.column_names if isinstance(table, Dataset) else list(table.columns)
    if missing := [column for column in columns if column not in present]:
        raise VotesError(f"There is no column {', '.join(missing)} among: {', '.join(map(str, present))}.")
    if not isinstance(table, Dataset):
        return table[columns].reset_index(drop=True), names
    frame = table.select_columns(columns).to_pandas()
    if isinstance(table.features[label], ClassLabel):
        own = table.features[label].names
        frame[label] = pd.Categorical.from_codes(frame[label].fillna(-1).astype(int), categories=own).astype(object)
        names = own if names is None else names
    return frame, names


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise VotesError(f"There is no file {path}.")
    match path.suffix.lower():
        case ".csv":
            return pd.read_csv(path, **CSV_OPTIONS)
        case ".tsv":
            return pd.read_csv(path, sep="\t", **CSV_OPTIONS)
        case ".jsonl" | ".ndjson":
            # Not with pandas, which guesses at dates and at numbers.
            with open(path, encoding="utf-8") as file:
                return pd.DataFrame([json.loads(line) for line in file if line.strip()])
        case ".parquet":
            return pd.read_parquet(path)
        case suffix:
            raise VotesError(f"{path}: {suffix or 'no suffix'} is not one of .csv, .tsv, .jsonl, .ndjson, .parquet.")


def _refuse_missing(values: pd.Series, codes: np.ndarray, what: str) -> None:
    rows = np.flatnonzero(codes < 0)
    if len(rows):
        raise VotesError(
            f"The {what} (column `{values.name}`) is missing in {len(rows)} row(s): {some(rows)}. "
            "Fill it in or remove these rows."
        )


def _whole_numbers(values: pd.Series) -> bool:
    """Whether all values are integers, also as floats, which is what a join in pandas makes of them."""
    if pd.api.types.is_bool_dtype(values) or not pd.api.types.is_numeric_dtype(values):
        return False
    return pd.api.types.is_integer_dtype(values) or bool((values.to_numpy(np.float64) % 1 == 0).all())


def _items(values: pd.Series) -> tuple[np.ndarray, np.ndarray | None]:
    """(rows,) int64 position of each row's item, and (items,) int64 ids in that order if the items are integers."""
    codes, _ = pd.factorize(values)
    _refuse_missing(values, codes, "item")
    if not _whole_numbers(values):
        return codes.astype(np.int64), None
    ids, codes = np.unique(values.to_numpy(np.int64), return_inverse=True)
    return codes, ids


def _classes(values: pd.Series, names: Sequence | None) -> tuple[np.ndarray, list[str]]:
    """(rows,) int64 class of each row, and the classes' names."""
    codes, unique = pd.factorize(values)
    _refuse_missing(values, codes, "label")
    labels = [class_name(value) for value in unique]
    if names is None:
        names = sorted(set(labels), key=_sorting_key(labels))
    names = check_names(names)
    place = {name: i for i, name in enumerate(names)}
    classes = np.array([place.get(name, -1) for name in labels], np.int64)
    if unknown := [name for name in labels if name not in place]:
        rows = np.flatnonzero(classes[codes] < 0)
        raise VotesError(
            f"Unknown label(s) {some(unknown)} in the column `{values.name}` in {len(rows)} row(s): {some(rows)}. "
            f"The classes are {', '.join(names)}: mend the labels or add them to `names`."
        )
    return classes[codes], names


def _sorting_key(labels: Sequence[str]) -> Any:
    """float if all labels are numbers, so that "10" comes after "9"."""
    try:
        return float if all(np.isfinite(float(label)) for label in labels) else None
    except ValueError:
        return None


def _annotators(values: pd.Series, item: pd.Series, items: np.ndarray, allow_repeated: bool) -> tuple[pa.Array, Value]:
    """(rows,) annotator of each row, integers or else strings, and its feature."""
    codes, unique = pd.factorize(values)
    _refuse_missing(values, codes, "annotator")
    if not allow_repeated:
        _, first, times = np.unique(items * len(unique) + codes, return_index=True, return_counts=True)
        rows = np.sort(first[times > 1])
        if len(rows):
            pairs = [f"item {item.iloc[row]} by annotator {values.iloc[row]}" for row in rows[:5]]
            raise VotesError(
                f"{len(rows)} item(s) were labelled more than once by the same annotator: {', '.join(pairs)}"
                f"{' and more' if len(rows) > 5 else ''}. Remove the repeated rows, or pass allow_repeated=True to "
                "count them all."
            )
    if _whole_numbers(values):
        return pa.array(values.to_numpy(np.int64)), Value("int64")
    return pa.array([str(value) for value in unique]).take(pa.array(codes)), Value("string")


def _varying_items(values: pd.Series, items: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The items (positions) in which a column is not the same in each row."""
    try:
        codes, _ = pd.factorize(values)
    except TypeError:  # lists and the bytes of images have no hash
        codes, _ = pd.factorize(values.map(repr))
    return np.unique(items[codes != codes[first[items]]])
