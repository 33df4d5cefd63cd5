"""Models by name, path or Hub id, with a head for the classes of a data set. All initialisation is seeded locally.

Importing this module makes our CIFAR ResNets known to transformers' Auto classes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    ViTImageProcessor,
)

from .data.errors import VotesError
from .data.synthetic import synthetic_tokenizer
from .resnet import CifarResNetConfig, CifarResNetForImageClassification

logger = logging.getLogger(__name__)

Task = Literal["text", "choice", "image"]

# Of CIFAR-10's training images, per channel, in [0, 1].
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)

_AUTO_CLASSES = {
    "text": (AutoModelForSequenceClassification, AutoTokenizer),
    "choice": (AutoModelForMultipleChoice, AutoTokenizer),
    "image": (AutoModelForImageClassification, AutoImageProcessor),
}
_OUR_RESNETS = {"resnet18": 18, "resnet34": 34}

AutoConfig.register("cifar_resnet", CifarResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(CifarResNetConfig, CifarResNetForImageClassification, exist_ok=True)
# Ships resnet.py with each saved model, for those who load it without this package.
CifarResNetConfig.register_for_auto_class()
CifarResNetForImageClassification.register_for_auto_class("AutoModelForImageClassification")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random weights depend on the seed alone, and the caller's generator goes on as if nothing was drawn."""
    # Models are made on the CPU: forking the GPUs' generators as well would start CUDA on each of them.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


def _labels(names: Sequence[str]) -> dict[str, dict]:
    names = list(names)
    if len(set(names)) != len(names):
        raise VotesError(f"The classes' names must differ from each other: {', '.join(names)}.")
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def image_processor(
    image_size: int = 32, mean: Sequence[float] = CIFAR_MEAN, std: Sequence[float] = CIFAR_STD
) -> ViTImageProcessor:
    """transformers' processor that resizes (bilinear), scales to [0, 1] and normalises, as [`ImageTransform`] does."""
    return ViTImageProcessor(
        size={"height": image_size, "width": image_size}, image_mean=list(mean), image_std=list(std)
    )


def build_resnet(
    names: Sequence[str], depth: int = 18, width: float = 1.0, image_size: int = 32, *, seed: int
) -> CifarResNetForImageClassification:
    """A CIFAR ResNet with random weights for the classes `names`."""
    try:
        config = CifarResNetConfig(depth=depth, width=width, image_size=image_size, **_labels(names))
    except ValueError as error:
        raise VotesError(str(error)) from None
    with _seeded(seed):
        return CifarResNetForImageClassification(config)


def load_model(
    name_or_path: str | os.PathLike,
    names: Sequence[str],
    *,
    task: Task,
    width: float = 1.0,
    image_size: int = 32,
    revision: str | None = None,
    trust_remote_code: bool = False,
    from_scratch: bool = False,
    seed: int = 0,
) -> tuple[PreTrainedModel, Any]:
    """A model for the classes `names` and its tokenizer or image processor.

    Args:
        name_or_path: a folder or a Hub id; for images also "resnet18" or "resnet34", our CIFAR ResNets, and for texts
            "synthetic-bert", a tiny encoder for the synthetic text set.
        names: the classes, in the order of the votes. A checkpoint's head is kept when it has as many classes; if it
            has these very names in another order, its rows are put into the order of `names`.
        task: "text" (one text or a pair), "choice" (one class per choice) or "image".
        width, image_size: of our ResNets only.
        from_scratch: take only the architecture and the tokenizer, and draw all weights.
        seed: for all weights that are not loaded.

    Raises:
        VotesError: nothing can be loaded; the message says what was tried.
    """
    name_or_path = os.fspath(name_or_path)
    if task not in _AUTO_CLASSES:
        raise VotesError(f"Unknown task {task!r}. Choose one of: {', '.join(_AUTO_CLASSES)}.")
    if name_or_path in _OUR_RESNETS and task == "image":
        model = build_resnet(names, _OUR_RESNETS[name_or_path], width, image_size, seed=seed)
        return model, image_processor(image_size)
    if name_or_path == "synthetic-bert" and task == "text":
        return _synthetic_bert(names, seed)
    if width != 1.0:
        raise VotesError(f"width={width} is for {' and '.join(_OUR_RESNETS)} only, not for {name_or_path!r}.")

    auto_model, auto_processor = _AUTO_CLASSES[task]
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    labels = _labels(names)
    try:
        config = AutoConfig.from_pretrained(name_or_path, **source)
        order = _head_order(config, labels["label2id"]) if task != "choice" and not from_scratch else None
        config.id2label, config.label2id = labels["id2label"], labels["label2id"]
        # A checkpoint for several labels at once would make pipelines of the trained model use sigmoids.
        config.problem_type = None
        with _seeded(seed):
            if from_scratch:
                model = auto_model.from_config(config, trust_remote_code=trust_remote_code)
            else:
                model = auto_model.from_pretrained(name_or_path, config=config, ignore_mismatched_sizes=True, **source)
        processor = auto_processor.from_pretrained(name_or_path, **source)
    except (OSError, ValueError, ImportError) as error:
        raise VotesError(_cannot_load(name_or_path, task, revision, error)) from None
    if order is not None:
        logger.warning("The head of %s was put into the order of the votes: %s.", name_or_path, ", ".join(names))
        _reorder_head(model, order)
    return model, processor


def _synthetic_bert(names: Sequence[str], seed: int) -> tuple[PreTrainedModel, Any]:
    tokenizer = synthetic_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=tokenizer.model_max_length,
        # Without dropout a run is the same on one process as on several.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        **_labels(names),
    )
    with _seeded(seed):
        return BertForSequenceClassification(config), tokenizer


def _head_order(config: Any, label2id: dict[str, int]) -> list[int] | None:
    """For each of our classes its row in the checkpoint's head; None if there is nothing to put in order.

    transformers keeps a head of the right size whatever its classes are called, so that the classes of an MNLI model
    (contradiction, neutral, entailment) would silently be taken for ours (entailment, neutral, contradiction).
    """
    theirs = {str(name).lower(): i for i, name in (config.id2label or {}).items()}
    ours = [name.lower() for name in label2id]
    if len(theirs) != len(ours) or set(theirs) != set(ours):
        return None
    order = [int(theirs[name]) for name in ours]
    return None if order == list(range(len(order))) else order


@torch.no_grad()
def _reorder_head(model: PreTrainedModel, order: list[int]) -> None:
    for name, parameter in model.named_parameters():
        in_body = model.base_model_prefix and name.startswith(f"{model.base_model_prefix}.")
        if not in_body and len(parameter) == len(order):
            parameter.copy_(parameter[order])


def _cannot_load(name_or_path: str, task: str, revision: str | None, error: Exception) -> str:
    kinds = {"text": "a text classifier", "choice": "a multiple-choice model", "image": "an image classifier"}
    ours = f" or one of {', '.join(_OUR_RESNETS)}" if task == "image" else ""
    reason = " ".join(str(error).split())
    return (
        f"Cannot load {name_or_path!r}{f' at revision {revision}' if revision else ''} as {kinds[task]} with its "
        f"{'image processor' if task == 'image' else 'tokenizer'}: {reason} "
        f"What to do: give a folder written by save_pretrained, or an id of the Hub (huggingface.co){ours}."
    )
