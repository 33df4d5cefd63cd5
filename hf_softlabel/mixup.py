"""Mixup (Zhang et al., 2018): each example of a batch is mixed with another one, inputs and targets alike.

Partners are found within the batch, so mixup is the one delivery whose targets depend on how the data is batched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data.errors import VotesError
from .hashing import below, hash64


@lru_cache(maxsize=8)
def _beta_quantiles(alpha: float, size: int = 1 << 16) -> Tensor:
    """Quantiles of Beta(alpha, alpha) on a fine grid, so that a hash becomes a draw by one look-up on any device."""
    import numpy as np
    from scipy.stats import beta

    return torch.from_numpy(beta.ppf((np.arange(size) + 0.5) / size, alpha, alpha)).float()


def mixup_pairs(example_id: Tensor, epoch: int, seed: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Each example's partner in the batch and its share of itself.

    Returns:
        partner: (N,) int64 positions in the batch; nobody is its own partner unless N is 1.
        share: (N,) float32 ~ Beta(alpha, alpha), one draw per example and epoch.
    """
    bits = hash64("mixup", seed, epoch, example_id)
    order = bits.argsort(stable=True)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    table = _beta_quantiles(alpha).to(example_id.device)
    return partner, table[below(hash64("share", bits), len(table))]


def mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """share * x + (1 - share) * x[partner], row by row; x is (N, ...) and floating point."""
    share = share.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
    return torch.lerp(x[partner], x, share)


def mix_targets(targets: Tensor, num_classes: int, partner: Tensor, share: Tensor) -> Tensor:
    """Mix hard labels (N,) or distributions (N, C) to distributions (N, C).

    Written by hand because `timm.data.Mixup` one-hots whatever it is given, soft targets included.
    """
    if targets.dim() == 1:
        targets = F.one_hot(targets, num_classes).float()
    return mix(targets, partner, share)


def mix_inputs(inputs: dict[str, Any], partner: Tensor, share: Tensor, model: nn.Module) -> dict[str, Any]:
    """Mix a batch's pixels, or the embeddings of its texts.

    Only for encoders: a decoder's classifier looks for the last token, which cannot be told from embeddings.
    """
    inputs = dict(inputs)
    if "pixel_values" in inputs:
        inputs["pixel_values"] = mix(inputs["pixel_values"], partner, share)
    elif "input_ids" in inputs:
        embed = model.get_input_embeddings()
        inputs["inputs_embeds"] = mix(embed(inputs.pop("input_ids")), partner, share)
        if "attention_mask" in inputs:
            inputs["attention_mask"] = torch.maximum(inputs["attention_mask"], inputs["attention_mask"][partner])
    else:
        raise VotesError(f"mixup needs pixel_values or input_ids, not: {', '.join(inputs)}.")
    return inputs
