"""The doctor knows votes from other columns: those that are dropped are found, and healthy Trainers are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from doctor_trainers import SoftTrainer, hard, notes, stock, tokenised, wrong
from trainers import text_trainer

from hf_softlabel import VotesError
from hf_softlabel.doctor import examine_trainer
from hf_softlabel.doctor_columns import table_column, target_kind


@pytest.fixture(scope="module")
def tokens(texts):
    return tokenised(texts)


def test_a_healthy_stock_trainer_with_hard_labels_gives_no_finding(tmp_path, tokens):
    trainer = stock(tmp_path, hard(tokens["train"]), hard(tokens["eval"]))
    assert examine_trainer(trainer) == []


def test_our_own_trainer_gives_no_fault(tmp_path, texts):
    found = examine_trainer(text_trainer(tmp_path, texts, gradient_accumulation_steps=4, delivery="sls"))
    assert set(notes(found)) <= {"tied_votes"} and wrong(found) == []


def test_votes_that_remove_unused_columns_drops(tmp_path, tokens):
    (finding,) = [f for f in examine_trainer(stock(tmp_path, tokens["train"])) if f.severity == "wrong"]
    assert finding.name == "votes_dropped" and "`label` instead" in finding.what and "votes" in finding.where
    # A loss of the user's own does not get them either: the step fails, for a reason that the doctor knows.
    found = examine_trainer(stock(tmp_path, tokens["train"], cls=SoftTrainer))
    assert wrong(found) == ["votes_dropped"]
    kept = examine_trainer(stock(tmp_path, tokens["train"], cls=SoftTrainer, remove_unused_columns=False))
    assert wrong(kept) == []


def test_votes_under_another_name_are_known_by_their_form(tmp_path, tokens):
    train = tokens["train"].remove_columns(["votes", "example_id"])
    assert wrong(examine_trainer(stock(tmp_path, train))) == ["votes_dropped"]
    # Two numbers are no votes on three classes.
    other = hard(tokens["train"]).add_column("place", [[0.5, 0.5]] * len(train))
    assert examine_trainer(stock(tmp_path, other)) == []


def beside(dataset, name, column):
    """Hard labels, and a column of three numbers beside three classes."""
    return hard(dataset).add_column(name, column)


def unrelated(number: int) -> dict[str, list]:
    rng = np.random.default_rng(0)
    return {
        "bbox": rng.random((number, 3)).tolist(),
        "embedding": rng.normal(size=(number, 3)).tolist(),
        "language": np.eye(3)[rng.integers(0, 3, number)].tolist(),
        "vector": [[0.2, 0.3, 0.5], *rng.random((number - 1, 3)).tolist()],  # only the first sums to 1
        "votes": rng.integers(0, 9, number).tolist(),  # how many readers a review had
        "words": [["a", "b", "c"]] * number,
        "absent": [None] * number,
    }


@pytest.mark.parametrize("name", list(unrelated(1)))
def test_an_unrelated_column_is_no_votes(tmp_path, tokens, name):
    train = beside(tokens["train"], name, unrelated(len(tokens["train"]))[name])
    assert examine_trainer(stock(tmp_path, train)) == []
    if name not in ("words", "absent"):  # the collator makes no tensors of them
        assert examine_trainer(stock(tmp_path, train, remove_unused_columns=False)) == []


@pytest.mark.parametrize("name", ["date", "token_counts", "class_distances"])
def test_whole_numbers_without_a_name_for_votes_are_a_note(tmp_path, tokens, name):
    train = beside(tokens["train"], name, [[2026, 1 + i % 12, 1 + i % 28] for i in range(len(tokens["train"]))])
    (note,) = examine_trainer(stock(tmp_path, train))
    assert (note.name, note.severity) == ("votes_dropped", "note") and name in note.where
    assert note.fix.startswith("nothing, if they are no votes")
    # A note does not hide a failure that has nothing to do with it.
    with pytest.raises(VotesError, match="A training step fails with ValueError: The model did not return"):
        examine_trainer(stock(tmp_path, train.remove_columns("label")))


@pytest.mark.parametrize(
    "name", ["counts", "label_dist", "softLabels", "annotator_counts", "human_probs", "vote_counts"]
)
def test_counts_with_a_name_for_votes_are_votes(tmp_path, tokens, name):
    found = examine_trainer(stock(tmp_path, beside(tokens["train"], name, tokens["train"]["votes"][:])))
    assert wrong(found) == ["votes_dropped"] and set(notes(found)) <= {"tied_votes"}


@pytest.mark.parametrize("votes", [{"labels": [0, 2], "counts": [3, 1]}, [0, 1, 1, 2]])
def test_votes_in_another_form_are_votes(tmp_path, tokens, votes):
    train = beside(tokens["train"], "votes", [votes] * len(tokens["train"]))
    assert wrong(examine_trainer(stock(tmp_path, train))) == ["votes_dropped"]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([[1, 0], [0, 1]], "one-hot"),
        ([[1.0, 0.0], [0.0, 1.0]], "one-hot"),
        ([[1, 0], [0, 1], [1, 1]], "yes/no"),
        ([[1.0, 0.0], [0.0, 0.0]], "yes/no"),
        ([[0.4, 0.6], [0.5, 0.5], [0.5, 0.6]], "distribution"),
        ([[1.0, 0.0], [0.5, 0.5], [np.nan, 1.0]], "distribution"),
        ([[3, 0], [1, 1], [0, 0]], "counts"),
        ([[3.0, 0.0], [1.0, 1.0]], "counts"),
        ([[3, 0], [1, 1], [-1, 2]], "counts"),
        ([[0.3, 0.9], [0.0, 0.0], [0.5, 0.5]], "fractions"),
        ([[0.3, 1.9], [0.5, 0.5]], "numbers"),
        ([[-100, 1], [-100, 2]], "numbers"),
    ],
)
def test_what_numbers_are_is_told_by_all_rows(rows, kind):
    assert target_kind(np.array(rows)) == kind


def test_a_column_is_read_as_its_rows_are(tokens):
    train = tokens["train"]
    odd = train.select(range(1, len(train), 2)).with_transform(lambda batch: {})
    np.testing.assert_array_equal(table_column(odd, "votes"), np.asarray(train["votes"][:])[1::2])
    np.testing.assert_array_equal(table_column(odd, "p"), np.asarray(train["p"][:])[1::2])
    assert table_column(train, "input_ids") is None and table_column(train, "label") is None  # ragged; single numbers
