"""The trainer on tiny models: what the loss sees, how it is scored, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from trainers import batch_of, config, expected_digest, text_trainer

import hf_softlabel
from hf_softlabel import VotesError, VotesTrainer, load_model, load_votes, split_votes
from hf_softlabel.data.synthetic import TONES
from hf_softlabel.data.votes import dense_votes
from hf_softlabel.delivery import DELIVERIES, Delivery, distribution
from hf_softlabel.metrics import score_votes

NAMED = {
    "soft": "SoftLabelTrainer",
    "sls": "SLSTrainer",
    "multipass": "MultipassTrainer",
    "deterministic_control": "DeterministicControlTrainer",
    "shuffled_sls": "ShuffledSLSTrainer",
    "majority": "MajorityTrainer",
    "label_smoothing": "LabelSmoothingTrainer",
    "mixup": "MixupTrainer",
    "posterior_sls": "PosteriorSLSTrainer",
}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_every_delivery_has_a_named_trainer_that_trains_texts(tmp_path, texts, delivery):
    trainer = text_trainer(tmp_path, texts, getattr(hf_softlabel, NAMED[delivery]), learning_rate=5e-3)
    before = trainer.evaluate()["eval_soft_nll"]
    trainer.train()
    scores = trainer.evaluate()
    assert trainer.delivery.name == delivery == trainer.args.delivery
    assert np.isfinite(scores["eval_soft_nll"])
    assert (scores["eval_soft_nll"] < before) or delivery == "shuffled_sls"
    assert scores["eval_loss"] == scores["eval_soft_nll"]
    # Float labels would have made the head choose a BCE loss and say so in the config that gets pushed.
    assert trainer.model.config.problem_type is None
    assert trainer.model.config.id2label == dict(enumerate(TONES))


@pytest.mark.parametrize("delivery", [d for d in DELIVERIES if d not in ("shuffled_sls", "mixup")])
def test_labels_are_those_of_the_pure_function_in_each_epoch(tmp_path, texts, delivery):
    trainer = text_trainer(tmp_path, texts, delivery=delivery, num_train_epochs=3, delivery_seed=7)
    trainer.train()
    assert trainer.ledger.digest() == expected_digest(texts["train"], Delivery(delivery, seed=7), 3)
    assert trainer.ledger.digest() != expected_digest(texts["train"], Delivery(delivery, seed=7), 2)


def test_loss_is_the_cross_entropy_with_the_delivered_targets(tmp_path, texts):
    for delivery in ("soft", "multipass"):
        trainer = text_trainer(tmp_path, texts, delivery=delivery)
        trainer.delivery_epoch = 5
        batch = batch_of(trainer)
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, batch)
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in batch}
        log_q = trainer.model(**inputs).logits.log_softmax(-1)
        target = Delivery(delivery)(batch["votes"], batch["example_id"], 5)
        if target.dim() == 1:
            target = F.one_hot(target, 3).float()
        assert loss.item() == pytest.approx(-(target * log_q).sum(-1).mean().item(), rel=1e-6)


def test_the_loss_in_evaluation_is_with_the_whole_votes(tmp_path, texts):
    trainer = text_trainer(tmp_path, texts, delivery="multipass")
    batch = batch_of(trainer, "eval")
    trainer.model.eval()
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    log_q = outputs["logits"].log_softmax(-1)
    p = batch["votes"] / batch["votes"].sum(-1, keepdim=True)
    assert loss.item() == pytest.approx(-(p * log_q).sum(-1).mean().item(), rel=1e-6)


def test_evaluation_scores_the_whole_votes_whatever_the_delivery(tmp_path, texts):
    trainer = text_trainer(tmp_path, texts, delivery="majority", per_device_eval_batch_size=5)
    prediction = trainer.predict(trainer.eval_dataset, metric_key_prefix="eval")
    votes, ids, gold = prediction.label_ids
    order = {example: row for row, example in enumerate(texts["eval"]["example_id"][:])}
    rows = [order[i] for i in ids]
    assert (votes == dense_votes(texts["eval"])[rows]).all()
    assert (gold == np.array(texts["eval"]["label"][:])[rows]).all()
    scores = score_votes(prediction.predictions, votes, gold, True)
    for key, value in scores.items():
        assert prediction.metrics[f"eval_{key}"] == pytest.approx(value)


def test_user_metrics_come_beside_ours(tmp_path, texts):
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    trainer = VotesTrainer(
        model=model,
        args=config(tmp_path),
        eval_dataset=texts["eval"],
        processing_class=tokenizer,
        compute_metrics=lambda prediction: {"rows": len(prediction.label_ids[1])},
    )
    scores = trainer.evaluate()
    assert scores["eval_rows"] == 12 and "eval_soft_nll" in scores


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_accumulated_micro_batches_give_the_same_weights_as_one_batch(tmp_path, texts):
    ends = []
    for size, steps in ((8, 1), (4, 2), (2, 4)):
        trainer = text_trainer(
            tmp_path, texts, delivery="sls", per_device_train_batch_size=size, gradient_accumulation_steps=steps
        )
        trainer.train()
        ends.append((weights(trainer.model), trainer.ledger.digest()))
    for other, digest in ends[1:]:
        torch.testing.assert_close(other, ends[0][0], rtol=1e-4, atol=1e-5)
        assert digest == ends[0][1]


def test_persistent_workers_see_the_same_labels(tmp_path, texts):
    digests = set()
    for workers in (0, 2):
        trainer = text_trainer(
            tmp_path,
            texts,
            delivery="sls",
            num_train_epochs=3,
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
        )
        trainer.train()
        digests.add(trainer.ledger.digest())
    assert digests == {expected_digest(texts["train"], Delivery("sls"), 3)}


def test_shuffled_sls_gives_training_examples_the_votes_of_others_and_leaves_evaluation_alone(tmp_path, texts):
    trainer = text_trainer(tmp_path, texts, delivery="shuffled_sls")
    shuffled, original = dense_votes(trainer.train_dataset), dense_votes(texts["train"])
    assert sorted(map(tuple, shuffled)) == sorted(map(tuple, original))
    assert (shuffled != original).any(1).mean() > 0.5
    assert (dense_votes(trainer.eval_dataset) == dense_votes(texts["eval"])).all()


def test_the_best_checkpoint_is_the_one_with_the_lowest_soft_nll(tmp_path, texts):
    trainer = text_trainer(
        tmp_path,
        texts,
        delivery="majority",
        learning_rate=3e-3,
        num_train_epochs=20,  # long enough to overfit, so that the last is not the best
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
    )
    trainer.train()
    losses = [line["eval_soft_nll"] for line in trainer.state.log_history if "eval_soft_nll" in line]
    assert trainer.state.best_metric == min(losses) < losses[-1]
    assert trainer.evaluate()["eval_soft_nll"] == pytest.approx(min(losses), rel=1e-6)


def probabilities(dataset: Dataset) -> Dataset:
    from hf_softlabel.data.votes import with_votes

    return with_votes(dataset, distribution(torch.from_numpy(dense_votes(dataset))).double().numpy().round(12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"args": "stock"}, "takes a SoftLabelConfig"),
        ({"labels": 5}, "votes have 3 classes, but the model has 5 labels"),
        ({"empty": "train"}, "In the train split: The data set is empty"),
        ({"empty": "eval"}, "In the eval split: The data set is empty"),
        ({"drop": "votes"}, "In the train split: There is no column `votes`"),
        ({"drop": "example_id"}, "In the train split: There is no column `example_id`"),
        ({"conflict": True}, "SLSTrainer delivers 'sls', but args.delivery is 'soft'"),
        ({"floats": True}, "In the train split: Integer vote counts are needed"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_trained(tmp_path, texts, options, message):
    from transformers import TrainingArguments

    names = TONES if "labels" not in options else [str(i) for i in range(options["labels"])]
    model, tokenizer = load_model("synthetic-bert", names, task="text")
    data = {split: texts[split] for split in ("train", "eval")}
    if "empty" in options:
        data[options["empty"]] = data[options["empty"]].select([])
    if "drop" in options:
        data["train"] = data["train"].remove_columns(options["drop"])
    if "floats" in options:
        data["train"] = probabilities(data["train"])
    args = config(tmp_path, delivery="soft" if "conflict" in options else None)
    if "args" in options:
        args = TrainingArguments(str(tmp_path))
    cls = {"conflict": hf_softlabel.SLSTrainer, "floats": hf_softlabel.MultipassTrainer}
    trainer = next((cls[key] for key in options if key in cls), VotesTrainer)
    with pytest.raises(VotesError, match=message):
        trainer(
            model=model,
            args=args,
            train_dataset=data["train"],
            eval_dataset=data["eval"],
            processing_class=tokenizer,
        )
    assert not (tmp_path / "run").exists()


def test_probabilities_are_enough_for_soft_and_sls(tmp_path, texts):
    data = {split: probabilities(texts[split]) for split in ("train", "eval")}
    for delivery in ("soft", "sls"):
        trainer = text_trainer(tmp_path, data, delivery=delivery, num_train_epochs=1)
        trainer.train()
        assert np.isfinite(trainer.evaluate()["eval_soft_nll"])


@pytest.mark.parametrize("when", ["logging", "saving"])
def test_a_loss_that_is_not_a_number_stops_the_run_and_saves_nothing(tmp_path, texts, when):
    options = {"logging_strategy": "steps", "logging_steps": 1} if when == "logging" else {}
    trainer = text_trainer(tmp_path, texts, save_strategy="steps", save_steps=1, **options)
    with torch.no_grad():
        trainer.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(VotesError, match="training loss is nan by step 1"):
        trainer.train()
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_load_votes_gives_what_the_trainer_takes(tmp_path):
    data = split_votes(load_votes("synthetic", subset="text")["train"].select(range(40)))
    trainer = text_trainer(tmp_path, data, hf_softlabel.MultipassTrainer, num_train_epochs=1)
    assert trainer.train().global_step == 4
