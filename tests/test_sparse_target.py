"""The sparse-target diagnostic on constructed data whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from run_directories import held_out, write_run

from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.votes import subsampled_votes
from hf_softlabel.experiments.runs import find_runs
from hf_softlabel.experiments.sparse import correlation, gain_bins, sparse_examples, sparse_target
from hf_softlabel.metrics import soft_nll


def test_distances_and_gain_of_an_example_by_hand():
    sparse, full = np.array([[1, 0], [1, 1]]), np.array([[5, 5], [5, 5]])
    soft, other = np.log([[0.8, 0.2], [0.5, 0.5]]), np.log([[0.5, 0.5], [0.5, 0.5]])
    examples = sparse_examples(sparse, full, soft, other)
    # (1, 0) against (.5, .5): JS divergence = H(.75, .25) - H(.5, .5) / 2.
    js = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) - 0.5 * math.log(2)
    assert examples.js == pytest.approx([math.sqrt(js), 0])
    assert examples.l1 == pytest.approx([1, 0])
    # -(log .8 + log .2) / 2 - log 2
    assert examples.gain == pytest.approx([-(math.log(0.8) + math.log(0.2)) / 2 - math.log(2), 0])


def test_bins_have_the_gain_that_was_put_in():
    rng = np.random.default_rng(0)
    distances = [np.concatenate([np.zeros(50), rng.uniform(0.1, 1, 500)]) for _ in range(3)]
    gains = [2 * distance + seed for seed, distance in enumerate(distances)]
    bins = gain_bins(distances, gains, bins=5)
    assert bins.distance[0] == 0 and bins.count[0] == 150 and len(bins.distance) == 6
    assert bins.count.sum() == 1650 and np.ptp(bins.count[1:]) <= 1
    for seed in range(3):
        assert bins.gain[seed, 0] == pytest.approx(seed)
        # The mean gain of a bin is 2 * the seed's own mean distance there, near that of all seeds.
        assert bins.gain[seed] - seed == pytest.approx(2 * bins.distance, abs=0.05)
    assert np.all(np.diff(bins.distance) > 0)


def test_a_bin_that_a_seed_has_no_example_in_is_nan():
    bins = gain_bins([np.array([0.0, 0.0]), np.array([0.0, 1.0])], [np.ones(2), np.array([1.0, 3.0])])
    assert bins.count.tolist() == [3, 1]
    assert np.isnan(bins.gain[0, 1]) and bins.gain[1].tolist() == [1, 3]
    everywhere_right = gain_bins([np.zeros(3)], [np.arange(3.0)])
    assert everywhere_right.gain.tolist() == [[1.0]] and everywhere_right.count.tolist() == [3]


def test_correlation_is_that_of_ranks_and_undefined_where_nothing_varies():
    distance = np.array([0.1, 0.2, 0.3, 0.4])
    assert correlation(distance, np.exp(distance)) == pytest.approx(1)
    assert correlation(distance, np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert math.isnan(correlation(np.zeros(4), distance)) and math.isnan(correlation(distance, np.zeros(4)))


def runs_at(folder, k: int, seeds: range, gain: float):
    """Soft and multipass runs; multipass gains on an example in proportion to its sparse target's L1 distance."""
    for seed in seeds:
        ids, votes = held_out(seed)
        p = votes / votes.sum(1, keepdims=True)
        sparse = subsampled_votes(votes, ids, k, seed) / k
        away = np.abs(sparse - p).sum(1)
        # Soft labels lose exactly gain * L1 on each example: found by bisection in the logit of its rarest class.
        logits, rarest = np.log(p + 1e-6), np.eye(p.shape[1])[p.argmin(1)]
        low, high = np.zeros(len(p)), np.full(len(p), 40.0)
        best = soft_nll(logits, votes, from_logits=True, per_example=True)
        for _ in range(60):
            middle = (low + high) / 2
            loss = soft_nll(logits + middle[:, None] * rarest, votes, from_logits=True, per_example=True) - best
            low, high = np.where(loss < gain * away, middle, low), np.where(loss < gain * away, high, middle)
        soft = logits + middle[:, None] * rarest
        write_run(folder / f"soft-{seed}", "soft", seed, logits=soft, votes_per_example=k)
        write_run(folder / f"multipass-{seed}", "multipass", seed, logits=logits, votes_per_example=k)


def test_a_delivery_that_gains_where_the_target_is_wrong_is_found_in_runs(tmp_path):
    runs_at(tmp_path, 3, range(3), gain=0.9)
    runs = find_runs(tmp_path).runs
    by = {delivery: {run.seed: run for run in runs if run.delivery == delivery} for delivery in ("soft", "multipass")}
    found = sparse_target(by["soft"], by["multipass"])
    assert (found.method, found.k, found.split, list(found.seeds)) == ("multipass", 3, "train", [0, 1, 2])
    # The gain is the L1 distance times .9; float32 logits leave a little noise among examples without any.
    assert all(value > 0.98 for value in found.correlations("l1").values())
    assert all(0.7 < value < 1 for value in found.correlations("js").values())
    bins = found.bins("l1")
    assert bins.gain == pytest.approx(0.9 * np.broadcast_to(bins.distance, bins.gain.shape), abs=0.06, nan_ok=True)
    assert np.nanmean(found.bins("js").gain, 0)[-1] > np.nanmean(found.bins("js").gain, 0)[1] + 0.2
    slice_count = found.bins(high_only=True).count.sum()
    assert slice_count == sum(examples.high.sum() for examples in found.seeds.values()) == 3 * 4
    # The placebo draws the same targets here, because the fixture's training examples are the eval examples.
    assert sparse_target(by["soft"], by["multipass"], "eval").correlations() == pytest.approx(found.correlations())


def test_runs_that_cannot_be_paired_are_refused_or_left_out(tmp_path):
    runs_at(tmp_path, 3, range(2), gain=0.5)
    runs = find_runs(tmp_path).runs
    by = {delivery: {run.seed: run for run in runs if run.delivery == delivery} for delivery in ("soft", "multipass")}
    assert list(sparse_target(by["soft"], {1: by["multipass"][1]}).seeds) == [1]
    assert sparse_target({}, by["multipass"]) is None
    with pytest.raises(VotesError, match="not trained on the same sparse votes"):
        sparse_target({0: by["soft"][0]}, {0: by["multipass"][1]})
    (by["soft"][0].path / "train_predictions.parquet").unlink()
    assert list(sparse_target(by["soft"], by["multipass"]).seeds) == [1]
