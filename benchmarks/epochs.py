"""A whole epoch of a tiny model, whose step takes a millisecond: what a trainer spends beside the model.

Ours has the options of recipes/cifar10h/small: no clipping, no NaN filter, a log per epoch, and the image store. The
stock `Trainer` has its own defaults and tensors that are normalised beforehand; optimiser and schedule are the same.
"""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from datasets import Array3D, Dataset, Features, Value
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from transformers import Trainer, TrainingArguments

from hf_softlabel import MajorityTrainer, SoftLabelConfig, VotesTrainer
from hf_softlabel.data.images import VotesImages
from hf_softlabel.delivery import majority_label

from .images import TRANSFORM
from .measure import Row, alternate
from .real_data import image_store

BATCH = 32
RECIPE = Path(__file__).parents[1] / "recipes" / "cifar10h" / "small" / "majority.yaml"
OPTIMISER = ("optim", "optim_args", "weight_decay", "lr_scheduler_type")
# The recipe's 0.1 is for a network with batch norm: this one would diverge.
LEARNING_RATE = 1e-3
SPEED = ("max_grad_norm", "logging_strategy")
NO_FILTER = {"logging_nan_inf_filter": False}


class Tiny(nn.Module):
    """Two linear layers on 3 x 32 x 32 pixels."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.network(pixel_values)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class StoreWithLabels(TorchDataset):
    """The image store as a stock `Trainer` can read it: whole batches, normalised, with the majority label."""

    def __init__(self, store: VotesImages, labels: Tensor):
        self.store, self.labels = store, labels

    def __len__(self) -> int:
        return len(self.store)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        batch = self.store.__getitems__(indices)
        return {"pixel_values": TRANSFORM(batch["pixel_values"]), "labels": self.labels[batch["example_id"]]}


def _recipe(*names: str) -> dict[str, Any]:
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    return {name: recipe[name] for name in names}


def _arguments(folder: str, **options: Any) -> dict[str, Any]:
    fixed = {"num_train_epochs": 1, "per_device_train_batch_size": BATCH, "learning_rate": LEARNING_RATE}
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    return {"output_dir": folder, **fixed, **quiet, **_recipe(*OPTIMISER), **options}


def our_trainer(store: VotesImages, folder: str, **options: Any) -> Trainer:
    # Augmentation is left out: the tensors of the stock trainer are not augmented either.
    options = {**_recipe(*SPEED), "augment": False, **options}
    args = SoftLabelConfig(**_arguments(folder, **options))
    return MajorityTrainer(model=Tiny(), args=args, train_dataset=store, image_transform=TRANSFORM)


def stock_trainer(dataset: Any, folder: str, **options: Any) -> Trainer:
    args = TrainingArguments(**_arguments(folder, dataloader_pin_memory=False, remove_unused_columns=False, **options))
    collator = (lambda batch: batch) if isinstance(dataset, StoreWithLabels) else None
    return Trainer(model=Tiny(), args=args, train_dataset=dataset, data_collator=collator)


def bare_epoch(store: VotesImages, labels: Tensor, order: Tensor | None = None) -> nn.Module:
    """What is left without a trainer: shuffle (or take the examples in `order`), fetch, normalise, step."""
    model, recipe = Tiny().train(), _recipe(*OPTIMISER)
    momentum = float(recipe["optim_args"].removeprefix("momentum="))
    # As in Trainer, biases do not decay.
    biases, weights = ([w for w in model.parameters() if (w.ndim == 1) == bias] for bias in (True, False))
    groups = [{"params": weights, "weight_decay": recipe["weight_decay"]}, {"params": biases}]
    optimizer = torch.optim.SGD(groups, LEARNING_RATE, momentum)
    rows = (torch.randperm(len(store)) if order is None else order).split(BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(rows))
    for row in rows:
        pixels = TRANSFORM(store.column("pixel_values").index_select(0, row))
        F.cross_entropy(model(pixels)["logits"], labels[row]).backward()
        optimizer.step()
        schedule.step()
        model.zero_grad()
    return model


def epochs(make: Callable[[], Trainer], rounds: int) -> Callable[[], object]:
    """`trainer.train()` of one new trainer after another, all of them made beforehand."""
    trainers = iter([make() for _ in range(rounds)])

    def train() -> None:
        trainer = next(trainers)
        with redirect_stdout(io.StringIO()):  # their logs
            trainer.train()
        if isinstance(trainer, VotesTrainer):
            trainer.ledger.digest()  # the labels of the last epoch are hashed when they are asked for

    return train


def check_equal(ours: Trainer, theirs: Trainer) -> str:
    """With the same options both see the same batches in the same order: they end with the same weights."""
    with redirect_stdout(io.StringIO()):
        ours.train()
        theirs.train()
    check_weights(ours.model, theirs.model)
    return "with our options in both, the trained weights are equal to 1e-5"


def check_bare(store: VotesImages, labels: Tensor, theirs: Trainer) -> str:
    """Given the order of the trainer's examples, the bare loop ends with its weights."""
    batches = iter(theirs.get_train_dataloader().batch_sampler)
    with redirect_stdout(io.StringIO()):
        theirs.train()
    check_weights(bare_epoch(store, labels, torch.tensor([row for batch in batches for row in batch])), theirs.model)
    return "in the trainer's order of examples, the trained weights are equal to 1e-5"


