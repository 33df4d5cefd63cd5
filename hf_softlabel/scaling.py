"""Temperature and vector scaling (Guo et al. 2017), fitted on votes: p is human, z the model's logits.

Both minimise the soft NLL of softmax(scale * z + bias) on a calibration split that the model was not trained on. Both
problems are convex. The result is a small JSON file in the model's folder, so that it is uploaded with the model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from scipy.optimize import brentq, minimize

from .checkpoint import write_text_atomically
from .data.errors import VotesError, some
from .metrics.arrays import array, human, log_model

SCALING_NAME = "scaling.json"
TEMPERATURES = (1e-3, 1e3)
# Numbers per chunk of rows: temporary arrays stay in the cache, whatever N and C are.
CHUNK = 2**16
Saved = TypeVar("Saved")


@dataclass(frozen=True)
class Scaling:
    """Calibrated logits are scale * logits + bias.

    Args:
        scale: 1 / temperature, or one number per class.
        bias: one number per class, summing to 0; None for temperature scaling.
        examples: how many it was fitted on.
        from_logits: whether it was fitted on logits, and so takes logits, or on probabilities.
    """

    scale: float | tuple[float, ...]
    bias: tuple[float, ...] | None
    examples: int
    from_logits: bool = True

    def __post_init__(self):
        per_class = isinstance(self.scale, (list, tuple))
        numbers = [*self.scale, *(self.bias or ())] if per_class else [self.scale]
        if not all(type(x) in (int, float) and isfinite(x) for x in numbers):
            raise VotesError(f"scale and bias must be finite numbers, not {self.scale!r} and {self.bias!r}.")
        if per_class and (not isinstance(self.bias, (list, tuple)) or len(self.bias) != len(self.scale)):
            raise VotesError(f"A scale per class needs a bias for each of the {len(self.scale)}, not {self.bias!r}.")
        if not per_class and self.bias is not None:
            raise VotesError("A single scale is a temperature and has no bias: give the scale of every class.")
        if not per_class and self.scale <= 0:
            raise VotesError(f"A temperature is above 0, and so is its scale, not {self.scale}.")
        if type(self.examples) is not int or type(self.from_logits) is not bool:
            raise VotesError(
                f"examples is a whole number and from_logits true or false, not {self.examples!r} and "
                f"{self.from_logits!r}."
            )
        if per_class:
            object.__setattr__(self, "scale", tuple(self.scale))
            object.__setattr__(self, "bias", tuple(self.bias))

    @property
    def temperature(self) -> float:
        """T of temperature scaling, which divides the logits."""
        if self.bias is not None:
            raise VotesError("Vector scaling has no temperature: it has a scale and a bias for every class.")
        return 1 / self.scale

    def __call__(self, predictions: Any) -> np.ndarray | torch.Tensor:
        """Predictions (N, C), as it was fitted on -> calibrated logits (N, C).

        A tensor gives a tensor on its device. The dtype stays, but half precision becomes float32, since calibrated
        logits may be beyond its range.
        """
        if not isinstance(predictions, (np.ndarray, torch.Tensor)):
            predictions = np.asarray(predictions)
        if predictions.ndim != 2 or (self.bias is not None and predictions.shape[1] != len(self.bias)):
            classes = "classes" if self.bias is None else len(self.bias)
            raise VotesError(f"Predictions have the shape {tuple(predictions.shape)}, not (examples, {classes}).")
        if not self.from_logits:
            _refuse_zeros(log_model(predictions))
        if isinstance(predictions, torch.Tensor):
            values = predictions.to(torch.promote_types(predictions.dtype, torch.float32))
            scale, bias = (values.new_tensor(x) for x in (self.scale, self.bias or 0.0))
            return scale * (values if self.from_logits else values.log()) + bias
        values = predictions.astype(np.result_type(predictions.dtype, np.float32), copy=False)
        scale, bias = (np.asarray(x, values.dtype) for x in (self.scale, self.bias or 0.0))
        return scale * (values if self.from_logits else np.log(values)) + bias

    def save(self, folder: str | Path) -> Path:
        """Write `scaling.json` into a model's folder."""
        return save_beside_model(self, folder, SCALING_NAME)

    @classmethod
    def load(cls, source: str | Path, revision: str | None = None) -> Scaling:
        """Read it from a model's folder, a file, or a model repository of the Hub."""
        return load_beside_model(cls, source, SCALING_NAME, revision)


