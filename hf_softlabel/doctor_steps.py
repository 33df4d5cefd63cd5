"""What the doctor sees by running a trainer for a batch or two: columns, losses, accumulation and workers.

The trainer is left as it was: weights never change, and buffers, gradients, configuration and random generators are
put back.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import Trainer
from transformers.trainer_utils import set_seed

from .data.errors import VotesError
from .delivery import distribution
from .doctor_checks import Finding, is_multi_label
from .trainer import VotesTrainer

# Losses and gradients are compared with ours on the same logits: what is left is rounding.
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2
LABELS = ("labels", "label", "label_ids")
OURS = "train with hf_softlabel's SoftLabelTrainer, or"


@dataclass(frozen=True)
class Step:
    """One micro-batch through `training_step`: its batch, loss, logits (N, C) and the loss's gradient at them."""

    batch: dict[str, Any]
    loss: float
    logits: Tensor | None
    gradient: Tensor | None


@contextmanager
def dry_run(trainer: Trainer) -> Iterator[None]:
    """One process, no accumulation, and everything put back at the end."""
    args, model = trainer.args, trainer.model
    changed = {
        "dataloader_num_workers": 0,
        "dataloader_persistent_workers": False,
        "dataloader_prefetch_factor": None,
        "gradient_accumulation_steps": 1,
    }
    before = {name: getattr(args, name) for name in changed}
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    config, training = getattr(model, "config", None), model.training
    problem_type = getattr(config, "problem_type", None)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        try:
            for name, value in changed.items():
                setattr(args, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(args, name, value)
            model.zero_grad(set_to_none=True)
            model.train(training)
            for name, buffer in model.named_buffers():
                buffer.data.copy_(buffers[name])
            if config is not None:
                config.problem_type = problem_type
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def first_row(dataset: Any) -> dict[str, Any]:
    """The first example as it is in the data set, before columns are removed."""
    if isinstance(dataset, Dataset):
        return dataset.with_format(None)[0]
    row = next(iter(dataset)) if isinstance(dataset, IterableDataset) else dataset[0]
    return dict(row) if isinstance(row, Mapping) else {}


def forward_names(model: nn.Module) -> list[str]:
    """The names of what a model's forward takes."""
    return list(inspect.signature(model.forward).parameters)


def vote_columns(row: Mapping[str, Any], model: nn.Module) -> list[str]:
    """The columns of votes in an example: `votes`, or else C numbers that are a distribution or counts."""
    if "votes" in row:
        return ["votes"]
    classes = getattr(getattr(model, "config", None), "num_labels", None)
    taken = [name for name in forward_names(model) if name not in LABELS]
    return [name for name, value in row.items() if name not in taken and _is_distribution(value, classes)]


def _is_distribution(value: Any, classes: int | None) -> bool:
    if not isinstance(value, (list, tuple, np.ndarray, Tensor)) or (isinstance(value, Tensor) and value.dim() != 1):
        return False
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) < 2 or classes not in (None, len(array)):
        return False
    return bool((array >= 0).all() and array.sum() > 0 and (array.dtype.kind != "f" or abs(array.sum() - 1) < 1e-3))


def check_columns(trainer: Trainer) -> list[Finding]:
    """Whether the votes of a row are still there when the collator gets it."""
    row = first_row(trainer.train_dataset)
    columns = vote_columns(row, trainer.model)
    if not columns:
        return []
    seen: list[str] = []
    collator = trainer.data_collator

    def record(features: Any) -> Any:
        rows = features if isinstance(features, Mapping) else features[0]
        seen.extend(rows)
        return collator(features)

    trainer.data_collator = record
    try:
        next(iter(trainer.get_train_dataloader()))
    except Exception:  # whatever a transform or collator raises without its columns: see what it was given
        if not seen:
            loader = trainer.get_train_dataloader()
            seen.extend(loader.dataset.column_names if isinstance(loader.dataset, Dataset) else row)
    finally:
        trainer.data_collator = collator
    if set(columns) & set(seen) or not trainer.args.remove_unused_columns:
        return []
    left = [name for name in LABELS if name in seen]
    instead = f"it trains on `{left[0]}` instead" if left else "there is nothing to train on"
    return [
        Finding(
            "votes_dropped",
            "wrong",
            f"remove_unused_columns drops {' and '.join(columns)}, which the model's forward does not take: the votes "
            f"never reach the loss, and {instead}.",
            f"train split, column {' and '.join(columns)}",
            f"{OURS} set remove_unused_columns=False (or label_names={columns}) and use the votes in compute_loss",
        )
    ]


