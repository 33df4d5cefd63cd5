"""Predictions that any program wrote to a file.

A file is JSON Lines, Parquet or CSV, or a run directory. It has a column with the examples' ids and the predictions as
- a list of C numbers, in a column `logits` or `probabilities` (or another, which is named);
- what `transformers.pipeline(..., top_k=None)` returns: [{"label": name, "score": probability}, ...];
- a mapping {class name: number};
- a column per class, named by the class, or `logit_<class>` or `prob_<class>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from .data.errors import VotesError, some
from .metrics.arrays import PROBABILITY_TOLERANCE, check_probabilities

ID_COLUMNS = ("example_id", "id", "uid")
LOGITS = ("logits", "logit")
PROBABILITIES = ("probabilities", "probs", "predictions", "prediction", "scores")
PREFIXES = {"logit_": True, "logits_": True, "prob_": False, "probability_": False}
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Predictions:
    """Predictions on N examples.

    Args:
        ids: (N,), integers or strings, unique.
        values: (N, C) float64, logits or probabilities.
        id_column: the column that the ids are from.
        votes: (N, C), if the file has them, as run directories do.
        label: (N,), the gold labels, negative where there is none, if the file has them.
        train_mean: (C,), the mean distribution of the training votes, if a run directory says it.
        names: the classes in the order of the columns, if known.
        run: the run directory that they are from, if so.
    """

    name: str
    ids: np.ndarray
    values: np.ndarray
    from_logits: bool
    id_column: str
    votes: np.ndarray | None = None
    label: np.ndarray | None = None
    train_mean: np.ndarray | None = None
    names: list[str] | None = None
    run: Path | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: np.ndarray) -> Predictions:
        """The predictions of these rows, in their order."""
        columns = {key: getattr(self, key) for key in ("ids", "values", "votes", "label")}
        return replace(self, **{key: None if x is None else x[rows] for key, x in columns.items()})


def read_predictions(
    path: str | Path,
    names: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    id_column: str | None = None,
    column: str | None = None,
    logits: bool | None = None,
    normalize: bool = False,
) -> Predictions:
    """Read the predictions of a file or a run directory.

    Args:
        names: the classes in the order that is wanted. Without, the file's own `votes` are read, in its own order.
        order: the classes in the order of the file's lists, if that is another; by default a run's model says it.
        id_column: by default `example_id`, `id` or `uid`, whichever comes first.
        column: the column with the predictions, by default one of the names above.
        logits: whether they are logits, where the column's name does not say it; by default they are probabilities.
        normalize: divide each row of probabilities by its sum.
    """
    path = Path(path)
    run = path if path.is_dir() else None
    if run is not None:
        path = run / "predictions.parquet"
        if not path.exists():
            raise VotesError(f"{run} is not a finished run: it has no predictions.parquet.")
    own_votes = names is None
    names, order = _orders(names, order, None if run is None else _run_names(run), run)
    table = _open(path)
    if not len(table):
        raise VotesError(f"{path} is empty: there are no predictions to score.")
    id_column = _id_column(table, id_column, path)
    if not _is_id(table[id_column].type) and path.suffix.lower() != ".parquet":
        # Readers make dates, decimals or truth values of ids that look so: take them as they are written.
        table = _open(path, text_column=id_column)
    ids = _ids(table[id_column], id_column, path)
    where, said = _find(table.schema, names, column, path)
    values = _values(table, where, names, order, path)
    from_logits = bool(logits) if said is None else said
    remedy = "say --logits"
    if said is not None:
        remedy = f"say --logits --column {where[0]}" if len(where) == 1 else "name their columns logit_<class>"
    _check(values, ids, from_logits, normalize, path, remedy)
    if normalize and not from_logits:
        values = values / values.sum(-1, keepdims=True)
    votes = _matrix(table["votes"], "votes", path) if own_votes and "votes" in table.column_names else None
    label = table["label"].to_numpy() if "label" in table.column_names and run is not None else None
    train_mean = _train_mean(run) if run is not None else None
    if train_mean is not None and order is not None:
        train_mean = train_mean[_permutation(names, order)]
    shown = str(run or path)
    return Predictions(shown, ids, values, from_logits, id_column, votes, label, train_mean, names, run)


def _orders(
    names: Sequence[str] | None, order: Sequence[str] | None, run_names: list[str] | None, run: Path | None
) -> tuple[list[str] | None, list[str] | None]:
    """The classes in the order that is wanted, and in that of the file's lists if it may be another."""
    if names is None:
        return (list(order) if order else run_names), None
    if order is None and run_names is not None and sorted(run_names) != sorted(names):
        raise VotesError(
            f"{run} has the classes {', '.join(run_names)}, the votes {', '.join(names)}. If they are the same by "
            "other names, give the votes' names in the order of the run's with --classes."
        )
    order = order or run_names
    if order is not None:
        _permutation(names, order)
    return list(names), order


