"""Models whose Hessians are known, for the tests of the Hessian."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hf_softlabel.diagnostics.hessian import HessianSummary

FEATURES, CLASSES = 5, 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(seed: int, scale: float = 1.0) -> nn.Sequential:
    """161 parameters; the larger the scale, the farther from a minimum."""
    model = nn.Sequential(nn.Linear(FEATURES, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=seeded(seed)))
    return model


def examples(seed: int, n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (n, 5) and votes (n, 3) as counts, of 1 to 19 annotators."""
    x = torch.randn(n, FEATURES, generator=seeded(seed))
    votes = (
        torch.randint(0, 7, (n, CLASSES), generator=seeded(seed + 1)) + torch.eye(CLASSES).long()[torch.arange(n) % 3]
    )
    return x, votes


def exact_hessian(model: nn.Module, x: torch.Tensor, votes: torch.Tensor) -> torch.Tensor:
    """(P, P) in float64, by torch.func.hessian of the loss written out."""
    model = copy.deepcopy(model).double().eval()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

    def loss(weights: torch.Tensor) -> torch.Tensor:
        parts = weights.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        log_q = torch.func.functional_call(model, named, x.double()).log_softmax(-1)
        p = votes.double() / votes.sum(-1, keepdim=True)
        return torch.stack([-(p[i] * log_q[i]).sum() for i in range(len(p))]).mean()

    return torch.func.hessian(loss)(flat)


class Quadratic(nn.Module):
    """Its Hessian is `matrix` for the votes (0, 1): the loss is log(1 + e^f) with f = theta^T matrix theta at 0."""

    def __init__(self, matrix: torch.Tensor):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(len(matrix)))
        self.register_buffer("matrix", matrix.float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        f = (self.theta @ self.matrix @ self.theta).expand(len(x))
        return torch.stack([f, torch.zeros_like(f)], 1)


QUADRATIC_BATCH = [(torch.zeros(2, 1), torch.tensor([[0, 4], [0, 1]]))]


def rotated(eigenvalues: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    n = len(eigenvalues)
    q = torch.linalg.qr(torch.randn(n, n, generator=seeded(seed), dtype=torch.float64))[0]
    return (q * eigenvalues) @ q.T


def numbers(summary: HessianSummary) -> tuple[float, float, float, float]:
    return summary.lambda_max, summary.lambda_max_error, summary.trace, summary.trace_error


class Shaped(nn.Module):
    """Returns its logits in another form, and takes them by name."""

    def __init__(self, model: nn.Module, form):
        super().__init__()
        self.model, self.form = model, form

    def forward(self, features: torch.Tensor):
        return self.form(self.model(features))
