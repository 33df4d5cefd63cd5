"""Scaling against known temperatures, brute force, finite differences and other optimisers."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback.hub import serve
from scipy.optimize import approx_fprime, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from test_data_hub import run_client

from hf_softlabel.data.errors import VotesError
from hf_softlabel.metrics import soft_nll
from hf_softlabel.scaling import Scaling, fit_temperature, fit_vector_scaling, penalised_nll

SEEDS = st.integers(0, 2**32 - 1)
FITS = (fit_temperature, fit_vector_scaling)
# A few random examples may well have their best T at a bound, and that is warned of.
at_bounds = pytest.mark.filterwarnings("ignore:T is at its")


def case(seed: int, n: int = 60, classes: int = 4, size: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, C), and ten votes each from their softmax at another temperature, with one class never voted for."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=size, size=(n, classes))
    p = softmax(z / rng.uniform(0.5, 3) / size, -1) * (np.arange(classes) < classes - 1)
    return z, rng.multinomial(10, p / p.sum(-1, keepdims=True))


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1, 4])
def test_a_known_temperature_is_found(temperature):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 5))
    votes = rng.multinomial(10_000, softmax(z / temperature, -1))
    assert fit_temperature(z, votes).temperature == pytest.approx(temperature, rel=0.005)
    # Exactly, from the distributions that the votes were drawn from.
    exact = fit_temperature(z, softmax(z / temperature, -1))
    assert exact.temperature == pytest.approx(temperature, rel=1e-9)
    assert (exact.bias, exact.examples) == (None, 2000)


def test_known_scales_and_biases_are_found():
    rng = np.random.default_rng(1)
    z, scale, bias = rng.normal(size=(5000, 3)), np.array([0.5, 1.5, 1.0]), np.array([-1.0, 0.25, 0.75])
    fitted = fit_vector_scaling(z, softmax(scale * z + bias, -1))
    # The prior pulls a little.
    assert fitted.scale == pytest.approx(scale, abs=0.01)
    assert fitted.bias == pytest.approx(bias, abs=0.01)
    assert sum(fitted.bias) == pytest.approx(0, abs=1e-12)


@at_bounds
@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_temperature_is_the_minimum_by_brute_force(seed):
    z, votes = case(seed, n=8)
    # In log T the problem has one valley, which a bounded search finds without our derivative.
    search = minimize_scalar(
        lambda x: soft_nll(z / np.exp(x), votes, from_logits=True),
        bounds=np.log([1e-3, 1e3]),
        method="bounded",
        options={"xatol": 1e-10},
    )
    ours = soft_nll(fit_temperature(z, votes)(z), votes, from_logits=True)
    assert ours <= search.fun + 1e-12
    grid = min(soft_nll(z / t, votes, from_logits=True) for t in np.geomspace(1e-3, 1e3, 201))
    assert ours <= grid + 1e-12


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_gradient_by_finite_differences(seed):
    z, votes = case(seed)
    p, x = votes / votes.sum(-1, keepdims=True), np.random.default_rng(seed).normal(size=8)
    value, gradient = penalised_nll(x[:4], x[4:], z, p)
    numeric = approx_fprime(x, lambda x: penalised_nll(x[:4], x[4:], z, p)[0], 1e-7)
    assert gradient == pytest.approx(numeric, abs=1e-5)
    prior = (np.square(x[:4] - 1).sum() + np.square(x[4:]).sum()) / 2 / len(z)
    assert value == pytest.approx(soft_nll(x[:4] * z + x[4:], votes, from_logits=True) + prior, rel=1e-12)


def test_chunks_give_the_same(monkeypatch):
    z, votes = case(3, n=101)
    whole = [fit(z, votes) for fit in FITS]
    monkeypatch.setattr("hf_softlabel.scaling.CHUNK", 28)
    for fit, one in zip(FITS, whole, strict=True):
        assert fit(z, votes)(z) == pytest.approx(one(z), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_vector_scaling_is_the_minimum_by_torch(seed):
    z, votes = case(seed, size=1.0)
    logits, p = torch.tensor(z), torch.tensor(votes / 10.0)
    x = torch.cat([torch.ones(4), torch.zeros(4)]).double().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [x], max_iter=2000, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss():
        nll = torch.nn.functional.cross_entropy(x[:4] * logits + x[4:], p)
        return nll + (((x[:4] - 1) ** 2).sum() + (x[4:] ** 2).sum()) / 2 / len(z)

    def closure():
        optimiser.zero_grad()
        loss().backward()
        return loss()

    optimiser.step(closure)
    fitted = fit_vector_scaling(z, votes)
    assert fitted.scale == pytest.approx(x[:4].tolist(), abs=1e-5)
    assert fitted.bias == pytest.approx(x[4:].tolist(), abs=1e-5)


def test_two_classes_are_logistic_regression():
    # With z = (x, 0) the first class wins by scale * x + 2 * bias; without the prior that is logistic regression.
    rng = np.random.default_rng(5)
    x = rng.normal(size=20_000)
    labels = rng.random(len(x)) < 1 / (1 + np.exp(1 - 2 * x))
    fitted = fit_vector_scaling(np.stack([x, 0 * x], -1), np.stack([labels, ~labels], -1).astype(int))
    other = LogisticRegression(C=1e9, tol=1e-8).fit(x[:, None], labels)
    assert fitted.scale[0] == pytest.approx(other.coef_[0, 0], abs=0.002)
    assert fitted.scale[1] == pytest.approx(1, abs=1e-6)  # it has no effect: the prior decides
    assert 2 * fitted.bias[0] == pytest.approx(other.intercept_[0], abs=0.002)


@at_bounds
@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 40), st.sampled_from([0.01, 1.0, 30.0]))
def test_scaling_never_raises_the_soft_nll(seed, n, size):
    z, votes = case(seed, n, size=size)
    before = soft_nll(z, votes, from_logits=True)
    after = {fit: soft_nll(fit(z, votes)(z), votes, from_logits=True) for fit in FITS}
    assert max(after.values()) <= before + 1e-9
    # A temperature is one of the vector scalings: the best of them is worse by its prior's weight at most.
    scale = fit_temperature(z, votes).scale
    assert after[fit_vector_scaling] <= after[fit_temperature] + 4 * (scale - 1) ** 2 / 2 / n + 1e-9


@at_bounds
@settings(max_examples=30, deadline=None)
@given(SEEDS, st.floats(-100, 100))
def test_symmetries(seed, shift):
    z, votes = case(seed)
    rng = np.random.default_rng(seed)
    order, classes = rng.permutation(len(z)), rng.permutation(4)
    # Adding a number to all logits of an example changes no probability, and so no temperature.
    moved = z + shift * rng.normal(size=(len(z), 1))
    assert fit_temperature(moved, votes).temperature == pytest.approx(fit_temperature(z, votes).temperature, rel=1e-6)
    # The logarithms of the probabilities are logits.
    assert fit_temperature(softmax(z, -1), votes, from_logits=False).temperature == pytest.approx(
        fit_temperature(z, votes).temperature, rel=1e-6
    )
    for fit in FITS:
        expected = fit(z, votes)(z)
        assert fit(z[order], votes[order])(z) == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert fit(z[:, classes], votes[:, classes])(z[:, classes]) == pytest.approx(
            expected[:, classes], rel=1e-4, abs=1e-4
        )
        # Counts and distributions are the same votes.
        assert fit(z, votes / votes.sum(-1, keepdims=True))(z) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("fit", FITS)
def test_numpy_and_torch_agree(fit):
    z, votes = case(7)
    scaling = fit(z, votes)
    assert fit(torch.tensor(z), torch.tensor(votes)) == scaling
    out = scaling(torch.tensor(z))
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float64
    assert out.numpy() == pytest.approx(scaling(z), rel=1e-12)
    assert scaling(z.tolist()) == pytest.approx(scaling(z), rel=1e-12)
    for half in (torch.float16, torch.bfloat16):
        logits = torch.tensor(z).to(half)
        assert fit(logits, votes) == fit(logits.double(), votes)
        out = scaling(logits)
        assert out.dtype == torch.float32
        assert out.numpy() == pytest.approx(scaling(logits.double().numpy()), rel=1e-5, abs=1e-5)
    assert scaling(z.astype(np.float32)).dtype == np.float32
    assert scaling(z.astype(np.float16)).dtype == np.float32


def test_calibrated_logits_by_hand():
    assert Scaling(0.5, None, 1)(np.array([[2.0, 4.0]])).tolist() == [[1, 2]]
    vector = Scaling((2.0, 3.0), (-1.0, 1.0), 1)
    assert vector(np.array([[1.0, 1.0], [0.0, 2.0]])).tolist() == [[1, 4], [-1, 7]]
    assert vector(torch.ones(1, 2)).tolist() == [[1, 4]]
    of_probabilities = Scaling(2.0, None, 1, from_logits=False)
    for q in (np.array([[0.25, 0.75]]), torch.tensor([[0.25, 0.75]])):
        assert softmax(np.asarray(of_probabilities(q)), -1) == pytest.approx(np.array([[0.1, 0.9]]), rel=1e-6)


def test_probabilities_are_scaled_by_their_logarithms():
    z, votes = case(2)
    for fit in FITS:
        fitted = fit(softmax(z, -1), votes, from_logits=False)
        assert not fitted.from_logits
        assert fitted(softmax(z, -1)) == pytest.approx(fit(log_softmax(z, -1), votes)(log_softmax(z, -1)), rel=1e-5)


@at_bounds
@pytest.mark.parametrize("fit", FITS)
def test_extreme_logits(fit):
    z, votes = case(4)
    # Most temperatures are below 1e3 when logits are 100 times too large, and at that bound when they are 1e4 times.
    for factor in (1e2, 1e4):
        scaling = fit(factor * z, votes)
        assert np.isfinite(scaling(factor * z)).all()
        before, after = (soft_nll(x, votes, from_logits=True) for x in (factor * z, scaling(factor * z)))
        assert after < before / 50
    # Some logits of 1e4 among ordinary ones, with and against the votes.
    z[0], z[1] = 1e4 * np.eye(4)[votes[0].argmax()], -1e4 * np.eye(4)[votes[1].argmax()]
    scaling = fit(z, votes)
    assert soft_nll(scaling(z), votes, from_logits=True) < soft_nll(z, votes, from_logits=True) / 50


@pytest.mark.parametrize("n", [60, 2000])
def test_vector_scaling_converges_where_classes_differ_in_size(n):
    z, votes = case(4, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_vector_scaling(z * [1e6, 1e4, 1e4, 1e4], votes)


def test_a_class_without_votes_keeps_a_finite_bias():
    z, votes = case(6, n=500)
    assert votes[:, 3].sum() == 0
    bias = fit_vector_scaling(z, votes).bias
    assert min(bias) == bias[3] and -20 < bias[3] < -1


def test_one_example():
    z, votes = np.array([[1.0, 2.0, 4.0]]), np.array([[1, 2, 3]])
    for fit in FITS:
        fitted = fit(z, votes)
        assert fitted.examples == 1
        assert soft_nll(fitted(z), votes, from_logits=True) < soft_nll(z, votes, from_logits=True)


def test_bounds_are_warned_of():
    z = np.array([[0.0, 2.0], [3.0, 0.0]])
    with pytest.warns(UserWarning, match="lower bound.*have all the votes"):
        assert fit_temperature(z, np.array([[0, 1], [1, 0]])).temperature == 1e-3
    with pytest.warns(UserWarning, match="upper bound.*say nothing"):
        assert fit_temperature(z, np.array([[1, 0], [0, 1]])).temperature == 1e3
    with pytest.warns(UserWarning, match="T has no effect.*left at 1"):
        assert fit_temperature(np.full((3, 2), 7.0), np.array([[1, 0], [0, 1], [1, 1]])).temperature == 1
    # One-hot votes that the largest logits do not always have are an ordinary case.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_temperature(np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 0.0]]), np.array([[0, 1], [1, 0], [0, 1]]))


@pytest.mark.parametrize("fit", FITS)
def test_what_cannot_be_fitted_is_refused(fit):
    z, votes = case(0)
    with pytest.raises(VotesError, match=r"zero.*2 row\(s\): 3, 5.*logits"):
        q = softmax(z, -1)
        q[[3, 5]] = [1, 0, 0, 0]
        fit(q, votes, from_logits=False)
    with pytest.raises(VotesError, match="from_logits=True"):
        fit(z, votes, from_logits=False)
    with pytest.warns(UserWarning, match="look like probabilities.*from_logits=False"):
        fit(softmax(z, -1), votes)
    with pytest.raises(VotesError, match=r"not finite in 1 row\(s\): 7"):
        fit(np.where(np.arange(60)[:, None] == 7, np.inf, z), votes)
    for wrong in (0, -1, np.nan):
        with pytest.raises(VotesError, match=r"Votes.*in 1 row\(s\): 9"):
            fit(z, np.where(np.arange(60)[:, None] == 9, [[wrong, 0, 0, 0]], votes))
    with pytest.raises(VotesError, match="one shape"):
        fit(z[:5], votes)
    with pytest.raises(VotesError, match="at least one example"):
        fit(z[:0], votes[:0])


def test_what_cannot_be_scaled_is_refused():
    with pytest.raises(VotesError, match=r"\(1, 3\), not \(examples, 2\)"):
        Scaling((1.0, 2.0), (0.0, 0.0), 1)(np.ones((1, 3)))
    with pytest.raises(VotesError, match=r"\(3,\), not \(examples, classes\)"):
        Scaling(1.0, None, 1)(torch.ones(3))
    for q in (np.array([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])):
        with pytest.raises(VotesError, match=r"zero.*1 row\(s\): 1"):
            Scaling(1.0, None, 1, from_logits=False)(q)
    with pytest.raises(VotesError, match="has no temperature"):
        _ = Scaling((1.0, 2.0), (0.0, 0.0), 1).temperature


@pytest.mark.parametrize("fit", FITS)
def test_save_and_load(fit, tmp_path):
    scaling = fit(*case(1))
    path = scaling.save(tmp_path)
    assert path == tmp_path / "scaling.json" and [path] == list(tmp_path.iterdir())
    assert Scaling.load(tmp_path) == scaling == Scaling.load(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "not JSON",
        '{"scale": 1.0}',
        '{"scale": 1.0, "bias": null, "examples": 1, "more": 1}',
        '{"scale": "1", "bias": null, "examples": 1}',
        '{"scale": NaN, "bias": null, "examples": 1}',
        '{"scale": [1.0, 2.0], "bias": [0.0], "examples": 1}',
        '{"scale": [1.0, 2.0], "bias": null, "examples": 1}',
        '{"scale": 1.0, "bias": [0.0], "examples": 1}',
        '{"scale": 0.0, "bias": null, "examples": 1}',
        '{"scale": 1.0, "bias": null, "examples": "1"}',
        '{"scale": 1.0, "bias": null, "examples": 1, "from_logits": "no"}',
    ],
)
def test_files_that_are_no_scaling(text, tmp_path):
    (tmp_path / "scaling.json").write_text(text)
    with pytest.raises(VotesError, match=r"scaling.json is not what Scaling.save writes"):
        Scaling.load(tmp_path)


def test_places_without_a_scaling(tmp_path):
    with pytest.raises(VotesError, match=r"has no scaling.json"):
        Scaling.load(tmp_path)
    with pytest.raises(VotesError, match="not a folder: save the model first"):
        Scaling(1.0, None, 1).save(tmp_path / "missing")
    with pytest.raises(VotesError, match="neither a folder nor a file"):
        Scaling.load(tmp_path / "missing")


CLIENT = """
import json, sys
from hf_softlabel.data.errors import VotesError
from hf_softlabel.scaling import Scaling
errors = []
for source, revision in (("team/nothing", None), ("team/bare", None), ("team/model", "v9")):
    try:
        Scaling.load(source, revision)
    except VotesError as error:
        errors.append(str(error))
print(json.dumps([Scaling.load("team/model").temperature, Scaling.load("team/model", "main").examples, errors]))
"""


def test_load_from_a_hub(tmp_path):
    for name in ("model", "bare"):
        (tmp_path / "models" / "team" / name).mkdir(parents=True)
        (tmp_path / "models" / "team" / name / "config.json").write_text(json.dumps({}))
    Scaling(0.5, None, 12).save(tmp_path / "models" / "team" / "model")
    with serve(tmp_path) as url:
        temperature, examples, errors = run_client(CLIENT, url, tmp_path / "home")
    assert (temperature, examples) == (2.0, 12)
    for name, error in zip(("team/nothing", "team/bare", "team/model"), errors, strict=True):
        assert f"{name} is neither a folder nor a file, and scaling.json cannot be read" in error
