"""What every score reads: predictions and votes (N, C), of numpy, torch or lists, as float64 distributions in chunks.

p is human, q is the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..data.errors import VotesError, some

# Numbers per chunk of rows: temporary arrays stay at half a MB each, in the cache, whatever N and C are.
CHUNK = 2**16
# How far from 1 a row of probabilities may sum: what float32 and four decimals leave. They are scored as given.
PROBABILITY_TOLERANCE = 1e-3
NO_NUMBERS = "there are no examples, or some predictions or votes are not numbers"


def array(values: Any, order: str = "K") -> np.ndarray:
    """Values (N, C) -> float64 (N, C), in an order of memory if one is given; no copy if they are that already."""
    if not isinstance(values, np.ndarray):
        values = values.detach().cpu().double().numpy() if hasattr(values, "detach") else np.asarray(values)
    if values.ndim != 2:
        raise VotesError(f"An array of shape (examples, classes) is needed, not {values.shape}.")
    return values.astype(np.float64, order, copy=False)


def human(votes: Any) -> np.ndarray:
    """Counts or distributions (N, C) -> float64 distributions (N, C); NaN where nobody voted."""
    p = array(votes)
    if p.min(initial=0) < 0:
        raise VotesError(f"Votes must not be negative, and row(s) {some(np.flatnonzero((p < 0).any(-1)))} are.")
    with np.errstate(invalid="ignore"):
        return p / p.sum(-1, keepdims=True)


def labels_of(labels: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Labels (N,) for predictions of shape (N, C), checked."""
    labels = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if labels.shape != shape[:1]:
        raise VotesError(
            f"One label per example is needed, shape {shape[:1]}, not {labels.shape}; "
            "votes are scored with target='annotators'."
        )
    unknown = np.flatnonzero(~np.isin(labels, np.arange(shape[-1])))
    if len(unknown):
        raise VotesError(
            f"Labels must be whole numbers from 0 to {shape[-1] - 1}, and rows {some(unknown)} are not: "
            "leave these examples out."
        )
    return labels


def log_model(predictions: Any, from_logits: bool = False, first_row: int = 0) -> np.ndarray:
    """Predictions (N, C) -> float64 log probabilities (N, C); a zero probability gives -inf.

    `first_row` is the number of the first one in a message, if they are a chunk of more.
    """
    return log_model_and_model(predictions, from_logits, first_row)[0]


def model(predictions: Any, from_logits: bool = False, first_row: int = 0) -> np.ndarray:
    """Predictions (N, C) -> float64 probabilities (N, C)."""
    if from_logits:
        return log_model_and_model(predictions, from_logits)[1]
    q = array(predictions)
    check_probabilities(q, first_row)
    return q


def log_model_and_model(
    predictions: Any, from_logits: bool = False, first_row: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (N, C) -> float64 log probabilities and probabilities (N, C)."""
    if not from_logits:
        q = model(predictions, first_row=first_row)
        with np.errstate(divide="ignore"):
            return np.log(q), q
    z = array(predictions)
    largest = z.max(-1, keepdims=True)
    largest[np.isinf(largest)] = 0
    # As scipy's log_softmax; one exponential gives q as well.
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of -inf only is NaN
        log_q = z - largest
        q = np.exp(log_q)
        total = q.sum(-1, keepdims=True)
        log_q -= np.log(total)
        q /= total
    return log_q, q


def check_probabilities(q: np.ndarray, first_row: int = 0) -> None:
    """Raise [`VotesError`] unless the rows are probabilities. NaN is left to the scores, which it makes NaN."""
    far = np.abs(q @ np.ones(q.shape[1]) - 1) > PROBABILITY_TOLERANCE
    if far.any() or q.min(initial=0) < 0:
        wrong = np.flatnonzero(far | (q < 0).any(-1))
        row = q[wrong[0]]
        raise VotesError(
            f"Predictions must be probabilities, and {len(wrong)} row(s) are not: {some(wrong + first_row)} "
            f"(the first has a smallest value of {row.min():.4g} and sums to {row.sum():.4g}). "
            "If they are logits, say from_logits=True; if they are rounded, divide each row by its sum."
        )


def row_chunks(predictions: Any, votes: Any) -> Iterator[tuple[slice, Any, Any]]:
    """(rows, predictions, votes) over chunks of rows, as float64; arrays that do not fit are refused.

    They are column-major: a sum over the few classes adds up columns, in a third of the time of a sum in each row.
    """
    predictions, votes = (x if hasattr(x, "shape") else np.asarray(x) for x in (predictions, votes))
    for values in (predictions, votes):
        if values.ndim != 2:
            array(values)  # refuses it
    if predictions.shape != votes.shape:
        raise VotesError(
            f"Predictions {tuple(predictions.shape)} and votes {tuple(votes.shape)} must have one shape: "
            "a row per example and a column per class, in the same order."
        )
    n, classes = predictions.shape
    step = max(1, CHUNK // max(1, classes))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        yield rows, *(array(x[rows], "F") for x in (predictions, votes))


def chunks(predictions: Any, votes: Any, from_logits: bool = False) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """(rows, q, p) over chunks of rows: the model's and the annotators' distributions as float64."""
    for rows, q, p in row_chunks(predictions, votes):
        yield rows, model(q, from_logits, rows.start), human(p)


class UndefinedScoreWarning(UserWarning):
    """A score is NaN, and why."""


def undefined(reason: str, stacklevel: int = 3) -> float:
    """NaN, with a warning that says why."""
    warnings.warn(UndefinedScoreWarning(f"The score is NaN: {reason}."), stacklevel=stacklevel)
    return float("nan")


def mean_of(values: np.ndarray) -> float:
    """The mean as a float; NaN, with a warning that says why, if there are no values or one is NaN."""
    if not len(values):
        return undefined("there are no examples", stacklevel=5)
    wrong = np.flatnonzero(np.isnan(values))
    if len(wrong):
        return undefined(f"the predictions or votes of row(s) {some(wrong)} are not numbers", stacklevel=5)
    return float(values.mean())