def fit_temperature(logits: Any, votes: Any, from_logits: bool = True) -> Scaling:
    """The T in [1e-3, 1e3] for which logits / T has the least soft NLL; with a warning if it is at a bound.

    Args:
        logits: (N, C), or probabilities with `from_logits=False`.
        votes: (N, C) counts or distributions.
    """
    z, p = calibration_split(logits, votes, from_logits)
    z = z - z.max(-1, keepdims=True)
    lower, upper = (np.log(1 / t) for t in reversed(TEMPERATURES))
    # The derivative by the scale never falls: it has one root, or the minimum is at a bound.
    at_lower, at_upper = (_slope(np.exp(x), z, p) for x in (lower, upper))
    if at_lower == at_upper == 0:
        log_scale, trouble = 0.0, "T has no effect: the logits of each example are equal. It is left at 1"
    elif at_lower >= 0:
        log_scale, trouble = lower, "T is at its upper bound: the logits are huge, or say nothing about the votes"
    elif at_upper <= 0:
        log_scale, trouble = (
            upper,
            "T is at its lower bound: the largest logits have all the votes",
        )
    else:
        log_scale, trouble = brentq(lambda x: _slope(np.exp(x), z, p), lower, upper, xtol=1e-12), None
    if trouble:
        warnings.warn(f"{trouble}. Use more examples, or logits of examples not trained on.", stacklevel=2)
    # Not exp(log): a bound is given back as it is.
    scale = {lower: 1 / TEMPERATURES[1], upper: 1 / TEMPERATURES[0]}.get(log_scale, float(np.exp(log_scale)))
    return Scaling(scale, None, len(z), from_logits)


def _slope(scale: float, z: np.ndarray, p: np.ndarray) -> float:
    """The derivative by the scale of the soft NLL of softmax(scale * z), for z (N, C) with largest value 0."""
    total = 0.0
    for rows in _row_chunks(z):
        weight = np.exp(scale * z[rows])
        mean = np.einsum("nc,nc->n", weight, z[rows]) / weight.sum(-1)
        total += mean.sum() - np.vdot(p[rows], z[rows])
    return total / len(z)


def fit_vector_scaling(logits: Any, votes: Any, from_logits: bool = True) -> Scaling:
    """The scale and bias per class for which scale * logits + bias has the least soft NLL, given a weak prior.

    The prior, a unit Gaussian around scale 1 and bias 0 that weighs as much as one example, keeps the bias of a class
    that nobody voted for in this split finite. Unlike a temperature, the result depends on what is added to all logits
    of an example: apply it to the same kind of predictions.

    Args:
        logits: (N, C), or probabilities with `from_logits=False`.
        votes: (N, C) counts or distributions.
    """
    z, p = calibration_split(logits, votes, from_logits)
    n, classes = z.shape
    # In units of the logits' size all directions curve alike, whether logits are of the order of 1 or 1e4.
    size = np.maximum(1, np.sqrt(np.square(z).mean(0)))

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = penalised_nll(1 + x[:classes] / size, x[classes:], z, p)
        return value, gradient / np.concatenate([size, np.ones(classes)])

    options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 0.0, "gtol": 1e-9, "maxcor": 30}
    result = minimize(objective, np.zeros(2 * classes), jac=True, method="L-BFGS-B", options=options)
    if np.abs(result.jac).max() > 1e-5:
        warnings.warn(f"Vector scaling has not converged: {result.message}", stacklevel=2)
    scale, bias = 1 + result.x[:classes] / size, result.x[classes:]
    return Scaling(tuple(scale.tolist()), tuple((bias - bias.mean()).tolist()), n, from_logits)