def run_steps(trainer: Trainer, batches: Sequence[dict[str, Any]], together: bool) -> list[Step]:
    """Take micro-batches through `training_step`, as one accumulated step or each as a step of its own."""
    groups = [list(batches)] if together else [[batch] for batch in batches]
    steps = []
    for group in groups:
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps = len(group)
        items = trainer._get_num_items_in_batch(group, trainer.args.device)
        for batch in group:
            steps.append(_run_step(trainer, batch, items))
    trainer.args.gradient_accumulation_steps = 1
    return steps


def _run_step(trainer: Trainer, batch: dict[str, Any], items: Any) -> Step:
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: Any, outputs: Any) -> None:
        logits = _logits(outputs)
        if logits is not None and logits.requires_grad:
            logits.retain_grad()
            caught.append(logits)

    handle = trainer.model.register_forward_hook(catch)
    # Dropout must be the same whenever a batch is run.
    set_seed(trainer.args.seed)
    try:
        loss = trainer.training_step(trainer.model, copy(batch), items)
    finally:
        handle.remove()
    logits = caught[0] if len(caught) == 1 else None
    return Step(
        batch, loss.item(), None if logits is None else logits.detach(), None if logits is None else logits.grad
    )


def _logits(outputs: Any) -> Tensor | None:
    if isinstance(outputs, Mapping):
        return outputs.get("logits")
    if isinstance(outputs, Tensor):
        return outputs
    return next((part for part in outputs if isinstance(part, Tensor) and part.dim() == 2), None)


def read_batches(trainer: Trainer, number: int) -> list[dict[str, Any]]:
    """The first full batches of an epoch, as `training_step` gets them."""
    loader = iter(trainer.get_train_dataloader())
    return [batch for _, batch in zip(range(number), loader, strict=False)]


def check_losses(trainer: Trainer) -> list[Finding]:
    """The trainer's loss and its gradient at the logits, beside the cross-entropy of the same logits and targets."""
    before = getattr(getattr(trainer.model, "config", None), "problem_type", None)
    accumulates = trainer.args.gradient_accumulation_steps > 1
    with dry_run(trainer):
        found = check_columns(trainer)
        try:
            batches = read_batches(trainer, 2 if accumulates else 1)
            steps = run_steps(trainer, batches, together=False)
            joint = run_steps(trainer, batches, together=True) if len(batches) > 1 else []
            problem_type = getattr(getattr(trainer.model, "config", None), "problem_type", None)
        except Exception as error:
            if found:
                return found  # the step fails for want of the votes
            raise VotesError(f"A training step fails with {type(error).__name__}: {error}") from error
    found += _check_targets(trainer, steps[0], problem_type if problem_type != before else None, before)
    return found + (_check_accumulation(trainer, steps, joint) if joint else [])


def soft_targets(trainer: Trainer, batch: Mapping[str, Any]) -> tuple[str, Tensor] | None:
    """The (N, C) targets of a batch and their key; None for hard labels and for what cannot be known."""
    if isinstance(trainer, VotesTrainer):
        if trainer.delivery.name == "mixup":
            return None  # its targets belong to mixed inputs
        target = trainer.delivery(batch["votes"], batch["example_id"], trainer.delivery_epoch)
        return "votes", target if target.is_floating_point() else F.one_hot(target, batch["votes"].shape[1]).float()
    for key in (*(name for name in batch if name not in LABELS), "labels"):
        value = batch.get(key)
        if key in forward_names(trainer.model) and key not in LABELS:
            continue
        if isinstance(value, Tensor) and value.dim() == 2 and _looks_soft(value, key):
            return key, value
    return None


def _looks_soft(value: Tensor, key: str) -> bool:
    return bool((value >= 0).all() and (value.sum(1) > 0).all()) and (value.is_floating_point() or key not in LABELS)


