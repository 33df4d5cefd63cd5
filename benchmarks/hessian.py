"""lambda_max and trace of the Hessian to 1% against PyHessian: power iteration and Hutchinson's probes.

Both have the same trained model and the same examples, which fit one batch: PyHessian keeps the graph of one batch,
and builds those of a loader anew for each product. Its stopping rule, a small change from one step to the next, does
not know its error. So it is given the number of probes that the spread of its own estimates asks for: for a standard
error of 1%, at which ours stops by itself, and for the error that ours is then measured to have. Each round has a seed
of its own, and the errors are those of the timed runs.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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
# Errors further apart than this factor are not called the same. A root mean square of few seeds is itself uncertain.
SAME = 1.5
# Of PyHessian: 2,000 take minutes on the ResNet. Where they are too few, the row says that the errors differ.
MOST_PROBES = 2_000

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Curvature:
    """The two numbers that are compared."""

    lambda_max: float
    trace: float


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
    n, most = max(20, int(EXAMPLES * scale)), max(20, int(MOST_PROBES * scale))
    store = image_store(n)
    images = TRANSFORM(store.column("pixel_values"))
    p = distribution(store.column("votes"))
    pooled = F.adaptive_avg_pool2d(images, 4)
    model = trained(nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 10)), pooled, p, 300)
    work = Work(f"an MLP of {_size(model):,} parameters", model, pooled, p, exact(model, pooled, p), "exact")
    yield from _compare(work, seeds=max(2, int(10 * scale)), most=most)

    images, p = F.adaptive_avg_pool2d(images[: n // 2], PIXELS), p[: n // 2]
    model = trained(Logits(build_resnet(store.names, 18, 1 / 16, seed=0)), images, p, 60)
    precise = hessian_summary(model, [(images, p)], rtol=RTOL / 5, seed=1000, max_hvps=4000)
    reference = Curvature(precise.lambda_max, precise.trace)
    by = f"against ours to {precise.trace_error / precise.trace:.1%}"
    work = Work(f"a ResNet-18 of {_size(model):,} parameters", model, images, p, reference, by)
    yield from _compare(work, seeds=max(2, int(3 * scale)), most=most)


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


def ours(model: nn.Module, batches: Batches, seed: int) -> Curvature:
    summary = hessian_summary(model, batches, rtol=RTOL, seed=seed, max_hvps=4000)
    return Curvature(summary.lambda_max, summary.trace)


def theirs(model: nn.Module, batches: Batches, seed: int, probes: int | None, tol: float) -> Curvature:
    """By PyHessian with so many probes, or where it stops by itself. One batch is given as such: it is faster."""
    torch.manual_seed(seed)
    data = {"data": batches[0]} if len(batches) == 1 else {"dataloader": batches}
    work = peer("pyhessian").hessian(model, _loss, **data, cuda=False)
    if probes is None:
        found = Curvature(work.eigenvalues(tol=tol)[0][0], mean(work.trace()))
    else:
        found = Curvature(work.eigenvalues(maxIter=1000, tol=tol)[0][0], mean(work.trace(maxIter=probes, tol=0)))
    model.zero_grad()  # it leaves gradients with their graphs
    return found


def errors(found: list[Curvature], reference: Curvature) -> Curvature:
    """The relative errors of both numbers, as root mean squares over the seeds."""

    def rms(name: str) -> float:
        return math.sqrt(mean((getattr(one, name) / getattr(reference, name) - 1) ** 2 for one in found))

    return Curvature(rms("lambda_max"), rms("trace"))


def compared(own: Curvature, others: Curvature, seeds: int, by: str) -> str:
    """Both sides' errors in words, and whether they are the same: the larger of the two numbers' counts."""
    one, other = (f"{error.lambda_max:.2%} and {error.trace:.2%}" for error in (own, others))
    factor = max(others.lambda_max, others.trace) / max(own.lambda_max, own.trace)
    same = "the same" if 1 / SAME <= factor <= SAME else "NOT the same"
    return (
        f"errors of lambda_max and trace, root mean square of {seeds} seeds, {by}: ours {one}, PyHessian's {other}; "
        f"{same} error: the larger of PyHessian's is {factor:.2f} times ours"
    )


@dataclass(frozen=True)
class Work:
    """What both sides work on, the right result, and where that is from."""

    what: str
    model: nn.Module
    images: Tensor
    p: Tensor
    reference: Curvature
    by: str

    def batches(self, size: int) -> Batches:
        return list(zip(self.images.split(size), self.p.split(size), strict=True))


def _keep(kept: list[Curvature], estimate: Callable[..., Curvature], *arguments: object, **options: object) -> None:
    """A new seed for each round."""
    kept.append(estimate(*arguments, seed=len(kept), **options))


def _compare(work: Work, seeds: int, most: int) -> Iterator[Row]:
    one, several = work.batches(len(work.p)), work.batches(max(1, min(BATCH, len(work.p) // 2)))
    # Seeds that no timed round has.
    measured = errors([ours(work.model, one, 500 + seed) for seed in range(seeds)], work.reference).trace
    samples = (
        peer("pyhessian").hessian(work.model, _loss, data=one[0], cuda=False).trace(maxIter=min(100, most), tol=0)
    )
    work.model.zero_grad()
    power = [theirs(work.model, one, 500 + seed, 1, tol=1e-3) for seed in range(seeds)]
    power_error = errors(power, work.reference).lambda_max

    def probes(error: float) -> int:
        return min(most, math.ceil((stdev(samples) / (error * mean(samples))) ** 2))

    def tol(error: float) -> float:
        """PyHessian's default where it is enough for this error, else a tenth."""
        return 1e-3 if power_error <= error else 1e-4

    def named(number: int) -> str:
        return f"{number:,} probes" + (" (no more were allowed)" if number == most else "")

    asked, reached = probes(RTOL), probes(measured)
    to_asked = f"{named(asked)}, for a standard error of 1%"
    for name, batches, number, tolerance, target in (
        (f"PyHessian with {to_asked}", one, asked, tol(RTOL), ">= 5"),
        (f"PyHessian with {named(reached)}, for our error of {measured:.2%}", one, reached, tol(measured), ">= 5"),
        (f"PyHessian with a loader of {len(several)} batches and {to_asked}", several, asked, tol(RTOL), None),
        ("PyHessian with its defaults, whatever its error", one, None, 1e-3, None),
    ):
        own, others = [], []
        times = alternate(
            partial(_keep, own, ours, work.model, batches),
            partial(_keep, others, theirs, work.model, batches, probes=number, tol=tolerance),
            seeds,
            time.process_time,
        )
        yield times.row(
            f"lambda_max and trace to 1% of {work.what}",
            name,
            "times as fast",
            target,
            sizes={
                "examples": len(work.p),
                "batches": len(batches),
                "tol of power iteration": f"{tolerance:.0e}",
            },
            checked=compared(errors(own, work.reference), errors(others, work.reference), seeds, work.by),
            packages=("pyhessian",),
        )
