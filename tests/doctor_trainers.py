"""What the doctor's tests share: stock Trainers, done right and in the ways in which users go wrong."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from hf_softlabel import load_model, tokenize_votes
from hf_softlabel.data.synthetic import TONES


def wrong(found) -> list[str]:
    return [finding.name for finding in found if finding.severity == "wrong"]


def notes(found) -> list[str]:
    return [finding.name for finding in found if finding.severity == "note"]


def distributions(dataset: Dataset) -> list[list[float]]:
    votes = np.asarray(dataset["votes"][:], np.float64)
    return (votes / votes.sum(1, keepdims=True)).tolist()


def tokenised(texts) -> dict[str, Dataset]:
    """Tokenised texts with `votes` (counts), `example_id` and the gold `label`, and a column of distributions."""
    _, tokenizer = load_model("synthetic-bert", TONES, task="text")
    splits = {name: tokenize_votes(split, tokenizer) for name, split in texts.items()}
    return {name: split.add_column("p", distributions(split)) for name, split in splits.items()}


def arguments(output_dir, **options) -> TrainingArguments:
    """Of a stock Trainer that is to be quick and quiet."""
    return TrainingArguments(
        output_dir=str(output_dir),
        per_device_train_batch_size=8,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        **options,
    )


def stock(tmp_path, train, held_out=None, cls=Trainer, names=TONES, model=None, **options) -> Trainer:
    """A stock Trainer with a stock BERT; `trainer` are the Trainer's own arguments."""
    made, tokenizer = load_model("synthetic-bert", names, task="text")
    further = {key: options.pop(key) for key in ("compute_loss_func", "callbacks") if key in options}
    return cls(
        model=made if model is None else model,
        args=arguments(tmp_path / "run", **options),
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=DataCollatorWithPadding(tokenizer),
        **further,
    )


def hard(dataset: Dataset) -> Dataset:
    """Hard labels only: what most Trainers are given."""
    return dataset.remove_columns(["votes", "example_id", "p"])


def soft(dataset: Dataset) -> Dataset:
    """Distributions as `labels`: what users try first."""
    return dataset.remove_columns(["votes", "example_id", "label"]).rename_column("p", "labels")


class SoftTrainer(Trainer):
    """A user's own trainer, done right: counts under `votes`, divided by their sum."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        votes = inputs.pop("votes").float()
        inputs = {key: value for key, value in inputs.items() if key in ("input_ids", "attention_mask")}
        outputs = model(**inputs)
        loss = self.loss(outputs.logits, votes)
        return (loss, outputs) if return_outputs else loss

    def loss(self, logits, votes):
        return F.cross_entropy(logits, votes / votes.sum(1, keepdim=True))


class Resampling(torch.utils.data.Dataset):
    """Labels drawn in the data set: by the epoch that it is told, from a generator of its own, or the global one."""

    def __init__(self, tokens: Dataset, how: str):
        self.rows = [dict(row) for row in tokens.select_columns(["input_ids", "attention_mask", "p"])]
        self.how, self.epoch, self.rng = how, 0, np.random.default_rng(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict:
        row = self.rows[i]
        rng = {
            "epoch": lambda: np.random.default_rng((self.epoch, i)),
            "own": lambda: self.rng,
            "global": lambda: np.random,
        }
        rng["constant"] = lambda: np.random.default_rng(i)
        label = int(rng[self.how]().choice(3, p=row["p"]))
        return {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"], "labels": label}
