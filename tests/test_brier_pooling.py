"""The Brier score's parts: pooling examples before isotonic regression must not change it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from hf_softlabel.metrics import brier_decomposition
from hf_softlabel.metrics.brier import BrierCurves, ClassColumns, pooled


def by_sorting(log_q: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """The parts in the resample that has each example once: every class is sorted, and nothing is pooled."""
    return curves(log_q, p).parts(np.ones(len(p)))


def curves(log_q: np.ndarray, p: np.ndarray) -> BrierCurves:
    columns = ClassColumns(p.shape)
    # Sums over rows are most exact in columns, as chunks of rows are.
    columns.fill(slice(None), log_q, p, np.asfortranarray(np.square(np.exp(log_q) - p)))
    return BrierCurves(columns)


def case(name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """log q and p (N, C), of a kind that is hard to pool."""
    rng = np.random.default_rng(n)
    logits = rng.normal(scale=2, size=(n, 4))
    p = rng.multinomial(10, softmax(logits + rng.normal(size=logits.shape), axis=1)) / 10
    log_q = log_softmax(logits, axis=1)
    if name == "ties":
        log_q = log_softmax(logits.round(), axis=1)
    elif name == "one q for all":
        log_q = np.full_like(log_q, -np.log(4))
    elif name == "zeros":
        with np.errstate(divide="ignore"):
            log_q = np.log(rng.multinomial(5, np.full(4, 0.25), n) / 5)
    elif name == "far apart":
        log_q = log_softmax(logits * 1e4, axis=1)
    elif name == "nearly 1":
        log_q = np.log1p(-np.exp(log_q) * 1e-7)
    elif name == "last bits":
        # Ties but for rounding, around the ends of buckets.
        log_q = 2.0**-8 - 2.0 ** rng.integers(-3, 4, log_q.shape) + rng.choice([-1e-14, 0, 1e-14], log_q.shape)
    elif name == "above 1":
        log_q = log_q - log_q.max() + 1e-4
    elif name == "q = p":
        with np.errstate(divide="ignore"):
            log_q = np.log(p)
    elif name == "reversed":
        log_q = log_softmax(-logits, axis=1)
    elif name == "distributions":
        p = rng.dirichlet(np.full(4, 0.3), n)
    elif name == "a class without votes":
        p = np.pad(p[:, 1:] + p[:, :1] / 3, ((0, 0), (1, 0)))
    elif name == "all votes on one":
        p = np.eye(4)[rng.integers(0, 4, n)]
    return log_q, p


CASES = (
    "plain",
    "ties",
    "one q for all",
    "zeros",
    "far apart",
    "nearly 1",
    "last bits",
    "above 1",
    "q = p",
    "reversed",
    "distributions",
    "a class without votes",
    "all votes on one",
)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, 2, 33, 1000, 40_000])
@pytest.mark.parametrize("name", CASES)
def test_pooling_does_not_change_the_parts(name, n):
    log_q, p = case(name, n)
    assert curves(log_q, p).parts() == pytest.approx(by_sorting(log_q, p), abs=1e-13)


def test_most_examples_are_pooled():
    log_q, p = case("plain", 40_000)
    for k in range(4):
        mass, votes = pooled(log_q[:, k], p[:, k])
        assert mass.sum() == 40_000 and votes.sum() == pytest.approx(p[:, k].sum())
        assert len(mass) < 20_000


def test_logits_and_probabilities_have_the_same_parts():
    logits, votes = np.random.default_rng(0).normal(size=(500, 3)), np.random.default_rng(1).integers(1, 5, (500, 3))
    parts = brier_decomposition(logits, votes, from_logits=True)
    assert parts == pytest.approx(brier_decomposition(softmax(logits, axis=1), votes), abs=1e-13)