def _run_names(run: Path) -> list[str] | None:
    config = run / "model" / "config.json"
    if not config.exists():
        return None
    names = json.loads(config.read_text(encoding="utf-8")).get("id2label")
    return None if names is None else [names[key] for key in sorted(names, key=int)]


def _train_mean(run: Path) -> np.ndarray | None:
    metrics = run / "metrics.json"
    mean = json.loads(metrics.read_text(encoding="utf-8")).get("train_mean") if metrics.exists() else None
    return None if mean is None else np.asarray(mean)


def _open(path: Path, text_column: str | None = None) -> pa.Table:
    """The table of a file; a `text_column` holds strings even where they look like something else."""
    suffix = path.suffix.lower()
    try:
        table = _read(path, suffix, {text_column: pa.string()} if text_column else {})
    except FileNotFoundError:
        raise VotesError(f"There is no file {path}.") from None
    except VotesError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise VotesError(f"{path} cannot be read as {suffix[1:]}: {error}") from None
    if len(set(table.column_names)) < len(table.column_names):
        twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
        raise VotesError(f"{path} has more than one column {', '.join(twice)}: rename them.")
    return table


def _read(path: Path, suffix: str, types: dict[str, pa.DataType]) -> pa.Table:
    if suffix == ".parquet":
        return pq.read_table(path)
    if suffix in _SEPARATORS:
        return pyarrow.csv.read_csv(
            path,
            parse_options=pyarrow.csv.ParseOptions(delimiter=_SEPARATORS[suffix]),
            convert_options=pyarrow.csv.ConvertOptions(column_types=types),
        )
    if suffix in (".jsonl", ".ndjson"):
        # One block: a column that is null in the first rows gets its type from the later ones.
        block = min(max(path.stat().st_size + 1, 1 << 20), 2**31 - 1)
        options = {"read_options": pyarrow.json.ReadOptions(block_size=block)}
        table = pyarrow.json.read_json(path, **options)
        if any(pa.types.is_temporal(table.schema.field(name).type) for name in types):
            options["parse_options"] = pyarrow.json.ParseOptions(explicit_schema=pa.schema(types))
            return pyarrow.json.read_json(path, **options)
        return table
    if suffix == ".json":
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("it must be an array of objects, one for each example: [{...}, {...}].")
        return pa.Table.from_pylist(rows)
    raise VotesError(f"{path}: predictions are .jsonl, .json, .parquet, .csv or .tsv, or a run directory.")


def _id_column(table: pa.Table, name: str | None, path: Path) -> str:
    columns = table.column_names
    found = [column for column in ([name] if name else ID_COLUMNS) if column in columns]
    if not found:
        wanted = f"the column {name}" if name else "a column with the examples' ids (example_id, id or uid)"
        raise VotesError(f"{path} does not have {wanted}; it has {', '.join(columns)}. Name it with --id_column.")
    return found[0]


