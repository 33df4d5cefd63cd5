"""Text columns of a votes data set -> token ids, beside the votes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import datasets.config
import pyarrow as pa
from datasets import Dataset, Features, List, Value, is_caching_enabled
from datasets import IterableDataset as StreamingDataset
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .errors import VotesError, some

logger = logging.getLogger(__name__)

TextTask = Literal["single", "pair", "choice"]

CHOICE_COLUMNS = ("obs1", "obs2", "hyp1", "hyp2")
_KNOWN: tuple[tuple[TextTask, tuple[str, ...]], ...] = (
    ("pair", ("premise", "hypothesis")),
    ("pair", ("text", "text_pair")),
    ("single", ("text",)),
    ("choice", CHOICE_COLUMNS),
)
_KEPT = ("votes", "example_id", "label")
DEFAULT_MAX_LENGTH = 512


def _text_columns(column_names: Sequence[str]) -> tuple[TextTask, tuple[str, ...]]:
    fits = [(task, columns) for task, columns in _KNOWN if set(columns) <= set(column_names)]
    if ("pair", ("text", "text_pair")) in fits:
        fits.remove(("single", ("text",)))
    if len(fits) == 1:
        return fits[0]
    found = ", ".join(column_names)
    if fits:
        choices = " or ".join(" + ".join(columns) for _, columns in fits)
        raise VotesError(f"Which text is meant, {choices}? The columns are: {found}. Give text_columns.")
    known = "; ".join(" + ".join(columns) for _, columns in _KNOWN)
    raise VotesError(f"No known text columns ({known}) among: {found}. Give text_columns, one name or two.")


def text_columns_of(column_names: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns that hold the text."""
    return _text_columns(column_names)[1]


def text_task(column_names: Sequence[str]) -> TextTask:
    """What the columns hold: one text, a pair of texts, or alphaNLI's two hypotheses to choose from."""
    return _text_columns(column_names)[0]


def tokenize_votes(
    dataset: Dataset | StreamingDataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    text_columns: Sequence[str] | None = None,
) -> Dataset | StreamingDataset:
    """The data set with the tokenizer's columns and `votes`, `example_id` and `label`, and nothing else.

    It is kept in the cache of `datasets` (unless that is switched off) and read from there when the same rows are to
    be tokenised again, by this process or another.

    Args:
        dataset: rows by the votes contract, in memory or streaming, with `premise` and `hypothesis`; `text` and
            perhaps `text_pair`; or `obs1`, `obs2`, `hyp1` and `hyp2`, of which choice i becomes the pair
            (obs1, hyp_i + " " + obs2) and `input_ids` a list of two lists.
        max_length: longer inputs are cut; by default at the tokenizer's `model_max_length`, but at 512 at most.
        text_columns: one name or two, for other columns.
    """
    if dataset.features is None:
        raise VotesError("The stream does not know its columns: give it features with dataset.cast(features).")
    if text_columns is None:
        task, columns = _text_columns(dataset.column_names)
    else:
        columns = tuple(text_columns)
        missing = [name for name in columns if name not in dataset.column_names]
        if missing or len(columns) not in (1, 2):
            raise VotesError(
                f"text_columns must be one or two of {', '.join(dataset.column_names)}, not {', '.join(columns)}."
            )
        task = "single" if len(columns) == 1 else "pair"
    if max_length is None:
        max_length = min(tokenizer.model_max_length, DEFAULT_MAX_LENGTH)
    cut = {"truncation": True, "max_length": max_length}
    # Which columns there are depends on the tokenizer: RoBERTa's makes no token_type_ids.
    produced = list(tokenizer(*["a"] * (1 if task == "single" else 2), **cut))

    def encode(batch: dict[str, list[Any]]) -> dict[str, list]:
        _check_texts(batch, columns)
        if task != "choice":
            return dict(tokenizer(*(batch[name] for name in columns), **cut))
        first = [text for text in batch["obs1"] for _ in range(2)]
        hypotheses = zip(batch["hyp1"], batch["hyp2"], batch["obs2"], strict=True)
        second = [f"{hyp} {obs2}" for hyp1, hyp2, obs2 in hypotheses for hyp in (hyp1, hyp2)]
        encoded = tokenizer(first, second, **cut)
        return {key: [rows[i : i + 2] for i in range(0, len(rows), 2)] for key, rows in encoded.items()}

    kept = {name: feature for name, feature in dataset.features.items() if name in _KEPT}
    features = Features({**kept, **{name: _feature(name, task) for name in produced}})
    # A stream forgets its features in `map` unless it is told them, and with them the classes' names.
    removed = [name for name in dataset.column_names if name not in _KEPT]
    options = {"batched": True, "remove_columns": removed, "features": features}
    # A user's transform is code, which the rows do not say.
    plain = isinstance(dataset, Dataset) and dataset.format["type"] != "custom"
    identity = _identity(tokenizer) if plain else None
    folder = None if identity is None else _cache_folder()
    if folder is None:
        # `map` would write beside the data set's own files, which need not be the user's.
        memory = {"keep_in_memory": True} if isinstance(dataset, Dataset) else {}
        return dataset.map(encode, **options, **memory)
    key = _key(dataset.select_columns([*columns, *kept]), [*identity, task, columns, produced, max_length])
    path = folder / key / "tokens.arrow"
    for _ in range(2):
        try:
            return dataset.map(encode, **options, cache_file_name=str(path), new_fingerprint=key)
        except (pa.ArrowInvalid, OSError) as error:
            # A damaged file is made anew. Where the disk is full, `map` leaves what it has begun in the same folder.
            shutil.rmtree(path.parent, ignore_errors=True)
            trouble = error
    logger.warning("The tokenised texts are held in memory and not kept for the next run: %s", trouble)
    return dataset.map(encode, **options, keep_in_memory=True)


