"""Votes on many classes: what is read a chunk of rows at a time is what the whole (N, C) array gives."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from scipy.stats import entropy
from trainers import config, expected_digest

from hf_softlabel import SLSTrainer, VotesError, load_votes
from hf_softlabel.collators import VotesCollator
from hf_softlabel.data.images import VotesImages
from hf_softlabel.data.votes import (
    check_dataset,
    dense_votes,
    hard_labels,
    is_sparse,
    split_votes,
    subsample_votes,
    validate_votes,
    votes_chunks,
    votes_features,
    with_votes,
)
from hf_softlabel.delivery import Delivery
from hf_softlabel.preparation import prepare_dataset
from hf_softlabel.run import _references
from hf_softlabel.splits import Splits, fingerprint

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks are no part of the package
from benchmarks.labels import sparse_dataset, sparse_training
from benchmarks.measure import peak_memory

N, CLASSES = 2500, 1000  # three chunks


def rows_of(n: int, classes: int) -> list[dict]:
    """One to three votes on each of five classes, some of which are the same, by arithmetic alone."""
    return [
        {
            "labels": [(7919 * i + 104729 * j * j) % classes for j in range(5)],
            "counts": [1 + (i + j) % 3 for j in range(5)],
        }
        for i in range(n)
    ]


def sparse_set(rows: list[dict], classes: int = CLASSES) -> Dataset:
    names = [str(c) for c in range(classes)]
    columns = {"votes": rows, "example_id": [31 * i + 5 for i in range(len(rows))], "label": [None] * len(rows)}
    return Dataset.from_dict(columns, features=votes_features(names, sparse=True))


def dense_set(rows: list, classes: int) -> Dataset:
    return (
        sparse_set([{"labels": [0], "counts": [1]}] * len(rows), classes)
        .remove_columns("votes")
        .add_column("votes", rows, feature=List(Value("int32"), length=classes))
    )


@pytest.fixture(scope="module")
def sparse() -> Dataset:
    return sparse_set(rows_of(N, CLASSES))


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    out = np.zeros((N, CLASSES), np.int64)
    for i, row in enumerate(rows_of(N, CLASSES)):
        for label, count in zip(row["labels"], row["counts"], strict=True):
            out[i, label] += count
    return out


@pytest.fixture(scope="module")
def dense(counts) -> Dataset:
    return dense_set(list(counts), CLASSES)


# What the whole array gives.


def test_chunks_are_the_rows_in_their_order(sparse, dense, counts):
    for dataset in (sparse, dense):
        chunks = list(votes_chunks(dataset))
        assert len(chunks) == 3 and [rows.start for rows, _ in chunks[1:]] == [rows.stop for rows, _ in chunks[:-1]]
        assert np.array_equal(np.concatenate([votes for _, votes in chunks]), counts)
        assert np.array_equal(dense_votes(dataset), counts) and np.array_equal(validate_votes(dataset), counts)
        assert check_dataset(dataset, need_counts=True) == CLASSES
        order = np.random.default_rng(0).permutation(N)[:1700]
        assert np.array_equal(dense_votes(dataset.select(order)), counts[order])


@pytest.mark.parametrize(
    ("n", "classes", "expected"),
    [
        # By the code that hashed all (N, C) votes at once.
        (N, CLASSES, ["00951515d5f381a8-47d892b119776af6", "63a6f6eefafc52ff-8f765104f54c13bd"]),
        (40, 3, ["b7665865afcf1417-3a2afe7034773e3b", "f431ad212eb73ea7-8c09db1c001c4142"]),
    ],
)
def test_fingerprints_are_those_of_earlier_runs(n, classes, expected):
    sparse = sparse_set(rows_of(n, classes), classes)
    counts = dense_votes(sparse)
    shares = with_votes(sparse, counts / counts.sum(1, keepdims=True))
    of_counts, of_shares = expected
    for dataset in (sparse, dense_set(list(counts), classes), sparse.shuffle(seed=1)):
        first = dataset.filter(lambda example: example < 31 * 7, input_columns="example_id")
        assert fingerprint(Splits(dataset, first)) == of_counts
    assert fingerprint(Splits(shares, shares.select(range(7)))) == of_shares
    ids = torch.tensor(sparse["example_id"][:])
    pixels = torch.zeros(n, 3, 1, 1, dtype=torch.uint8)
    store = VotesImages(pixels, torch.from_numpy(counts), ids, torch.full((n,), -1), [str(c) for c in range(classes)])
    assert fingerprint(Splits(store, store)) == "-".join([of_counts.split("-")[0]] * 2)


def test_sparse_votes_are_split_and_subsampled_as_dense_ones_and_stay_sparse(sparse, dense):
    assert np.array_equal(hard_labels(sparse, 3), hard_labels(dense, 3))
    parts = {key: split_votes(dataset, 0.3, 4) for key, dataset in {"sparse": sparse, "dense": dense}.items()}
    # By the code that held all (N, C) votes.
    assert fingerprint(Splits(**parts["sparse"])) == fingerprint(Splits(**parts["dense"]))
    assert fingerprint(Splits(**parts["sparse"])) == "f2c85b6d635c8030-0dccb9a872970178"
    for k, seed, without, expected in ((4, 2, False, "6ffd5c931bcd2390"), (3, 1, True, "8541fa1d7004b6ea")):
        drawn = [subsample_votes(dataset, k, seed, without) for dataset in (sparse, dense)]
        assert [is_sparse(one.features) for one in drawn] == [True, False]
        assert drawn[0].features == sparse.features and drawn[0].column_names == sparse.column_names
        assert {fingerprint(Splits(one, None)) for one in drawn} == {expected}
        assert sum(map(len, drawn[0].with_format("arrow")["votes"][:].to_pylist()[0].values())) <= 2 * k


def test_other_votes_keep_the_form_unless_they_are_probabilities(sparse, counts):
    other = with_votes(sparse, counts[::-1])
    assert other.features == sparse.features and np.array_equal(dense_votes(other), counts[::-1])
    shares = counts / counts.sum(1, keepdims=True)
    assert np.array_equal(dense_votes(with_votes(sparse, shares)), shares)


def test_shuffled_sls_shuffles_sparse_votes_as_dense_ones(sparse, dense):
    shuffled = [prepare_dataset(d, None, "train", Delivery("shuffled_sls", seed=3))[0] for d in (sparse, dense)]
    assert shuffled[0].features == sparse.features
    votes = [dense_votes(one) for one in shuffled]
    assert np.array_equal(*votes) and (votes[0] != dense_votes(sparse)).any(1).mean() > 0.9
    assert shuffled[0]["example_id"][:] == sparse["example_id"][:]


def test_a_run_says_the_mean_and_the_entropy_of_all_training_votes(sparse, counts):
    prediction = SimpleNamespace(label_ids=(counts[:30], np.arange(30), np.full(30, -1)))
    found = _references(prediction, sparse, ordinal=False)
    shares = counts / counts.sum(1, keepdims=True)
    assert found["train_mean"] == pytest.approx(shares.mean(0).tolist(), abs=1e-12)
    assert found["train_entropy"] == pytest.approx(entropy(shares, axis=1).mean())
    cross = -(shares[:30] * np.log(np.maximum(shares.mean(0), 1e-300))).sum(1).mean()
    assert found["references"]["train_mean"]["soft_nll"] == pytest.approx(cross)


# What is refused.


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"labels": [3], "counts": [-1]}, r"negative in 1 row\(s\): 1500\. What"),
        ({"labels": [3, 4], "counts": [1]}, r"differ in length in rows 1500\."),
        ({"labels": [-1], "counts": [1]}, "Unknown label in rows 1500: labels must lie in 0..999"),
        ({"labels": [None], "counts": [1]}, "Unknown label in rows 1500:"),
        ({"labels": [3], "counts": [None]}, r"negative in 1 row\(s\): 1500\."),
        ({"labels": [3, 3], "counts": [3, -1]}, r"negative in 1 row\(s\): 1500\."),
        ({"labels": [3, 3], "counts": [3, None]}, r"negative in 1 row\(s\): 1500\."),
        ({"labels": [], "counts": []}, r"all zero in 1 row\(s\): 1500\. .*remove them"),
        ({"labels": None, "counts": None}, r"all zero in 1 row\(s\): 1500\."),
        (None, r"all zero in 1 row\(s\): 1500\."),
    ],
)
def test_wrong_sparse_rows_of_a_later_chunk_are_named(row, message):
    rows = rows_of(N, CLASSES)
    rows[1500] = rows[2400] = row
    with pytest.raises(VotesError, match=f"In the train split: .*{message}.*Rows from 2096 on were not looked at"):
        prepare_dataset(sparse_set(rows), None, "train")
    with pytest.raises(VotesError, match=message) as error:
        check_dataset(sparse_set(rows[:1501]))
    assert "looked at" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([-1] + [1] * (CLASSES - 1), r"negative in 1 row\(s\): 1500\."),
        ([1] * (CLASSES - 1), "1000 entries in each row.*rows 1500 have not"),
        (None, "1000 entries in each row.*rows 1500 have not"),
        ([None] + [1] * (CLASSES - 1), "missing entries in rows 1500:"),
    ],
)
def test_wrong_dense_rows_of_a_later_chunk_are_named(row, message):
    rows = [[1] * CLASSES] * N
    rows[1500] = row
    columns = {"votes": rows, "example_id": list(range(N)), "label": [0] * N}
    names = [str(c) for c in range(CLASSES)]
    features = {"votes": List(Value("int32")), "example_id": Value("int64"), "label": ClassLabel(names=names)}
    with pytest.raises(VotesError, match=f"{message}.*Rows from 2096 on"):
        check_dataset(Dataset.from_dict(columns, features=Features(features)))


def test_rows_of_other_lengths_are_refused_even_if_their_numbers_would_fill_the_table():
    features = Features(
        {"votes": List(Value("int32")), "example_id": Value("int64"), "label": ClassLabel(names=["a", "b"])}
    )
    columns = {"votes": [[1], [1, 2, 3]], "example_id": [0, 1], "label": [0, 1]}
    with pytest.raises(VotesError, match=r"2 entries in each row.*rows 0, 1 have not"):
        check_dataset(Dataset.from_dict(columns, features=features))


def test_sparse_votes_that_are_no_integers_are_refused_not_cut_off():
    votes = {"labels": List(ClassLabel(names=["a", "b"])), "counts": List(Value("float64"))}
    columns = {"votes": [{"labels": [0, 1], "counts": [1.5, 2.5]}], "example_id": [0]}
    dataset = Dataset.from_dict(columns, features=Features({"votes": votes, "example_id": Value("int64")}))
    with pytest.raises(VotesError, match="must be integers, not double"):
        check_dataset(dataset)
    with pytest.raises(VotesError, match="must be integers, not float64"):
        VotesCollator(2)([dataset[0]])


def test_small_integers_are_integers():
    votes = {"labels": List(Value("uint8")), "counts": List(Value("uint16"))}
    columns = {"votes": [{"labels": [1], "counts": [3]}], "example_id": [0], "label": [None]}
    features = Features({"votes": votes, "example_id": Value("int64"), "label": ClassLabel(names=["a", "b"])})
    dataset = Dataset.from_dict(columns, features=features)
    assert dense_votes(dataset).tolist() == [[0, 3]]
    assert subsample_votes(dataset, 2, seed=0).features == features


def test_a_table_of_sparse_votes_names_the_rows_of_later_chunks(tmp_path):
    rows = rows_of(N, CLASSES)
    path = tmp_path / "votes.parquet"
    names = [str(c) for c in range(CLASSES)]
    pq.write_table(pa.table({"votes": rows, "text": ["a"] * N}), path)
    assert np.array_equal(dense_votes(load_votes(str(path), names=names)["train"]), dense_votes(sparse_set(rows)))
    rows[1500] = {"labels": [1000], "counts": [1]}
    pq.write_table(pa.table({"votes": rows, "text": ["a"] * N}), path)
    with pytest.raises(VotesError, match=r"Unknown label in rows 1500: .* Rows from 2096 on were not looked at"):
        load_votes(str(path), names=names)


# Training.


class Linear(torch.nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.out = torch.nn.Linear(1, classes)

    def forward(self, x):
        return {"logits": self.out(x[:, None])}


def test_a_trainer_shows_the_same_labels_of_sparse_votes_as_of_dense_ones(tmp_path, sparse, dense):
    settings = []
    for dataset in (sparse, dense):
        data = dataset.add_column("x", [float(i % 7) for i in range(N)]).select(range(1020, 1080))
        args = config(tmp_path, num_train_epochs=2)
        trainer = SLSTrainer(model=Linear(CLASSES), args=args, train_dataset=data, eval_dataset=data)
        trainer.train()
        assert trainer.ledger.digest() == expected_digest(data, Delivery("sls"), 2)
        assert np.isfinite(trainer.evaluate()["eval_soft_nll"])
        settings.append(trainer._stream_settings())
    assert settings[0] == settings[1] and len(settings[0]["train_votes"]) == 16
    trainer.train_dataset = trainer.train_dataset.select(range(30))
    trainer.train()
    assert trainer._stream_settings()["train_votes"] != settings[0]["train_votes"]


def splitting(n: int, classes: int):
    data = sparse_dataset(n, classes)

    def split_and_subsample() -> Dataset:
        train = subsample_votes(split_votes(data, 0.1)["train"], 3, seed=0)
        return prepare_dataset(train, None, "train", Delivery("shuffled_sls"))[0]

    return split_and_subsample


# What any training takes, up to 100 MB, must be well below the bound.
@pytest.mark.parametrize(("work", "n"), [(sparse_training, 50_000), (splitting, 20_000)])
def test_many_classes_are_never_held_for_each_example(work, n):
    classes = 5_000
    assert peak_memory(work, n, classes) < n * classes  # an eighth of the counts in int64
