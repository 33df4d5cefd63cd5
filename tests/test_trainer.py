"""The trainer on tiny models: what the loss sees, which models it takes, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn
from transformers import BertConfig, BertForMultipleChoice, default_data_collator

import hf_softlabel
from hf_softlabel import SoftLabelConfig, VotesError, VotesTrainer, load_model, load_votes, split_votes
from hf_softlabel.data.synthetic import TEXTURES, TONES, load_synthetic, synthetic_tokenizer
from hf_softlabel.data.votes import dense_votes, votes_features
from hf_softlabel.delivery import DELIVERIES, Delivery, distribution
from hf_softlabel.ledger import Ledger
from hf_softlabel.metrics import score_votes
from hf_softlabel.models import build_resnet, image_processor

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


@pytest.fixture(scope="module")
def texts():
    return split_votes(load_synthetic("text", size=60), seed=0)


@pytest.fixture(scope="module")
def images():
    return split_votes(load_synthetic("vision", size=40), seed=0)


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
        ledger.record(epoch, ids, delivery(votes, ids, epoch))
    return ledger.digest()


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


def batch_of(trainer, dataset_name="train"):
    loader = trainer.get_train_dataloader() if dataset_name == "train" else trainer.get_eval_dataloader()
    return trainer._prepare_inputs(next(iter(loader)))


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
    scores = score_votes(prediction.predictions, votes, gold)
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


class Bag(nn.Module):
    """A model of the user's own, which returns its logits in one of several ways."""

    def __init__(self, form: str):
        super().__init__()
        self.embed = nn.EmbeddingBag(100, 3)
        self.form = form

    def forward(self, input_ids, attention_mask=None):
        logits = self.embed(input_ids)
        return {"tensor": logits, "tuple": (logits, input_ids), "dict": {"logits": logits}, "none": {"x": logits}}[
            self.form
        ]


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_any_model_that_returns_logits_can_be_trained(tmp_path, texts, form):
    trainer = VotesTrainer(
        model=Bag(form),
        args=config(tmp_path, delivery="multipass", learning_rate=0.1),
        train_dataset=texts["train"],
        eval_dataset=texts["eval"],
        processing_class=synthetic_tokenizer(),
    )
    before = trainer.evaluate()["eval_soft_nll"]
    trainer.train()
    assert trainer.evaluate()["eval_soft_nll"] < before


def test_a_model_without_logits_is_refused(tmp_path, texts):
    trainer = VotesTrainer(
        model=Bag("none"),
        args=config(tmp_path),
        train_dataset=texts["train"],
        processing_class=synthetic_tokenizer(),
    )
    with pytest.raises(VotesError, match="must return `logits`; it returned x"):
        trainer.train()


class Rows(torch.utils.data.Dataset):
    """A torch data set without anything of ours."""

    def __init__(self, votes):
        self.votes = votes

    def __len__(self):
        return len(self.votes)

    def __getitem__(self, i):
        return {"x": torch.ones(4) * i, "votes": self.votes[i], "example_id": i}


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


def test_a_plain_torch_data_set_and_a_stock_collator_work(tmp_path):
    rows = Rows([[1, 3], [2, 2], [0, 5]])
    trainer = VotesTrainer(
        model=Linear(),
        args=config(tmp_path, delivery="multipass"),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=default_data_collator,
    )
    trainer.train()
    scores = trainer.evaluate()
    assert scores["eval_accuracy"] == scores["eval_accuracy_majority"]


def test_bad_votes_in_a_torch_data_set_are_named_by_their_ids(tmp_path):
    trainer = VotesTrainer(model=Linear(), args=config(tmp_path), train_dataset=Rows([[1, 3], [2, -2], [0, 5]]))
    with pytest.raises(VotesError, match="negative"):
        trainer.train()


def test_lora_adapters_are_trained_and_the_rest_is_not(tmp_path, texts):
    from peft import LoraConfig, PeftModel, get_peft_model

    base, tokenizer = load_model("synthetic-bert", TONES, task="text")
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))
    frozen = model.base_model.model.bert.embeddings.word_embeddings.weight.detach().clone()
    trainer = VotesTrainer(
        model=model,
        args=config(tmp_path, delivery="sls", learning_rate=1e-2, num_train_epochs=4),
        train_dataset=texts["train"],
        eval_dataset=texts["eval"],
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_soft_nll"]
    trainer.train()
    after = trainer.evaluate()["eval_soft_nll"]
    assert after < before
    assert torch.equal(frozen, model.base_model.model.bert.embeddings.word_embeddings.weight)
    trainer.save_model(str(tmp_path / "adapter"))
    fresh, _ = load_model("synthetic-bert", TONES, task="text")
    trainer.model = PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    assert trainer.evaluate()["eval_soft_nll"] == pytest.approx(after, rel=1e-6)


def two_choice_data(n: int = 24) -> Dataset:
    rng = np.random.default_rng(0)
    good, bad = "lovely great warm", "awful cold rude"
    first = rng.integers(0, 2, n)
    votes = np.where(first[:, None] == 1, [[9, 1]], [[1, 9]])
    columns = {
        "obs1": ["the room was"] * n,
        "obs2": ["we felt it"] * n,
        "hyp1": [good if f else bad for f in first],
        "hyp2": [bad if f else good for f in first],
        "votes": votes,
        "example_id": np.arange(n),
        "label": [None] * n,
    }
    text = {name: Dataset.from_dict({name: columns[name]}).features[name] for name in ("obs1", "obs2", "hyp1", "hyp2")}
    from datasets import Features

    return Dataset.from_dict(columns, features=Features({**text, **votes_features(["hyp1", "hyp2"])}))


def test_a_two_choice_task_is_learned_by_a_multiple_choice_model(tmp_path):
    data = split_votes(two_choice_data(), seed=0)
    tokenizer = synthetic_tokenizer()
    torch.manual_seed(0)
    model = BertForMultipleChoice(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=0.0,
        )
    )
    trainer = VotesTrainer(
        model=model,
        args=config(tmp_path, delivery="soft", num_train_epochs=15, learning_rate=5e-3),
        train_dataset=data["train"],
        eval_dataset=data["eval"],
        processing_class=tokenizer,
    )
    trainer.train()
    prediction = trainer.predict(trainer.eval_dataset)
    assert prediction.predictions.shape == (5, 2)
    assert prediction.metrics["test_accuracy"] == 1.0


