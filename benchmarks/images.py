"""The image data path: fetch, crop, flip, normalise, votes and labels of a batch.

The peer is what a user of `datasets` and torchvision writes: a transform that decodes and augments image by image and
samples the label from the votes, and the default collator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from tempfile import TemporaryDirectory

import torch
import torchvision.transforms as T
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import default_data_collator

from hf_softlabel import SLSTrainer, SoftLabelConfig
from hf_softlabel.collators import VotesCollator
from hf_softlabel.data.images import ImageTransform, VotesImages
from hf_softlabel.delivery import Delivery
from hf_softlabel.models import CIFAR_MEAN, CIFAR_STD, build_resnet

from .measure import Row, alternate, growth, memory
from .real_data import cifar10h, image_store

BATCH = 128
CLASSES = 10
PEER = "datasets' set_transform, torchvision, default_data_collator"
TRANSFORM = ImageTransform(CIFAR_MEAN, CIFAR_STD)
_NORMALISE = [T.ToTensor(), T.Normalize(CIFAR_MEAN, CIFAR_STD)]
_AUGMENT = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]

Batch = tuple[Tensor, Tensor, Tensor]


def our_batches(store: VotesImages, train: bool, workers: int = 0, batch_size: int = BATCH) -> Iterator[Batch]:
    """(pixels, votes, labels) of each batch, as the trainer makes them."""
    deliver = Delivery("sls")
    loader = DataLoader(store, batch_size, shuffle=train, collate_fn=VotesCollator(CLASSES), num_workers=workers)
    for batch in loader:
        votes, example_id = batch["votes"], batch["example_id"]
        pixels = TRANSFORM(batch["pixel_values"], example_id, epoch=0, train=train)
        yield pixels, votes, deliver(votes, example_id, 0)


def their_batches(dataset: Dataset, train: bool, workers: int = 0) -> Iterator[Batch]:
    """The same from a data set with an `image` column."""
    transform = T.Compose([*(_AUGMENT if train else []), *_NORMALISE])

    def apply(rows: dict) -> dict:
        votes = torch.tensor(rows["votes"])
        return {
            "pixel_values": [transform(image) for image in rows["image"]],
            "votes": votes,
            "labels": torch.multinomial(votes.float(), 1).squeeze(1),
        }

    dataset = dataset.select_columns(["image", "votes"])
    dataset.set_transform(apply)
    loader = DataLoader(dataset, BATCH, shuffle=train, collate_fn=default_data_collator, num_workers=workers)
    for batch in loader:
        yield batch["pixel_values"], batch["votes"], batch["labels"]


def exhaust(batches: Iterator[Batch]) -> int:
    return sum(len(labels) for _, _, labels in batches)


def check_equal(dataset: Dataset, store: VotesImages) -> str:
    """Without augmentation both give the same; with it each image is one of the crops and flips of its original."""
    for ours, theirs in zip(our_batches(store, False), their_batches(dataset, False), strict=True):
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-6)
        assert torch.equal(ours[1], theirs[1].to(ours[1].dtype))
        for votes, labels in (ours[1:], theirs[1:]):
            assert (votes.gather(1, labels[:, None]) > 0).all()
    rows = min(len(store), BATCH)
    batch = store.__getitems__(range(rows))
    augmented = TRANSFORM(batch["pixel_values"], batch["example_id"], epoch=0, train=True)
    padded = T.Pad(4)(batch["pixel_values"])
    crops = torch.stack([padded[..., y : y + 32, x : x + 32] for y in range(9) for x in range(9)])
    results = T.Normalize(CIFAR_MEAN, CIFAR_STD)(torch.cat([crops, crops.flip(-1)]).float() / 255)
    found = ((results - augmented).abs().amax((2, 3, 4)) <= 1e-6).any(0)
    assert found.all(), f"{(~found).sum()} augmented images are no crop of theirs"
    return "not augmented: pixels to 1e-6, votes equal; augmented: each is a crop and flip of its image"


def training_step(store: VotesImages, batch_size: int, folder: str) -> Callable[[], object]:
    """A step of SLSTrainer with the width-1 ResNet-18, optimiser included, on one batch."""
    args = SoftLabelConfig(folder, optim="sgd", report_to="none", use_cpu=True, max_grad_norm=0)
    model = build_resnet(store.names, seed=0)
    trainer = SLSTrainer(model=model, args=args, train_dataset=store, image_transform=TRANSFORM)
    trainer.current_gradient_accumulation_steps = 1  # which `train` sets
    optimizer = trainer.create_optimizer()
    batch = VotesCollator(CLASSES)(store.__getitems__(range(batch_size)))

    def step() -> None:
        trainer.training_step(model, batch)
        optimizer.step()
        model.zero_grad()

    return step


def delivered_epoch(n: int) -> Callable[[], object]:
    """An epoch of n images; beyond CIFAR-10H's 10,000 the images recur under new ids."""
    whole = image_store(min(n, 10_000))
    rows = torch.arange(n) % len(whole)
    columns = [whole.column(name)[rows] for name in ("pixel_values", "votes")]
    store = VotesImages(*columns, torch.arange(n), torch.full((n,), -1), whole.names)
    return lambda: exhaust(our_batches(store, True))


