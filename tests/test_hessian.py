"""lambda_max and trace against exact Hessians: of small networks, softmax regression, quadratics made to measure."""

from __future__ import annotations

import copy
import math
from types import MethodType, SimpleNamespace

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from hessians import (
    CLASSES,
    FEATURES,
    QUADRATIC_BATCH,
    Quadratic,
    Shaped,
    exact_hessian,
    examples,
    mlp,
    numbers,
    rotated,
    seeded,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hf_softlabel import VotesError
from hf_softlabel.diagnostics.hessian import hessian_summary
from hf_softlabel.diagnostics.hvp import HessianProduct, frozen
from hf_softlabel.models import build_resnet, load_model


@pytest.mark.parametrize("seed", range(12))
def test_both_numbers_are_those_of_the_exact_hessian_within_the_stated_errors(seed):
    model, (x, votes) = mlp(seed, scale=0.4 + 0.2 * (seed % 4)), examples(seed)
    exact = exact_hessian(model, x, votes)
    eigenvalues = torch.linalg.eigvalsh(exact)
    assert eigenvalues[0] < -1e-3  # indefinite, as those of networks are
    found = hessian_summary(model, [(x, votes)], rtol=0.02, seed=seed)
    assert found.lambda_max_converged and found.trace_converged
    assert found.lambda_max_error <= 0.02 * found.lambda_max and found.trace_error <= 0.02 * abs(found.trace)
    assert abs(found.lambda_max - eigenvalues[-1]) <= found.lambda_max_error
    assert abs(found.trace - exact.trace()) <= 4 * found.trace_error + 1e-5 * eigenvalues.abs().sum()
    assert (found.examples, found.parameters) == (20, 161)


def test_softmax_regression_has_the_hessian_of_the_closed_form():
    """mean_i (diag(q_i) - q_i q_i^T) kron x_i x_i^T, whatever the votes."""
    model, (x, votes) = nn.Linear(FEATURES, CLASSES, bias=False), examples(3)
    q = model(x).softmax(-1).detach()
    blocks = torch.diag_embed(q) - q[:, :, None] * q[:, None, :]
    closed = torch.stack([torch.kron(b, torch.outer(row, row)) for b, row in zip(blocks, x, strict=True)]).mean(0)
    with frozen(model):
        product = HessianProduct(model, [(x, votes)])(torch.eye(15))
    torch.testing.assert_close(product, closed, rtol=1e-4, atol=1e-6)
    found = hessian_summary(model, [(x, votes)], rtol=1e-3)
    # There are fewer parameters than directions in a sketch: the trace is exact.
    assert found.trace == pytest.approx(float(closed.trace()), rel=1e-5)
    assert found.trace_error <= 1e-5 * found.trace
    assert found.lambda_max == pytest.approx(float(torch.linalg.eigvalsh(closed)[-1]), rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_lambda_max_is_the_largest_not_the_largest_in_magnitude(seed):
    matrix = rotated(torch.cat([torch.tensor([-100.0, -60.0, 3.0]), torch.linspace(-1, 1, 97)]), seed)
    found = hessian_summary(Quadratic(matrix), QUADRATIC_BATCH, seed=seed)
    assert found.lambda_max_converged
    assert abs(found.lambda_max - 3) <= found.lambda_max_error <= 0.06
    assert found.trace == pytest.approx(-157, rel=0.05)


@pytest.mark.parametrize("gap", [0.0, 1e-5, 1e-2])
def test_clustered_top_eigenvalues(gap):
    top = 5 - gap * torch.arange(10)
    found = hessian_summary(
        Quadratic(rotated(torch.cat([top, 0.5 * torch.rand(290, generator=seeded(0))]))), QUADRATIC_BATCH
    )
    assert found.lambda_max_converged
    assert abs(found.lambda_max - 5) <= found.lambda_max_error <= 0.1


@pytest.mark.parametrize("sign", [1, -1])
def test_definite_hessians_of_either_sign(sign):
    matrix = rotated(sign * torch.linspace(1, 2, 80))
    found = hessian_summary(Quadratic(matrix), QUADRATIC_BATCH)
    assert abs(found.lambda_max - (2 if sign == 1 else -1)) <= found.lambda_max_error <= 0.04
    assert abs(found.trace - sign * 120) <= 4 * found.trace_error + 1e-3


def test_a_hessian_of_zero_and_one_of_rank_two():
    zero = hessian_summary(Quadratic(torch.zeros(400, 400)), QUADRATIC_BATCH)
    assert numbers(zero) == pytest.approx((0, 0, 0, 0), abs=1e-9)
    low = hessian_summary(Quadratic(rotated(torch.tensor([4.0, 2.0] + 98 * [0.0]))), QUADRATIC_BATCH)
    assert (low.lambda_max, low.trace) == (pytest.approx(4, rel=1e-4), pytest.approx(6, rel=1e-4))


def test_a_largest_eigenvalue_of_zero_is_given_with_its_error():
    found = hessian_summary(Quadratic(torch.diag(torch.tensor([-4.0] + 299 * [0.0]))), QUADRATIC_BATCH, max_hvps=200)
    assert abs(found.lambda_max) <= found.lambda_max_error <= 1e-5
    # A relative error of zero cannot be had, nor is it sought for where all directions are exhausted.
    assert not found.lambda_max_converged
    assert found.hvps < 60
    assert found.trace == pytest.approx(-4, rel=1e-4)


@pytest.mark.parametrize("size", [1, 2, 9, 25])
def test_a_few_parameters_are_no_special_case(size):
    eigenvalues = torch.arange(1.0, size + 1)
    found = hessian_summary(Quadratic(rotated(eigenvalues)), QUADRATIC_BATCH, rtol=1e-3)
    assert found.lambda_max == pytest.approx(size, rel=1e-3)
    assert found.trace == pytest.approx(float(eigenvalues.sum()), rel=5e-3)
    assert found.lambda_max_converged and found.trace_converged


def test_a_trace_of_zero_is_never_said_to_have_converged():
    matrix = rotated(torch.cat([torch.ones(150), -torch.ones(150)]))
    found = hessian_summary(Quadratic(matrix), QUADRATIC_BATCH, max_hvps=80)
    assert not found.trace_converged
    assert abs(found.trace) <= 4 * found.trace_error
    assert found.lambda_max == pytest.approx(1, rel=0.02)


def test_what_the_products_did_not_suffice_for_has_not_converged():
    matrix = rotated(torch.linspace(-1, 1.1, 300))
    found = hessian_summary(Quadratic(matrix), QUADRATIC_BATCH, rtol=1e-4, max_hvps=21)
    assert found.hvps <= 21
    assert not found.trace_converged and not found.lambda_max_converged
    assert found.trace_error > 1e-4 * abs(found.trace) and found.lambda_max_error > 1e-4 * found.lambda_max
    assert math.isfinite(found.trace_error)


def test_the_summary_counts_its_products_and_says_how_it_was_made():
    blocks = []

    def spy(tensor: torch.Tensor) -> torch.Tensor:
        blocks.append(len(tensor) if tensor.ndim == 2 else 0)
        return tensor

    model, batch = mlp(0), examples(0)
    found = hessian_summary(model, [batch], seed=5, max_hvps=200, reduce=spy)
    assert (found.rtol, found.seed, found.max_hvps) == (0.02, 5, 200)
    assert (found.lambda_max_method, found.trace_method) == ("lanczos", "xtrace")
    assert found.hvps == sum(blocks) <= 200
    assert numbers(found) == numbers(hessian_summary(model, [batch], seed=5, max_hvps=200))
    assert found.trace != hessian_summary(model, [batch], seed=6, max_hvps=200).trace


def test_ragged_batches_give_what_one_batch_gives():
    model, (x, votes) = mlp(1), examples(1)
    one = hessian_summary(model, [(x, votes)])
    ragged = hessian_summary(model, [(x[:13], votes[:13]), (x[13:19], votes[13:19]), (x[19:], votes[19:])])
    assert numbers(ragged) == pytest.approx(numbers(one), rel=1e-3)
    assert (ragged.examples, ragged.hvps) == (20, one.hvps)


def test_counts_are_as_good_as_distributions():
    model, (x, votes) = mlp(2), examples(2)
    p = votes / votes.sum(-1, keepdim=True)
    assert numbers(hessian_summary(model, [(x, p)])) == pytest.approx(
        numbers(hessian_summary(model, [(x, votes)])), rel=1e-3
    )


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: logits,
        lambda logits: (logits, "hidden states"),
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
    ],
)
def test_every_form_of_outputs_and_inputs(form):
    model, (x, votes) = mlp(1), examples(1)
    expected = numbers(hessian_summary(model, [(x, votes)], max_hvps=16))
    shaped = Shaped(model, form)
    assert numbers(hessian_summary(shaped, [(x, votes)], max_hvps=16)) == expected
    assert numbers(hessian_summary(shaped, [({"features": x}, votes)], max_hvps=16)) == expected


