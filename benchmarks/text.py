"""Texts: tokens from the cache, padding when batches are grouped by length, evaluation in larger batches."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
from datasets import Dataset

from hf_softlabel import SoftLabelConfig, SoftLabelTrainer
from hf_softlabel.data.text import tokenize_votes
from hf_softlabel.data.votes import class_names

from .images import TRANSFORM
from .measure import Row, alternate, growth, memory
from .real_data import chaosnli, image_store, wordpiece
from .steps import bert, resnet

PACKAGES = ("datasets", "tokenizers")


def anew(texts: Dataset) -> Dataset:
    """Tokenised without the cache."""
    datasets.disable_caching()
    try:
        return tokenize_votes(texts, wordpiece())
    finally:
        datasets.enable_caching()


def tokenising(n: int) -> Callable[[], object]:
    """n texts, those of ChaosNLI over and over."""
    texts = chaosnli()
    texts = texts.select([row % len(texts) for row in range(n)]).flatten_indices()
    anew(texts.select(range(1)))  # learns the vocabulary, which is no part of the work
    return lambda: anew(texts)


def _arguments(folder: str, **options: Any) -> SoftLabelConfig:
    return SoftLabelConfig(folder, use_cpu=True, report_to="none", disable_tqdm=True, seed=0, **options)


def text_trainer(folder: str, tokens: Dataset, **options: Any) -> SoftLabelTrainer:
    args, model = _arguments(folder, **options), bert(wordpiece(), class_names(tokens))
    return SoftLabelTrainer(model=model, args=args, train_dataset=tokens, processing_class=wordpiece())


def padding_share(trainer: SoftLabelTrainer) -> float:
    """Of the tokens of an epoch."""
    masks = [batch["attention_mask"] for batch in trainer.get_train_dataloader()]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


def logits_by_id(trainer: SoftLabelTrainer, data: Any) -> np.ndarray:
    prediction = trainer.predict(data)
    _, example_id, _ = prediction.label_ids
    return prediction.predictions[np.argsort(example_id)]


def evaluating(trainer: SoftLabelTrainer, data: Any) -> Callable[[], None]:
    def evaluate() -> None:
        with redirect_stdout(io.StringIO()):  # the scores
            trainer.evaluate(data)

    return evaluate


def evaluations(name: str, peer: str, ours: SoftLabelTrainer, theirs: SoftLabelTrainer, data: Any, rounds: int) -> Row:
    np.testing.assert_allclose(logits_by_id(ours, data), logits_by_id(theirs, data), rtol=0, atol=1e-4)
    times = alternate(evaluating(ours, data), evaluating(theirs, data), rounds, time.process_time)
    sizes = {"examples": len(data)}
    return times.row(name, peer, "times as long", sizes=sizes, checked="equal logits to 1e-4")


def rows(scale: float) -> Iterator[Row]:
    texts = chaosnli()
    texts = texts.select(range(max(64, int(len(texts) * scale)))).flatten_indices()
    rounds = max(2, int(5 * scale))
    with TemporaryDirectory() as folder:
        before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, folder
        tokens = tokenize_votes(texts, wordpiece())
        assert tokenize_votes(texts, wordpiece())[:] == anew(texts)[:]
        times = alternate(lambda: tokenize_votes(texts, wordpiece()), lambda: anew(texts))
        datasets.config.HF_DATASETS_CACHE = before
        yield times.row(
            "tokenising texts a second time",
            "the first time",
            "times as fast",
            sizes={"texts": len(texts)},
            checked="equal rows",
            packages=PACKAGES,
        )
        yield growth("tokenising texts", tokenising, len(texts), packages=PACKAGES)
        sizes = {"texts": len(texts)}
        yield memory("tokenising texts", "the texts", tokenising, len(texts), sizes=sizes, packages=PACKAGES)

        options = {"per_device_train_batch_size": 32}
        mixed = padding_share(text_trainer(folder, tokens, **options))
        grouped = padding_share(text_trainer(folder, tokens, train_sampling_strategy="group_by_length", **options))
        yield Row(
            "padding in batches of texts grouped by length",
            "in random order",
            grouped / mixed,
            "times as much",
            sizes={
                "texts": len(texts),
                "batch": 32,
                "share": f"{grouped:.1%}",
                "share in random order": f"{mixed:.1%}",
            },
            checked="the same texts in an epoch",
        )

        def texts_in(batch_size: int, strategy: str = "group_by_length") -> SoftLabelTrainer:
            options = {"per_device_eval_batch_size": batch_size, "train_sampling_strategy": strategy}
            return text_trainer(folder, tokens, **options)

        name, peer = "evaluating texts in the order of their lengths", "in the order of the rows"
        yield evaluations(name, f"{peer}, batches of 128", texts_in(128), texts_in(128, "random"), tokens, rounds)
        as_in_training = "in batches of {}, as in training".format
        name = "evaluating texts in batches of 128"
        yield evaluations(name, as_in_training(32), texts_in(128), texts_in(32), tokens, rounds)

        store = image_store(max(200, int(2000 * scale)))

        def images_in(batch_size: int) -> SoftLabelTrainer:
            args = _arguments(folder, per_device_eval_batch_size=batch_size)
            return SoftLabelTrainer(model=resnet(store), args=args, train_dataset=store, image_transform=TRANSFORM)

        name = "evaluating images in batches of 256"
        yield evaluations(name, as_in_training(128), images_in(256), images_in(128), store, rounds)
