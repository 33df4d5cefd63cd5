"""Proposition 1 of the paper, by exact enumeration and over epochs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.func import functional_call, jacrev

from hf_softlabel.delivery import (
    Delivery,
    sample_label,
    sls_label,
)

VOTE_ROWS = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(lambda row: sum(row) > 0)


def random_case(seed: int, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits z (C,) and vote counts (C,) with some empty classes."""
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(scale=2, size=classes))
    return z, torch.from_numpy(rng.multinomial(20, rng.dirichlet(np.ones(classes))))


def every_draw(votes: torch.Tensor) -> torch.Tensor:
    """(m,) labels: one SLS draw for each of the m equally likely outcomes, so that a mean is an exact expectation."""
    m = int(votes.sum())
    return sample_label(votes.expand(m, -1), 2 * torch.arange(m))  # below(bits, m) is bits // 2 % m


def gradients(z: torch.Tensor) -> torch.Tensor:
    """(C, C) by autograd: row y is the gradient of the hard-label loss -log q_y with respect to the logits."""
    return jacrev(lambda logits: -logits.log_softmax(-1))(z)


@pytest.mark.parametrize("seed", range(5))
def test_proposition_1_expected_loss_gradient_covariance_and_norm(seed):
    z, votes = random_case(seed)
    p, q, labels = votes.double() / votes.sum(), z.softmax(-1), every_draw(votes)
    delivered = Delivery("soft")(votes[None], torch.tensor([0]), 0).double()
    expected_loss = F.cross_entropy(z.expand(len(labels), -1), labels)
    torch.testing.assert_close(expected_loss, -(p * q.log()).sum())  # (4)
    torch.testing.assert_close(expected_loss, F.cross_entropy(z[None], delivered), atol=1e-6, rtol=0)
    drawn = gradients(z)[labels]
    torch.testing.assert_close(drawn.mean(0), q - p)  # (5)
    torch.testing.assert_close(drawn.T.cov(correction=0), p.diag() - p.outer(p))  # (6)
    extra = 1 - p.square().sum()
    torch.testing.assert_close(drawn.square().sum(1).mean(), (q - p).square().sum() + extra)  # (8)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_proposition_1_covariance_of_the_parameter_gradient(kind):
    torch.manual_seed(0)
    hidden = [] if kind == "linear" else [torch.nn.Linear(3, 3), torch.nn.Tanh()]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(3, 5)).double()
    x, votes = torch.randn(1, 3).double(), random_case(2)[1]
    p = votes.double() / votes.sum()

    def flat_gradient(y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y[None])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    parameters = dict(model.named_parameters())
    jacobian = jacrev(lambda values: functional_call(model, values, x)[0])(parameters)
    jacobian = torch.cat([jacobian[name].flatten(1) for name in parameters], 1)  # (C, parameters)
    expected = jacobian.T @ (p.diag() - p.outer(p)) @ jacobian
    assert expected.abs().max() > 0.01
    drawn = torch.stack([flat_gradient(y) for y in every_draw(votes)])
    torch.testing.assert_close(drawn.T.cov(correction=0), expected)  # (7)


def test_sls_averages_over_epochs_converge_to_proposition_1():
    z, votes = random_case(1)
    p, q, epochs = votes.double() / votes.sum(), z.softmax(-1), 20_000
    labels = torch.cat([sls_label(votes[None], torch.tensor([11]), epoch, 0) for epoch in range(epochs)])
    drawn = gradients(z)[labels]
    five_errors = 5 / epochs**0.5  # of a mean whose terms have the standard deviation 1
    losses = -z.log_softmax(-1)[labels]
    assert abs(losses.mean() - F.cross_entropy(z[None], p[None])) < five_errors * losses.std()  # (4)
    assert ((drawn.mean(0) - (q - p)).abs() < five_errors * 0.5).all()  # (5): one-hot entries deviate at most by .5
    assert ((drawn.T.cov() - (p.diag() - p.outer(p))).abs() < five_errors * 0.5).all()  # (6)
    norms = drawn.square().sum(1)
    assert abs(norms.mean() - (q - p).square().sum() - 1 + p.square().sum()) < five_errors * norms.std()  # (8)


@pytest.mark.parametrize("name", ["multipass", "deterministic_control"])
def test_the_mean_gradient_of_a_whole_multipass_cycle_is_the_soft_gradient(name):
    torch.manual_seed(0)
    votes = torch.stack([random_case(seed)[1] for seed in range(8)])  # 20 votes each
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5)).double()
    x, ids = torch.randn(8, 3).double(), torch.arange(8)

    def gradient(targets: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), targets)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    soft = gradient(votes.double() / 20)
    cycle = torch.stack([gradient(Delivery(name)(votes, ids, epoch)) for epoch in range(20, 40)])
    torch.testing.assert_close(cycle.mean(0), soft, atol=1e-12, rtol=0)
    assert (cycle[:19].mean(0) - soft).abs().max() > 1e-4, "one vote fewer must show"
    # The delivered float32 distribution gives it to single precision.
    torch.testing.assert_close(gradient(Delivery("soft")(votes, ids, 0).double()), soft, atol=1e-6, rtol=0)
