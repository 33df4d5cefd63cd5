"""lambda_max and trace of the Hessian to 1% against PyHessian: power iteration and Hutchinson's probes.

Both have the same trained model and the same batches. PyHessian's own stopping rule, a small change from one step to
the next, does not know its error, so it is run twice: with its defaults, whose measured error is reported, and with as
many probes as its estimates' spread asks for a standard error of 1%, which is where ours stops by itself.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_softlabel.delivery import distribution
from hf_softlabel.diagnostics.hessian import hessian_summary
from hf_softlabel.models import build_resnet

from .images import TRANSFORM
from .measure import Row, alternate, peer
from .real_data import image_store

EXAMPLES, BATCH, RTOL = 500, 125, 0.01
# The ResNet has half of the examples, at 8 x 8 pixels: PyHessian needs thousands of products.
PIXELS = 8

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Curvature:
    """The two numbers that are compared."""

    lambda_max: float
    trace: float

    def error(self, reference: Curvature) -> str:
        parts = ((self.lambda_max, reference.lambda_max), (self.trace, reference.trace))
        return " and ".join(f"{abs(value / right - 1):.2%}" for value, right in parts)


class Logits(nn.Module):
    """A model whose output is the tensor of logits, which is all that PyHessian knows."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).logits


def rows(scale: float) -> Iterator[Row]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n = max(20, int(EXAMPLES * scale))
    store = image_store(n)
    images = TRANSFORM(store.column("pixel_values"))
    p = distribution(store.column("votes"))
    pooled = F.adaptive_avg_pool2d(images, 4)
    model = trained(nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 10)), pooled, p, 300)
    batches, reference = _batches(pooled, p), exact(model, pooled, p)
    yield from _compare(f"an MLP of {_size(model):,} parameters", model, batches, reference, "exact", 5)

    images, p = F.adaptive_avg_pool2d(images[: n // 2], PIXELS), p[: n // 2]
    model = trained(Logits(build_resnet(store.names, 18, 1 / 16, seed=0)), images, p, 60)
    batches = _batches(images, p)
    precise = hessian_summary(model, batches, rtol=RTOL / 5, seed=1, max_hvps=4000)
    reference = Curvature(precise.lambda_max, precise.trace)
    by = f"against ours to {precise.trace_error / precise.trace:.1%}"
    yield from _compare(f"a ResNet-18 of {_size(model):,} parameters", model, batches, reference, by, 1)


def _batches(images: Tensor, p: Tensor) -> Batches:
    return list(zip(images.split(BATCH), p.split(BATCH), strict=True))


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _loss(logits: Tensor, p: Tensor) -> Tensor:
    return -(p * logits.log_softmax(-1)).sum(-1).mean()


def trained(model: nn.Module, images: Tensor, p: Tensor, steps: int) -> nn.Module:
    """Far enough from its beginning that the spectrum is that of a trained network: few eigenvalues above many."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model(images), p).backward()
        optimizer.step()
    return model.eval()


def exact(model: nn.Module, images: Tensor, p: Tensor) -> Curvature:
    """By the whole Hessian, in float64."""
    model = copy.deepcopy(model).double()
    names = [name for name, _ in model.named_parameters()]

    def loss(*parameters: Tensor) -> Tensor:
        return _loss(torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), images.double()), p)

    parameters = tuple(parameter.detach() for parameter in model.parameters())
    blocks = torch.autograd.functional.hessian(loss, parameters, vectorize=True)
    sizes = [parameter.numel() for parameter in parameters]
    whole = torch.cat([torch.cat([b.reshape(m, n) for b, n in zip(row, sizes, strict=True)], 1)
                       for row, m in zip(blocks, sizes, strict=True)])  # fmt: skip
    return Curvature(float(torch.linalg.eigvalsh(whole)[-1]), float(whole.trace()))


def ours(model: nn.Module, batches: Batches, seed: int = 0) -> Curvature:
    summary = hessian_summary(model, batches, rtol=RTOL, seed=seed, max_hvps=4000)
    return Curvature(summary.lambda_max, summary.trace)


def theirs(model: nn.Module, batches: Batches, probes: int | None = None) -> Curvature:
    """By PyHessian's defaults, or with so many probes and the power iteration's tolerance a tenth of the default."""
    work = peer("pyhessian").hessian(model, _loss, dataloader=batches, cuda=False)
    if probes is None:
        return Curvature(work.eigenvalues()[0][0], mean(work.trace()))
    return Curvature(work.eigenvalues(maxIter=1000, tol=1e-4)[0][0], mean(work.trace(maxIter=probes, tol=0)))


def probes_needed(model: nn.Module, batches: Batches, sample: int) -> int:
    """How many of Hutchinson's probes have a standard error of 1%, from the spread of `sample` of them."""
    samples = peer("pyhessian").hessian(model, _loss, dataloader=batches, cuda=False).trace(maxIter=sample, tol=0)
    return math.ceil((stdev(samples) / (RTOL * mean(samples))) ** 2)


def _compare(
    what: str, model: nn.Module, batches: Batches, reference: Curvature, by: str, rounds: int
) -> Iterator[Row]:
    needed = probes_needed(model, batches, 400 if rounds > 1 else 100)
    found: dict[str, Curvature] = {}

    def run(name: str, work: Callable[[], Curvature]) -> Callable[[], None]:
        return lambda: found.__setitem__(name, work())

    own = run("ours", lambda: ours(model, batches))
    sizes = {"examples": sum(len(p) for _, p in batches), "parameters": _size(model)}
    for peer_name, probes, target in (
        (f"PyHessian with {needed:,} probes, for a standard error of 1%", needed, ">= 5"),
        ("PyHessian with its defaults, whatever its error", None, None),
    ):
        times = alternate(
            own, run("theirs", lambda probes=probes: theirs(model, batches, probes)), rounds, time.process_time
        )
        errors = {name: value.error(reference) for name, value in found.items()}
        checked = f"errors of lambda_max and trace, {by}: ours {errors['ours']}, PyHessian's {errors['theirs']}"
        yield times.row(
            f"lambda_max and trace to 1% of {what}",
            peer_name,
            "times as fast",
            target,
            sizes=sizes,
            checked=checked,
            packages=("pyhessian",),
        )
