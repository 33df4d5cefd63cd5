"""Sparse votes: the labels of the dense ones, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_softlabel import SparseVotes, VotesError
from hf_softlabel.delivery import multipass_label, sls_label

COUNTS = st.integers(2, 6).flatmap(
    lambda c: st.lists(st.lists(st.integers(0, 4), min_size=c, max_size=c).filter(any), min_size=1, max_size=12)
)


@given(COUNTS, st.integers(0, 2**40), st.integers(0, 9), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_labels_are_those_of_the_dense_votes(rows, seed, epoch, every):
    votes, ids = torch.tensor(rows), torch.arange(len(rows)) * 7 + 3
    sparse = SparseVotes.from_dense(votes)
    assert len(sparse) == len(rows) and len(sparse.labels) == votes.sum()
    drawn = sparse.sls_label(ids, epoch, seed, every)
    assert drawn.dtype == torch.int64 and torch.equal(drawn, sls_label(votes, ids, epoch, seed, every))
    assert torch.equal(sparse.multipass_label(ids, epoch, seed), multipass_label(votes, ids, epoch, seed))


def test_labels_do_not_depend_on_the_blocks_that_they_are_made_by(monkeypatch):
    votes, ids = torch.randint(0, 4, (50, 3), generator=torch.Generator().manual_seed(0)) + 1, torch.arange(50) * 7
    sparse = SparseVotes.from_dense(votes)
    monkeypatch.setattr("hf_softlabel.sparse_votes._BLOCK", 16)  # 50 is no multiple of it
    assert torch.equal(sparse.sls_label(ids, 2, 0), sls_label(votes, ids, 2, 0))
    assert torch.equal(sparse.multipass_label(ids, 2, 0), multipass_label(votes, ids, 2, 0))


def test_rows_of_the_contract_give_the_same_votes_in_any_order_of_the_classes():
    sparse = SparseVotes.from_rows([[2, 0], [1, 1], [4]], [[3, 1], [2, 2], [1]], num_classes=5)
    dense = SparseVotes.from_dense(torch.tensor([[1, 0, 3, 0, 0], [0, 4, 0, 0, 0], [0, 0, 0, 0, 1]]))
    for one in (sparse, dense):
        assert one.labels.tolist() == [0, 2, 2, 2, 1, 1, 1, 1, 4]
        assert one.offsets.tolist() == [0, 4, 8, 9]


@pytest.mark.parametrize(
    "labels, counts, message",
    [
        ([[0], [1, 2]], [[1], [1]], "differ in length in rows 1"),
        ([[0], [5]], [[1], [1]], "a label outside of 0..4 in rows 1"),
        ([[-1], [2]], [[1], [1]], "a label outside of 0..4 in rows 0"),
        ([[0], [1]], [[1], [-2]], "a negative count in rows 1"),
        ([[0], [1, 2]], [[1], [2**31 - 1, 1]], "2147483648 votes or more in rows 1"),
        ([[0, 3], [1]], [[2**62, 2**62], [1]], "2147483648 votes or more in rows 0"),
        ([[0], [1], []], [[1], [0], []], "Nobody voted on the examples of rows 1, 2"),
    ],
)
def test_wrong_rows_are_named(labels, counts, message):
    with pytest.raises(VotesError, match=message):
        SparseVotes.from_rows(labels, counts, num_classes=5)


def test_there_is_one_id_for_each_example():
    votes = SparseVotes.from_rows([[2], [1]], [[3], [2]], num_classes=5)
    for label in (votes.sls_label, votes.multipass_label):
        with pytest.raises(VotesError, match="5 example ids for the votes on 2 examples"):
            label(torch.arange(5), epoch=0, seed=0)


def test_probabilities_are_refused():
    with pytest.raises(VotesError, match="integer counts"):
        SparseVotes.from_dense(torch.tensor([[0.5, 0.5]]))
