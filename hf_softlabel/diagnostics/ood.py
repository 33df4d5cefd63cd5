"""Out-of-distribution detection. A higher score always means more out-of-distribution.

Scores of logits z (N, C) with q = softmax(z):
- `energy`: -T logsumexp(z / T) (Liu et al. 2020);
- `msp`: -max q (Hendrycks and Gimpel 2017);
- `entropy`: H(q);
- `margin`: -(largest - second largest logit);
- `knn`: distance to the k-th nearest of the training features, all of length 1 (Sun et al. 2022);
- `odin`: -max softmax(z(x') / T), x' = x moved by epsilon towards a larger one (Liang et al. 2018). x is an image, or
  the embeddings of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..data.errors import VotesError
from .outputs import Inputs, check_repeatable, collect_outputs, evaluating, logits_of, split_batch

DETECTORS = ("energy", "msp", "odin", "entropy", "margin", "knn")
# Distances of so many pairs are in memory at once.
PAIRS = 2**22
# So many before and after the k-th neighbour are measured exactly: float32 may swap those that are nearly as near.
SPARE = 8


@dataclass(frozen=True)
class OODSettings:
    """What the papers leave open, stored with every result.

    Args:
        energy_temperature: T of the energy.
        odin_temperature, odin_epsilon: T and the step of ODIN, in units of the model's inputs.
        knn_neighbours: k.
    """

    energy_temperature: float = 1.0
    odin_temperature: float = 1000.0
    odin_epsilon: float = 0.0014
    knn_neighbours: int = 50


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """(N, C) -> (N,)."""
    return -temperature * torch.logsumexp(logits / temperature, -1)


def msp(logits: Tensor) -> Tensor:
    """(N, C) -> (N,)."""
    return -logits.softmax(-1).amax(-1)


def entropy(logits: Tensor) -> Tensor:
    """(N, C) -> (N,), in nats."""
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def margin(logits: Tensor) -> Tensor:
    """(N, C) -> (N,)."""
    first, second = logits.topk(2, -1).values.unbind(-1)
    return second - first


def knn(features: Tensor, train_features: Tensor, neighbours: int = 50) -> Tensor:
    """Features (N, D) and those of the training set (M, D) -> (N,): the distance to the k-th nearest of these.

    float32 ranks the neighbours, and those about the k-th are measured in float64. Where they are so near to each
    other that float32 may have ranked them wrongly, float64 ranks them again.
    """
    if not 0 < neighbours <= len(train_features):
        raise VotesError(f"{neighbours} neighbours among {len(train_features)} training examples: choose fewer.")
    distances, sure = _kth_nearest(features, train_features, neighbours, torch.float32)
    again = torch.nonzero(~sure).flatten()
    if len(again):
        distances[again], _ = _kth_nearest(features[again], train_features, neighbours, torch.float64)
    return distances


def _kth_nearest(features: Tensor, bank: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The distances (N,), float64, and for which of them (N,) it is certain that `dtype` ranked well enough.

    In blocks of rows and of columns: neither the (N, M) distances nor a copy of the bank are in memory.
    """
    width = bank.shape[1]
    surely, candidates = max(0, k - SPARE), min(len(bank), k + SPARE)
    columns = min(len(bank), max(candidates, PAIRS // 256))
    lengths = torch.cat([block.double().norm(dim=-1) for block in bank.split(columns)])
    scales = (1 / lengths.clamp_min(1e-12)).to(dtype)
    # No cosine is further off: one rounding for each product of its sum, and some for its factors.
    error = (width + 8) * torch.finfo(dtype).eps / 2
    distances = torch.empty(len(features), dtype=torch.float64, device=features.device)
    sure = torch.ones(len(features), dtype=torch.bool, device=features.device)
    rows = max(1, PAIRS // max(columns, 2 * SPARE * width))
    for part in (slice(start, start + rows) for start in range(0, len(features), rows)):
        own = nn.functional.normalize(features[part].double(), dim=-1)
        ranked = own.to(dtype)
        # The largest cosines so far and whose they are; each block of the bank may replace some.
        best = torch.full((len(own), candidates), -torch.inf, dtype=dtype, device=features.device)
        places = torch.zeros(best.shape, dtype=torch.int64, device=features.device)
        for start in range(0, len(bank), columns):
            block = slice(start, start + columns)
            cosines = (ranked @ bank[block].to(dtype).T).mul_(scales[block])
            # Zeros are at distance 1, as unit vectors with the cosine 0.5 are.
            cosines.index_fill_(1, torch.nonzero(lengths[block] == 0).flatten(), 0.5)
            largest, at = cosines.topk(min(candidates, cosines.shape[1]), -1)
            best, chosen = torch.cat([best, largest], -1).topk(candidates, -1)
            places = torch.cat([places, at + start], -1).gather(-1, chosen)
        near = nn.functional.normalize(bank[places[:, surely:]].double(), dim=-1)
        distances[part] = (near - own[:, None]).norm(dim=-1).kthvalue(k - surely, -1).values
        # Those that were not measured must be certain to be nearer than the k-th, and those left out to be further.
        kth = 1 - distances[part].square() / 2
        if surely:
            sure[part] &= best[:, surely - 1] - error >= kth
        if candidates < len(bank):
            sure[part] &= best[:, -1] + error <= kth
    return distances, sure


def odin(model: nn.Module, inputs: Inputs, temperature: float = 1000.0, epsilon: float = 0.0014) -> Tensor:
    """Inputs of one batch -> (N,). The model must be in eval mode; its gradients are left alone."""
    inputs = _continuous(model, inputs)
    key = None if isinstance(inputs, Tensor) else ("inputs_embeds" if "inputs_embeds" in inputs else "pixel_values")
    x = (inputs if key is None else inputs[key]).detach().requires_grad_()

    def logits(value: Tensor) -> Tensor:
        return logits_of(model, value if key is None else {**inputs, key: value}) / temperature

    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(logits(x).log_softmax(-1).amax(-1).sum(), x)
    with torch.no_grad():
        return msp(logits(x.detach() + epsilon * gradient.sign()))


def _continuous(model: nn.Module, inputs: Inputs) -> Inputs:
    """Token ids have no gradient: their embeddings take their place."""
    if isinstance(inputs, Tensor) or "input_ids" not in inputs:
        return inputs
    rest = {key: value for key, value in inputs.items() if key != "input_ids"}
    return {**rest, "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"])}


def detection(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """How well scores (N,) and (M,) tell OOD examples, the positives, from those of the distribution.

    `fpr95` is the share of in-distribution examples that are flagged at the threshold that flags 95% of the OOD ones.
    """
    if not len(inside) or not len(outside):
        raise VotesError("Detection needs examples of the distribution and out of it; one of the two is empty.")
    truth = np.concatenate([np.zeros(len(inside)), np.ones(len(outside))])
    scores = np.concatenate([inside, outside])
    if not np.isfinite(scores).all():
        raise VotesError("Some OOD scores are not finite: the model's outputs are NaN or infinite.")
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(truth, scores)),
        "aupr": float(average_precision_score(truth, scores)),
        "fpr95": float(false[np.searchsorted(true, 0.95)]),
    }