@pytest.mark.parametrize("delivery", ["multipass", "mixup", "shuffled_sls"])
def test_our_resnets_learn_from_raw_images(tmp_path, images, delivery):
    trainer = VotesTrainer(
        model=build_resnet(TEXTURES, width=0.125, image_size=16, seed=0),
        args=config(tmp_path, delivery=delivery, optim="sgd", learning_rate=0.05),
        train_dataset=images["train"],
        eval_dataset=images["eval"],
        processing_class=image_processor(16),
    )
    batch = batch_of(trainer)
    assert batch["pixel_values"].dtype == torch.uint8 and batch["pixel_values"].shape[1:] == (3, 16, 16)
    trainer.train()
    assert np.isfinite(trainer.evaluate()["eval_soft_nll"])


def test_augmentation_depends_on_the_epoch_and_not_on_the_order(tmp_path, images):
    trainer = VotesTrainer(
        model=build_resnet(TEXTURES, width=0.125, image_size=16, seed=0),
        args=config(tmp_path),
        train_dataset=images["train"],
        processing_class=image_processor(16),
    )
    seen = []
    trainer.model.register_forward_pre_hook(lambda m, a, kw: seen.append(kw["pixel_values"].clone()), with_kwargs=True)
    trainer.model.train()
    batch = batch_of(trainer)
    order = torch.arange(len(batch["example_id"])).flip(0)
    for epoch, rows in ((0, slice(None)), (0, order), (1, slice(None))):
        trainer.delivery_epoch = epoch
        trainer.compute_loss(trainer.model, {key: value[rows] for key, value in batch.items()})
    assert torch.equal(seen[0][order], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_mixup_mixes_embeddings_masks_and_targets(tmp_path, texts):
    trainer = text_trainer(tmp_path, texts, delivery="mixup", mixup_alpha=1.0)
    batch = batch_of(trainer)
    seen = {}
    trainer.model.register_forward_pre_hook(lambda m, a, kw: seen.update(kw), with_kwargs=True)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    assert "input_ids" not in seen and seen["inputs_embeds"].shape[:2] == batch["input_ids"].shape
    assert (seen["attention_mask"] >= batch["attention_mask"]).all()
    assert trainer.model.get_input_embeddings().weight.grad.abs().sum() > 0


def streaming(dataset: Dataset):
    return dataset.to_iterable_dataset()


@pytest.mark.parametrize("delivery", [d for d in DELIVERIES if d != "shuffled_sls"])
def test_a_stream_delivers_what_the_same_data_in_memory_does(tmp_path, texts, delivery):
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    trainer = VotesTrainer(
        model=model,
        args=config(tmp_path, delivery=delivery, max_steps=18),
        train_dataset=streaming(texts["train"]),
        eval_dataset=streaming(texts["eval"]),
        processing_class=tokenizer,
    )
    trainer.train()  # 48 examples in batches of 8: three passes
    assert trainer.ledger.digest() == expected_digest(texts["train"], Delivery(delivery), 3)
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (12, 3)


def test_a_stream_of_images_can_be_trained(tmp_path, images):
    trainer = VotesTrainer(
        model=build_resnet(TEXTURES, width=0.125, image_size=16, seed=0),
        args=config(tmp_path, delivery="sls", max_steps=8),
        train_dataset=streaming(images["train"]),
        eval_dataset=streaming(images["eval"]),
        processing_class=image_processor(16),
    )
    trainer.train()  # 32 examples in batches of 8: two passes
    assert trainer.ledger.digest() == expected_digest(images["train"], Delivery("sls"), 2)


def test_what_needs_a_pass_over_the_data_is_refused_for_a_stream(tmp_path, texts):
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    stream = streaming(texts["train"])
    with pytest.raises(VotesError, match=r"train split: shuffled_sls .* cannot be streamed"):
        VotesTrainer(
            model=model,
            args=config(tmp_path, delivery="shuffled_sls", max_steps=2),
            train_dataset=stream,
            processing_class=tokenizer,
        )
    with pytest.raises(VotesError, match="set max_steps"):
        VotesTrainer(model=model, args=config(tmp_path), train_dataset=stream, processing_class=tokenizer)


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
