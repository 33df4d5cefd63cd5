"""What the doctor sees by running a trainer for a batch or two: a step that fails, its loss, and accumulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Trainer

from .data.errors import VotesError
from .delivery import distribution
from .doctor_checks import Finding, check_rows
from .doctor_columns import (
    LABELS,
    OURS,
    check_columns,
    forward_names,
    is_votes,
    labels_column,
    num_classes,
    target_kind,
)
from .doctor_steps import Step, dry_run, read_batches, run_steps
from .trainer import VotesTrainer

# Losses and gradients are compared with ours on the same logits: what is left is rounding.
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2


def check_losses(trainer: Trainer) -> list[Finding]:
    """The trainer's loss and its gradient at the logits, beside the cross-entropy of the same logits and targets."""
    declared = _problem_type(trainer)
    accumulates = trainer.args.gradient_accumulation_steps > 1
    batches: list[dict[str, Any]] = []
    with dry_run(trainer):
        found = check_columns(trainer)
        try:
            batches = read_batches(trainer, 2 if accumulates else 1)
            steps = run_steps(trainer, batches, together=False)
            joint = run_steps(trainer, batches, together=True) if len(batches) > 1 else []
            written = _problem_type(trainer)
        except Exception as error:
            if any(finding.severity == "wrong" for finding in found):
                return found  # the step fails for want of the votes
            return found + _check_failure(trainer, batches, error)
    found += _check_targets(trainer, steps[0], declared, written)
    return found + (_check_accumulation(trainer, steps, joint) if joint else [])


def _problem_type(trainer: Trainer) -> str | None:
    return getattr(getattr(trainer.model, "config", None), "problem_type", None)


def _check_failure(trainer: Trainer, batches: Sequence[Mapping[str, Any]], error: Exception) -> list[Finding]:
    """Why a step fails, where the labels (N, C) explain it.

    Raises:
        VotesError: they do not.
    """
    message = f"step fails with {type(error).__name__}: {str(error).strip()}"
    labels = batches[0].get("labels") if batches else None
    classes = num_classes(trainer.model)
    if not isinstance(labels, Tensor) or classes in (None, 1) or labels.shape[1:] != (classes,):
        raise VotesError(f"A training {message}") from error
    if trainer.label_smoother is not None:
        epsilon = trainer.args.label_smoothing_factor
        return [
            Finding(
                "label_smoothing",
                "wrong",
                f"label_smoothing_factor={epsilon} smooths class numbers only, and `labels` has {classes} numbers in "
                f"each row: a {message}",
                "first batch, `labels`; label_smoothing_factor",
                f"set label_smoothing_factor=0; to smooth soft labels p, store {1 - epsilon:g} * p + "
                f"{epsilon / classes:.3g} and {OURS} use F.cross_entropy(logits, p) in compute_loss",
            )
        ]
    if labels.is_floating_point():
        raise VotesError(f"A training {message}") from error
    column = labels_column(trainer.train_dataset, classes)
    several = target_kind(labels.cpu().numpy() if column is None else column) == "yes/no"
    return [
        Finding(
            "integer_labels",
            "wrong",
            f"The head takes whole numbers for class numbers, one a row, but `labels` has {classes}: a {message}",
            "first batch, `labels`",
            "for several yes/no questions, store them as floats and set problem_type='multi_label_classification'"
            if several
            else f"rename the column to `votes` and {OURS} use F.cross_entropy(logits, votes / votes.sum(1, "
            "keepdim=True)) in compute_loss",
        )
    ]


def soft_targets(trainer: Trainer, step: Step) -> tuple[str, Tensor] | None:
    """The (N, C) targets of a batch and their key; None for hard labels and for what cannot be known."""
    batch = step.batch
    if step.logits is None or step.logits.dim() != 2:
        return None
    if isinstance(trainer, VotesTrainer):
        if trainer.delivery.name == "mixup":
            return None  # its targets belong to mixed inputs
        target = trainer.delivery(batch["votes"], batch["example_id"], trainer.delivery_epoch)
        return "votes", target if target.is_floating_point() else F.one_hot(target, batch["votes"].shape[1]).float()
    taken = forward_names(trainer.model)
    tables = {
        key: value for key, value in batch.items() if isinstance(value, Tensor) and value.shape == step.logits.shape
    }
    for key, value in tables.items():
        if key not in taken and key not in LABELS and is_votes(key, value.cpu().numpy()):
            return key, value
    return ("labels", tables["labels"]) if "labels" in tables else None


def _check_targets(trainer: Trainer, step: Step, declared: str | None, written: str | None) -> list[Finding]:
    """The loss and the targets; `declared` and `written` are the model's problem_type before and after the step."""
    target = soft_targets(trainer, step)
    if target is None or step.gradient is None:
        return []
    key, raw = target[0], target[1].to(step.logits.device)
    if key not in LABELS:
        return _check_loss(trainer, step, key, raw, declared, written)
    column = labels_column(trainer.train_dataset, raw.shape[1])
    whole = raw.cpu().numpy() if column is None else column
    kind = target_kind(whole)
    if declared == "regression" or kind == "yes/no" or raw.shape[1] == 1:
        return []
    if kind in ("fractions", "numbers"):
        return _check_numbers(trainer, step, raw, kind, declared)
    found = check_rows(whole.astype(np.int64) if kind == "counts" else whole, "train")
    found += _check_loss(trainer, step, key, raw, declared, written)
    if kind == "one-hot" and (declared == "multi_label_classification" or column is None):
        return [_as_meant(finding) for finding in found]
    return found


