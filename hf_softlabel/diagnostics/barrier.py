"""Loss along the straight line between two models' weights.

The barrier is the largest excess of the loss over the line between the two ends' losses (Frankle et al. 2020):
max over alpha of L((1 - alpha) a + alpha b) - ((1 - alpha) L(a) + alpha L(b)). Batch norm's statistics are
interpolated like weights, or re-estimated at each point (Jordan et al. 2023), which changes the barrier by an order of
magnitude: both are reported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from ..data.errors import VotesError
from .outputs import check_repeatable, evaluating, logits_of, split_batch

POINTS = 11


@dataclass(frozen=True)
class LossBarrier:
    """Losses (points,) at `alphas` (points,) and their barrier; with `reestimated` batch norm too, if there is any."""

    alphas: np.ndarray
    losses: np.ndarray
    barrier: float
    reestimated_losses: np.ndarray | None = None
    reestimated_barrier: float | None = None


def barrier_of(alphas: np.ndarray, losses: np.ndarray) -> float:
    """The largest excess over the line between the ends: never below 0, for it is 0 there."""
    return float((losses - ((1 - alphas) * losses[0] + alphas * losses[-1])).max())


def loss_barrier(
    first: nn.Module,
    second: nn.Module,
    batches: Iterable[Any],
    train_batches: Iterable[Any] | None = None,
    points: int = POINTS,
    progress: bool = False,
) -> LossBarrier:
    """The soft cross-entropy along the line from the first to the second model.

    Args:
        batches: (inputs, p), gone through once for each point.
        train_batches: inputs, or (inputs, p), for batch norm's statistics; without them these are interpolated only.
        points: on the line, both ends included.
    """
    if points < 3:
        raise VotesError(f"A line needs its ends and a point between them: points={points} is too few.")
    check_repeatable(batches)
    if train_batches is not None:
        check_repeatable(train_batches)
    alphas = np.linspace(0, 1, points)
    model = copy.deepcopy(first)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    redo = bool(norms) and train_batches is not None
    losses, reestimated = [], []
    for alpha in tqdm(alphas, desc="loss barrier", unit="point", disable=None if progress else True, leave=False):
        interpolate(model, first, second, float(alpha))
        losses.append(soft_loss(model, batches))
        if redo:
            reestimate_batch_norm(model, norms, train_batches)
            reestimated.append(soft_loss(model, batches))
    found = np.array(losses)
    if not redo:
        return LossBarrier(alphas, found, barrier_of(alphas, found))
    again = np.array(reestimated)
    return LossBarrier(alphas, found, barrier_of(alphas, found), again, barrier_of(alphas, again))


@torch.no_grad()
def interpolate(model: nn.Module, first: nn.Module, second: nn.Module, alpha: float) -> None:
    """Set a model's weights and statistics to (1 - alpha) first + alpha second."""
    one, two, target = first.state_dict(), second.state_dict(), model.state_dict()
    if {k: v.shape for k, v in one.items()} != {k: v.shape for k, v in two.items()}:
        raise VotesError("The two models have different weights: there is no line between them.")
    for key, value in target.items():
        # Counters of batches are whole numbers, and do not matter in eval mode.
        value.copy_(torch.lerp(one[key], two[key], alpha) if value.is_floating_point() else one[key])


@torch.no_grad()
def soft_loss(model: nn.Module, batches: Iterable[Any]) -> float:
    """The mean cross-entropy of the logits with p over all examples, in eval mode."""
    total, count = 0.0, 0
    with evaluating(model):
        for batch in batches:
            inputs, p = split_batch(batch)
            if p is None:
                raise VotesError("The loss needs batches of (inputs, p).")
            log_q = logits_of(model, inputs).double().log_softmax(-1)
            p = p.to(log_q) / p.to(log_q).sum(-1, keepdim=True)
            total -= float((p * log_q).sum())
            count += len(p)
    if not count:
        raise VotesError("There are no batches to compute the loss on.")
    return total / count


@torch.no_grad()
def reestimate_batch_norm(model: nn.Module, norms: list[nn.Module], batches: Iterable[Any]) -> None:
    """Set batch norm's statistics to the mean over these batches; dropout and all else stay in eval mode."""
    momenta = [norm.momentum for norm in norms]
    with evaluating(model):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean of all batches, not a running one
            norm.train()
        seen = 0
        for batch in batches:
            logits_of(model, split_batch(batch)[0])
            seen += 1
        if not seen:
            raise VotesError("There are no train_batches to re-estimate batch norm on.")
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
