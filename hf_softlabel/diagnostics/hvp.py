"""Hessian-vector products of the mean soft cross-entropy, summed over batches and processes.

p is human, q is the model; P is the number of trainable parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..data.errors import VotesError, some
from .outputs import evaluating, logits_of

Reduce = Callable[[Tensor], Tensor]


def bare(model: nn.Module) -> nn.Module:
    """The model without DDP and torch.compile: neither lets a gradient be differentiated again."""
    return extract_model_from_parallel(model, keep_torch_compile=False)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Eval mode, full precision and gradients on; afterwards each submodule's mode and the generator are as before."""
    # accelerate puts its autocast into `forward` itself, where a context from outside does not reach it.
    wrapped, original = model.__dict__.get("forward"), model.__dict__.get("_original_forward")
    with ExitStack() as stack:
        # A DataLoader draws from the global generator whenever it is iterated, even without shuffling.
        stack.enter_context(torch.random.fork_rng(devices=[]))
        # This also ends a `no_grad` of the caller.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.autocast(_device(model).type, enabled=False))
        # The other kernels of scaled_dot_product_attention have no second derivative.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(evaluating(model))
        try:
            if original is not None:
                model.forward = original
            yield
        finally:
            if original is not None:
                model.forward = wrapped


class HessianProduct:
    """(K, P) vectors -> (K, P) Hessian-vector products; to be called within [`frozen`].

    Each batch's graph is built once per call, serves all K vectors and is freed before the next batch. A loop over the
    vectors is faster on the CPU than `is_grads_batched` (204 against 247 ms per product on a small ResNet), and its
    memory does not grow with K.

    Args:
        model: without DDP around it, see [`bare`].
        batches: `(inputs, p)`, iterated once per call.
        reduce: sums a tensor over the processes, each of which has its own batches.
    """

    def __init__(self, model: nn.Module, batches: Iterable[tuple[Any, Any]], reduce: Reduce | None = None):
        if isinstance(batches, Iterator):
            raise VotesError(
                "The batches are read many times, and an iterator can be read only once: "
                "give a list, as in list(batches), or a DataLoader."
            )
        self.model, self.batches, self.reduce = model, batches, reduce
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.examples: int | None = None
        if not self.parameters:
            raise VotesError("The model has no trainable parameter: set requires_grad_() on those of interest.")
        dtypes = {parameter.dtype for parameter in self.parameters}
        if dtypes != {torch.float32} and dtypes != {torch.float64}:
            raise VotesError(
                f"The trainable parameters must all be float32 (or all float64), and there is {some(dtypes)}: "
                "half precision is not enough for second derivatives. Use model.float()."
            )

    @property
    def like(self) -> Tensor:
        """(0,) of the dtype and the device that vectors must have."""
        return self.parameters[0].detach().new_empty(0)

    @property
    def size(self) -> int:
        """P."""
        return sum(self.sizes)

    def __call__(self, vectors: Tensor) -> Tensor:
        total, examples = torch.zeros_like(vectors), 0
        for number, batch in enumerate(self.batches):
            # In a function of its own, at the end of which the batch's graph is gone.
            examples += self._add(total, vectors, number, batch)
        if self.reduce is not None:
            total = self.reduce(total)
            examples = round(float(self.reduce(torch.tensor(examples, device=vectors.device))))
        if examples == 0:
            raise VotesError("There are no examples in the batches: give at least one (inputs, p).")
        if self.examples is not None and examples != self.examples:
            raise VotesError(
                f"The batches had {self.examples} examples at first and {examples} later: "
                "each pass over them must give the same examples, in whatever order."
            )
        self.examples = examples
        if not total.isfinite().all():
            raise VotesError("The second derivatives of the loss are not finite: look for sqrt, norm or log of zero.")
        # Divided once: a mean of the batches' means would weigh the examples of a smaller batch more.
        return total / examples

    def _add(self, total: Tensor, vectors: Tensor, number: int, batch: Any) -> int:
        """Add the summed products of a batch to `total` (K, P); its number of examples."""
        loss, examples = self._loss(number, batch)
        # Zeros stand for the gradients of parameters that the loss does not use.
        options = {"allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(loss, self.parameters, create_graph=True, **options)
        # Those that do not depend on the parameters have no graph, and no share in the Hessian.
        curved = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]
        for row, vector in zip(total, vectors, strict=True):
            parts = vector.split(self.sizes)
            products = torch.autograd.grad(
                [gradients[i] for i in curved],
                self.parameters,
                [parts[i].view(gradients[i].shape) for i in curved],
                retain_graph=True,
                **options,
            )
            # reshape, as the gradients of channels-last weights are not contiguous.
            row += torch.cat([product.reshape(-1) for product in products])
        return examples

    def _loss(self, number: int, batch: Any) -> tuple[Tensor, int]:
        """The summed soft cross-entropy of a batch and its number of examples."""
        try:
            inputs, votes = batch
        except (TypeError, ValueError):
            raise VotesError(
                f"A batch must be a pair (inputs, p); batch {number} is a {type(batch).__name__}."
            ) from None
        device = self.parameters[0].device
        if isinstance(inputs, Mapping):
            inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        elif isinstance(inputs, Tensor):
            inputs = inputs.to(device)
        else:
            raise VotesError(
                f"Batch {number}: the inputs must be a tensor, or a dict of tensors for model(**inputs), "
                f"not a {type(inputs).__name__}."
            )
        logits = logits_of(self.model, inputs)
        p = distributions(votes, number).to(logits)
        if logits.shape != p.shape:
            raise VotesError(
                f"Batch {number}: the model gives logits {tuple(logits.shape)} for votes {tuple(p.shape)}; both must "
                "be (examples, classes), in the same order."
            )
        loss = -(p * F.log_softmax(logits, -1)).sum()
        if not loss.isfinite():
            raise VotesError(f"Batch {number}: the loss is {loss.item()}. Are the inputs and the weights finite?")
        if not loss.requires_grad:
            raise VotesError("The loss does not depend on any trainable parameter: is a part of the model detached?")
        return loss, len(p)


def distributions(votes: Any, number: int) -> Tensor:
    """Counts or distributions (N, C) of batch `number` -> float64 distributions (N, C)."""
    p = torch.as_tensor(votes).double()
    if p.ndim != 2:
        raise VotesError(f"Batch {number}: votes must have the shape (examples, classes), not {tuple(p.shape)}.")
    wrong = torch.nonzero(~(p.sum(-1) > 0) | (p < 0).any(-1) | ~p.isfinite().all(-1)).flatten().tolist()
    if wrong:
        raise VotesError(
            f"Batch {number}: votes must be finite, not negative, and at least one per example, "
            f"and row(s) {some(wrong)} are not. Leave out the examples without votes."
        )
    return p / p.sum(-1, keepdim=True)


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
