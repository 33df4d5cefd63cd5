"""Healthy Trainers of other tasks, as their users make them, in which the doctor must find nothing wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from doctor_trainers import arguments
from PIL import Image
from torch import nn
from torch.utils.data import SequentialSampler
from torchvision import transforms
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
    ViTConfig,
    ViTForImageClassification,
)

from hf_softlabel.doctor import examine_trainer

EXAMPLES, TOKENS = 24, 8
RNG = np.random.default_rng(0)
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class InOrder(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


def trainer(tmp_path, model, train, collator=None, cls=Trainer, loss=None, **options) -> Trainer:
    args = arguments(tmp_path, **options)
    return cls(model=model, args=args, train_dataset=train, data_collator=collator, compute_loss_func=loss)


def bert(num_labels: int = 2, problem_type: str | None = None) -> BertConfig:
    return BertConfig(
        vocab_size=50, max_position_embeddings=16, num_labels=num_labels, problem_type=problem_type, **SIZES
    )


def texts(**columns) -> Dataset:
    """Token ids and further columns, of which each is an array of `EXAMPLES` rows."""
    ids = RNG.integers(1, 50, (EXAMPLES, TOKENS))
    lists = {name: column.tolist() for name, column in {"input_ids": ids, **columns}.items()}
    return Dataset.from_dict(lists)


def token_labels() -> np.ndarray:
    labels = RNG.integers(0, 3, (EXAMPLES, TOKENS))
    labels[:, 0] = -100
    return labels


@pytest.mark.parametrize(
    ("model", "config", "columns"),
    [
        (BertForSequenceClassification, bert(1), {"label": RNG.normal(size=EXAMPLES)}),
        (BertForSequenceClassification, bert(1), {"labels": RNG.random((EXAMPLES, 1))}),
        (BertForSequenceClassification, bert(3, "regression"), {"labels": RNG.normal(size=(EXAMPLES, 3))}),
        (BertForSequenceClassification, bert(3, "regression"), {"labels": RNG.dirichlet([1] * 3, EXAMPLES)}),
        (BertForTokenClassification, bert(3), {"labels": token_labels()}),
        (BertForTokenClassification, bert(TOKENS), {"labels": token_labels()}),
        (BertForTokenClassification, bert(TOKENS), {"labels": RNG.integers(0, 8, (EXAMPLES, TOKENS))}),
        (BertForMaskedLM, bert(), {"labels": RNG.integers(0, 50, (EXAMPLES, TOKENS))}),
    ],
    ids=["regression", "column", "scores", "shares", "tags", "as-many-tags", "unpadded-tags", "masked-lm"],
)
def test_a_text_task_gives_no_finding(tmp_path, model, config, columns):
    assert examine_trainer(trainer(tmp_path, model(config), texts(**columns))) == []


def test_answers_in_a_text_give_a_note_at_most(tmp_path):
    places = RNG.integers(0, TOKENS, (EXAMPLES, 2))
    train = texts(start_positions=places[:, 0], end_positions=places[:, 1], offsets=places)
    found = examine_trainer(trainer(tmp_path, BertForQuestionAnswering(bert()), train))
    assert [finding.severity for finding in found] == ["note"]


@pytest.mark.parametrize("workers", [0, 1])
def test_images_with_random_augmentation_give_no_finding(tmp_path, workers):
    pixels = RNG.integers(0, 255, (EXAMPLES, 16, 16, 3), dtype=np.uint8)
    names = ["a", "b", "c"]
    train = Dataset.from_dict(
        {"image": [Image.fromarray(image) for image in pixels], "label": RNG.integers(0, 3, EXAMPLES).tolist()}
    ).cast_column("label", ClassLabel(names=names))
    augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])

    def transform(batch):
        batch["pixel_values"] = [augment(image) for image in batch["image"]]
        return batch

    def collate(rows):
        pixel_values = torch.stack([row["pixel_values"] for row in rows])
        return {"pixel_values": pixel_values, "labels": torch.tensor([row["label"] for row in rows])}

    config = ViTConfig(image_size=16, patch_size=8, id2label=dict(enumerate(names)), **SIZES)
    options = {"remove_unused_columns": False, "dataloader_num_workers": workers}
    model = ViTForImageClassification(config)
    assert examine_trainer(trainer(tmp_path, model, train.with_transform(transform), collate, **options)) == []


class Linear(nn.Module):
    """A model of the user's own, without a config."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(TOKENS, 3)

    def forward(self, features, labels):
        logits = self.layer(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_table_and_a_model_of_ones_own_give_no_finding(tmp_path):
    columns = {
        "features": np.full((EXAMPLES, TOKENS), 1 / TOKENS),  # an input, though its rows look like tied votes
        "labels": RNG.integers(0, 3, EXAMPLES),
        "months": RNG.integers(0, 9, (EXAMPLES, 12)),
    }
    train = Dataset.from_dict({name: column.tolist() for name, column in columns.items()})
    assert examine_trainer(trainer(tmp_path, Linear(), train)) == []


def summed_over_tokens(outputs, labels, num_items_in_batch=None):
    logits = outputs.logits.view(-1, outputs.logits.shape[-1])
    return nn.functional.cross_entropy(logits, labels.view(-1), reduction="sum") / num_items_in_batch


def test_accumulated_batches_may_have_other_numbers_of_tokens(tmp_path):
    """8 tags that the model does not know, then 64 that it knows: the mean over tags is not that over batches."""
    model = BertForTokenClassification(bert(3))
    with torch.no_grad():
        model.classifier.bias[0] += 10
    labels = np.zeros((EXAMPLES, TOKENS), int)
    labels[:8] = -100
    labels[:8, 0] = 1
    options = {"gradient_accumulation_steps": 2, "loss": summed_over_tokens, "cls": InOrder}
    assert examine_trainer(trainer(tmp_path, model, texts(labels=labels), **options)) == []
