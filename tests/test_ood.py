"""OOD detectors against pytorch-ood and scikit-learn, and by their orientation: more is more out-of-distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_ood import detector
from pytorch_ood.metrics import functional
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_softlabel import VotesError, load_model
from hf_softlabel.data.synthetic import TONES
from hf_softlabel.diagnostics import ood
from hf_softlabel.diagnostics.ood import DETECTORS, detection, knn, odin, ood_report
from hf_softlabel.diagnostics.outputs import collect_outputs, last_linear

SEEDS = st.integers(0, 2**32 - 1)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.ReLU(),
        nn.Linear(8, 5),
    ).eval()


def images(n: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * scale


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_scores_of_logits_are_those_of_pytorch_ood(seed):
    logits = torch.randn(30, 5, generator=torch.Generator().manual_seed(seed)).double() * 4
    torch.testing.assert_close(ood.energy(logits, 2.0), detector.EnergyBased.score(logits, t=2.0))
    torch.testing.assert_close(ood.msp(logits), detector.MaxSoftmax.score(logits))
    # Theirs adds a small number to each probability.
    torch.testing.assert_close(ood.entropy(logits), detector.Entropy.score(logits), rtol=0, atol=1e-5)
    ranked = logits.sort(-1, descending=True).values
    assert torch.equal(ood.margin(logits), ranked[:, 1] - ranked[:, 0])


def test_odin_is_that_of_pytorch_ood_and_leaves_the_model_alone():
    model, x = network(), images(20, 1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for eps, temperature in ((0.0014, 1000.0), (0.05, 10.0)):
        expected = detector.ODIN(model, eps=eps, temperature=temperature).predict(x)
        torch.testing.assert_close(odin(model, x, temperature, eps), expected, rtol=0, atol=1e-7)
    model.zero_grad()
    odin(model, x)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # The step raises the confidence in the predicted class.
    assert (odin(model, x, 1.0, 0.01) < ood.msp(model(x))).all()


def test_odin_of_texts_moves_their_embeddings():
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    model.eval()
    inputs = dict(tokenizer(["the room was great", "the soup was bad"], padding=True, return_tensors="pt"))
    still = ood.msp(model(**inputs).logits).detach()
    torch.testing.assert_close(odin(model, inputs, 1.0, 0.0), still)
    assert (odin(model, inputs, 1.0, 1e-3) < still).all()


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_knn_is_that_of_pytorch_ood_in_blocks_of_any_size(seed, k):
    generator = torch.Generator().manual_seed(seed)
    features, bank = torch.randn(23, 6, generator=generator), torch.randn(31, 6, generator=generator)
    peer = detector.KNN(None, k=k).fit_features(bank, torch.zeros(31))
    expected = peer.predict_features(features)
    pairs = ood.PAIRS
    try:
        for ood.PAIRS in (pairs, 256 * 7, 40):
            torch.testing.assert_close(knn(features, bank, k), expected.double(), rtol=0, atol=1e-6)
    finally:
        ood.PAIRS = pairs


def exact_knn(features: torch.Tensor, bank: torch.Tensor, k: int) -> torch.Tensor:
    """All differences in float64, row by row."""
    x, bank = (nn.functional.normalize(f.double(), dim=-1) for f in (features, bank))
    return torch.stack([(bank - row).norm(dim=-1).kthvalue(k).values for row in x])


def tight(spread: float, n: int) -> torch.Tensor:
    """(n, 64) features about one direction, as those of texts are."""
    return 1 + spread * torch.randn(n, 64, generator=torch.Generator().manual_seed(n))


# Of 55 none is left out, and only the order of those that are kept can be wrong.
@pytest.mark.parametrize(("k", "size"), [(1, 3000), (50, 3000), (50, 55), (55, 55)])
@pytest.mark.parametrize("spread", [10.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_knn_is_exact_however_near_the_features_are_to_each_other(spread, k, size):
    features, bank = tight(spread, 200), tight(spread, size)
    torch.testing.assert_close(knn(features, bank, k), exact_knn(features, bank, k), rtol=1e-6, atol=0)


@pytest.mark.parametrize("k", [1, 5, 20, 21, 60, 400])
@pytest.mark.parametrize("spread", [10.0, 1e-3])
def test_knn_is_exact_among_duplicates_and_zeros(spread, k):
    bank = tight(spread, 20).repeat(20, 1)  # each of the 20 is there 20 times, but for 30 that are zeros
    bank[::13] = 0
    features = torch.cat([tight(spread, 21), bank[1:20], -bank[1:20], torch.zeros(2, 64)])
    torch.testing.assert_close(knn(features, bank, k), exact_knn(features, bank, k), rtol=1e-6, atol=1e-12)


def test_float64_ranks_again_only_where_float32_cannot(monkeypatch):
    ranked, search = [], ood._kth_nearest
    monkeypatch.setattr(ood, "_kth_nearest", lambda x, *rest: ranked.append((len(x), rest[-1])) or search(x, *rest))
    # Every second query is among features that float32 cannot tell apart, and the others at a right angle to those.
    loose, more = (x - x.mean(-1, keepdim=True) for x in (tight(10.0, 3000), tight(10.0, 40)))
    bank = torch.cat([tight(1e-4, 3000), loose])
    features = torch.stack([tight(1e-4, 40), more], 1).flatten(0, 1)
    torch.testing.assert_close(knn(features, bank), exact_knn(features, bank, 50), rtol=1e-6, atol=0)
    assert ranked == [(80, torch.float32), (40, torch.float64)]


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = operation(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *(x.numel() for x in tensors)])
        return given


@pytest.mark.parametrize("spread", [10.0, 1e-4])
@pytest.mark.parametrize("bank", [30, 1200])
def test_knn_never_holds_all_distances_nor_a_copy_of_the_bank(monkeypatch, spread, bank):
    features, train = tight(spread, 900)[:, :4], tight(spread, bank)[:, :4]
    monkeypatch.setattr(ood, "PAIRS", 2**12)
    with LargestTensor() as largest:
        knn(features, train, 2)
    assert 900 <= largest.elements <= 2**12


def test_knn_needs_as_many_training_examples():
    with pytest.raises(VotesError, match="7 neighbours among 5 training examples"):
        knn(torch.randn(3, 2), torch.randn(5, 2), 7)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_detection_is_that_of_scikit_learn_and_pytorch_ood(seed):
    rng = np.random.default_rng(seed)
    # Rounding makes ties.
    inside, outside = rng.normal(size=40).round(1), rng.normal(1, 2, size=25).round(1)
    found = detection(inside, outside)
    scores, truth = np.concatenate([inside, outside]), np.r_[np.zeros(40), np.ones(25)]
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores))
    labels = torch.tensor(np.where(truth == 1, -1, 0))
    assert found["fpr95"] == pytest.approx(functional.fpr_at_tpr(torch.tensor(scores), labels).item())
    assert detection(outside, inside)["auroc"] == pytest.approx(1 - found["auroc"])


def test_detection_by_hand():
    perfect = detection(np.array([0.1, 0.2]), np.array([0.8, 0.9]))
    assert perfect == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}
    # 20 OOD at 1..20: 95% of them are flagged at 2; of four inside, 3 and 5 are above.
    found = detection(np.array([0.0, 1.0, 3.0, 5.0]), np.arange(1.0, 21.0))
    assert found["fpr95"] == 0.5
    for inside, outside in (([], [1.0]), ([1.0], [])):
        with pytest.raises(VotesError, match="one of the two is empty"):
            detection(np.array(inside), np.array(outside))
    with pytest.raises(VotesError, match="not finite"):
        detection(np.array([np.nan]), np.array([1.0]))


def test_every_detector_flags_what_it_was_made_for():
    """Five colours, and grey images in between: a trained network is unsure of these, and has no neighbours there."""
    torch.manual_seed(0)
    colours = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 0, 2], [2, 2, 0], [0, 2, 2]])
    labels = torch.arange(300) % 5
    painted = images(300, 0, 0.3) + colours[labels][:, :, None, None]
    model = network().train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(painted[:200]), labels[:200]).backward()
        optimiser.step()
    train, held_out = [painted[:200]], [painted[200:250], painted[250:]]
    settings = ood.OODSettings(knn_neighbours=5)
    report, scores = ood_report(model, held_out, {"grey": [images(80, 2, 0.3) + 0.7]}, train, settings)
    assert set(report["grey"]) == set(DETECTORS)
    assert {name: len(s["knn"]) for name, s in scores.items()} == {"in": 100, "grey": 80}
    for name in DETECTORS:
        assert report["grey"][name]["auroc"] > 0.8, name
        assert report["grey"][name] == detection(scores["in"][name], scores["grey"][name])
    assert model.training


def test_features_are_what_goes_into_the_last_linear_layer():
    model, x = network().train(), images(7, 3)
    assert last_linear(model, x) is model[-1]
    found = collect_outputs(model, [(x[:4], torch.ones(4, 5)), (x[4:], torch.ones(3, 5))])
    model.eval()
    torch.testing.assert_close(found.logits, model(x).detach())
    torch.testing.assert_close(found.features, model[:-1](x).detach())
    assert found.p.shape == (7, 5)
    assert not model[-1]._forward_pre_hooks and not model[-1]._forward_hooks
    for name, task, inputs in (
        ("synthetic-bert", "text", None),
        ("resnet18", "image", {"pixel_values": torch.randn(2, 3, 32, 32)}),
    ):
        other, tokenizer = load_model(name, TONES, task=task, **({} if task == "text" else {"width": 0.125}))
        inputs = inputs or dict(tokenizer(["the room was great"], return_tensors="pt"))
        found = collect_outputs(other, [inputs])
        layer = last_linear(other, inputs)
        torch.testing.assert_close(layer(found.features), found.logits)
        assert found.p is None
    with pytest.raises(VotesError, match="no linear layer whose output is the logits"):
        last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4))
    with pytest.raises(VotesError, match="no batches"):
        collect_outputs(model, [])
