"""Run by test_gathered_scores.py in one process and in two: all scores of 13 examples, whose logits are known exactly.

The model looks its logits up, so that no batch's rounding can differ. It is trained for two steps with a checkpoint
after each, of which `soft_nll` selects one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from hf_softlabel import SoftLabelConfig, VotesTrainer, votes_features

EXAMPLES = 13


class Table(nn.Module):
    """Logits (EXAMPLES, 3) by row."""

    def __init__(self):
        super().__init__()
        logits = np.random.default_rng(0).normal(scale=2, size=(EXAMPLES, 3))
        self.logits = nn.Embedding.from_pretrained(torch.tensor(logits, dtype=torch.float32), freeze=False)

    def forward(self, input_ids):
        return self.logits(input_ids[:, 0])


def data() -> Dataset:
    rng = np.random.default_rng(1)
    columns = {
        "votes": [rng.multinomial(9, p).tolist() for p in rng.dirichlet(np.ones(3), EXAMPLES)],
        "example_id": list(range(EXAMPLES)),
        "label": rng.integers(0, 3, EXAMPLES).tolist(),
    }
    votes = Dataset.from_dict(columns, features=votes_features(["a", "b", "c"]))
    return votes.add_column("input_ids", [[i] for i in range(EXAMPLES)])


def main(out: Path, evaluate_first: bool) -> None:
    args = SoftLabelConfig(
        output_dir=str(out),
        delivery="soft",
        use_cpu=True,
        max_steps=2,
        learning_rate=1.0,
        optim="sgd",
        per_device_train_batch_size=1,
        per_device_eval_batch_size=2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="soft_nll",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = VotesTrainer(model=Table(), args=args, train_dataset=data(), eval_dataset=data())
    before = trainer.evaluate() if evaluate_first else {}
    trainer.train()
    after = trainer.evaluate()
    found = {
        "world_size": args.world_size,
        "before": before,
        "after": after,
        "best_metric": trainer.state.best_metric,
        "best_step": trainer.state.best_global_step,
        "history": [line["eval_soft_nll"] for line in trainer.state.log_history if "eval_soft_nll" in line],
        "weights": trainer.model.logits.weight.detach().tolist(),
    }
    if args.process_index == 0:
        (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), evaluate_first="--evaluate_first" in sys.argv)