def _check_targets(trainer: Trainer, step: Step, new_type: str | None, old_type: str | None) -> list[Finding]:
    target = soft_targets(trainer, step.batch)
    if target is None or step.logits is None or step.gradient is None or step.logits.shape != target[1].shape:
        return []
    key, raw = target[0], target[1].to(step.logits.device)
    logits, classes = step.logits.double(), step.logits.shape[1]
    raw, p = raw.double(), distribution(raw).double() if not raw.is_floating_point() else raw.double()
    if is_multi_label(raw.cpu().numpy()) or old_type == "regression":
        return []
    p = p / p.sum(1, keepdim=True)
    majority = F.one_hot(p.argmax(1), classes).double()
    losses = {
        "soft": lambda z: F.cross_entropy(z, p),
        "divergence": lambda z: F.kl_div(z.log_softmax(1), p, reduction="batchmean"),
        "bce": lambda z: F.binary_cross_entropy_with_logits(z, raw),
        "per_entry": lambda z: F.cross_entropy(z, p) / classes,
        "unnormalised": lambda z: F.cross_entropy(z, raw),
        "majority": lambda z: F.cross_entropy(z, majority),
    }
    distance = {name: _distance(step, logits, loss) for name, loss in losses.items()}
    nearest = min(distance, key=distance.get)
    tolerance = HALF_TOLERANCE if trainer.args.bf16 or trainer.args.fp16 else TOLERANCE
    if distance["soft"] <= tolerance * 0.01 or nearest in ("soft", "divergence"):
        return (
            []
            if min(distance["soft"], distance["divergence"]) <= tolerance
            else _another_loss(step, losses, logits, key)
        )
    if distance[nearest] > tolerance:
        return _another_loss(step, losses, logits, key)
    ours = f"{step.loss:.4f}, and the soft cross-entropy of the same logits is {losses['soft'](logits):.4f}"
    match nearest:
        case "bce":
            written = f" It has written problem_type={new_type!r} into the model's config too." if new_type else ""
            return [
                Finding(
                    "bce_head",
                    "wrong",
                    f"The head takes the soft targets for {classes} yes/no questions: its loss is the binary "
                    f"cross-entropy ({ours}).{written}",
                    f"first batch, `{key}`; model.config.problem_type",
                    f"{OURS} take the targets out of the inputs in compute_loss and use F.cross_entropy(logits, p)",
                )
            ]
        case "per_entry":
            return [
                Finding(
                    "loss_per_entry",
                    "wrong",
                    f"The loss is {classes} times too small ({ours}): it is divided by num_items_in_batch, which "
                    "counts the N*C entries of soft targets and not the N examples.",
                    f"first batch, `{key}`; num_items_in_batch",
                    f"{OURS} divide by the number of rows: num_items_in_batch / {classes}, or name the targets other "
                    "than `labels` and set loss_is_scaled_for_ga = False",
                )
            ]
        case "unnormalised":
            return [
                Finding(
                    "loss_unnormalised",
                    "wrong",
                    f"The targets are not divided by their sum before the cross-entropy ({ours}): examples with more "
                    "votes weigh more.",
                    f"first batch, `{key}`",
                    f"{OURS} divide each row of votes by its sum in compute_loss",
                )
            ]
    return [
        Finding(
            "majority_loss",
            "note",
            f"The loss sees only the class with most votes ({ours}).",
            f"first batch, `{key}`",
            "nothing, if that is meant; SoftLabelTrainer trains on the whole distribution",
        )
    ]


def _another_loss(step: Step, losses: Mapping[str, Any], logits: Tensor, key: str) -> list[Finding]:
    return [
        Finding(
            "another_loss",
            "note",
            f"The loss is {step.loss:.4f} and not {losses['soft'](logits):.4f}, the soft cross-entropy.",
            f"first batch, `{key}`",
            "nothing, if another loss is meant; F.cross_entropy(logits, targets) takes soft targets",
        )
    ]


def _distance(step: Step, logits: Tensor, loss: Any) -> float:
    """How far a step is from a loss: relative, in its value and in its gradient at the logits.

    Both are needed: with all logits near 0 the losses of two classes agree, and gradients differ only by a factor.
    """
    logits = logits.clone().requires_grad_(True)
    value = loss(logits)
    (gradient,) = torch.autograd.grad(value, logits)
    in_value = abs(step.loss - value.item()) / max(abs(value.item()), 1e-12)
    in_gradient = ((step.gradient.double() - gradient).norm() / gradient.norm().clamp_min(1e-12)).item()
    return max(in_value, in_gradient)


def _check_accumulation(trainer: Trainer, alone: Sequence[Step], joint: Sequence[Step]) -> list[Finding]:
    """Two micro-batches as one step must have the mean of their losses."""
    mean, got = float(np.mean([step.loss for step in alone])), sum(step.loss for step in joint)
    sizes = {len(next(iter(step.batch.values()))) for step in alone}
    ratio = got / mean if mean else 1.0
    if len(sizes) > 1 or abs(ratio - 1) < 0.05:
        return []
    return [
        Finding(
            "accumulated_loss",
            "wrong",
            f"The loss of two accumulated batches is {got:.4f}, {ratio:.2f} times the mean of their own losses "
            f"({mean:.4f}): with gradient_accumulation_steps={trainer.args.gradient_accumulation_steps} gradients are "
            f"{'larger' if ratio > 1 else 'smaller'} than those of the same batch at once.",
            "gradient_accumulation_steps, loss_is_scaled_for_ga",
            f"{OURS} set loss_is_scaled_for_ga = False on the trainer's class where the loss is a mean over the batch",
        )
    ]
