"""The doctor knows what `labels` are: distributions, counts, yes/no questions or numbers, and who takes which."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from doctor_trainers import hard, notes, soft, stock, tokenised, wrong

from hf_softlabel import load_model
from hf_softlabel.data.synthetic import TONES
from hf_softlabel.doctor import examine_trainer


@pytest.fixture(scope="module")
def tokens(texts):
    return tokenised(texts)


def labelled(dataset: Dataset, labels: np.ndarray) -> Dataset:
    return dataset.remove_columns(["votes", "example_id", "label", "p"]).add_column("labels", labels.tolist())


class Rows(torch.utils.data.Dataset):
    """A data set without a table: the doctor knows no more of it than the batches that it reads."""

    def __init__(self, dataset: Dataset):
        self.rows = list(dataset)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict:
        return self.rows[i]


def declared(problem_type: str | None):
    model, _ = load_model("synthetic-bert", TONES, task="text")
    model.config.problem_type = problem_type
    return model


def one_hot(number: int) -> np.ndarray:
    return np.eye(3)[np.arange(number) % 3]


def test_multi_label_targets_are_no_votes(tmp_path, tokens):
    rows = np.array([[1.0, i % 2, 0.0] for i in range(len(tokens["train"]))])
    assert examine_trainer(stock(tmp_path, labelled(tokens["train"], rows))) == []


@pytest.mark.parametrize("problem_type", [None, "multi_label_classification"])
def test_a_task_is_multi_label_by_all_of_its_rows(tmp_path, tokens, problem_type):
    """One row of two labels among many of one, of which a batch may see nothing."""
    for place in range(0, len(tokens["train"]), 7):
        rows = one_hot(len(tokens["train"]))
        rows[place] = [1, 1, 0]
        trainer = stock(tmp_path, labelled(tokens["train"], rows), model=declared(problem_type))
        assert examine_trainer(trainer) == []


def test_one_label_in_each_row_is_as_the_model_declares(tmp_path, tokens):
    train = labelled(tokens["train"], one_hot(len(tokens["train"])))
    assert wrong(examine_trainer(stock(tmp_path, train))) == ["bce_head"]
    (note,) = examine_trainer(stock(tmp_path, train, model=declared("multi_label_classification")))
    assert (note.name, note.severity) == ("bce_head", "note")
    assert note.fix.startswith("nothing, if examples can have several labels; else ")
    # Rows that were not seen may have several.
    (note,) = examine_trainer(stock(tmp_path, Rows(train)))
    assert (note.name, note.severity) == ("bce_head", "note")
    # Distributions are never several labels, whatever is declared.
    trap = stock(tmp_path, soft(tokens["train"]), model=declared("multi_label_classification"))
    assert wrong(examine_trainer(trap)) == ["bce_head"]
    assert wrong(examine_trainer(stock(tmp_path, Rows(soft(tokens["train"]))))) == ["bce_head"]


def test_labels_that_are_neither_a_distribution_nor_yes_or_no(tmp_path, tokens):
    rng = np.random.default_rng(0)
    fractions = labelled(tokens["train"], rng.random((len(tokens["train"]), 3)))
    (note,) = examine_trainer(stock(tmp_path, fractions))
    assert (note.name, note.severity) == ("bce_head", "note") and "do not sum to 1" in note.what
    for problem_type in ("multi_label_classification", "regression"):
        assert examine_trainer(stock(tmp_path, fractions, model=declared(problem_type))) == []
    scores = labelled(tokens["train"], rng.normal(size=(len(tokens["train"]), 3)))
    (finding,) = examine_trainer(stock(tmp_path, scores))
    assert (finding.name, finding.severity) == ("bce_head", "wrong") and "problem_type='regression'" in finding.fix
    assert examine_trainer(stock(tmp_path, scores, model=declared("regression"))) == []


def test_counts_as_labels(tmp_path, tokens):
    counts = np.asarray(tokens["train"]["votes"][:])
    train = labelled(tokens["train"], counts)
    for dataset in (train, Rows(train)):
        (finding,) = examine_trainer(stock(tmp_path, dataset))
        assert (finding.name, finding.severity) == ("integer_labels", "wrong")
        assert "a step fails with ValueError" in finding.what and "rename the column to `votes`" in finding.fix
    # As floats they go through the head without a word.
    assert wrong(examine_trainer(stock(tmp_path, labelled(tokens["train"], counts.astype(float))))) == ["bce_head"]


@pytest.mark.parametrize("problem_type", [None, "multi_label_classification"])
def test_multi_label_targets_as_whole_numbers(tmp_path, tokens, problem_type):
    rows = np.array([[1, i % 2, 0] for i in range(len(tokens["train"]))])
    (finding,) = examine_trainer(stock(tmp_path, labelled(tokens["train"], rows), model=declared(problem_type)))
    assert (finding.name, finding.severity) == ("integer_labels", "wrong") and "store them as floats" in finding.fix


def test_label_smoothing_of_soft_labels(tmp_path, tokens):
    counts = np.asarray(tokens["train"]["votes"][:])
    for train in (soft(tokens["train"]), labelled(tokens["train"], counts), labelled(tokens["train"], counts % 3)):
        (finding,) = examine_trainer(stock(tmp_path, train, label_smoothing_factor=0.1))
        assert (finding.name, finding.severity) == ("label_smoothing", "wrong")
        assert "label_smoothing_factor=0;" in finding.fix and "0.9 * p + 0.0333" in finding.fix
    assert examine_trainer(stock(tmp_path, hard(tokens["train"]), label_smoothing_factor=0.1)) == []


def test_a_loss_of_ones_own_on_counts_as_labels(tmp_path, tokens):
    def loss(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs.logits, labels / labels.sum(1, keepdim=True))

    def unnormalised(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs.logits, labels.float())

    train = labelled(tokens["train"], np.asarray(tokens["train"]["votes"][:]))
    assert wrong(examine_trainer(stock(tmp_path, train, compute_loss_func=loss))) == []
    found = examine_trainer(stock(tmp_path, train, compute_loss_func=unnormalised))
    assert wrong(found) == ["loss_unnormalised"]


def test_a_binary_cross_entropy_of_ones_own_is_meant(tmp_path, tokens):
    def loss(outputs, labels, num_items_in_batch=None):
        return F.binary_cross_entropy_with_logits(outputs.logits, labels)

    found = examine_trainer(stock(tmp_path, soft(tokens["train"]), compute_loss_func=loss))
    assert wrong(found) == [] and "another_loss" in notes(found)


def test_votes_beside_labels_that_are_made_of_them_are_not_missed(tmp_path, tokens):
    def loss(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs.logits, labels)

    train = tokens["train"].remove_columns("label").rename_column("p", "labels")
    assert wrong(examine_trainer(stock(tmp_path, train, compute_loss_func=loss))) == []
    assert wrong(examine_trainer(stock(tmp_path, train))) == ["bce_head"]