def test_the_summary_of_a_bert_and_of_a_resnet():
    bert, tokenizer = load_model("synthetic-bert", ["a", "b", "c"], task="text")
    ids = torch.randint(5, len(tokenizer), (6, 8), generator=seeded(0))
    votes = torch.randint(1, 9, (6, 3), generator=seeded(1))
    resnet = build_resnet(["a", "b", "c"], width=1 / 16, image_size=8, seed=0)
    pixels = torch.randn(6, 3, 8, 8, generator=seeded(2))
    for model, batch in [(bert, ({"input_ids": ids}, votes)), (resnet, ({"pixel_values": pixels}, votes))]:
        found = hessian_summary(model, [batch], rtol=0.05, max_hvps=60)
        assert found.lambda_max_converged
        other = hessian_summary(model, [batch], rtol=0.05, max_hvps=60, seed=1)
        assert abs(found.lambda_max - other.lambda_max) <= found.lambda_max_error + other.lambda_max_error
        assert abs(found.trace - other.trace) <= 4 * math.hypot(found.trace_error, other.trace_error)


def test_everything_is_as_it_was():
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, CLASSES))
    model.train()
    model[1].eval()
    model[4].bias.requires_grad_(False)
    x, votes = examples(6)
    model(x).square().sum().backward()
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    grads = [None if q.grad is None else q.grad.clone() for q in model.parameters()]
    trainable = [q.requires_grad for q in model.parameters()]
    torch.manual_seed(3)
    generator = torch.get_rng_state()

    loader = DataLoader(TensorDataset(x, votes), batch_size=7, shuffle=True)
    with torch.no_grad():
        found = hessian_summary(model, loader)
        assert not torch.is_grad_enabled()
    assert found.examples == 20

    assert [module.training for module in model.modules()] == modes
    assert [q.requires_grad for q in model.parameters()] == trainable
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert (grad is None and parameter.grad is None) or torch.equal(parameter.grad, grad)
    assert torch.equal(torch.get_rng_state(), generator)
    # Eval mode: neither dropout nor the batch's own statistics were in it.
    assert numbers(found) == pytest.approx(
        numbers(hessian_summary(copy.deepcopy(model).eval(), [(x, votes)])), rel=1e-3
    )


def test_modes_are_restored_after_an_error():
    model = mlp(0).train()
    with pytest.raises(VotesError):
        hessian_summary(model, [(torch.full((2, FEATURES), math.nan), torch.ones(2, CLASSES))])
    assert all(module.training for module in model.modules())


def test_mixed_precision_and_compilation_of_the_training_are_left_out():
    model, (x, votes) = mlp(7), examples(7)
    expected = numbers(hessian_summary(model, [(x, votes)]))
    # As accelerate prepares a model for bf16.
    model._original_forward = model.forward
    autocast = torch.autocast("cpu", torch.bfloat16)
    model.forward = MethodType(convert_outputs_to_fp32(autocast(model.forward.__func__)), model)
    prepared = model.forward
    with torch.autocast("cpu", torch.bfloat16):
        assert numbers(hessian_summary(torch.compile(model), [(x, votes)])) == expected
    assert model.forward == prepared