def _as_meant(finding: Finding) -> Finding:
    """Each example may have one answer of several by chance: the declared problem_type, or a row not seen, says so."""
    if finding.name != "bce_head":
        return finding
    return replace(finding, severity="note", fix=f"nothing, if examples can have several labels; else {finding.fix}")


def _check_numbers(trainer: Trainer, step: Step, raw: Tensor, kind: str, declared: str | None) -> list[Finding]:
    """Labels that are no distributions: yes/no questions that were not declared, or a regression taken for them."""
    if _distance(step, step.logits.double(), _bce(raw)) > _tolerance(trainer):
        return []
    classes = raw.shape[1]
    if kind == "numbers":
        return [
            Finding(
                "bce_head",
                "wrong",
                f"The head takes `labels` for {classes} yes/no questions, but not all of them lie between 0 and 1.",
                "train split, `labels`; model.config.problem_type",
                "for a regression, load the model with problem_type='regression'",
            )
        ]
    if declared == "multi_label_classification":
        return []
    return [
        Finding(
            "bce_head",
            "note",
            f"Rows of `labels` do not sum to 1, so the head takes them for {classes} yes/no questions.",
            "train split, `labels`; model.config.problem_type",
            "nothing, if that is meant (problem_type='multi_label_classification' says so); else divide each row by "
            f"its sum and {OURS} use F.cross_entropy(logits, p) in compute_loss",
        )
    ]


def _tolerance(trainer: Trainer) -> float:
    return HALF_TOLERANCE if trainer.args.bf16 or trainer.args.fp16 else TOLERANCE


def _bce(targets: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: F.binary_cross_entropy_with_logits(logits, targets.double())


def _check_loss(
    trainer: Trainer, step: Step, key: str, raw: Tensor, declared: str | None, written: str | None
) -> list[Finding]:
    """Which loss of the targets (N, C) the step has."""
    if not ((raw >= 0).all() and (raw.sum(1) > 0).all()):
        return []  # bad rows, which are reported as such
    logits, classes = step.logits.double(), step.logits.shape[1]
    p = distribution(raw).double()
    raw = raw.double()
    p = p / p.sum(1, keepdim=True)
    majority = F.one_hot(p.argmax(1), classes).double()
    losses = {
        "soft": lambda z: F.cross_entropy(z, p),
        "divergence": lambda z: F.kl_div(z.log_softmax(1), p, reduction="batchmean"),
        "bce": _bce(raw),
        "per_entry": lambda z: F.cross_entropy(z, p) / classes,
        "divergence_per_entry": lambda z: F.kl_div(z.log_softmax(1), p, reduction="batchmean") / classes,
        "unnormalised": lambda z: F.cross_entropy(z, raw),
        "majority": lambda z: F.cross_entropy(z, majority),
    }
    distance = {name: _distance(step, logits, loss) for name, loss in losses.items()}
    nearest = min(distance, key=distance.get)
    tolerance = _tolerance(trainer)
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
            if written != "multi_label_classification":  # not the head's choice: the user wrote this loss
                return _another_loss(step, losses, logits, key)
            new = "" if written == declared else f" It has written problem_type={written!r} into the config too."
            return [
                Finding(
                    "bce_head",
                    "wrong",
                    f"The head takes the targets for {classes} yes/no questions: its loss is the binary "
                    f"cross-entropy ({ours}).{new}",
                    f"first batch, `{key}`; model.config.problem_type",
                    f"{OURS} take the targets out of the inputs in compute_loss and use F.cross_entropy(logits, p)",
                )
            ]
        case "per_entry" | "divergence_per_entry":
            return [
                Finding(
                    "loss_per_entry",
                    "wrong",
                    f"The loss is {classes} times too small ({ours}): it is divided by the N*C entries of the targets "
                    "and not by the N examples, as num_items_in_batch counts them, and a mean over all entries.",
                    f"first batch, `{key}`; compute_loss",
                    f"{OURS} use F.cross_entropy(logits, p) or F.kl_div(..., reduction='batchmean'), or divide by "
                    f"num_items_in_batch / {classes}",
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
    """Two micro-batches as one step must have the mean of their losses, over batches or over labels."""
    losses, got = [step.loss for step in alone], sum(step.loss for step in joint)
    mean = float(np.mean(losses))
    if any(
        abs(got - expected) <= 0.05 * abs(expected)
        for expected in (mean, np.average(losses, weights=[_items(step.batch) for step in alone]))
    ):
        return []
    ratio = got / mean if mean else float("inf")
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


def _items(batch: Mapping[str, Any]) -> int:
    """How many labels a batch has: tokens that count, or else examples."""
    labels = batch.get("labels")
    return max(1, int((labels != -100).sum())) if isinstance(labels, Tensor) else len(next(iter(batch.values())))
