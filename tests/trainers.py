"""What the trainer's tests share."""

from __future__ import annotations

import torch
from datasets import Dataset

from hf_softlabel import SoftLabelConfig, VotesTrainer, load_model
from hf_softlabel.data.synthetic import TONES
from hf_softlabel.data.votes import dense_votes
from hf_softlabel.delivery import Delivery
from hf_softlabel.ledger import Ledger


def config(tmp_path, **options) -> SoftLabelConfig:
    defaults = {
        "output_dir": str(tmp_path / "run"),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
        "seed": 0,
    }
    return SoftLabelConfig(**{**defaults, **options})


def text_trainer(tmp_path, data, cls=VotesTrainer, **options):
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    return cls(
        model=model,
        args=config(tmp_path, **options),
        train_dataset=data["train"],
        eval_dataset=data["eval"],
        processing_class=tokenizer,
    )


def expected_digest(dataset: Dataset, delivery: Delivery, epochs: int) -> str:
    """The ledger of a run that shows each example once in each epoch, worked out from the data set alone."""
    ledger = Ledger()
    votes, ids = torch.from_numpy(dense_votes(dataset)), torch.tensor(dataset["example_id"][:])
    for epoch in range(epochs):
        ledger.begin_epoch(epoch)
        ledger.record(ids, delivery(votes, ids, epoch))
    return ledger.digest()


def batch_of(trainer, dataset_name="train"):
    loader = trainer.get_train_dataloader() if dataset_name == "train" else trainer.get_eval_dataloader()
    return trainer._prepare_inputs(next(iter(loader)))
