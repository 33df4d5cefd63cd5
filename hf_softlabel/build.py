"""From a recipe's configurations to a trainer, and from a finished run's directory to one with its model."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from .config import DataConfig, ModelConfig, SoftLabelConfig, parse_recipe
from .data.errors import VotesError
from .data.images import IMAGE_COLUMNS
from .data.text import text_task, tokenize_votes
from .data.votes import class_names
from .models import load_model
from .preparation import longest_input, raw_text_columns
from .splits import Splits, fingerprint, load_splits
from .trainer import VotesTrainer


def build_trainer(
    model_config: ModelConfig,
    data_config: DataConfig,
    training: SoftLabelConfig,
    splits: Splits,
    callbacks: list[TrainerCallback] | None = None,
) -> tuple[VotesTrainer, Splits]:
    """The trainer of a recipe, and the splits, tokenised if they are texts."""
    _check_compiler(training)
    train = splits.train
    task = _task(train.column_names, data_config.text_columns)
    model, processing_class = load_model(
        model_config.model,
        class_names(train),
        task=task,
        width=model_config.width,
        image_size=_image_size(model_config, train) if task == "image" else 32,
        revision=model_config.model_revision,
        trust_remote_code=model_config.trust_remote_code,
        from_scratch=model_config.from_scratch,
        seed=training.seed,
    )
    if model_config.channels_last:
        if task != "image":
            raise VotesError(f"channels_last is for image models; {model_config.model} reads texts. Leave it out.")
        # The weights decide: a convolution lays out what it reads and writes as they are.
        model = model.to(memory_format=torch.channels_last)
    if task != "image":
        limit = longest_input(model, processing_class)
        if limit is not None and (data_config.max_length or 0) > limit:
            raise VotesError(f"max_length is {data_config.max_length}, but {model_config.model} takes {limit} tokens.")
        max_length = data_config.max_length or limit
        with training.main_process_first(local=False, desc="tokenising"):
            splits = Splits(
                *(
                    split and tokenize_votes(split, processing_class, max_length, data_config.text_columns)
                    for split in splits
                )
            )
    trainer = VotesTrainer(
        model=model,
        args=training,
        train_dataset=splits.train,
        eval_dataset=splits.eval,
        processing_class=processing_class,
        callbacks=callbacks,
    )
    # OOD texts are to be read as the run's own are.
    trainer.text_columns = data_config.text_columns or raw_text_columns(train, processing_class)
    if task != "image":
        trainer._max_length = max_length
    return trainer, splits


def open_run(run: str | Path, sources: str | None = None) -> tuple[VotesTrainer, Splits]:
    """A trainer with the model of a finished run and the splits that it was trained and evaluated on.

    Args:
        sources: where the votes lie now, if the recipe's place is another.
    """
    run = Path(run)
    if not (run / "DONE").exists() or not (run / "config.yaml").exists():
        raise VotesError(f"{run} is not a finished run of `hf-softlabel train`: it has no DONE, or no config.yaml.")
    model_config, data_config, training = parse_recipe(run / "config.yaml")
    if sources is not None:
        data_config = replace(data_config, sources=sources)
    training.report_to, training.push_to_hub, training.output_dir = [], False, str(run)
    # It is not trained again, and perhaps on a machine without a compiler.
    training.torch_compile, training.torch_compile_backend = False, None
    splits = load_splits(data_config, training.seed)
    if fingerprint(splits) != json.loads((run / "metrics.json").read_text(encoding="utf-8"))["votes_fingerprint"]:
        # Another split would hold out examples that the model was trained on.
        where = data_config.sources or data_config.dataset
        raise VotesError(f"{where} does not have the votes that {run} was trained on: say where with --sources.")
    model_config = ModelConfig(
        model=str(run / "model"),
        image_size=model_config.image_size,
        channels_last=model_config.channels_last,
        trust_remote_code=model_config.trust_remote_code,
    )
    return build_trainer(model_config, data_config, training, splits)


def _check_compiler(training: SoftLabelConfig) -> None:
    """torch would look for it at the first step, when a run has begun."""
    if training.torch_compile_backend != "inductor" or training.device.type != "cpu":
        return
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    # Alone, or with options or ccache.
    if not any(shutil.which(word) for word in (compiler, *shlex.split(compiler)[:1])):
        raise VotesError(
            f"torch_compile needs a C++ compiler on a CPU, and {compiler!r} is not found: install {usual}, name "
            "another in the variable CXX, or leave torch_compile out."
        )


def _task(columns: list[str], text_columns: list[str] | None) -> str:
    if any(name in columns for name in IMAGE_COLUMNS):
        return "image"
    return "choice" if text_columns is None and text_task(columns) == "choice" else "text"


def _image_size(config: ModelConfig, dataset: Any) -> int:
    if config.image_size is not None:
        return config.image_size
    column = next(name for name in IMAGE_COLUMNS if name in dataset.column_names)
    return next(iter(dataset))[column].size[0]
