"""CKA, loss barrier, Grad-CAM and gradient variance: against closed forms, captum, and Monte Carlo."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group
from torch import nn

from hf_softlabel import VotesError, load_model
from hf_softlabel.diagnostics import (
    gradcam_stability,
    gradient_variance,
    linear_cka,
    loss_barrier,
    sampled_gradient_variance,
)
from hf_softlabel.diagnostics.barrier import barrier_of, soft_loss
from hf_softlabel.diagnostics.gradcam import grad_cam, last_convolution

SEEDS = st.integers(0, 2**32 - 1)


def centred_gram(x: np.ndarray) -> np.ndarray:
    h = np.eye(len(x)) - 1 / len(x)
    return h @ x @ x.T @ h


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_cka_is_the_centred_hsic_ratio(seed):
    rng = np.random.default_rng(seed)
    # More dimensions than examples, and fewer.
    for n, d, e in ((30, 4, 6), (8, 20, 5)):
        x, y = rng.normal(size=(n, d)) + 3, rng.normal(size=(n, e))
        k, m = centred_gram(x), centred_gram(y)
        expected = np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m))
        assert linear_cka(x, y) == pytest.approx(expected, abs=1e-12)
        assert linear_cka(torch.from_numpy(y), torch.from_numpy(x)) == pytest.approx(expected, abs=1e-12)
        assert 0 <= linear_cka(x, y) <= 1 + 1e-12
        turned = 5 * x @ ortho_group.rvs(d, random_state=seed % 1000) + 7
        assert linear_cka(x, turned) == pytest.approx(1, abs=1e-10)


def test_cka_refuses_other_examples_and_says_nan_of_constants():
    assert np.isnan(linear_cka(np.ones((5, 2)), np.random.default_rng(0).normal(size=(5, 2))))
    with pytest.raises(VotesError, match="5 and 4 are given"):
        linear_cka(np.ones((5, 2)), np.ones((4, 2)))
    with pytest.raises(VotesError, match="examples, dimensions"):
        linear_cka(np.ones(5), np.ones(5))


class Quadratic(nn.Module):
    """Two logits (w^2 - 1)^2 / 2 and its negative: the loss of p = (0, 1) has a barrier between w = -1 and w = 1."""

    def __init__(self, w: float):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))

    def forward(self, x):
        z = (self.w**2 - 1) ** 2 / 2 * torch.ones(len(x))
        return torch.stack([z, -z], -1)


def test_the_barrier_of_a_double_well_is_at_its_middle():
    batches = [(torch.zeros(3, 1), torch.tensor([[0.0, 1.0]] * 3)), (torch.zeros(1, 1), torch.tensor([[0.0, 2.0]]))]
    found = loss_barrier(Quadratic(-1.0), Quadratic(1.0), batches, points=21)
    # The loss is log(1 + exp(2 z)): log 2 at both ends, where z = 0, and log(1 + e) in the middle.
    assert found.barrier == pytest.approx(np.log(1 + np.e) - np.log(2), abs=1e-6)
    assert found.losses.argmax() == 10 and found.alphas[10] == 0.5
    assert found.reestimated_losses is None
    same = loss_barrier(Quadratic(0.3), Quadratic(0.3), batches)
    assert same.barrier == pytest.approx(0, abs=1e-12)


def test_a_convex_loss_has_no_barrier():
    torch.manual_seed(0)
    x, p = torch.randn(20, 4), torch.rand(20, 3)
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    found = loss_barrier(one, two, [(x[:7], p[:7]), (x[7:], p[7:])], points=9)
    assert found.barrier == 0.0
    half = nn.Linear(4, 3)
    with torch.no_grad():
        for target, a, b in zip(half.parameters(), one.parameters(), two.parameters(), strict=True):
            target.copy_((a + b) / 2)
    log_q = half(x).log_softmax(-1)
    q = p / p.sum(-1, keepdim=True)
    assert found.losses[4] == pytest.approx(-(q * log_q).sum(-1).mean().item(), abs=1e-6)


def convolutional(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6, momentum=0.3),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 4),
    )


def test_batch_norm_is_re_estimated_at_each_point_and_the_models_are_left_alone():
    x, p = torch.randn(32, 3, 8, 8), torch.rand(32, 4)
    one, two = convolutional(0), convolutional(1)
    for model in (one, two):  # statistics of data on another scale
        model.train()
        for _ in range(5):
            model(x * 9 + 4)
    before = copy.deepcopy(one.state_dict()), copy.deepcopy(two.state_dict())
    found = loss_barrier(one, two, [(x, p)], [x[:16], x[16:]], points=3)
    assert len(found.reestimated_losses) == 3 and found.reestimated_barrier is not None
    for model, state in zip((one, two), before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        assert model.training
    # At the first end: the mean over batches of what batch norm sees, by hand.
    by_hand = copy.deepcopy(one).eval()
    maps = [by_hand[0](part).detach() for part in (x[:16], x[16:])]
    by_hand[1].running_mean = torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0)
    by_hand[1].running_var = torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0)
    assert found.reestimated_losses[0] == pytest.approx(soft_loss(by_hand, [(x, p)]), abs=1e-6)
    assert found.losses[0] == pytest.approx(soft_loss(one, [(x, p)]), abs=1e-9)
    assert found.reestimated_losses[0] != pytest.approx(found.losses[0], abs=1e-3)


def test_barriers_refuse_what_has_no_line():
    batches = [(torch.zeros(2, 4), torch.ones(2, 3))]
    with pytest.raises(VotesError, match="different weights"):
        loss_barrier(nn.Linear(4, 3), nn.Linear(4, 2), batches)
    with pytest.raises(VotesError, match="too few"):
        loss_barrier(nn.Linear(4, 3), nn.Linear(4, 3), batches, points=2)
    with pytest.raises(VotesError, match="no batches"):
        loss_barrier(nn.Linear(4, 3), nn.Linear(4, 3), [])
    one, images = convolutional(0), [(torch.randn(4, 3, 8, 8), torch.rand(4, 4))]
    for wrong in (iter(images), (batch for batch in images)):
        with pytest.raises(VotesError, match="not an iterator"):
            loss_barrier(one, one, images, wrong)
        with pytest.raises(VotesError, match="not an iterator"):
            loss_barrier(one, one, wrong)
    with pytest.raises(VotesError, match="no train_batches"):
        loss_barrier(one, one, images, [])
    assert barrier_of(np.array([0, 0.5, 1]), np.array([1.0, 0.2, 1.0])) == 0.0


@pytest.mark.parametrize("name", ["small", "resnet"])
def test_grad_cam_is_captums(name):
    if name == "small":
        model, x, layer = convolutional(2), torch.randn(5, 3, 9, 9), 4
        inputs, layer, forward = x, model[layer], model
    else:
        model, _ = load_model("resnet18", ["a", "b", "c"], task="image", width=0.125)
        x = torch.randn(3, 3, 32, 32)
        inputs, layer = {"pixel_values": x}, last_convolution(model, {"pixel_values": x})
        forward = lambda pixels: model(pixel_values=pixels).logits  # noqa: E731
    classes = torch.arange(len(x)) % 3
    maps = grad_cam(model, inputs, classes)
    model.eval()
    expected = LayerGradCam(forward, layer).attribute(x, classes, relu_attributions=True).detach()
    torch.testing.assert_close(maps, expected[:, 0], rtol=1e-5, atol=1e-7)
    own = grad_cam(model, inputs)
    predicted = forward(x).argmax(-1)
    torch.testing.assert_close(own, grad_cam(model, inputs, predicted))
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(grad_cam(model, inputs), own)


def test_gradcam_stability_is_the_correlation_of_maps():
    one, two = convolutional(3), convolutional(4)
    x, p = torch.randn(12, 3, 9, 9), torch.rand(12, 4)
    found = gradcam_stability(one, two, [(x[:5], p[:5]), (x[5:], p[5:])])
    for i in range(12):
        maps = [grad_cam(m, x[i : i + 1], p[i : i + 1].argmax(-1)).flatten().numpy() for m in (one, two)]
        expected = np.nan if min(map(np.ptp, maps)) == 0 else np.corrcoef(*maps)[0, 1]
        assert found.correlations[i] == pytest.approx(expected, abs=1e-5, nan_ok=True)
    assert found.resolution == (5, 5) and found.target == "majority"
    assert found.mean == pytest.approx(np.nanmean(found.correlations))
    assert found.defined == np.isfinite(found.correlations).sum()
    same = gradcam_stability(one, copy.deepcopy(one), [(x, p)], target="predicted")
    assert same.mean == pytest.approx(1)
    with pytest.raises(VotesError, match="needs batches of"):
        gradcam_stability(one, two, [x])
    with pytest.raises(VotesError, match="'predicted' or 'majority', not 'gold'"):
        gradcam_stability(one, two, [(x, p)], target="gold")
    with pytest.raises(VotesError, match="no convolutional maps"):
        grad_cam(nn.Linear(4, 3), torch.randn(2, 4))


def test_gradient_variance_in_closed_form_is_that_of_sampled_labels():
    rng = np.random.default_rng(0)
    h, logits = rng.normal(size=(25, 6)), rng.normal(size=(25, 4))
    votes = rng.multinomial(9, [0.4, 0.3, 0.2, 0.1], 25)
    votes[3] = [9, 0, 0, 0]
    found = gradient_variance(h, votes)
    p = votes / 9
    np.testing.assert_allclose(found.variance, (h**2).sum(1) * (1 - (p**2).sum(1)))
    sampled = sampled_gradient_variance(h, logits, votes, samples=40_000)
    np.testing.assert_allclose(sampled, found.variance, rtol=0.03)
    assert found.variance[3] == sampled[3] == 0
    np.testing.assert_allclose(gradient_variance(h, votes, bias=True).label_variance, found.label_variance)
    np.testing.assert_allclose(
        gradient_variance(h, votes, bias=True).variance, ((h**2).sum(1) + 1) * found.label_variance
    )


def test_gradient_variance_is_that_of_autograd():
    """All gradients of one example, label by label, through the last layer of a real network."""
    model = convolutional(5).eval()
    x, votes = torch.randn(1, 3, 9, 9), np.array([[4, 3, 2, 1]])
    gradients = []
    for label in range(4):
        loss = nn.functional.cross_entropy(model(x), torch.tensor([label]))
        gradients.append(torch.autograd.grad(loss, model[-1].weight)[0].double().numpy())
    p = votes[0] / 10
    mean = sum(w * g for w, g in zip(p, gradients, strict=True))
    expected = sum(w * np.square(g - mean).sum() for w, g in zip(p, gradients, strict=True))
    features = model[:-1](x).detach().numpy()
    assert gradient_variance(features, votes).variance[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.sources
def test_gradient_variance_follows_annotator_entropy_on_cifar10h(sources):
    """The paper reports .939: the votes alone give .999, and norms of features that vary take some of it away."""
    (path,) = sources.rglob("cifar10h-counts.npy")
    votes = np.load(path)
    alone = gradient_variance(np.ones((len(votes), 1)), votes)
    assert alone.correlation == alone.label_correlation == pytest.approx(0.9993, abs=1e-4)
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(size=(len(votes), 64))) * rng.lognormal(0, 0.35, (len(votes), 1))
    found = gradient_variance(features, votes)
    assert 0.9 < found.correlation < 0.98 and found.label_correlation == alone.correlation
