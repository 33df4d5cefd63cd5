"""KNN scores of out-of-distribution detection against pytorch-ood and scikit-learn's brute force.

All are given float32 features and give the float64 distance to the 50th nearest of unit vectors. The peers work in
float64. Ours ranks in float32, and again in float64 where its bound on the rounding leaves the 50th in doubt. Fitting
only keeps the bank and is part of the work: ours has no such step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch import Tensor

from hf_softlabel.diagnostics.ood import OODSettings, knn

from .measure import Row, alternate, growth, memory, peak_memory, peer

BANK, QUERIES, WIDTH = 50_000, 2_000, 512
K = OODSettings().knn_neighbours


def rows(scale: float) -> Iterator[Row]:
    torch.set_num_threads(1)
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # pytorch-ood asks scikit-learn for all cores
    bank, queries = max(K, int(BANK * scale)), int(QUERIES * scale)
    ours, features, train = scores(bank, queries)(), *data(bank, queries)
    sizes = {"bank": bank, "queries": queries, "width": WIDTH, "k": K}
    for name, package, work in (
        ("pytorch_ood.detector.KNN", "pytorch-ood", lambda: _pytorch_ood(features, train)),
        ("sklearn.neighbors.NearestNeighbors, brute", "scikit-learn", lambda: _sklearn(features, train)),
    ):
        far = float(np.abs(ours.numpy() - work()).max())
        if far > 1e-5:
            raise AssertionError(f"our scores differ from those of {name} by {far}")
        times = alternate(lambda: knn(features, train, K), work, 3, time.process_time)
        checked = f"scores equal to {far:.0e}"
        yield times.row("KNN scores", name, "times as fast", ">= 1", sizes=sizes, checked=checked, packages=(package,))
    peak, bank_bytes = peak_memory(scores, bank, queries), train.numel() * train.element_size()
    yield Row(
        "peak memory of KNN scores, beyond the features",
        "the bytes of the bank (float32)",
        peak / bank_bytes,
        "times as much",
        sizes={**sizes, "bytes": peak, "of all distances they would be": 8 * bank * queries},
    )
    what = "KNN scores, by the size of the bank"
    yield memory(what, "the features of queries and bank", partial(scores, queries=queries), bank, sizes=sizes)
    clock = time.process_time
    yield growth("KNN scores, growth in queries", lambda n: scores(bank, n), max(1, queries), clock=clock)
    few = max(1, queries // 4)
    yield growth("KNN scores, growth in the bank", lambda n: scores(n, few), bank, clock=clock)


def data(bank: int, queries: int) -> tuple[Tensor, Tensor]:
    """Features of queries and of the bank, float32: positive, as those behind a ReLU, around 10 directions."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, WIDTH, generator=generator)
    drawn = [torch.randn(n, WIDTH, generator=generator) for n in (queries, bank)]
    return tuple((noise + centres[torch.arange(len(noise)) % 10]).relu() for noise in drawn)


def scores(bank: int, queries: int) -> Callable[[], Tensor]:
    features, train = data(bank, queries)
    return lambda: knn(features, train, K)


def _pytorch_ood(features: Tensor, train: Tensor) -> np.ndarray:
    detector = peer("pytorch_ood.detector").KNN(None, k=K)
    detector.fit_features(train, torch.zeros(len(train), dtype=torch.int64))
    return detector.predict_features(features).numpy()


def _sklearn(features: Tensor, train: Tensor) -> np.ndarray:
    neighbours = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(normalize(train.numpy()))
    return neighbours.kneighbors(normalize(features.numpy()))[0][:, -1]
