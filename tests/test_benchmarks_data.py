"""The benchmarks of the data path, the step and the epoch, at a small scale: what they write, and that they would
notice if the two sides did not do the same work. Not how fast anything is."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are no part of the package

from benchmarks.__main__ import main  # noqa: E402

KEYS = {"name", "peer", "ratio", "unit", "target", "met", "spread", "sizes", "seconds", "checked"}
KEYS |= {"versions", "machine"}
TARGETS = {
    "images": [">= 20", ">= 20", None, "<= 0.01", None, None],
    "steps": ["<= 1.02"] * 3 + [None] * 3 + ["<= 1.02"] * 3 + [None] * 2,
    "epochs": ["<= 0.9"] * 2 + [None] * 8,
    "hessian": [">= 5", ">= 5", None, None] * 2,
    "text": [None] * 7,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_benchmark_writes_its_rows_and_the_table(name, tmp_path, sources, monkeypatch, capfd):
    if name == "hessian":
        pytest.importorskip("pyhessian", reason="PyHessian is no dependency: `make bench` installs it")
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(sources.resolve()))
    monkeypatch.chdir(ROOT)
    # 1 is a missed target, which says nothing at this scale.
    assert main([name, "--scale", "0.01", "--output", str(tmp_path)]) in (0, 1), capfd.readouterr().err
    printed = capfd.readouterr().out
    rows = json.loads((tmp_path / f"{name}.json").read_text())
    assert [row["target"] for row in rows] == TARGETS[name]
    for row in rows:
        assert row.keys() == KEYS
        assert math.isfinite(row["ratio"]) and row["unit"] and row["peer"]
        assert row["spread"] is None or row["spread"][0] <= row["ratio"] <= row["spread"][1]
        assert {"hf_softlabel", "torch", "transformers"} <= row["versions"].keys()
        if row["target"] is None:
            assert row["met"] is None
        else:
            relation, number = row["target"].split()
            reached = row["ratio"] >= float(number) if relation == ">=" else row["ratio"] <= float(number)
            assert row["met"] is reached and row["checked"] and row["sizes"]
    table = (tmp_path / "README.md").read_text()
    assert all(f"| {row['name']} | {row['peer']} |" in table for row in rows)
    assert printed.count("\n") == len(rows), "a line for each row, and no other output"


@pytest.fixture
def data(sources, monkeypatch):
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(sources.resolve()))
    from benchmarks.real_data import cifar10h, image_store

    return cifar10h(40), image_store(40)


@pytest.mark.parametrize("column", ["pixel_values", "votes"])
def test_the_image_benchmark_notices_other_pixels_and_votes(data, column):
    from benchmarks.images import check_equal
    from hf_softlabel.data.images import VotesImages

    dataset, store = data
    assert "crop and flip" in check_equal(dataset, store)
    columns = {name: store.column(name).clone() for name in ("pixel_values", "votes", "example_id", "gold_label")}
    columns[column][7].view(-1)[0] += 1
    with pytest.raises(AssertionError):
        check_equal(dataset, VotesImages(*columns.values(), names=store.names))


def test_the_step_benchmark_notices_other_inputs(data, tmp_path):
    from transformers import Trainer, TrainingArguments

    from benchmarks.images import TRANSFORM
    from benchmarks.steps import HardImages, _arguments, check_equal, resnet
    from hf_softlabel import SLSTrainer, SoftLabelConfig

    _, store = data
    args = _arguments(SoftLabelConfig, str(tmp_path), 8)
    ours = SLSTrainer(model=resnet(store), args=args, train_dataset=store, image_transform=TRANSFORM)

    def stock(collate) -> Trainer:
        args = _arguments(TrainingArguments, str(tmp_path), 8)
        return Trainer(model=resnet(store), args=args, train_dataset=HardImages(store), data_collator=collate)

    def not_augmented(batch):
        return {**HardImages(store).collate(batch), "pixel_values": TRANSFORM(batch["pixel_values"])}

    assert "equal inputs" in check_equal(ours, stock(HardImages(store).collate))
    with pytest.raises(AssertionError, match="pixel_values differ"):
        check_equal(ours, stock(not_augmented))


def test_the_epoch_benchmark_notices_another_training(data, tmp_path):
    from benchmarks.epochs import NO_FILTER, StoreWithLabels, check_equal, our_trainer, stock_trainer

    _, store = data
    labels = store.column("votes").argmax(1)
    fast = {"max_grad_norm": 0, "logging_strategy": "epoch", **NO_FILTER}

    def stock(labels: torch.Tensor):
        return stock_trainer(StoreWithLabels(store, labels), str(tmp_path), **fast)

    assert "weights are equal" in check_equal(our_trainer(store, str(tmp_path)), stock(labels))
    other = labels.clone()
    other[3] = (other[3] + 1) % 10
    with pytest.raises(AssertionError):
        check_equal(our_trainer(store, str(tmp_path)), stock(other))


def test_the_hessian_benchmark_says_whether_the_errors_are_the_same():
    from benchmarks.hessian import Curvature, compared, errors

    found = [Curvature(10.0, 97.0), Curvature(10.0, 104.0)]
    own = errors(found, reference=Curvature(10.0, 100.0))
    assert own.lambda_max == 0 and own.trace == pytest.approx(math.sqrt((0.03**2 + 0.04**2) / 2))
    assert "; the same error: " in compared(Curvature(0.0, 0.01), Curvature(0.014, 0.001), 2, "exact")
    for other in (0.016, 0.006):
        text = compared(Curvature(0.0, 0.01), Curvature(other, 0.001), 2, "exact")
        assert "; NOT the same error: " in text and f"{other / 0.01:.2f} times ours" in text


def test_the_tokenizer_is_the_same_each_time_it_is_learnt(sources, monkeypatch):
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(sources.resolve()))
    from benchmarks.real_data import wordpiece

    first = wordpiece()
    wordpiece.cache_clear()
    again = wordpiece()
    assert again is not first and again.get_vocab() == first.get_vocab()
    assert len(first) == 8000 and first.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]"]
    # A known word, one in pieces, and the mark of pieces where it is text, which no text here has.
    assert first.tokenize("money moneyest ##a") == ["money", "money", "##est", "[UNK]", "[UNK]", "a"]
