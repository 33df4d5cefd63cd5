"""A few held-out examples with their inputs, kept in the run directory so that a report can show them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import IterableDataset as StreamingDataset
from PIL import Image

from .data.images import IMAGE_COLUMNS
from .data.text import CHOICE_COLUMNS, text_columns_of
from .data.votes import dense_votes
from .metrics import entropy

# The most ambiguous examples, and some from each level of disagreement below.
AMBIGUOUS, OTHERS = 60, 40
LARGEST_SIDE = 96


def choose_examples(votes: np.ndarray, ambiguous: int = AMBIGUOUS, others: int = OTHERS) -> np.ndarray:
    """Rows of votes (N, C): the most ambiguous by entropy, then others evenly down to the least."""
    order = np.argsort(-entropy(votes).round(12), kind="stable")
    first, rest = order[:ambiguous], order[ambiguous:]
    if len(rest) <= others:
        return order
    return np.concatenate([first, rest[np.linspace(0, len(rest) - 1, others).round().astype(int)]])


def example_inputs(dataset: Any, text_columns: Sequence[str] | None = None) -> pa.Table | None:
    """A table of `example_id` and `text` or `image` (an encoded file) of chosen rows; None for a stream."""
    if isinstance(dataset, StreamingDataset):
        return None
    rows = dataset.select(choose_examples(dense_votes(dataset)))
    column = next((name for name in IMAGE_COLUMNS if name in rows.column_names), None)
    if column is not None:
        return pa.table({"example_id": rows["example_id"][:], "image": [_thumbnail(image) for image in rows[column]]})
    columns = tuple(text_columns or text_columns_of(rows.column_names))
    # The two hypotheses stand between the observations.
    columns = ("obs1", "hyp1", "hyp2", "obs2") if columns == CHOICE_COLUMNS else columns
    lines = ["\n".join(parts) for parts in zip(*(rows[name][:] for name in columns), strict=True)]
    return pa.table({"example_id": rows["example_id"][:], "text": lines})


def _thumbnail(image: Image.Image) -> bytes:
    """A PNG as it is if it is small; a larger image is reduced, as a JPEG."""
    out = io.BytesIO()
    if max(image.size) <= LARGEST_SIDE:
        image.save(out, "PNG")
    else:
        small = image.convert("RGB")
        small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        small.save(out, "JPEG", quality=85)
    return out.getvalue()


def write_examples(run: Path, inputs: pa.Table) -> None:
    part = run / "examples.parquet.part"
    pq.write_table(inputs, part)
    part.replace(run / "examples.parquet")


def read_examples(run: Path) -> dict[int, str | bytes]:
    """Text or image file by example id; empty for a run that has none."""
    path = run / "examples.parquet"
    if not path.exists():
        return {}
    table = pq.read_table(path)
    column = "image" if "image" in table.column_names else "text"
    return dict(zip(table["example_id"].to_pylist(), table[column].to_pylist(), strict=True))
