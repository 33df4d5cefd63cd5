"""Hessian-vector products against exact Hessians and differences of gradients, and the batches that are refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hessians import Shaped, exact_hessian, examples, mlp, seeded
from torch import nn

from hf_softlabel import VotesError
from hf_softlabel.diagnostics.hessian import hessian_summary
from hf_softlabel.diagnostics.hvp import HessianProduct, frozen
from hf_softlabel.models import build_resnet, load_model


def test_unused_parameters_count_as_zeros_and_frozen_ones_not_at_all():
    model, (x, votes) = mlp(4), examples(4)
    exact = exact_hessian(model, x, votes)
    model.unused = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)
    with frozen(model):
        product = HessianProduct(model, [(x, votes)])
        found = product(torch.eye(product.size))
    assert product.size == 161 + 12
    torch.testing.assert_close(found[:161, :161].double(), exact, rtol=1e-4, atol=1e-5)
    assert not found[161:].any() and not found[:, 161:].any()

    model[0].requires_grad_(False)
    with frozen(model):
        product = HessianProduct(model, [(x, votes)])
        found = product(torch.eye(product.size))
    assert product.size == 161 + 12 - 60
    torch.testing.assert_close(found[:101, :101].double(), exact[60:, 60:], rtol=1e-4, atol=1e-5)


def test_the_parts_of_two_processes_add_up():
    model, (x, votes) = mlp(5), examples(5)
    vectors = torch.randn(3, 161, generator=seeded(0))
    sums = []

    def spy(tensor: torch.Tensor) -> torch.Tensor:
        sums.append(tensor.clone())
        return tensor

    with frozen(model):
        whole = HessianProduct(model, [(x, votes)])(vectors)
        for part in (slice(0, 7), slice(7, 20)):
            HessianProduct(model, [(x[part], votes[part])], reduce=spy)(vectors)
        torch.testing.assert_close((sums[0] + sums[2]) / (sums[1] + sums[3]), whole, rtol=1e-4, atol=1e-5)
        # What a process does whose part is empty.
        others = iter([sums[0] + sums[2], sums[1] + sums[3]])
        empty = HessianProduct(model, [], reduce=lambda tensor: tensor + next(others))(vectors)
    torch.testing.assert_close(empty, whole, rtol=1e-4, atol=1e-5)


def assert_products_are_differences_of_gradients(model: nn.Module, inputs: dict, classes: int) -> None:
    """In float64, against (g(w + h v) - g(w - h v)) / 2h, with the loss of torch's own cross_entropy."""
    model = model.double()
    n = len(next(iter(inputs.values())))
    p = torch.rand(n, classes, generator=seeded(1), dtype=torch.float64)
    p /= p.sum(-1, keepdim=True)
    parameters = list(model.parameters())
    step = 1e-5

    with frozen(model):
        product = HessianProduct(model, [(inputs, p)])
        v = torch.randn(2, product.size, generator=seeded(2), dtype=torch.float64)
        found = product(v)

    def gradient_at(offset: torch.Tensor) -> torch.Tensor:
        moved = copy.deepcopy(model).eval()
        with torch.no_grad():
            for own, part in zip(moved.parameters(), offset.split([q.numel() for q in parameters]), strict=True):
                own += part.view(own.shape)
        nn.functional.cross_entropy(moved(**inputs).logits, p).backward()
        grads = [torch.zeros_like(own) if own.grad is None else own.grad for own in moved.parameters()]
        return torch.cat([grad.reshape(-1) for grad in grads])

    for row, vector in zip(found, v, strict=True):
        difference = (gradient_at(step * vector) - gradient_at(-step * vector)) / (2 * step)
        assert (row - difference).norm() <= 1e-4 * difference.norm()


def test_products_of_a_resnet_are_differences_of_gradients():
    model = build_resnet(["a", "b", "c"], width=1 / 16, image_size=8, seed=0)
    with torch.no_grad():
        # Batch norm in its first state would be the identity.
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.2, generator=seeded(0))
                module.running_var.uniform_(0.5, 2, generator=seeded(1))
        # Not piecewise linear, where differences would step over the kinks.
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Softplus())
    pixels = torch.randn(4, 3, 8, 8, generator=seeded(2), dtype=torch.float64)
    assert_products_are_differences_of_gradients(
        model.to(memory_format=torch.channels_last), {"pixel_values": pixels}, 3
    )


def test_products_of_a_bert_are_differences_of_gradients():
    model, tokenizer = load_model("synthetic-bert", ["a", "b", "c"], task="text")
    assert model.config._attn_implementation == "sdpa"
    ids = torch.randint(5, len(tokenizer), (4, 9), generator=seeded(0))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    assert_products_are_differences_of_gradients(model, {"input_ids": ids, "attention_mask": mask}, 3)


X, VOTES = examples(0)


@pytest.mark.parametrize(
    "batches, message",
    [
        ([], "no examples"),
        (iter([(X, VOTES)]), "only once"),
        ([X], "a pair"),
        ([([1.0], VOTES)], "must be a tensor, or a dict"),
        ([(X, VOTES[:, 0])], r"shape \(examples, classes\)"),
        ([(X, VOTES[:, :2])], r"logits \(20, 3\) for votes \(20, 2\)"),
        ([(X, VOTES[:7])], r"logits \(20, 3\) for votes \(7, 3\)"),
        ([(X, VOTES), (X, VOTES - VOTES)], r"Batch 1: .*0, 1, 2, 3, 4 and 15 more"),
        ([(X, -1.0 * VOTES)], "not negative"),
        ([(X, VOTES), (X * math.inf, VOTES)], "Batch 1: the loss is nan"),
    ],
)
def test_wrong_batches_are_refused(batches, message):
    with pytest.raises(VotesError, match=message):
        hessian_summary(mlp(0), batches)


@pytest.mark.parametrize(
    "model, options, message",
    [
        (mlp(0).requires_grad_(False), {}, "no trainable parameter"),
        (mlp(0).bfloat16(), {}, "model.float"),
        (Shaped(mlp(0), lambda logits: logits.detach()), {}, "does not depend"),
        (Shaped(mlp(0), lambda logits: (0 * logits[:, :1]).sqrt() + logits), {}, "not finite"),
        (mlp(0), {"rtol": 0}, "rtol"),
        (mlp(0), {"max_hvps": 7}, "at least 8"),
    ],
)
def test_wrong_models_and_options_are_refused(model, options, message):
    with pytest.raises(VotesError, match=message):
        hessian_summary(model, [(X, VOTES)], **options)


def test_batches_that_change_are_refused():
    class Shrinking(list):
        def __iter__(self):
            self.pop()
            return super().__iter__()

    with pytest.raises(VotesError, match="had 100 examples at first and 80 later"):
        hessian_summary(mlp(0), Shrinking(6 * [(X, VOTES)]))
