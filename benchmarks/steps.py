"""A training step of our trainers against the stock `Trainer` with hard labels: same model, same data path.

A step is: the next batch of the trainer's own loader, `training_step`, the optimiser. Images come from one store; the
stock trainer's collator augments and normalises them by our transform, which ours does in `compute_loss`. Texts are
the same tokenised rows, padded by `DataCollatorWithPadding`. Time is that of the process, so that other programs' is
not counted, and the two take turns step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from hf_softlabel import MultipassTrainer, SLSTrainer, SoftLabelConfig, SoftLabelTrainer
from hf_softlabel.data.images import VotesImages
from hf_softlabel.data.text import tokenize_votes
from hf_softlabel.data.votes import class_names
from hf_softlabel.models import build_resnet
from hf_softlabel.trainer import VotesTrainer

from .images import TRANSFORM
from .measure import Alternation, Row, alternate
from .real_data import chaosnli, image_store, wordpiece

TRAINERS = (SLSTrainer, MultipassTrainer, SoftLabelTrainer)
SEED = 0
PAIRS, ROUNDS = 6, 12


class HardImages:
    """The store's batches as the stock trainer gets them, and the collator that augments, normalises and labels."""

    def __init__(self, store: VotesImages):
        self.store = store
        self.labels = store.column("votes").argmax(1)

    def __len__(self) -> int:
        return len(self.store)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        return self.store.__getitems__(indices)

    def collate(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        pixels = TRANSFORM(batch["pixel_values"], batch["example_id"], epoch=0, seed=SEED, train=True)
        return {"pixel_values": pixels, "labels": self.labels[batch["example_id"]]}


def resnet(store: VotesImages) -> nn.Module:
    return build_resnet(store.names, width=0.25, seed=SEED)


def bert(tokenizer: Any, names: list[str]) -> nn.Module:
    torch.manual_seed(SEED)
    size = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    return BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=len(names), **size))


def _arguments(kind: type, folder: str, batch_size: int) -> Any:
    return kind(
        folder,
        per_device_train_batch_size=batch_size,
        seed=SEED,
        use_cpu=True,
        report_to="none",
        remove_unused_columns=kind is SoftLabelConfig,
        dataloader_pin_memory=False,
    )


def _batches(trainer: Trainer) -> Iterator[dict[str, Tensor]]:
    loader = trainer.get_train_dataloader()
    while True:
        yield from loader


def steps(trainer: Trainer, around: Callable[[nn.Module], nn.Module] = lambda model: model) -> Callable[[], object]:
    """Each call does one step. `around` may wrap the model."""
    trainer.current_gradient_accumulation_steps = 1  # which `train` sets
    model, optimizer, batches = around(trainer.model), trainer.create_optimizer(), _batches(trainer)

    def step() -> None:
        trainer.training_step(model, next(batches))
        optimizer.step()
        model.zero_grad()

    return step


def check_equal(ours: VotesTrainer, theirs: Trainer) -> str:
    """The first batches have the same inputs in the same order."""
    for batch, stock in islice(zip(_batches(ours), _batches(theirs), strict=True), 3):
        inputs = ours.model_inputs(ours.model, batch, augment=True)
        assert inputs.keys() == stock.keys() - {"labels"}
        for name, values in inputs.items():
            assert torch.equal(values, stock[name]), f"{name} differ"
    return "batches have equal inputs in equal order; one model, from one seed"


def in_pairs(
    make_ours: Callable[[], Trainer], make_theirs: Callable[[], Trainer], pairs: int, rounds: int
) -> Alternation:
    """Steps in turn, of several pairs of trainers: where it lies in memory makes one some percent faster for life."""
    times = Alternation([], [])
    for number in range(pairs):
        makes = (make_ours, make_theirs) if number % 2 == 0 else (make_theirs, make_ours)
        made = [steps(make()) for make in makes]
        for step in made:
            step()  # the first one allocates
        ours, theirs = made if number % 2 == 0 else made[::-1]
        pair = alternate(ours, theirs, rounds, time.process_time)
        times.ours += pair.ours
        times.theirs += pair.theirs
    return times


