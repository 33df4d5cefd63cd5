"""The doctor on data: bad rows, ties, classes in another order, and examples that are trained on and held out."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import concatenate_datasets
from doctor_trainers import hard, notes, stock, tokenised, wrong
from trainers import config, text_trainer

from hf_softlabel import VotesTrainer, load_model
from hf_softlabel.doctor import examine_splits, examine_trainer
from hf_softlabel.doctor_checks import check_class_order, check_rows


@pytest.fixture(scope="module")
def tokens(texts):
    return tokenised(texts)


def test_classes_in_another_order(tmp_path, tokens):
    train = hard(tokens["train"])
    (finding,) = examine_trainer(stock(tmp_path, train, names=["positive", "Neutral", "negative"]))
    assert (finding.name, finding.severity) == ("class_order", "wrong")
    nli = check_class_order(
        ["entailment", "neutral", "contradiction"], {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    )
    assert wrong(nli) == ["class_order"]
    (note,) = examine_trainer(stock(tmp_path, train, names=["red", "green", "blue"]))
    assert (note.name, note.severity) == ("class_names", "note")
    assert examine_trainer(stock(tmp_path, train, names=["LABEL_0", "LABEL_1", "LABEL_2"])) == []


def test_rows_that_are_no_distribution_and_rows_with_a_tie(tmp_path, tokens):
    p = np.asarray(tokens["train"]["p"][:])
    p[[3, 7]] *= 4
    train = tokens["train"].remove_columns(["votes", "example_id", "label", "p"]).add_column("p", p.tolist())
    train = train.rename_column("p", "labels")
    (finding,) = [f for f in examine_trainer(stock(tmp_path, train)) if f.name == "unnormalised_votes"]
    assert finding.severity == "wrong" and "rows 3, 7" in finding.where and "sum to 4, 4" in finding.what
    found = check_rows(np.array([[2, 2, 1], [3, 0, 1], [1, 1, 1]]), "train")
    assert notes(found) == ["tied_votes"] and wrong(found) == [] and "rows 0, 2" in found[0].where
    assert wrong(check_rows(np.array([[2, 2, 1], [0, 0, 0], [-1, 1, 1]]), "train")) == ["unnormalised_votes"]
    assert wrong(check_rows(np.array([[0.1] * 10], np.float32), "train")) == []


def test_examples_that_are_trained_on_and_held_out(tmp_path, texts):
    leak = {"train": texts["train"], "eval": concatenate_datasets([texts["eval"], texts["train"].select([4])])}
    (finding,) = [f for f in examine_trainer(text_trainer(tmp_path, leak)) if f.severity == "wrong"]
    assert finding.name == "common_examples" and f"example_id {texts['train'][4]['example_id']}" in finding.where


def test_inputs_that_are_trained_on_and_held_out_under_another_id(tmp_path, texts):
    copied = texts["train"].select([4]).map(lambda row: {"example_id": 10**6})
    leak = {"train": texts["train"], "eval": concatenate_datasets([texts["eval"], copied])}
    (finding,) = [f for f in examine_trainer(text_trainer(tmp_path, leak)) if f.severity == "wrong"]
    assert finding.name == "common_inputs" and f"4 = {len(texts['eval'])}" in finding.where


def test_images_in_common(tmp_path, images):
    copied = images["train"].select([2]).map(lambda row: {"example_id": 10**6})
    leak = {"train": images["train"], "eval": concatenate_datasets([images["eval"], copied])}
    assert wrong(examine_splits(leak)) == ["common_inputs"]
    assert wrong(examine_splits(dict(images))) == []
    # As the trainer has them: decoded, in memory.
    model, processor = load_model("resnet18", images["train"].features["label"].names, task="image", width=0.125)
    for held_out, expected in (
        (leak["eval"], ["common_inputs"]),
        (images["train"].select([2]), ["common_examples"]),
        (images["eval"], []),
    ):
        options = {"train_dataset": images["train"], "eval_dataset": held_out, "processing_class": processor}
        assert wrong(examine_trainer(VotesTrainer(model=model, args=config(tmp_path), **options))) == expected
