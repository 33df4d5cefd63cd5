"""The votes contract by hand-worked cases: what is refused, splits and subsampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, List, Value, load_dataset, load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hf_softlabel.data.errors import VotesError, some
from hf_softlabel.data.votes import (
    check_votes,
    class_names,
    dense_votes,
    densify,
    hard_labels,
    split_stream,
    split_votes,
    subsample_votes,
    subsampled_votes,
    validate_votes,
    votes_array,
    votes_features,
    with_votes,
)
from hf_softlabel.delivery import multipass_position


def votes_set(votes, names=None, ids=None, label=None) -> Dataset:
    votes = np.asarray(votes)
    names = names or [f"class {i}" for i in range(votes.shape[1])]
    n = len(votes)
    columns = {
        "votes": votes.tolist(),
        "example_id": list(range(n)) if ids is None else ids,
        "label": [None] * n if label is None else label,
    }
    return Dataset.from_dict(columns, features=votes_features(names, counts=votes.dtype.kind == "i"))


# What is refused.


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([[1, 2], [3, -1]], r"negative in 1 row\(s\): 1"),
        ([[0.5, 0.5], [float("nan"), 1.0]], r"not a number or infinite in 1 row\(s\): 1"),
        ([[0.5, 0.5], [float("inf"), 0.0]], r"not a number or infinite in 1 row\(s\): 1"),
        ([[1, 2], [2**31 - 1, 1]], r"2147483648 votes or more in 1 row\(s\): 1.*mend these counts"),
        ([[0, 2**32], [1, 2]], r"2147483648 votes or more in 1 row\(s\): 0"),
        ([[2**62, 2**62], [1, 2]], r"2147483648 votes or more in 1 row\(s\): 0"),  # whose sum overflows
        ([{"labels": [1, 1], "counts": [2**30, 2**30]}], r"2147483648 votes or more in 1 row\(s\): 0"),
        ([[0, 0], [1, 0]], r"all zero in 1 row\(s\): 0.*remove them"),
        ([[0.0, 0.0], [1.0, 0.0]], r"all zero in 1 row\(s\): 0"),
        ([[0.5, 0.5], [0.5, 0.50001]], r"floats that do not sum to 1 in 1 row\(s\): 1.*cast the column to integers"),
        ([[2.0, 3.0]], r"floats that do not sum to 1 in 1 row\(s\): 0"),
        ([[1, 2], [1, 2, 3]], r"2 entries in each row, one for each class; rows 1 have not"),
        ([[1, 2], None], "rows 1 have not"),
        ([[1, 2], [1, None]], "missing entries in rows 1"),
        ([["1", "2"]], "must be numbers"),
        ([[True, False]], "must be numbers"),
        ([{"labels": [0, 2], "counts": [1, 1]}], "Unknown label in rows 0: labels must lie in 0..1"),
        ([{"labels": [0], "counts": [1]}, {"labels": [-1], "counts": [1]}], "Unknown label in rows 1"),
        ([{"labels": [0, 1], "counts": [1]}], "differ in length in rows 0"),
        ([{"labels": [], "counts": []}], r"all zero in 1 row\(s\): 0"),
    ],
)
def test_wrong_votes(votes, message):
    with pytest.raises(VotesError, match=message):
        votes_array(votes, 2)


def test_as_many_votes_as_a_permutation_takes_are_votes():
    votes = torch.from_numpy(votes_array([[2**31 - 2, 1], [2**30, 2**30 - 1]], 2))
    for epoch in range(50):
        position = multipass_position(votes.sum(-1), torch.tensor([3, 4]), epoch, seed=0)
        assert ((position >= 0) & (position < 2**31 - 1)).all()


def test_the_tolerance_of_the_sum_is_a_millionth():
    votes_array([[0.5, 0.5 + 9e-7]], 2)
    with pytest.raises(VotesError, match="do not sum to 1"):
        votes_array([[0.5, 0.5 + 1.1e-6]], 2)


def test_wrong_shapes():
    with pytest.raises(VotesError, match=r"shape \(3,\); \(examples, 4\)"):
        check_votes(np.ones(3, int), 4)
    with pytest.raises(VotesError, match=r"shape \(2, 3\); \(examples, 4\)"):
        votes_array(np.ones((2, 3), int), 4)


def test_messages_name_five_rows_at_most():
    with pytest.raises(VotesError, match=r"all zero in 8 row\(s\): 0, 1, 2, 3, 4 and 3 more"):
        check_votes(np.zeros((8, 2), int))
    assert some([1, 2]) == "1, 2"


def test_errors_are_value_errors():
    assert issubclass(VotesError, ValueError)


def test_wrong_data_sets():
    with pytest.raises(VotesError, match="`example_id` must be unique; these occur more than once: 5"):
        validate_votes(votes_set([[1, 2]] * 3, ids=[5, 6, 5]))
    with pytest.raises(VotesError, match=r"Integer vote counts are needed.*probabilities.*'soft', 'sls'"):
        validate_votes(votes_set([[0.5, 0.5]]), need_counts=True)
    validate_votes(votes_set([[0.5, 0.5]]))
    with pytest.raises(VotesError, match="no column `votes`"):
        validate_votes(votes_set([[1, 2]]).remove_columns("votes"))
    with pytest.raises(VotesError, match="no column `example_id`"):
        validate_votes(votes_set([[1, 2]]).remove_columns("example_id"))
    with pytest.raises(VotesError, match="empty"):
        validate_votes(votes_set([[1, 2]]).select([]))
    text_ids = votes_set([[1, 2]]).remove_columns("example_id").add_column("example_id", ["a"])
    with pytest.raises(VotesError, match="`example_id` must be integers"):
        validate_votes(text_ids)


# What is accepted.


def test_counts_and_probabilities_keep_their_kind():
    assert votes_array([[1, 2], [3, 0]], 2).dtype == np.int64
    assert votes_array([[0.25, 0.75]], 2).dtype == np.float64
    assert votes_array(np.array([[1, 2]], np.int32), 2).dtype == np.int64
    assert dense_votes(votes_set([[1, 2], [3, 0]])).tolist() == [[1, 2], [3, 0]]


def test_sparse_votes():
    assert densify([[2, 0], [1, 1]], [[3, 1], [2, 2]], 3).tolist() == [[1, 0, 3], [0, 4, 0]]
    features = votes_features(["a", "b", "c"], sparse=True)
    rows = [{"labels": [2, 0], "counts": [3, 1]}, {"labels": [1], "counts": [4]}]
    columns = {"votes": rows, "example_id": [0, 1], "label": [None, None]}
    dataset = Dataset.from_dict(columns, features=features)
    assert dense_votes(dataset).tolist() == [[1, 0, 3], [0, 4, 0]]
    assert votes_array({"labels": [[2, 0]], "counts": [[3, 1]]}, 3).tolist() == [[1, 0, 3]]
    assert class_names(dataset) == class_names(dataset.remove_columns("label")) == ["a", "b", "c"]
    assert hard_labels(dataset).tolist() == [2, 1]


def test_class_names_where_there_is_no_label():
    votes = Dataset.from_dict({"votes": [[1, 2, 3]]})
    assert class_names(votes) == ["0", "1", "2"]
    with pytest.raises(VotesError, match="number of classes is unknown"):
        class_names(votes.to_iterable_dataset())
    with pytest.raises(VotesError, match="no column `votes` among: text"):
        class_names(Dataset.from_dict({"text": ["a"]}))
    bare = {"votes": {"labels": List(Value("int64")), "counts": List(Value("int32"))}}
    sparse = Dataset.from_dict({"votes": [{"labels": [0], "counts": [1]}]}, features=Features(bare))
    with pytest.raises(VotesError, match="do not say how many classes"):
        class_names(sparse)


@pytest.mark.parametrize("sparse", [False, True])
def test_class_names_survive_saving(tmp_path, sparse):
    names = ["yes", "no", "perhaps"]
    votes = [{"labels": [2, 0], "counts": [3, 1]}] if sparse else [[1, 0, 3]]
    columns = {"votes": votes, "example_id": [7], "label": [None]}
    dataset = Dataset.from_dict(columns, features=votes_features(names, sparse=sparse))
    dataset.save_to_disk(tmp_path / "disk")
    dataset.to_parquet(tmp_path / "a.parquet")
    reread = load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train")
    for again in (load_from_disk(tmp_path / "disk"), reread):
        assert class_names(again) == names and again.features == dataset.features
        assert validate_votes(again, need_counts=True).tolist() == [[1, 0, 3]]


def test_hard_labels_prefer_gold():
    dataset = votes_set([[5, 1], [5, 1], [1, 5]], label=[1, None, None])
    assert hard_labels(dataset).tolist() == [1, 0, 1]
    assert hard_labels(dataset.remove_columns("label")).tolist() == [0, 0, 1]


def test_with_votes_keeps_the_columns_place():
    dataset = with_votes(votes_set([[1, 2], [3, 4]]), np.array([[0.5, 0.5], [0.0, 1.0]]))
    assert dataset.column_names == ["votes", "example_id", "label"]
    assert dataset.features["votes"] == List(Value("float64"), length=2)
    assert dense_votes(dataset).tolist() == [[0.5, 0.5], [0.0, 1.0]]


counts = st.lists(st.integers(0, 40), min_size=3, max_size=3).filter(any)


@settings(max_examples=60, deadline=None)
@given(st.lists(counts, min_size=1, max_size=12), st.randoms())
def test_valid_votes_are_accepted_in_any_order(rows, random):
    array = votes_array(rows, 3)
    assert array.tolist() == rows
    shares = array / array.sum(1, keepdims=True)
    assert np.array_equal(votes_array(shares.tolist(), 3), shares)
    sparse = [{"labels": [c for c in range(3) if row[c]], "counts": [x for x in row if x]} for row in rows]
    assert np.array_equal(votes_array(sparse, 3), array)
    order = list(range(len(rows)))
    random.shuffle(order)
    ids = np.arange(len(rows)) * 17
    drawn = subsampled_votes(array, ids, 5, seed=1)
    assert np.array_equal(subsampled_votes(array[order], ids[order], 5, seed=1), drawn[order])
    assert (drawn.sum(1) == 5).all() and not drawn[array == 0].any()
    whole, shuffled = votes_set(array, ids=ids.tolist()), votes_set(array[order], ids=ids[order].tolist())
    assert np.array_equal(hard_labels(shuffled), hard_labels(whole)[order])


# Splits.


def labelled_set(sizes: list[int]) -> Dataset:
    label = np.repeat(np.arange(len(sizes)), sizes)
    label = np.random.default_rng(3).permutation(label)
    ids = np.random.default_rng(4).permutation(1000)[: len(label)]
    return votes_set(np.eye(len(sizes), dtype=int)[label] * 3, ids=ids.tolist(), label=label.tolist())


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.37, 0.5])
def test_split_is_exact_stratified_and_a_partition(fraction):
    sizes = [100, 37, 10, 1, 1, 3]
    dataset = labelled_set(sizes)
    split = split_votes(dataset, fraction, seed=5)
    assert list(split) == ["train", "eval"]
    assert len(split["eval"]) == round(152 * fraction) and len(split["train"]) == 152 - len(split["eval"])
    ids = split["train"]["example_id"][:] + split["eval"]["example_id"][:]
    assert sorted(ids) == sorted(dataset["example_id"][:])
    held_out = np.bincount(split["eval"]["label"][:], minlength=len(sizes))
    assert (np.abs(held_out - np.array(sizes) * fraction) <= 1).all()
    assert class_names(split["eval"]) == class_names(dataset)


def test_split_depends_on_the_seed_alone():
    dataset = labelled_set([60, 40])
    first = split_votes(dataset, 0.2, seed=1)["eval"]["example_id"][:]
    assert split_votes(dataset, 0.2, seed=1)["eval"]["example_id"][:] == first
    assert split_votes(dataset, 0.2, seed=2)["eval"]["example_id"][:] != first


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.001, -0.5, 1.5])
def test_a_split_without_examples_is_refused(fraction):
    with pytest.raises(VotesError, match="leaves an empty split"):
        split_votes(labelled_set([20, 20]), fraction)


def test_every_example_is_held_out_about_as_often():
    dataset = labelled_set([30, 10])
    times = np.zeros(1000, int)
    for seed in range(200):
        times[split_votes(dataset, 0.25, seed)["eval"]["example_id"][:]] += 1
    times = times[dataset["example_id"][:]]
    assert times.sum() == 200 * 10
    # Binomial(200, 1/4): a standard deviation of 6.1.
    assert times.min() > 50 - 5 * 6.1 and times.max() < 50 + 5 * 6.1


def test_split_of_a_stream_goes_by_the_id():
    dataset = votes_set(np.ones((4000, 2), int))
    parts = split_stream(dataset.to_iterable_dataset(), 0.2, seed=3)
    ids = {key: [row["example_id"] for row in part] for key, part in parts.items()}
    assert sorted(ids["train"] + ids["eval"]) == list(range(4000))
    assert abs(len(ids["eval"]) - 800) < 4 * np.sqrt(4000 * 0.2 * 0.8)
    shuffled = split_stream(dataset.shuffle(seed=1).to_iterable_dataset(), 0.2, seed=3)["eval"]
    assert sorted(row["example_id"] for row in shuffled) == ids["eval"]
    other = split_stream(dataset.to_iterable_dataset(), 0.2, seed=4)["eval"]
    assert [row["example_id"] for row in other] != ids["eval"]


# Subsampling.


def test_subsampled_votes_follow_the_distribution():
    n, k, p = 20_000, 5, np.array([0.1, 0.2, 0.0, 0.7])
    for votes in (np.tile(p, (n, 1)), np.tile((p * 10).astype(int), (n, 1))):
        drawn = subsampled_votes(votes, np.arange(n), k, seed=2)
        assert drawn.dtype == np.int64 and (drawn.sum(1) == k).all()
        assert (drawn[:, 2] == 0).all()
        keep = [0, 1, 3]
        assert chisquare(drawn.sum(0)[keep], n * k * p[keep]).pvalue > 1e-4
        # And not only in the mean: the number of votes for a class is binomial, so draws are independent.
        assert drawn[:, 3].var() == pytest.approx(k * 0.7 * 0.3, rel=0.05)


def test_subsampling_depends_on_the_id_the_seed_and_k_alone():
    rng = np.random.default_rng(0)
    votes, ids = rng.integers(0, 20, (300, 4)) + 1, rng.permutation(10_000)[:300]
    drawn = subsampled_votes(votes, ids, 6, seed=1)
    order = rng.permutation(300)[:100]
    for options in ({}, {"without_replacement": True}):
        drawn = subsampled_votes(votes, ids, 4, seed=1, **options)
        assert np.array_equal(subsampled_votes(votes[order], ids[order], 4, seed=1, **options), drawn[order])
        assert not np.array_equal(subsampled_votes(votes, ids, 4, seed=2, **options), drawn)
        assert not np.array_equal(subsampled_votes(votes, ids + 1, 4, seed=1, **options), drawn)
        # Draws for other k are made afresh: nested ones would contain these.
        more = subsampled_votes(votes, ids, 5, seed=1, **options)
        assert (more < drawn).any(1).mean() > 0.3


def test_subsampling_without_replacement():
    rng = np.random.default_rng(1)
    votes, ids = rng.integers(0, 4, (500, 3)) + np.array([1, 0, 2]), np.arange(500)
    drawn = subsampled_votes(votes, ids, 3, seed=0, without_replacement=True)
    assert (drawn.sum(1) == 3).all() and (drawn <= votes).all() and (drawn >= 0).all()
    same = np.tile([2, 3, 5], (200, 1))
    assert np.array_equal(subsampled_votes(same, np.arange(200), 10, seed=0, without_replacement=True), same)
    # Hypergeometric: the mean is k * p and the variance less than the binomial's.
    many = subsampled_votes(np.tile([4, 6], (20_000, 1)), np.arange(20_000), 5, seed=0, without_replacement=True)
    assert many[:, 0].mean() == pytest.approx(2.0, abs=0.03)
    assert many[:, 0].var() == pytest.approx(5 * 0.4 * 0.6 * (10 - 5) / (10 - 1), rel=0.05)


def test_wrong_subsampling():
    with pytest.raises(VotesError, match="at least 1"):
        subsampled_votes(np.array([[1, 2]]), np.array([0]), 0, seed=0)
    with pytest.raises(VotesError, match="needs integer vote counts"):
        subsampled_votes(np.array([[0.5, 0.5]]), np.array([0]), 1, seed=0, without_replacement=True)
    with pytest.raises(VotesError, match=r"Cannot take 4 votes .* fewer, such as the example_id 7\. Lower"):
        subsampled_votes(np.array([[1, 3], [1, 2]]), np.array([3, 7]), 4, seed=0, without_replacement=True)


def test_subsampled_data_set():
    dataset = subsample_votes(votes_set([[30, 70], [100, 0]], ["a", "b"], ids=[8, 3]), 7, seed=0)
    votes = validate_votes(dataset, need_counts=True)
    assert votes.sum(1).tolist() == [7, 7] and votes[1].tolist() == [7, 0]
    assert dataset["example_id"][:] == [8, 3] and class_names(dataset) == ["a", "b"]