def ood_scores(
    model: nn.Module,
    batches: Iterable[Any],
    train_features: Tensor,
    settings: OODSettings | None = None,
    progress: bool = False,
    desc: str = "",
) -> dict[str, np.ndarray]:
    """The score (N,) of each detector on batches of inputs, or of (inputs, p), which are gone through twice."""
    check_repeatable(batches)
    settings = settings or OODSettings()
    outputs = collect_outputs(model, batches, progress, desc)
    moved = []
    with evaluating(model):
        for batch in tqdm(batches, desc=f"{desc} ODIN", unit="batch", disable=None if progress else True, leave=False):
            inputs, _ = split_batch(batch)
            moved.append(odin(model, inputs, settings.odin_temperature, settings.odin_epsilon).float().cpu())
    scores = {
        "energy": energy(outputs.logits, settings.energy_temperature),
        "msp": msp(outputs.logits),
        "odin": torch.cat(moved),
        "entropy": entropy(outputs.logits),
        "margin": margin(outputs.logits),
        "knn": knn(outputs.features, train_features, settings.knn_neighbours),
    }
    return {name: score.double().numpy() for name, score in scores.items()}


def ood_report(
    model: nn.Module,
    inside: Iterable[Any],
    outside: Mapping[str, Iterable[Any]],
    train: Iterable[Any],
    settings: OODSettings | None = None,
    progress: bool = False,
) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, dict[str, np.ndarray]]]:
    """Detect each OOD set by every detector.

    Args:
        inside: batches of held-out examples of the distribution.
        outside: batches of each OOD set, by name.
        train: batches of training examples, the neighbours of KNN.

    Returns:
        {set: {detector: {auroc, aupr, fpr95}}}, and the scores {set: {detector: (N,)}}, with `in` for `inside`.
    """
    if "in" in outside:
        raise VotesError("An OOD set cannot be named 'in': that is the distribution itself. Choose another name.")
    train_features = collect_outputs(model, train, progress, "train features").features
    scores = {"in": ood_scores(model, inside, train_features, settings, progress, "in")}
    for name, batches in outside.items():
        scores[name] = ood_scores(model, batches, train_features, settings, progress, name)
    report = {
        name: {detector: detection(scores["in"][detector], scores[name][detector]) for detector in DETECTORS}
        for name in outside
    }
    return report, scores
