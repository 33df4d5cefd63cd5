"""Training steps of a batch or two that leave a trainer as it was.

Weights never change, and buffers, gradients, configuration and random generators are
put back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import set_seed


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