def _ids(column: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    if column.null_count:
        raise VotesError(f"{path}: `{name}` is missing in row(s) {some(np.flatnonzero(pc.is_null(column)))}.")
    if not _is_id(column.type):
        raise VotesError(
            f"{path}: `{name}` must be integers (below 2**63) or strings, not {column.type}: write them so."
        )
    ids = column.to_numpy()
    twice = pd.Index(ids).duplicated()
    if twice.any():
        raise VotesError(f"{path}: these ids occur more than once in `{name}`: {some(pd.unique(ids[twice]))}.")
    return ids


def _find(
    schema: pa.Schema, names: Sequence[str] | None, column: str | None, path: Path
) -> tuple[list[str], bool | None]:
    """The column, or the columns in the classes' order, with the predictions, and whether their name says logits."""
    columns = schema.names
    if column is not None:
        if column not in columns:
            raise VotesError(f"{path} has no column {column}; it has {', '.join(columns)}.")
        return [column], True if column in LOGITS else None
    for known, is_logits in ((LOGITS, True), (PROBABILITIES, False)):
        for name in known:
            if name in columns and pa.types.is_nested(schema.field(name).type):
                return [name], is_logits
    if names is not None:
        for prefix, is_logits in PREFIXES.items():
            for keys in (names, range(len(names))):
                wanted = [f"{prefix}{key}" for key in keys]
                if set(wanted) <= set(columns):
                    _refuse_others([name for name in columns if name.startswith(prefix)], wanted, path)
                    return wanted, is_logits
        if set(names) <= set(columns):
            return list(names), None
    classes = ". (Columns by class are found when --votes or --classes says the classes.)"
    if names is not None:
        classes = f", or a column for each of the classes {', '.join(names)}."
    raise VotesError(
        f"{path} has no predictions that can be found: a list in a column `logits` or `probabilities`{classes} "
        f"It has {', '.join(columns)}. Name the column with --column."
    )


def _refuse_others(found: Sequence[str], wanted: Sequence[str], path: Path) -> None:
    """Predictions of a class that the votes do not have must not be dropped."""
    others = [name for name in found if name not in wanted]
    if others:
        raise VotesError(
            f"{path} also predicts {', '.join(others)}, beside the votes' classes {', '.join(wanted)}. Leave it out, "
            "with the others' probabilities divided by their sum, or score it against votes that have it."
        )


def _values(
    table: pa.Table, where: list[str], names: Sequence[str] | None, order: Sequence[str] | None, path: Path
) -> np.ndarray:
    """Predictions (N, C) in the order of `names`, if there are any."""
    if len(where) > 1:
        for name in where:
            kind = table[name].type
            if not (_is_number(kind) or pa.types.is_null(kind)):
                raise VotesError(f"{path}: the column {name} must be numbers, not {kind}.")
            if table[name].null_count:
                rows = np.flatnonzero(pc.is_null(table[name]))
                raise VotesError(f"{path}: `{name}` is missing in row(s) {some(rows)}: remove them, or predict these.")
        return np.stack([table[name].to_numpy().astype(np.float64) for name in where], 1)
    column, kind = table[where[0]], table[where[0]].type
    if pa.types.is_struct(kind):
        return _by_name(column.to_pylist(), names, path)
    if not _is_list(kind):
        raise VotesError(f"{path}: `{where[0]}` must be a list of numbers, or of labels and scores, not {kind}.")
    if pa.types.is_struct(kind.value_type):
        return _by_name([_pipeline_row(row, i, path) for i, row in enumerate(column.to_pylist())], names, path)
    values = _matrix(column, where[0], path, names and len(names)).astype(np.float64, copy=False)
    if names is not None and values.shape[1] != len(names):
        raise VotesError(f"{path}: `{where[0]}` has {values.shape[1]} entries, but there are {len(names)} classes.")
    return values if order is None else values[:, _permutation(names, order)]


def _pipeline_row(row: list[dict] | None, number: int, path: Path) -> dict[str, float]:
    """[{"label": name, "score": number}, ...] -> {name: number}."""
    try:
        found = {item["label"]: item["score"] for item in row}
    except (TypeError, KeyError):
        raise VotesError(
            f"{path}: row {number} is not a list of {{label, score}}, as a pipeline returns it."
        ) from None
    if len(found) < len(row):
        raise VotesError(f"{path}: row {number} has a label more than once.")
    return found


def _by_name(rows: list[dict | None], names: Sequence[str] | None, path: Path) -> np.ndarray:
    if names is None:
        raise VotesError(f"{path} has predictions by name: say the order of its votes' classes with --classes.")
    # A reader of tables gives every row the keys of all rows, with nothing in those that are not its own.
    rows = [{name: x for name, x in (row or {}).items() if x is not None} for row in rows]
    wrong = [i for i, row in enumerate(rows) if not set(names) <= set(row)]
    if wrong:
        has = ", ".join(rows[wrong[0]]) or "nothing"
        raise VotesError(
            f"{path}: row(s) {some(wrong)} do not have a number for every class {', '.join(names)}; the first has "
            f"{has}. From a pipeline, call it with top_k=None; if the classes have other names, rename them."
        )
    _refuse_others(sorted(set().union(*rows)), names, path)
    numbers = [[row[name] for name in names] for row in rows]
    wrong = [i for i, row in enumerate(numbers) if not all(type(x) in (int, float) for x in row)]
    if wrong:
        raise VotesError(f"{path}: row(s) {some(wrong)} have something else than a number for a class.")
    return np.array(numbers, np.float64)


def _permutation(names: Sequence[str], order: Sequence[str]) -> list[int]:
    if sorted(names) != sorted(order):
        raise VotesError(f"--classes must be the votes' classes in the file's order. They are {', '.join(names)}.")
    return [list(order).index(name) for name in names]


def _matrix(column: pa.ChunkedArray, name: str, path: Path, classes: int | None = None) -> np.ndarray:
    """A column of lists of one length, which should be `classes` -> (N, C)."""
    flat = column.combine_chunks()
    if not _is_list(flat.type) or not _is_number(flat.type.value_type):
        raise VotesError(f"{path}: `{name}` must be a list of numbers in each row, not {flat.type}.")
    lengths = pc.list_value_length(flat).fill_null(0).to_numpy()
    usual = classes if classes in lengths else np.bincount(lengths).argmax()
    wrong = np.flatnonzero((lengths != usual) | (lengths == 0))
    if len(wrong):
        raise VotesError(f"{path}: `{name}` does not have {usual} entries in row(s) {some(wrong)}, as in the others.")
    values = flat.flatten()
    if values.null_count:
        rows = np.unique(np.flatnonzero(pc.is_null(values)) // usual)
        raise VotesError(f"{path}: `{name}` has missing numbers in row(s) {some(rows)}.")
    return values.to_numpy(zero_copy_only=False).reshape(len(flat), usual)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_id(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _check(values: np.ndarray, ids: np.ndarray, from_logits: bool, normalize: bool, path: Path, remedy: str) -> None:
    # A logit of minus infinity is a class that the model excludes.
    wrong = np.isnan(values).any(-1) | (values == np.inf).any(-1) | (values.max(-1) == -np.inf)
    if wrong.any():
        raise VotesError(
            f"{path}: the predictions on the example(s) {some(ids[wrong])} are not finite: leave them out."
        )
    if from_logits:
        return
    if normalize:
        wrong = (values < 0).any(-1) | (values.sum(-1) <= 0)
        if wrong.any():
            raise VotesError(f"{path}: the predictions on the example(s) {some(ids[wrong])} are negative or all 0.")
        return
    try:
        check_probabilities(values)
    except VotesError:
        total = values.sum(-1)
        wrong = ids[(np.abs(total - 1) > PROBABILITY_TOLERANCE) | (values < 0).any(-1)]
        raise VotesError(
            f"{path}: the predictions on {len(wrong)} example(s) are no probabilities: {some(wrong)}. "
            f"If they are logits, {remedy}; if they are rounded, say --normalize."
        ) from None
