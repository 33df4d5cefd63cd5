"""Collators: votes by the contract, everything else by the inner collator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import BertTokenizerFast, DataCollatorWithPadding, ViTImageProcessor, default_data_collator

from hf_softlabel.collators import ChoiceCollator, VotesCollator, input_collator
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.votes import votes_features


def row(votes, example_id=0, **columns):
    return {"votes": votes, "example_id": example_id, **columns}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog"]
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    path.write_text("\n".join(words))
    return BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}, vocab_file=str(path))


def test_counts_become_int64_and_probabilities_float32():
    counts = VotesCollator(3)([row([1, 2, 0], 5), row([0, 0, 9], 6)])
    assert counts["votes"].dtype == torch.int64
    assert counts["votes"].tolist() == [[1, 2, 0], [0, 0, 9]]
    assert counts["example_id"].dtype == torch.int64
    assert counts["example_id"].tolist() == [5, 6]
    probabilities = VotesCollator(2)([row([0.25, 0.75]), row([1.0, 0.0])])
    assert probabilities["votes"].dtype == torch.float32
    assert probabilities["votes"].tolist() == [[0.25, 0.75], [1.0, 0.0]]


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_and_tensors_are_votes_too(kind):
    batch = VotesCollator(2)([row(kind([1, 2]), kind(3)), row(kind([3, 4]), kind(2**40))])
    assert batch["votes"].tolist() == [[1, 2], [3, 4]]
    assert batch["example_id"].tolist() == [3, 2**40]


def test_sparse_votes_are_densified():
    batch = VotesCollator(5)([row({"labels": [4, 1], "counts": [2, 1]}), row({"labels": [0], "counts": [7]}, 1)])
    assert batch["votes"].dtype == torch.int64
    assert batch["votes"].tolist() == [[0, 1, 0, 0, 2], [7, 0, 0, 0, 0]]


def test_rows_of_a_data_set_are_collated_as_they_come():
    features = votes_features(["no", "yes"])
    columns = {"votes": [[1, 2], [3, 0]], "example_id": [10, 11], "label": [None, 1]}
    data = Dataset.from_dict(columns, features=features)
    batch = VotesCollator(2)([data[0], data[1]])
    assert batch["votes"].tolist() == [[1, 2], [3, 0]]
    assert batch["gold_label"].tolist() == [-1, 1]


def test_gold_label_is_minus_one_where_there_is_none():
    rows = [row([1, 1], 0, label=None), row([1, 1], 1, label=1), row([1, 1], 2)]
    batch = VotesCollator(2)(rows)
    assert batch["gold_label"].tolist() == [-1, 1, -1]
    assert batch["gold_label"].dtype == torch.int64
    assert VotesCollator(2)([row([1, 1], label=0, gold_label=1)])["gold_label"].tolist() == [1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2, 3], "2 entries in each row"),
        ([1, -1], "negative"),
        ([0, 0], "all zero"),
        ([1, None], "missing entries"),
        (None, "2 entries in each row"),
    ],
)
def test_errors_name_the_row_and_the_example_ids(wrong, message):
    with pytest.raises(VotesError, match=rf"{message}.*example ids \[907, 908\]") as error:
        VotesCollator(2)([row([1, 2], 907), row(wrong, 908)])
    assert "1" in str(error.value).split("(rows of the batch")[0]


def test_errors_of_sparse_and_float_rows_name_the_example_ids():
    with pytest.raises(VotesError, match=r"Unknown label in rows 0.*example ids \[31\]"):
        VotesCollator(2)([row({"labels": [2], "counts": [1]}, 31)])
    with pytest.raises(VotesError, match=r"do not sum to 1.*example ids \[32\]"):
        VotesCollator(2)([row([0.5, 0.6], 32)])


def test_rows_without_vote_columns_are_refused_with_what_they_have():
    with pytest.raises(VotesError, match="no votes and example_id, only: x"):
        VotesCollator(2)([{"x": 1.0}])
    with pytest.raises(VotesError, match="no example_id, only: votes, x"):
        VotesCollator(2)([{"votes": [1, 2], "x": 1.0}])


def test_the_inner_collator_gets_the_inputs_only():
    seen = []

    def inner(rows):
        seen.extend(rows)
        return default_data_collator(rows)

    rows = [row([1, 2], 3, label=1, gold_label=0, x=[1.0, 2.0])]
    batch = VotesCollator(2, inner)(rows)
    assert seen == [{"x": [1.0, 2.0]}]
    assert sorted(batch) == ["example_id", "gold_label", "votes", "x"]
    assert batch["x"].tolist() == [[1.0, 2.0]]
    assert rows[0]["votes"] == [1, 2], "the rows themselves are left alone"


def test_a_batch_that_is_made_already_passes_through():
    made = {"pixel_values": torch.zeros(2, 3), "votes": torch.ones(2, 2), "example_id": torch.arange(2)}
    batch = VotesCollator(2)(made)
    assert batch is not made
    assert all(batch[key] is made[key] for key in made)
    assert set(batch) - set(made) == {"gold_label"} and batch["gold_label"].tolist() == [-1, -1]
    assert VotesCollator(2)({**made, "gold_label": torch.tensor([1, 0])})["gold_label"].tolist() == [1, 0]


def test_texts_are_padded_beside_their_votes(tokenizer):
    collator = VotesCollator(2, input_collator(tokenizer, choices=False, pixels=False))
    assert isinstance(collator.inputs, DataCollatorWithPadding)
    texts = [tokenizer("a cat"), tokenizer("a")]
    batch = collator([row([1, 2], i, label=0, **text) for i, text in enumerate(texts)])
    assert batch["input_ids"].tolist() == [[2, 5, 6, 3], [2, 5, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert "labels" not in batch


def test_choices_are_padded_to_one_block_without_a_label(tokenizer):
    collator = VotesCollator(2, input_collator(tokenizer, choices=True, pixels=False))
    assert isinstance(collator.inputs, ChoiceCollator)
    pairs = [tokenizer(["a cat", "a"]), tokenizer(["dog", "a cat dog"])]
    batch = collator([row([1, 2], i, **pair) for i, pair in enumerate(pairs)])
    assert batch["input_ids"].tolist() == [[[2, 5, 6, 3, 0], [2, 5, 3, 0, 0]], [[2, 7, 3, 0, 0], [2, 5, 6, 7, 3]]]
    assert "labels" not in batch
    assert batch["votes"].tolist() == [[1, 2], [1, 2]]


def test_without_a_tokenizer_the_stock_collator_is_used():
    assert input_collator(None, choices=False, pixels=False) is default_data_collator


def test_images_of_a_stream_are_stacked_beside_their_votes():
    processor = ViTImageProcessor(size={"height": 4, "width": 4})
    collator = VotesCollator(2, input_collator(processor, choices=False, pixels=True))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    batch = collator([row([1, 2], i, pixel_values=Image.fromarray(pixels[i])) for i in range(2)])
    assert batch["pixel_values"].dtype == torch.uint8
    assert batch["pixel_values"].permute(0, 2, 3, 1).tolist() == pixels.tolist()
    assert batch["votes"].tolist() == [[1, 2], [1, 2]]