def check_weights(one: nn.Module, other: nn.Module) -> None:
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(weight, other.state_dict()[name], rtol=0, atol=1e-5)
    assert not torch.equal(one.network[1].weight, Tiny().network[1].weight)


@contextmanager
def frozen_heap() -> Iterator[None]:
    """accelerate collects garbage at the start of each training, and would go through all data of the benchmark."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def rows(scale: float) -> Iterator[Row]:
    n = int(10_000 * scale)
    store = image_store(n)
    labels = majority_label(store.column("votes"), store.column("example_id"), seed=42)
    pixels = TRANSFORM(store.column("pixel_values"))
    features = Features({"pixel_values": Array3D((3, 32, 32), "float32"), "labels": Value("int64")})
    table = Dataset.from_dict({"pixel_values": pixels.numpy(), "labels": labels.numpy()}, features)
    tensors = [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]
    fast = {**_recipe(*SPEED), **NO_FILTER}
    sizes = {"images": n, "batch": BATCH}
    with frozen_heap(), TemporaryDirectory() as folder:

        def row(
            name: str,
            peer: str,
            ours: Callable,
            theirs: Callable,
            target: str | None = None,
            clock: Callable[[], float] = time.process_time,
            checked: str = "",
        ) -> Row:
            times = alternate(ours, theirs, rounds, clock)
            packages = ("datasets", "accelerate")
            return times.row(name, peer, "times as long", target, sizes=sizes, checked=checked, packages=packages)

        def same(dataset: Any) -> str:
            return check_equal(our_trainer(store, folder), stock_trainer(dataset, folder, **fast))

        def ours(**options: Any) -> Callable[[], object]:
            return epochs(lambda: our_trainer(store, folder, **options), rounds)

        def stock(dataset: Any, **options: Any) -> Callable[[], object]:
            return epochs(lambda: stock_trainer(dataset, folder, **options), rounds)

        rounds = 7
        name, peer = "an epoch of a tiny model under VotesTrainer", "stock Trainer with its defaults"
        for form, dataset in (
            ("datasets in torch format", table.with_format("torch")),
            ("a list of tensors", tensors),
        ):
            checked = same(dataset)
            yield row(name, f"{peer}, {form}", ours(), stock(dataset), "<= 0.9", checked=checked)
        bare = lambda: bare_epoch(store, labels)  # noqa: E731
        stored = StoreWithLabels(store, labels)
        checked = check_bare(store, labels, stock_trainer(stored, folder, **fast))
        yield row(name, "a bare PyTorch loop", ours(), bare, checked=checked)
        of_which = "of which: stock Trainer with our options"
        yield row(of_which, "a bare PyTorch loop", stock(stored, **fast), bare, checked=checked)
        checked, peer = same(stored), "stock Trainer with our options"
        yield row("of which: votes, delivery and ledger", peer, ours(), stock(stored, **fast), checked=checked)
        for option, what in (
            ({"max_grad_norm": 1.0}, "clipping (max_grad_norm: 1)"),
            ({"logging_nan_inf_filter": True}, "the NaN filter (logging_nan_inf_filter)"),
            ({"logging_strategy": "steps", "logging_steps": 1}, "a log per step (logging_steps: 1)"),
            ({"augment": True}, "crop and flip (augment)"),
        ):
            yield row(f"an epoch with {what}", "the same without", ours(**option), ours())
        # Their time is not that of this process.
        what, workers = "two workers (dataloader_num_workers: 2)", ours(dataloader_num_workers=2)
        yield row(f"an epoch with {what}", "the same without", workers, ours(), clock=time.perf_counter)
