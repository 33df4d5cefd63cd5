"""Votes in, targets out: what the loss sees of an example's votes in a given epoch.

Every delivery is a pure function `target = f(votes, example_id, epoch, seed)`. It has no state and uses no global
random number generator, so one or eight processes, any number of workers and a resumed run see the same labels.

Shapes: N examples, C classes. `votes` is (N, C): int64 for counts, floating point for a distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .data.errors import VotesError
from .hashing import below, hash64, permuted_position, uniform

DeliveryName = Literal[
    "soft",
    "sls",
    "multipass",
    "deterministic_control",
    "shuffled_sls",
    "majority",
    "label_smoothing",
    "mixup",
    "posterior_sls",
]
DELIVERIES: tuple[str, ...] = get_args(DeliveryName)
# These need integer counts: a distribution does not say how many votes there were.
NEED_COUNTS = ("multipass", "deterministic_control", "posterior_sls")
# The paper's seed offset for the second order of the same votes.
CONTROL_OFFSET = 1000


def distribution(votes: Tensor) -> Tensor:
    """(N, C) counts or probabilities -> (N, C) float32 that sums to 1 in each row."""
    if votes.is_floating_point():
        return votes.float()
    return (votes.double() / votes.sum(-1, keepdim=True)).float()


def sample_label(votes: Tensor, bits: Tensor) -> Tensor:
    """One label per row by inverse CDF: (N, C) votes and (N,) hashes -> (N,) int64.

    Counts are compared as integers, so that an observed vote's probability is exact and a class without votes is
    never drawn.
    """
    if votes.is_floating_point():
        cdf = votes.double().cumsum(-1)
        point = uniform(bits) * cdf[:, -1]
    else:
        cdf = votes.cumsum(-1)
        point = below(bits, cdf[:, -1])
    return (cdf <= point[:, None]).sum(-1)


def sls_label(votes: Tensor, example_id: Tensor, epoch: int, seed: int, resample_every: int = 1) -> Tensor:
    """Stochastic label sampling: y ~ Categorical(p), drawn anew every `resample_every` epochs. (N,) int64."""
    return sample_label(votes, sls_bits(example_id, epoch, seed, resample_every))


def sls_bits(example_id: Tensor, epoch: int, seed: int, resample_every: int = 1) -> Tensor:
    """(N,) int64: the random bits of an epoch's labels."""
    return hash64("sls", seed, epoch // resample_every, example_id)


def multipass_label(votes: Tensor, example_id: Tensor, epoch: int, seed: int) -> Tensor:
    """The vote that comes up in this epoch when each example's votes are shuffled once and then cycled. (N,) int64.

    Each observed vote is shown exactly once in every m consecutive epochs, m being the example's number of votes.
    """
    if votes.is_floating_point():
        raise VotesError(
            "multipass cycles through the votes themselves, but these rows are probabilities. "
            "Give integer counts, or use the delivery 'sls', which needs only probabilities."
        )
    return vote_at(votes, multipass_position(votes.sum(-1), example_id, epoch, seed))


def multipass_position(m: Tensor, example_id: Tensor, epoch: int, seed: int) -> Tensor:
    """(N,) numbers of votes m -> (N,) int64 in [0, m): which vote comes up, of those in the order of the classes."""
    return permuted_position(epoch % m, m, hash64("multipass", seed, example_id))


def vote_at(votes: Tensor, position: Tensor) -> Tensor:
    """The label of the vote with the given position, when each row's votes stand in the order of the classes. (N,)"""
    return (votes.cumsum(-1) <= position[:, None]).sum(-1)


def majority_label(votes: Tensor, example_id: Tensor, seed: int) -> Tensor:
    """The class with most votes; ties go to a class chosen by the hash, not always to the lowest. (N,) int64."""
    classes = torch.arange(votes.shape[-1], device=votes.device)
    lots = uniform(hash64("majority", seed, example_id[:, None], classes))
    tied = votes == votes.amax(-1, keepdim=True)
    return torch.where(tied, lots, -1.0).argmax(-1)


def smoothed(labels: Tensor, num_classes: int, epsilon: float) -> Tensor:
    """(N,) labels -> (N, C): 1 - epsilon on the label and epsilon spread evenly over all classes."""
    return F.one_hot(labels, num_classes).float() * (1 - epsilon) + epsilon / num_classes


def posterior_predictive(votes: Tensor, prior_strength: float) -> Tensor:
    """(N, C) counts -> (N, C) float64: the mean of the Dirichlet posterior under a uniform prior.

    The prior is worth `prior_strength` votes in all. Drawing a distribution from the posterior and then a label from
    that, afresh each epoch, is the same as drawing the label from this mean: the label's marginal is the predictive
    distribution and draws of different epochs are independent.
    """
    counts = votes.double() + prior_strength / votes.shape[-1]
    return counts / counts.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Delivery:
    """A delivery with its settings. Call it with votes (N, C), example_id (N,) and the epoch.

    Returns (N,) int64 hard labels, or (N, C) float32 targets for `soft`, `label_smoothing` and soft `mixup`.

    `shuffled_sls` is here plain SLS: the permutation across examples is done once on the data set, by
    [`shuffled_rows`]. `mixup` gives the unmixed targets: [`hf_softlabel.mixup`] mixes them with the inputs.
    """

    name: DeliveryName
    seed: int = 0
    resample_every: int = 1
    label_smoothing_epsilon: float = 0.1
    prior_strength: float = 1.0
    mixup_targets: Literal["majority", "soft"] = "majority"

    def __post_init__(self):
        if self.name not in DELIVERIES:
            raise VotesError(f"Unknown delivery {self.name!r}. Choose one of: {', '.join(DELIVERIES)}.")
        if self.resample_every < 1:
            raise VotesError(f"resample_every must be at least 1 epoch, not {self.resample_every}.")
        if not 0 <= self.label_smoothing_epsilon <= 1:
            raise VotesError(f"label_smoothing_epsilon must lie in [0, 1], not {self.label_smoothing_epsilon}.")
        if self.prior_strength < 0:
            raise VotesError(f"prior_strength is a number of votes and cannot be negative: {self.prior_strength}.")

    @property
    def needs_counts(self) -> bool:
        return self.name in NEED_COUNTS

    def __call__(self, votes: Tensor, example_id: Tensor, epoch: int) -> Tensor:
        if self.needs_counts and votes.is_floating_point():
            raise VotesError(
                f"The delivery {self.name!r} needs integer vote counts, but the votes are probabilities. "
                "Give counts, or use 'soft' or 'sls', which need only probabilities."
            )
        match self.name:
            case "soft":
                return distribution(votes)
            case "sls" | "shuffled_sls":
                return sls_label(votes, example_id, epoch, self.seed, self.resample_every)
            case "posterior_sls":
                predictive = posterior_predictive(votes, self.prior_strength)
                return sls_label(predictive, example_id, epoch, self.seed, self.resample_every)
            case "multipass":
                return multipass_label(votes, example_id, epoch, self.seed)
            case "deterministic_control":
                return multipass_label(votes, example_id, epoch, self.seed + CONTROL_OFFSET)
            case "label_smoothing":
                labels = majority_label(votes, example_id, self.seed)
                return smoothed(labels, votes.shape[-1], self.label_smoothing_epsilon)
            case "mixup" if self.mixup_targets == "soft":
                return distribution(votes)
            case _:
                return majority_label(votes, example_id, self.seed)


def shuffled_rows(n: int, seed: int) -> Tensor:
    """(n,) int64: a permutation of the rows, for giving each example the votes of another one."""
    return hash64("shuffled_sls", seed, torch.arange(n)).argsort()
