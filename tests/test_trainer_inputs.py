"""Which models and which data the trainer takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from trainers import batch_of, config, expected_digest, text_trainer
from transformers import BertConfig, BertForMultipleChoice, default_data_collator

from hf_softlabel import VotesError, VotesTrainer, load_model, split_votes
from hf_softlabel.data.images import VotesImages
from hf_softlabel.data.synthetic import TEXTURES, TONES, synthetic_tokenizer
from hf_softlabel.data.votes import votes_features
from hf_softlabel.delivery import DELIVERIES, Delivery
from hf_softlabel.models import build_resnet, image_processor


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


def test_raw_texts_and_images_can_be_given_to_evaluate_and_predict(tmp_path, texts, images):
    trainer = text_trainer(tmp_path, {"train": texts["train"], "eval": None})
    assert trainer.evaluate(texts["eval"])["eval_soft_nll"] > 0
    assert trainer.predict(texts["eval"]).predictions.shape == (12, 3)
    model = build_resnet(TEXTURES, width=0.125, image_size=16, seed=0)
    alone = VotesTrainer(model=model, args=config(tmp_path), processing_class=image_processor(16))
    assert alone.predict(images["eval"]).predictions.shape == (8, 4)


def test_several_eval_sets_of_images_can_be_scored(tmp_path, images):
    model = build_resnet(TEXTURES, width=0.125, image_size=16, seed=0)
    both = {"a": images["eval"], "b": images["train"]}
    trainer = VotesTrainer(model=model, args=config(tmp_path), eval_dataset=both, processing_class=image_processor(16))
    scores = trainer.evaluate()
    assert scores["eval_a_soft_nll"] != scores["eval_b_soft_nll"]


def test_images_are_given_in_the_type_of_the_weights(tmp_path, images):
    trainer = VotesTrainer(
        model=build_resnet(TEXTURES, width=0.125, image_size=16, seed=0),
        args=config(tmp_path, bf16_full_eval=True, use_cpu=True),
        eval_dataset=images["eval"],
        processing_class=image_processor(16),
    )
    assert np.isfinite(trainer.evaluate()["eval_soft_nll"])


def test_a_model_that_is_made_by_model_init_gets_its_choices_and_its_class_check(tmp_path):
    tokenizer = synthetic_tokenizer()
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    small = BertConfig(vocab_size=len(tokenizer), **size)
    trainer = VotesTrainer(
        model_init=lambda: BertForMultipleChoice(small),
        args=config(tmp_path, num_train_epochs=1),
        train_dataset=two_choice_data(),
        processing_class=tokenizer,
    )
    assert trainer.train().global_step == 3
    with pytest.raises(VotesError, match="2 classes, but the model has 3 labels"):
        VotesTrainer(
            model_init=lambda: load_model("synthetic-bert", TONES, task="text")[0],
            args=config(tmp_path),
            train_dataset=two_choice_data(),
            processing_class=tokenizer,
        )


def test_torch_data_sets_and_image_stores_that_cannot_be_used_are_refused(tmp_path, images):
    class NoVotes(Rows):
        def __getitem__(self, i):
            return {"x": torch.ones(4), "example_id": i}

    for rows, message in ((Rows([]), "is empty"), (NoVotes([1]), "have no `votes`, only: x, example_id")):
        with pytest.raises(VotesError, match=message):
            VotesTrainer(model=Linear(), args=config(tmp_path), train_dataset=rows)
    store = VotesImages.from_dataset(images["train"])
    with pytest.raises(VotesError, match="need an image_transform"):
        VotesTrainer(model=Linear(), args=config(tmp_path), train_dataset=store)


def test_the_delivery_follows_the_seed_but_cannot_be_exchanged_afterwards(tmp_path, texts):
    trainer = text_trainer(tmp_path, texts, delivery="sls", num_train_epochs=1)
    trainer.args.seed = 5
    trainer.train()
    assert trainer.ledger.digest() == expected_digest(texts["train"], Delivery("sls", seed=5), 1)
    trainer.args.delivery = "soft"
    with pytest.raises(VotesError, match="was made for 'sls'"):
        trainer.train()
