"""The doctor knows a Trainer's loss: heads that use BCE, losses that are scaled wrongly, and steps that fail."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from doctor_trainers import SoftTrainer, hard, soft, stock, tokenised, wrong
from transformers import Trainer

import hf_softlabel
from hf_softlabel import SoftLabelConfig, VotesTrainer, load_model
from hf_softlabel.doctor import examine_trainer


@pytest.fixture(scope="module")
def tokens(texts):
    return tokenised(texts)


def test_a_head_that_uses_bce(tmp_path, tokens):
    trainer = stock(tmp_path, soft(tokens["train"]))
    (finding,) = [f for f in examine_trainer(trainer) if f.severity == "wrong"]
    assert finding.name == "bce_head" and "problem_type='multi_label_classification'" in finding.what
    assert trainer.model.config.problem_type is None  # put back, so that it is not pushed
    # The very trap: training goes through without a word.
    trainer.args.max_steps = 1
    trainer.train()
    assert trainer.model.config.problem_type == "multi_label_classification"


def test_a_bce_head_is_told_from_cross_entropy_with_two_classes_and_logits_of_zero(tmp_path, tokens):
    p = np.asarray(tokens["train"]["p"][:])[:, :2] + 0.1
    train = tokens["train"].remove_columns(["votes", "example_id", "label", "p"])
    train = train.add_column("labels", (p / p.sum(1, keepdims=True)).tolist())
    trainer = stock(tmp_path, train, names=["no", "yes"])
    with torch.no_grad():
        trainer.model.classifier.weight.zero_()
    assert wrong(examine_trainer(trainer)) == ["bce_head"]


def summed_over_items(outputs, labels, num_items_in_batch=None):
    return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def summed_over_rows(outputs, labels, num_items_in_batch=None):
    return summed_over_items(outputs, labels, num_items_in_batch / labels.shape[1])


@pytest.mark.parametrize("steps", [1, 4])
def test_a_loss_divided_by_the_number_of_entries(tmp_path, tokens, steps):
    options = {"gradient_accumulation_steps": steps}
    trainer = stock(tmp_path, soft(tokens["train"]), compute_loss_func=summed_over_items, **options)
    (finding,) = [f for f in examine_trainer(trainer) if f.severity == "wrong"]
    assert finding.name == "loss_per_entry" and "3 times too small" in finding.what
    trainer = stock(tmp_path, soft(tokens["train"]), compute_loss_func=summed_over_rows, **options)
    assert wrong(examine_trainer(trainer)) == []


def test_a_loss_that_accumulation_does_not_divide(tmp_path, tokens):
    train, options = hard(tokens["train"]), {"gradient_accumulation_steps": 4}
    # transformers takes BERT's **kwargs for a loss that divides by num_items_in_batch; it does not.
    (finding,) = examine_trainer(stock(tmp_path, train, **options))
    assert (finding.name, finding.severity) == ("accumulated_loss", "wrong") and "2.00 times" in finding.what
    assert "gradient_accumulation_steps=4" in finding.what

    class Divided(Trainer):
        loss_is_scaled_for_ga = False

    assert examine_trainer(stock(tmp_path, train, cls=Divided, **options)) == []
    assert examine_trainer(stock(tmp_path, train)) == []  # without accumulation there is nothing to divide


class CountsTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.cross_entropy(logits, votes)


class DivergenceTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.kl_div(logits.log_softmax(1), votes / votes.sum(1, keepdim=True), reduction="batchmean")


class MeanDivergenceTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.kl_div(logits.log_softmax(1), votes / votes.sum(1, keepdim=True), reduction="mean")


class MajorityOfVotesTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.cross_entropy(logits, votes.argmax(1))


class SquaresTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.mse_loss(logits.softmax(1), votes / votes.sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (SoftTrainer, []),
        (DivergenceTrainer, []),  # the same gradients
        (MeanDivergenceTrainer, ["wrong loss_per_entry"]),
        (CountsTrainer, ["wrong loss_unnormalised"]),
        (MajorityOfVotesTrainer, ["note majority_loss"]),
        (SquaresTrainer, ["note another_loss"]),
    ],
)
def test_a_loss_of_ones_own(tmp_path, tokens, cls, expected):
    found = examine_trainer(stock(tmp_path, tokens["train"], cls=cls, remove_unused_columns=False))
    assert [f"{f.severity} {f.name}" for f in found if f.name != "tied_votes"] == expected


def test_an_empty_data_set_is_an_error_in_plain_words(tmp_path, tokens):
    with pytest.raises(hf_softlabel.VotesError, match="The train_dataset is empty"):
        examine_trainer(stock(tmp_path, tokens["train"].select([])))


def test_a_step_that_fails_is_an_error_in_plain_words(tmp_path, tokens):
    train = hard(tokens["train"]).remove_columns("label")
    with pytest.raises(
        hf_softlabel.VotesError, match="A training step fails with ValueError: The model did not return"
    ):
        examine_trainer(stock(tmp_path, train))


def test_the_trainer_is_left_as_it_was(tmp_path, images):
    """A batch-norm network, whose forward pass in training mode moves its statistics; and a run as if not examined."""

    def trainer(name: str) -> VotesTrainer:
        model, processor = load_model("resnet18", images["train"].features["label"].names, task="image", width=0.125)
        args = SoftLabelConfig(
            output_dir=str(tmp_path / name),
            max_steps=2,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=4,
            report_to="none",
            delivery="sls",
            disable_tqdm=True,
            use_cpu=True,
        )
        return VotesTrainer(model=model, args=args, train_dataset=images["train"], processing_class=processor)

    examined, other = trainer("a"), trainer("b")
    before, arguments = copy.deepcopy(examined.model.state_dict()), examined.args.to_dict()
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert wrong(examine_trainer(examined)) == []
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(value, before[name]) for name, value in examined.model.state_dict().items())
    assert all(parameter.grad is None for parameter in examined.model.parameters())
    assert examined.args.to_dict() == arguments
    examined.train()
    other.train()
    for mine, theirs in zip(examined.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert examined.ledger.digest() == other.ledger.digest()
