"""One trainer for all deliveries."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import gather_object
from datasets import IterableDataset as StreamingDataset
from torch import Tensor, nn
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalPrediction, rotate_checkpoints

from .callbacks.console import VotesPrinterCallback, VotesProgressCallback
from .callbacks.epoch import EpochCallback
from .checkpoint import MANIFEST_NAME, flaw, last_whole_checkpoint, read_manifest, refuse_changes, write_manifest
from .collators import VOTE_COLUMNS, VotesCollator, input_collator, longest_first
from .config import SoftLabelConfig, check_metric_name
from .data.errors import VotesError
from .data.images import ImageTransform, VotesImages
from .delivery import distribution
from .hub.training import HubPushes
from .ledger import Ledger
from .metrics import VoteScores
from .mixup import mix_inputs, mix_targets, mixup_pairs
from .preparation import (
    check_model_classes,
    dataset_fingerprint,
    holds_choices,
    holds_pixels,
    longest_input,
    prepare_dataset,
    raw_text_columns,
)

logger = logging.getLogger(__name__)


class NonFiniteLossError(VotesError):
    """The training loss is NaN or infinite."""


class VotesTrainer(HubPushes):
    """[`Trainer`] that learns from annotator votes.

    Data sets follow the votes contract ([`hf_softlabel.data.votes`]): raw texts are tokenised with `processing_class`,
    images are decoded once into memory. The model is anything that returns logits (N, C). Evaluation always scores
    against the full vote distribution, whatever the delivery.

    Args:
        args: a [`SoftLabelConfig`]; its `delivery` says what the loss sees (`soft` if it is not set).
        image_transform: normalisation and augmentation of uint8 images; by default from `processing_class`.
        compute_metrics: further metrics; `EvalPrediction.label_ids` is the tuple (votes, example_id, gold_label).
        kwargs: as for [`Trainer`].
    """

    # The delivery that a named subclass stands for.
    delivery_name: str | None = None
    # compute_loss returns the mean over a micro-batch: Trainer must divide it by the accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: nn.Module | None = None,
        args: SoftLabelConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        image_transform: ImageTransform | None = None,
        compute_metrics: Any = None,
        **kwargs: Any,
    ):
        args = SoftLabelConfig() if args is None else args
        if not isinstance(args, SoftLabelConfig):
            raise VotesError(f"{type(self).__name__} takes a SoftLabelConfig as args, not a {type(args).__name__}.")
        if self.delivery_name is not None:
            if args.delivery not in (None, self.delivery_name):
                raise VotesError(
                    f"{type(self).__name__} delivers {self.delivery_name!r}, but args.delivery is {args.delivery!r}. "
                    "Leave it out, or use VotesTrainer."
                )
            args.delivery = self.delivery_name
        if compute_metrics is None:
            check_metric_name(args, list(eval_dataset) if isinstance(eval_dataset, dict) else [])
        self.delivery = args.make_delivery()
        self.delivery_epoch = 0
        self._train_votes: str | None = None  # their fingerprint, once for all checkpoints of a training
        # Where the pass over a stream began, and how much of it was done before a resume.
        self.epoch_start = self.resumed_steps = 0
        self.image_transform = image_transform
        self.num_classes: int | None = None
        # Of the last evaluation: why a score is NaN, by its name, and which label is the hard one, gold or majority.
        self.undefined: dict[str, str] = {}
        self.hard_label: str | None = None
        self._all_undefined: dict[str, str] = {}
        self._user_metrics = compute_metrics
        self._max_length = longest_input(model, processing_class)
        self._has_image_store = False
        self.text_columns = raw_text_columns(train_dataset, processing_class)
        train_dataset = self._prepare(train_dataset, processing_class, "train", delivery=self.delivery)
        if isinstance(eval_dataset, dict):
            eval_dataset = {key: self._prepare(one, processing_class, key) for key, one in eval_dataset.items()}
        else:
            eval_dataset = self._prepare(eval_dataset, processing_class, "eval")
        self.streams = isinstance(train_dataset, StreamingDataset)
        if self.streams and args.max_steps <= 0:
            raise VotesError("A stream has no length: set max_steps, the number of optimiser steps to train for.")
        if self.streams and args.auto_find_batch_size:
            raise VotesError("auto_find_batch_size starts a run over, which a stream cannot do: set the batch size.")
        if model is not None:
            self._check_classes(model)
        if not isinstance(data_collator, VotesCollator):
            example = train_dataset if train_dataset is not None else eval_dataset
            pixels = isinstance(example, StreamingDataset) and holds_pixels(example)
            inputs = data_collator or input_collator(processing_class, holds_choices(example), pixels)
            data_collator = VotesCollator(self.num_classes, inputs)
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=self._score,
            **kwargs,
        )
        self.ledger = Ledger(lambda array: gather_object([array]))
        self.add_callback(EpochCallback(self))
        for stock, ours in ((ProgressCallback, VotesProgressCallback), (PrinterCallback, VotesPrinterCallback)):
            if self.pop_callback(stock) is not None:
                self.add_callback(ours)

    def _prepare(self, dataset: Any, processing_class: Any, split: str, delivery: Any = None) -> Any:
        if dataset is None:
            return None
        dataset, classes = prepare_dataset(dataset, processing_class, split, delivery, self._max_length)
        if self.num_classes not in (None, classes):
            raise VotesError(f"The {split} split has {classes} classes, but the one before it {self.num_classes}.")
        self.num_classes = classes
        self._has_image_store |= isinstance(dataset, VotesImages)
        if self.image_transform is None and holds_pixels(dataset):
            if processing_class is None:
                raise VotesError("Images need an image_transform, or an image processor as processing_class.")
            self.image_transform = ImageTransform(
                mean=tuple(processing_class.image_mean), std=tuple(processing_class.image_std)
            )
        return dataset

    def _check_classes(self, model: nn.Module) -> None:
        if self.num_classes is not None:
            check_model_classes(model, self.num_classes)

    def call_model_init(self, trial=None) -> nn.Module:
        model = super().call_model_init(trial)
        self._check_classes(model)
        return model

    def get_eval_dataloader(self, eval_dataset=None):
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            eval_dataset = self._prepare(eval_dataset, self.processing_class, "eval")
        return super().get_eval_dataloader(eval_dataset)

    def _get_eval_sampler(self, eval_dataset):
        sampler = super()._get_eval_sampler(eval_dataset)
        return longest_first(sampler.lengths) if isinstance(sampler, LengthGroupedSampler) else sampler

    def get_test_dataloader(self, test_dataset):
        return super().get_test_dataloader(self._prepare(test_dataset, self.processing_class, "test"))

    def _get_collator_with_removed_columns(self, data_collator, description=None):
        # The stock wrapper goes through a batch row by row, and an image store hands over whole batches.
        if self._has_image_store:
            return data_collator
        return super()._get_collator_with_removed_columns(data_collator, description)

    def model_inputs(self, model: nn.Module, batch: dict[str, Any], augment: bool = False) -> dict[str, Any]:
        """What the model gets of a collated batch: no vote columns, and normalised images."""
        inputs = {key: value for key, value in batch.items() if key not in VOTE_COLUMNS}
        if self.image_transform is not None and "pixel_values" in inputs:
            pixels = self.image_transform(
                inputs["pixel_values"], batch["example_id"], self.delivery_epoch, self.args.seed, train=augment
            )
            # The weights are not float32 under bf16_full_eval or DeepSpeed.
            inputs["pixel_values"] = pixels.to(next(model.parameters()).dtype)
        return inputs

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of the logits with the delivered targets in training, with the whole votes in evaluation."""
        # The targets never reach the model: given float labels, HF heads silently switch to a BCE loss and write
        # the wrong problem_type into the config.
        votes, example_id = inputs["votes"], inputs["example_id"]
        train, epoch = model.training, self.delivery_epoch
        inputs = self.model_inputs(model, inputs, augment=train and self.args.augment)
        if train:
            target = self.delivery(votes, example_id, epoch)
            self.ledger.record(example_id, target)
            if self.delivery.name == "mixup":
                pairs = mixup_pairs(example_id, epoch, self.delivery.seed, self.args.mixup_alpha)
                inputs = mix_inputs(inputs, *pairs, self.accelerator.unwrap_model(model))
                target = mix_targets(target, votes.shape[-1], *pairs)
        else:
            target = distribution(votes)
        outputs = model(**inputs)
        logits = _logits(outputs)
        if logits.shape != votes.shape:
            raise VotesError(
                f"The model returned logits of shape {tuple(logits.shape)} for votes of shape {tuple(votes.shape)}: "
                "the model's labels and the votes' classes must be the same."
            )
        loss = F.cross_entropy(logits.float(), target)
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def _score(self, prediction: EvalPrediction) -> dict[str, float]:
        votes, _, gold_label = prediction.label_ids
        table = VoteScores(prediction.predictions, votes, gold_label, from_logits=True, ordinal=self.args.ordinal)
        scores, before = table.scores(), self.undefined
        self.undefined = table.undefined
        for name, reason in self.undefined.items():
            if before.get(name) != reason:
                logger.warning("%s is NaN: %s.", name, reason)
        if table.hard_label == "majority" and (gold_label >= 0).any() and self.hard_label != "majority":
            logger.warning(
                "%d of %d examples have no gold label: accuracy and the hard ECEs are against the votes' majority.",
                (gold_label < 0).sum(),
                len(gold_label),
            )
        self.hard_label = table.hard_label
        further = self._user_metrics(prediction) if self._user_metrics is not None else {}
        if twice := scores.keys() & further.keys():
            raise VotesError(f"compute_metrics must not return {', '.join(sorted(twice))}: these are scored already.")
        return {**scores, **further}

    def _determine_best_metric(self, metrics, trial):
        name = self.args.metric_for_best_model
        value = None if name is None else metrics.get(f"eval_{name.removeprefix('eval_')}")
        if value is not None and np.isnan(value):
            # Trainer would never find it better than anything, and keep no checkpoint or the wrong one.
            found = [reason for score, reason in self._all_undefined.items() if f"eval_{name}".endswith(score)]
            reason = found[0] if found else "the evaluation does not say why"
            raise VotesError(
                f"The best checkpoint cannot be chosen by {name}: it is NaN at step {self.state.global_step} "
                f"({reason}). Choose another metric_for_best_model, for instance soft_nll."
            )
        return super()._determine_best_metric(metrics, trial)

    def align_buffers(self) -> None:
        """Give every process the first one's batch-norm statistics: what is measured must be the model that is saved.

        Each has moved its own on since DDP last aligned them.
        """
        if dist.is_initialized():
            for buffer in self.model.buffers():
                dist.broadcast(buffer, src=0)

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs):
        self.align_buffers()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        self._all_undefined |= {f"{metric_key_prefix}_{name}": reason for name, reason in self.undefined.items()}
        score = output.metrics.get(f"{metric_key_prefix}_soft_nll")
        if score is not None:
            if not np.isfinite(score):
                raise NonFiniteLossError(f"The predictions are not finite: {metric_key_prefix}_soft_nll is {score}.")
            # The stock eval_loss is a mean of batch means, wrong when batches are ragged; this is the same quantity
            # from the gathered predictions, exact on any number of processes.
            output.metrics[f"{metric_key_prefix}_loss"] = score
        return output

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        self._refuse_non_finite(logs.get("loss"))
        super().log(logs, *args, **kwargs)

    def _refuse_non_finite(self, loss: float | None) -> None:
        if loss is not None and not np.isfinite(loss):
            raise NonFiniteLossError(
                f"The training loss is {loss} by step {self.state.global_step} (epoch {self.state.epoch:.2f}). "
                "Nothing more was saved. Lower the learning rate, clip gradients (max_grad_norm), or use fp32."
            )

    def _stream_settings(self) -> dict[str, Any]:
        """What the label stream and the order of the examples depend on."""
        args, delivery = self.args, asdict(self.delivery)
        if self._train_votes is None:
            self._train_votes = dataset_fingerprint(self.train_dataset)
        delivery["delivery"], delivery["delivery_seed"] = delivery.pop("name"), delivery.pop("seed")
        return {
            "world_size": args.world_size,
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "seed": args.seed,
            "data_seed": args.data_seed,
            **delivery,
            "mixup_alpha": args.mixup_alpha if self.delivery.name == "mixup" else None,
            "train_examples": None if self.streams else len(self.train_dataset),
            "train_votes": self._train_votes,
        }

    def _save_checkpoint(self, model, trial):
        # Summed over the processes, so that all of them stop and none is left waiting for the others.
        self._refuse_non_finite(self.accelerator.reduce(self._tr_loss.clone(), "sum").item())
        run_dir = self._get_output_dir(trial)
        checkpoint = Path(run_dir) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (checkpoint / MANIFEST_NAME).unlink(missing_ok=True)
        # Older checkpoints go only once this one is whole.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.ledger.save(checkpoint, write=self.args.should_save)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            step = self.state.global_step - self.epoch_start
            progress = {"epoch": self.delivery_epoch, "step": step}
            write_manifest(checkpoint, self._stream_settings(), progress, not self.args.save_only_model)
            # A push still reads the checkpoint before this one.
            self._finish_current_push()
            rotate_checkpoints(
                output_dir=run_dir,
                save_total_limit=limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
            )
            if self.args.push_to_hub:
                self.push_checkpoint(checkpoint)

    def _init_training_state(self, *args, **kwargs):
        epochs, batches = super()._init_training_state(*args, **kwargs)
        if self.streams:
            # Trainer takes all steps of a stream for one epoch: in a later pass it would skip past the stream's end.
            return self.delivery_epoch + 1, self.resumed_steps * self.args.gradient_accumulation_steps
        return epochs, batches

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """As [`Trainer.train`]. With `True` it goes on from the last checkpoint that was written to its end."""
        if self.train_dataset is None:
            raise VotesError("There is no train_dataset to train on.")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_whole_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise VotesError(f"{self.args.output_dir} has no whole checkpoint to resume from.")
        name, self.delivery = self.delivery.name, self.args.make_delivery()
        if self.delivery.name != name:
            raise VotesError(f"The trainer was made for {name!r}: make another one for {self.delivery.name!r}.")
        self.ledger, self._train_votes = Ledger(lambda array: gather_object([array])), None
        self.delivery_epoch, self.resumed_steps = -1 if self.streams else 0, 0
        if resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
            problem = flaw(checkpoint)
            if problem is not None:
                raise VotesError(f"Cannot resume from {checkpoint}: {problem}. Choose an earlier checkpoint.")
            if not self.args.allow_changed_resume:
                refuse_changes(checkpoint, self._stream_settings())
            self.ledger.load(checkpoint)
            if self.streams:
                progress = read_manifest(checkpoint)["progress"]
                self.delivery_epoch, self.resumed_steps = progress["epoch"] - 1, progress["step"]
        if self.model_wrapped is self.model and self.model in self.accelerator._models:
            # An evaluation before the training has marked the model as prepared. Trainer would leave it at that, and
            # train it without DDP: each process by itself, on its own examples.
            self.model._is_accelerate_prepared = False
            self.accelerator._models.remove(self.model)
        path = str(resume_from_checkpoint) if resume_from_checkpoint else None
        output = super().train(resume_from_checkpoint=path, **kwargs)
        self._refuse_non_finite(output.training_loss)
        return output


def _logits(outputs: Any) -> Tensor:
    """The logits of whatever a model returned: a tensor, a tuple with the logits first, or a dict with `logits`."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, dict):
        if "logits" not in outputs:
            raise VotesError(f"The model must return `logits`; it returned {', '.join(outputs)}.")
        return outputs["logits"]
    return outputs[0]