def decoded_store(n: int) -> Callable[[], object]:
    dataset = cifar10h(n)
    VotesImages.from_dataset(dataset.select(range(10)))  # what decoding imports is not of the store
    return lambda: VotesImages.from_dataset(dataset)


def rows(scale: float) -> Iterator[Row]:
    n = int(10_000 * scale)
    dataset, store = cifar10h(n), image_store(n)
    checked = check_equal(dataset, store)
    # The time of workers is not that of this process.
    for workers, rounds, clock in ((0, 7, time.process_time), (2, 3, time.perf_counter)):
        times = alternate(
            lambda w=workers: exhaust(our_batches(store, True, w)),
            lambda w=workers: exhaust(their_batches(dataset, True, w)),
            rounds,
            clock,
        )
        yield times.row(
            "delivering image batches: fetch, crop, flip, normalise, votes, labels",
            PEER,
            "times as fast",
            ">= 20",
            sizes={"images": n, "batch": BATCH, "workers": workers},
            checked=checked,
            packages=("datasets", "torchvision"),
        )
    # The store is decoded before the clock starts above; the peer decodes in each epoch.
    times = alternate(
        lambda: exhaust(our_batches(VotesImages.from_dataset(dataset), True)),
        lambda: exhaust(their_batches(dataset, True)),
        3,
        time.process_time,
    )
    yield times.row(
        "decoding all images, then delivering one epoch of them",
        f"one epoch by {PEER}",
        "times as fast",
        sizes={"images": n, "batch": BATCH, "workers": 0},
        checked=checked,
        packages=("datasets", "torchvision"),
    )

    batch_size = max(8, int(BATCH * scale))
    with TemporaryDirectory() as folder:
        # Epochs on end, so that the shuffling at the start of one is not charged to a batch.
        batches = chain.from_iterable(our_batches(store, True, batch_size=batch_size) for _ in count())
        next(batches)
        times = alternate(lambda: next(batches), training_step(store, batch_size, folder), 3, time.process_time)
    row = times.row(
        "delivering one image batch",
        "a training step of the width-1 ResNet-18",
        "times as long",
        "<= 0.01",
        sizes={"batch": batch_size},
        checked="the same batch size and data path",
    )
    row.unit = "of a training step"
    yield row

    yield growth("delivering an epoch of images", delivered_epoch, n)

    yield memory(
        "decoding images into the store, itself included",
        "the files, of which 3,072 bytes of pixels each are kept",
        decoded_store,
        n,
        sizes={"images": n},
        packages=("datasets",),
    )
