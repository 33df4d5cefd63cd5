"""Where a vision model looks (Grad-CAM, Selvaraju et al. 2017), and whether two of them look at the same place.

A class's map is relu(sum_k a_k A_k) of the last convolutional activations A (K, H, W), with a_k the mean over H, W of
the logit's gradient by A_k. The correlation of two maps depends on their resolution: it is that of the layer, and is
stored with the number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..data.errors import VotesError
from .outputs import Inputs, evaluating, logits_of, split_batch

Target = Literal["predicted", "majority"]


@dataclass(frozen=True)
class GradCamStability:
    """Pearson's correlation (N,) of the two models' maps; NaN where a map is constant, as one without evidence is.

    `mean` is over the `defined` others. `resolution` is (H, W) of the maps, `target` whose map it is.
    """

    correlations: np.ndarray
    mean: float
    defined: int
    resolution: tuple[int, int]
    target: Target


def last_convolution(model: nn.Module, inputs: Inputs) -> nn.Module:
    """The last module whose output is a map (N, K, H, W) with H, W > 1."""
    calls: list[nn.Module] = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.shape[-1] > 1:
            calls.append(module)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with torch.no_grad(), evaluating(model):
            logits_of(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise VotesError(f"{type(model).__name__} has no convolutional maps: Grad-CAM is for vision models.")
    return calls[-1]


def grad_cam(model: nn.Module, inputs: Inputs, classes: Tensor | None = None) -> Tensor:
    """Maps (N, H, W) of the classes (N,), by default the predicted ones. The model's gradients are left alone."""
    layer = last_convolution(model, inputs)
    seen: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        with evaluating(model), torch.enable_grad():
            logits = logits_of(model, inputs)
            classes = logits.argmax(-1) if classes is None else classes.to(logits.device)
            (gradient,) = torch.autograd.grad(logits.gather(-1, classes[:, None]).sum(), seen[-1])
    finally:
        hook.remove()
    activations = seen[-1].detach()
    weights = gradient.mean((-2, -1), keepdim=True)
    return (weights * activations).sum(1).relu().detach()


def gradcam_stability(
    first: nn.Module,
    second: nn.Module,
    batches: Iterable[Any],
    target: Target = "majority",
    progress: bool = False,
) -> GradCamStability:
    """Compare the maps of two models on the same images.

    Args:
        batches: (inputs, p).
        target: whose map: of the class with the most votes, the same for both models, or of each one's own prediction.
    """
    if target not in ("predicted", "majority"):
        raise VotesError(f"target is 'predicted' or 'majority', not {target!r}.")
    parts, resolution = [], (0, 0)
    for batch in tqdm(batches, desc="Grad-CAM", unit="batch", disable=None if progress else True, leave=False):
        inputs, p = split_batch(batch)
        if target == "majority" and p is None:
            raise VotesError("target='majority' needs batches of (inputs, p).")
        classes = p.argmax(-1) if target == "majority" else None
        maps = [grad_cam(model, inputs, classes) for model in (first, second)]
        if maps[0].shape != maps[1].shape:
            raise VotesError(f"The models' maps have different sizes: {tuple(maps[0].shape)}, {tuple(maps[1].shape)}.")
        resolution = tuple(maps[0].shape[1:])
        parts.append(_correlation(*(map.flatten(1).double().cpu().numpy() for map in maps)))
    if not parts:
        raise VotesError("There are no batches to compare the models on.")
    correlations = np.concatenate(parts)
    defined = int(np.isfinite(correlations).sum())
    mean = float(np.nanmean(correlations)) if defined else float("nan")
    return GradCamStability(correlations, mean, defined, resolution, target)


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's, of each row."""
    x, y = (a - a.mean(-1, keepdims=True) for a in (x, y))
    norms = np.sqrt(np.square(x).sum(-1) * np.square(y).sum(-1))
    return np.divide((x * y).sum(-1), norms, out=np.full(len(x), np.nan), where=norms > 0)