def penalised_nll(scale: np.ndarray, bias: np.ndarray, z: np.ndarray, p: np.ndarray) -> tuple[float, np.ndarray]:
    """Soft NLL of softmax(scale * z + bias) plus the prior, and its gradient (2C,) by scale and bias.

    mean_i -sum_k p_ik log q_ik + (|scale - 1|^2 + |bias|^2) / 2N, for z and p (N, C).
    """
    value = (np.square(scale - 1).sum() + np.square(bias).sum()) / 2
    gradient = np.concatenate([scale - 1, bias])
    for rows in _row_chunks(z):
        y = scale * z[rows] + bias
        y -= y.max(-1, keepdims=True)
        q = np.exp(y)
        total = q.sum(-1, keepdims=True)
        value += np.log(total).sum() - np.vdot(p[rows], y)
        q /= total
        q -= p[rows]
        gradient += np.concatenate([np.einsum("nc,nc->c", q, z[rows]), q.sum(0)])
    return value / len(z), gradient / len(z)


def _row_chunks(z: np.ndarray) -> Iterator[slice]:
    step = max(1, CHUNK // z.shape[1])
    return (slice(start, start + step) for start in range(0, len(z), step))


def calibration_split(predictions: Any, votes: Any, from_logits: bool) -> tuple[np.ndarray, np.ndarray]:
    """Checked logits, or logarithms of probabilities, and vote distributions: float64 (N, C) each."""
    p = vote_distributions(votes)
    z = array(predictions)
    check_shapes(z, p)
    _refuse(~np.isfinite(z).all(-1), "Predictions are not finite", "leave these examples out")
    if not from_logits:
        z = log_model(z)
        _refuse_zeros(z)
    elif (z >= 0).all() and np.allclose(z.sum(-1), 1, atol=1e-6):
        warnings.warn("These logits look like probabilities: if they are, say from_logits=False.", stacklevel=3)
    return z, p


def check_shapes(predictions: np.ndarray, votes: np.ndarray) -> None:
    """Raise [`VotesError`] unless predictions and votes have one shape (N, C), and at least one example."""
    if predictions.shape != votes.shape or predictions.size == 0:
        raise VotesError(
            f"Predictions {predictions.shape} and votes {votes.shape} must have one shape: a row for each of at least "
            "one example and a column per class, in the same order."
        )


def vote_distributions(votes: Any) -> np.ndarray:
    """Counts or distributions (N, C) -> checked float64 distributions (N, C)."""
    votes = array(votes)
    wrong = ~(np.isfinite(votes) & (votes >= 0)).all(-1) | (votes.sum(-1) == 0)
    _refuse(wrong, "Votes are negative, not finite, or all zero", "leave these examples out or mend their votes")
    return human(votes)


def _refuse_zeros(log_q: np.ndarray) -> None:
    _refuse(
        ~np.isfinite(log_q).all(-1),
        "Probabilities are zero, and their logarithm infinite,",
        "use the logits, or mix in a little of the uniform distribution",
    )


def _refuse(wrong: np.ndarray, what: str, remedy: str) -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise VotesError(f"{what} in {len(rows)} row(s): {some(rows)}. What to do: {remedy}.")


def save_beside_model(values: Any, folder: str | Path, name: str) -> Path:
    """Write a dataclass as the JSON file `name` into a model's folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise VotesError(f"{folder} is not a folder: save the model first, then this beside it.")
    write_text_atomically(folder / name, json.dumps(asdict(values), indent=1) + "\n")
    return folder / name


def load_beside_model(cls: type[Saved], source: str | Path, name: str, revision: str | None) -> Saved:
    """The dataclass that `save_beside_model` wrote: from a model's folder, the file itself, or the Hub."""
    path = Path(source)
    if path.is_dir():
        path = path / name
        if not path.is_file():
            raise VotesError(f"{source} has no {name}: nothing was saved beside this model.")
    elif not path.is_file():
        path = _download(str(source), name, revision)
    try:
        return cls(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise VotesError(f"{path} is not what {cls.__name__}.save writes: {error}") from error


def _download(repository: str, name: str, revision: str | None) -> Path:
    try:
        return Path(hf_hub_download(repository, name, revision=revision))
    # HTTP errors, refused connections and offline mode are OSErrors; a file that the cache has not is an entry.
    except (EntryNotFoundError, HFValidationError, OSError) as error:
        raise VotesError(
            f"{repository} is neither a folder nor a file, and {name} cannot be read from a model repository of that "
            f"name: {error}"
        ) from error