def compared(
    what: str,
    make_ours: Callable[[type], VotesTrainer],
    make_theirs: Callable[[], Trainer],
    pairs: int,
    rounds: int,
    sizes: dict,
) -> Iterator[Row]:
    sizes = {**sizes, "pairs": pairs, "rounds of each": rounds}
    for kind in TRAINERS:
        checked = check_equal(make_ours(kind), make_theirs())
        yield in_pairs(partial(make_ours, kind), make_theirs, pairs, rounds).row(
            f"a training step of {kind.__name__}, {what}",
            "stock Trainer with hard labels, same model and data path",
            "times as long",
            "<= 1.02",
            sizes=sizes,
            checked=checked,
        )
    # What is left when nothing differs: the rows above cannot tell less apart.
    yield in_pairs(make_theirs, make_theirs, pairs, rounds).row(
        f"a training step of the stock Trainer, {what}",
        "itself, a second one of it",
        "times as long",
        sizes=sizes,
        checked="the same class, data and options",
    )


def switched(name: str, ours: Callable[[], object], without: Callable[[], object], rounds: int, sizes: dict) -> Row:
    ours(), without()
    times = alternate(ours, without, rounds, time.process_time)
    return times.row(name, "the same step without", "times as long", sizes={**sizes, "rounds": rounds})


class BFloat16(nn.Module):
    """A model under `bf16: true`: accelerate runs the forward pass under autocast."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(**inputs)


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


def rows(scale: float) -> Iterator[Row]:
    pairs, rounds = (max(1, int(number * scale)) for number in (PAIRS, ROUNDS))
    with TemporaryDirectory() as folder:
        batch_size = max(8, int(128 * scale))
        store = image_store(max(2 * batch_size, int(4000 * scale)))

        def our_images(kind: type = SLSTrainer) -> VotesTrainer:
            args = _arguments(SoftLabelConfig, folder, batch_size)
            return kind(model=resnet(store), args=args, train_dataset=store, image_transform=TRANSFORM)

        def stock_images() -> Trainer:
            args, images = _arguments(TrainingArguments, folder, batch_size), HardImages(store)
            return Trainer(model=resnet(store), args=args, train_dataset=images, data_collator=images.collate)

        sizes = {"model": "ResNet-18, width 0.25", "batch": batch_size}
        yield from compared("images", our_images, stock_images, pairs, rounds, sizes)
        few = max(3, rounds // 2)
        options = {"channels_last": channels_last, "bf16": BFloat16}
        if scale >= 1:
            # Compiling takes a minute, whatever the size.
            options["torch_compile"] = torch.compile
        for option, around in options.items():
            yield switched(
                f"a training step with {option}", steps(our_images(), around), steps(our_images()), few, sizes
            )

        batch_size = max(4, int(32 * scale))
        texts, tokenizer = chaosnli(), wordpiece()
        tokens = tokenize_votes(texts, tokenizer)
        hard = _hard_texts(tokens)

        def our_texts(kind: type = SLSTrainer) -> VotesTrainer:
            args, model = _arguments(SoftLabelConfig, folder, batch_size), bert(tokenizer, class_names(texts))
            return kind(model=model, args=args, train_dataset=tokens, processing_class=tokenizer)

        def stock_texts() -> Trainer:
            args, model = _arguments(TrainingArguments, folder, batch_size), bert(tokenizer, class_names(texts))
            pad = DataCollatorWithPadding(tokenizer)
            return Trainer(model=model, args=args, train_dataset=hard, data_collator=pad)

        sizes = {"model": "BERT, 4 layers of 256", "batch": batch_size}
        yield from compared("texts", our_texts, stock_texts, pairs, rounds, sizes)
        yield switched("a training step with bf16", steps(our_texts(), BFloat16), steps(our_texts()), few, sizes)


def _hard_texts(tokens: Dataset) -> Dataset:
    """The same rows with the majority label, as a user of the stock trainer has them."""
    labels = torch.tensor(tokens["votes"][:]).argmax(1).tolist()
    return tokens.remove_columns(["votes", "example_id", "label"]).add_column("labels", labels)
