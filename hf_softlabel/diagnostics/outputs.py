"""What the diagnostics read of a model: logits and penultimate features, batch by batch, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..data.errors import VotesError

Inputs = Tensor | dict[str, Tensor]


class Outputs(NamedTuple):
    """Of N examples: logits (N, C), p (N, C) if it was given, and features (N, D) before the last linear layer."""

    logits: Tensor
    p: Tensor | None
    features: Tensor | None


def check_repeatable(batches: Iterable[Any]) -> None:
    """Raise [`VotesError`] for an iterator, which would be empty when it is gone through again."""
    if isinstance(batches, Iterator):
        raise VotesError("The batches are gone through more than once: give a list or a DataLoader, not an iterator.")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode; afterwards every module is in its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes.items():
            module.training = mode


def logits_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """(N, C), of a model that returns a tensor, a tuple with the logits first, or an object with `logits`."""
    outputs = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, dict):
        return outputs["logits"]
    return outputs[0] if isinstance(outputs, tuple) else outputs.logits


def split_batch(batch: Any) -> tuple[Inputs, Tensor | None]:
    """(inputs, p) of a batch, which is that, or the inputs alone."""
    if isinstance(batch, (tuple, list)):
        inputs, p = batch
        return inputs, p
    return batch, None


@torch.no_grad()
def last_linear(model: nn.Module, inputs: Inputs) -> nn.Linear:
    """The linear layer whose output is the logits."""
    calls: list[tuple[nn.Linear, Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_hook(lambda layer, _, output: calls.append((layer, output))) for layer in layers]
    try:
        with evaluating(model):
            logits = logits_of(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, output in reversed(calls):
        if output.shape == logits.shape and torch.equal(output, logits):
            return layer
    raise VotesError(
        f"{type(model).__name__} has no linear layer whose output is the logits {tuple(logits.shape)}: penultimate "
        "features, which KNN, CKA and gradient variance need, are what goes into such a layer."
    )


@torch.no_grad()
def collect_outputs(
    model: nn.Module, batches: Iterable[Any], progress: bool = False, desc: str = "", features: bool = True
) -> Outputs:
    """Run the model in eval mode over batches of inputs, or of (inputs, p); the results are on the CPU, in float32.

    `features=False` leaves them out, for models without a last linear layer.
    """
    parts: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
    seen: list[Tensor] = []
    hook = None
    try:
        with evaluating(model):
            for batch in tqdm(batches, desc=desc, unit="batch", disable=None if progress else True, leave=False):
                inputs, p = split_batch(batch)
                if hook is None and features:
                    layer = last_linear(model, inputs)
                    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
                logits = logits_of(model, inputs).float().cpu()
                below = seen.pop().float().cpu() if features else None
                parts.append((logits, None if p is None else p.float().cpu(), below))
    finally:
        if hook is not None:
            hook.remove()
    if not parts:
        raise VotesError("There are no batches to run the model on.")
    return Outputs(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))