def _identity(tokenizer: PreTrainedTokenizerBase) -> list[Any] | None:
    """All that its tokens depend on, wherever it was read from; None if that is code of its own."""
    kind = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or not kind.__module__.startswith("transformers."):
        return None
    try:
        files = tokenizer.backend_tokenizer.to_str()
    except Exception:  # It is what tokenizers raises for a step that is written in Python, like RoFormer's.
        return None
    return [kind.__qualname__, files, tokenizer.split_special_tokens]


def _cache_folder() -> Path | None:
    """None where nothing can be kept."""
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "hf_softlabel" / "tokens"
    if not is_caching_enabled():
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _key(dataset: Dataset, settings: list[Any]) -> str:
    """A digest of everything that the result depends on.

    `map` would find its own, but caches only data sets that were read from a file, not those made in memory.
    """
    versions = [version(package) for package in ("tokenizers", "transformers")]
    digest = hashlib.sha256(json.dumps([*settings, *versions, str(dataset.features)], default=str).encode())
    for table in dataset.with_format("arrow").iter(batch_size=10_000):
        # Arrow's own bytes: rows of many classes would be slower to turn into numbers of Python than to tokenise.
        # Copied into one batch, so that it does not matter in which chunks and beside which other rows they lie.
        for batch in table.take(list(range(len(table)))).combine_chunks().to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()[:32]


def _feature(name: str, task: TextTask) -> List:
    tokens = List(Value("int32" if name == "input_ids" else "int8"))
    return List(tokens, length=2) if task == "choice" else tokens


def _check_texts(batch: dict[str, list[Any]], columns: Sequence[str]) -> None:
    for name in columns:
        wrong = [row for row, text in enumerate(batch[name]) if not isinstance(text, str)]
        if wrong:
            ids = [batch["example_id"][row] for row in wrong] if "example_id" in batch else wrong
            raise VotesError(f"`{name}` is not a text in the examples {some(ids)}: remove or mend these rows.")
