"""The largest eigenvalue and the trace of the Hessian of the soft cross-entropy, each with its error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from tqdm.auto import tqdm

from ..data.errors import VotesError
from .hvp import HessianProduct, Reduce, bare, frozen
from .spectrum import Probes, estimate_trace, largest_eigenvalue


@dataclass(frozen=True)
class HessianSummary:
    """The curvature of the mean soft cross-entropy in eval mode, and how it was found.

    Attributes:
        lambda_max: the largest eigenvalue (not the largest in magnitude).
        lambda_max_error: twice the norm of the residual Hv - lambda v, see [`largest_eigenvalue`].
        lambda_max_converged: the error is at most `rtol` times |lambda_max|.
        trace: the sum of all eigenvalues.
        trace_error: its standard error, from the spread of its own samples.
        trace_converged: the error is at most `rtol` times |trace|. A trace near zero may never get there.
        examples: over all processes.
        parameters: P, the trainable ones.
        hvps: Hessian-vector products, each over all examples.
        lambda_max_method: "lanczos".
        trace_method: "xtrace", or "xtrace+hutchinson" where memory for more directions was lacking.
    """

    lambda_max: float
    lambda_max_error: float
    lambda_max_converged: bool
    trace: float
    trace_error: float
    trace_converged: bool
    examples: int
    parameters: int
    hvps: int
    rtol: float
    seed: int
    max_hvps: int
    lambda_max_method: str
    trace_method: str


def hessian_summary(
    model: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    rtol: float = 0.02,
    seed: int = 0,
    max_hvps: int = 400,
    reduce: Reduce | None = None,
    progress: bool = False,
) -> HessianSummary:
    """lambda_max and trace of the Hessian of mean_i -sum_k p_ik log q_ik with respect to all trainable parameters.

    The model is in eval mode meanwhile (batch norm frozen, no dropout), and is left exactly as it was: modes,
    gradients, buffers and the random generator. Memory is that of one batch, plus the
    probes' vectors: up to 4 GB of them are kept, and working on them takes about five times what is kept.

    Args:
        model: returns logits (n, C) as a tensor, first in a tuple, or as `.logits`; float32.
        batches: can be iterated again and again (a list, a DataLoader) and gives `(inputs, p)`: inputs a tensor or a
            dict for `model(**inputs)`, p (n, C) votes, as counts or as distributions.
        rtol: the relative error at which to stop, for either number.
        seed: of the probes. They are the same on every process.
        max_hvps: stop after so many Hessian-vector products, a quarter of which are kept for lambda_max.
        reduce: sums a tensor over the processes, for instance `lambda t: accelerator.reduce(t, "sum")`, if each has
            its own part of the batches. No example may be repeated to fill up a last batch.
        progress: show a bar that counts Hessian-vector products.

    Raises:
        VotesError: no examples, no trainable parameter, shapes that do not fit, a loss that is not finite.
    """
    if not 0 < rtol < 1:
        raise VotesError(f"rtol is a relative error between 0 and 1, for instance 0.02, not {rtol}.")
    if max_hvps < 8:
        raise VotesError(f"max_hvps must be at least 8, not {max_hvps}: fewer products give no error estimate.")
    model = bare(model)
    product = HessianProduct(model, batches, reduce)
    with frozen(model), tqdm(total=max_hvps, unit="HVP", desc="Hessian", disable=None if progress else True) as bar:

        def counted(vectors: Tensor) -> Tensor:
            products = product(vectors)
            bar.update(len(vectors))
            return products

        trace, start = estimate_trace(
            counted, Probes(product.size, product.like, seed), rtol, max_hvps - max_hvps // 4
        )
        # The sketch has seen H from many random directions, so its best one is a start that has a share in the top
        # eigenvector. A single random start may have almost none, and then settle on the second eigenvalue.
        top = largest_eigenvalue(counted, start, rtol, max_hvps - trace.products)
    return HessianSummary(
        lambda_max=top.value,
        lambda_max_error=top.error,
        lambda_max_converged=top.error <= rtol * abs(top.value),
        trace=trace.value,
        trace_error=trace.error,
        trace_converged=trace.error <= rtol * abs(trace.value),
        examples=product.examples,
        parameters=product.size,
        hvps=trace.products + top.products,
        rtol=rtol,
        seed=seed,
        max_hvps=max_hvps,
        trace_method=trace.method,
        lambda_max_method=top.method,
    )
