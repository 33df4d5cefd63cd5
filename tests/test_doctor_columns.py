"""The doctor knows votes from other columns: those that are dropped are found, and healthy Trainers are left alone."""

from __future__ import annotations

import pytest
from doctor_trainers import SoftTrainer, hard, notes, stock, tokenised, wrong
from trainers import text_trainer

from hf_softlabel.doctor import examine_trainer


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
