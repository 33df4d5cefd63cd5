"""Labels of a data set: multipass from counts against lists of votes, and SLS from sparse votes against dense rows.
Also the memory of training on such votes.

The lists are the papers' words taken literally: each example's counts are expanded into its votes, shuffled once, kept
and cycled. Dense rows have a number for each class.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback

from hf_softlabel import SLSTrainer, SoftLabelConfig
from hf_softlabel.data.votes import votes_features
from hf_softlabel.delivery import multipass_label, sls_label
from hf_softlabel.sparse_votes import SparseVotes

from .measure import Row, alternate, growth, memory, peak_memory

EXAMPLES, VOTES, CLASSES = 1_000_000, 100, 10
SPARSE_VOTES, MANY_CLASSES = 5, 1_000
# Rows at a time: ours as a data loader would ask for them, and dense rows, of which no more fit into memory.
BLOCK, DENSE_BLOCK = 2**16, 10_000


def rows(scale: float) -> Iterator[Row]:
    torch.set_num_threads(1)
    yield from _multipass(int(EXAMPLES * scale))
    yield from _sparse(int(EXAMPLES * scale))
    yield from _training(int(EXAMPLES * scale))


def counts(n: int) -> Tensor:
    """(n, C) int64: 100 votes for each example."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.multinomial(VOTES, rng.dirichlet(np.ones(CLASSES), n)))


def from_counts(votes: Tensor) -> Callable[[], Tensor]:
    ids = torch.arange(len(votes))
    blocks = list(zip(votes.split(BLOCK), ids.split(BLOCK), strict=True))
    return lambda: torch.cat([multipass_label(part, at, 0, 0) for part, at in blocks])


def from_lists(votes: Tensor, generator_each: bool = False) -> Callable[[], tuple[list[int], list[list[int]]]]:
    """The first epoch's labels, and the sequences, which all later epochs need."""
    table = votes.numpy()

    def shuffle() -> tuple[list[int], list[list[int]]]:
        rng, sequences = random.Random(0), []
        for number, row in enumerate(table):
            sequence = [label for label, count in enumerate(row.tolist()) for _ in range(count)]
            if generator_each:
                rng = random.Random(number)
            rng.shuffle(sequence)
            sequences.append(sequence)
        return [sequence[0 % len(sequence)] for sequence in sequences], sequences

    return shuffle


def from_arrays(votes: Tensor) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """The same with numpy, example by example. All have the same number of votes here, so that an array holds them."""
    table, classes = votes.numpy(), np.arange(CLASSES, dtype=np.int8)

    def shuffle() -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        sequences = np.empty((len(table), VOTES), np.int8)
        for sequence, row in zip(sequences, table, strict=True):
            sequence[:] = classes.repeat(row)
            rng.shuffle(sequence)
        return sequences[:, 0], sequences

    return shuffle


def from_permuted(votes: Tensor) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """The same with numpy, all examples in one call."""
    table, classes = votes.numpy(), np.arange(CLASSES, dtype=np.int8)

    def shuffle() -> tuple[np.ndarray, np.ndarray]:
        sequences = np.tile(classes, len(table)).repeat(table.ravel()).reshape(len(table), VOTES)
        np.random.default_rng(0).permuted(sequences, axis=1, out=sequences)
        return sequences[:, 0], sequences

    return shuffle


def _counts_work(n: int) -> Callable[[], object]:
    return from_counts(counts(n))


def _lists_work(n: int) -> Callable[[], object]:
    return from_lists(counts(n))


def _check_cycle(votes: Tensor) -> None:
    """Over as many epochs as there are votes, each vote is shown once, as by the lists."""
    ids = torch.arange(len(votes))
    shown = torch.stack([multipass_label(votes, ids, epoch, 0) for epoch in range(VOTES)], 1)
    for make in (from_lists, from_arrays, from_permuted):
        first, sequences = map(torch.as_tensor, make(votes)())
        check_voted_for(first.long(), votes)
        check_each_vote_once(sequences.long(), votes)
    check_each_vote_once(shown, votes)


def check_each_vote_once(sequences: Tensor, votes: Tensor) -> None:
    """`sequences` (n, m) of labels have the counts `votes` (n, C)."""
    if not torch.equal(torch.nn.functional.one_hot(sequences, CLASSES).sum(1), votes):
        raise AssertionError("a cycle does not show each vote once")


def check_voted_for(labels: Tensor, votes: Tensor) -> None:
    """Each of the labels (n,) has a vote in `votes` (n, C)."""
    if not (votes.gather(1, labels[:, None]) > 0).all():
        raise AssertionError("a peer gives a label that nobody voted for")


def _multipass(n: int) -> Iterator[Row]:
    votes = counts(n)
    _check_cycle(votes[: min(n, 2000)])
    same = {
        "sizes": {"examples": n, "votes each": VOTES, "classes": CLASSES},
        "checked": "over as many epochs as an example has votes, each vote is shown once",
    }
    what, unit = "multipass labels of the first epoch, from counts", "times as fast"
    times = alternate(from_counts(votes), from_lists(votes), 3, time.process_time)
    yield times.row(what, "a shuffled list for each example", unit, ">= 50", **same)
    times = alternate(from_counts(votes), from_lists(votes, generator_each=True), 3, time.process_time)
    each = "the same lists, whatever the order of examples (a seeded generator for each)"
    yield times.row(what, each, unit, **same)
    times = alternate(from_counts(votes), from_arrays(votes), 3, time.process_time)
    yield times.row(what, "a shuffled numpy array for each example", unit, **same)
    times = alternate(from_counts(votes), from_permuted(votes), 3, time.process_time)
    yield times.row(what, "one array of all votes, by rng.permuted(axis=1)", unit, **same)

    ours, lists = peak_memory(_counts_work, n), peak_memory(_lists_work, n // 10) * 10
    sizes = {"examples": n, "bytes of the counts": votes.numel() * 8, "bytes beyond, ours": ours, "lists": lists}
    yield Row(
        "peak memory of these labels, beyond the counts",
        "lists (measured at a tenth of the examples)",
        ours / lists,
        "of the lists' bytes",
        sizes=sizes,
        checked="ours holds the labels (8 bytes each) and works on blocks of 65,536 examples",
    )
    yield memory("multipass labels of an epoch", "the counts", _counts_work, n, sizes={"examples": n})
    yield growth("multipass labels from counts, growth", _counts_work, n, clock=time.process_time)


def sparse(n: int, classes: int) -> SparseVotes:
    labels = np.random.default_rng(0).integers(0, classes, (n, SPARSE_VOTES), dtype=np.int32)
    return SparseVotes(torch.from_numpy(np.sort(labels, 1)).flatten(), torch.arange(n + 1) * SPARSE_VOTES)


def from_sparse(n: int, classes: int = MANY_CLASSES) -> Callable[[], Tensor]:
    votes, ids = sparse(n, classes), torch.arange(n)
    return lambda: votes.sls_label(ids, 0, 0)


def _inverse_cdf(p: Tensor) -> Tensor:
    return _by_cdf(p.cumsum(1))


def _by_cdf(cdf: Tensor) -> Tensor:
    return torch.searchsorted(cdf, torch.rand(len(cdf), 1), right=True).squeeze(1)


def _multinomial(p: Tensor) -> Tensor:
    return torch.multinomial(p, 1).squeeze(1)


def _sparse(n: int) -> Iterator[Row]:
    ours = from_sparse(n)
    block = min(n, DENSE_BLOCK)
    places = sparse(n, MANY_CLASSES).labels.view(n, SPARSE_VOTES)[:block].long()
    dense = torch.zeros(block, MANY_CLASSES, dtype=torch.int64).scatter_add_(1, places, torch.ones_like(places))
    if not torch.equal(ours()[:block], sls_label(dense, torch.arange(block), 0, 0)):
        raise AssertionError("sparse and dense votes give different labels")
    p = dense.float() / SPARSE_VOTES
    sizes = {"examples": n, "classes": MANY_CLASSES, "votes each": SPARSE_VOTES, "dense rows at a time": block}
    checked = f"equal to the labels of dense counts, and the peer's are voted for, for {block:,} examples"
    cdf = p.cumsum(1)
    for peer, rows_at_hand, draw, target in (
        ("inverse CDF of dense rows", p, _inverse_cdf, ">= 20"),
        ("torch.multinomial on dense rows", p, _multinomial, ">= 20"),
        ("searchsorted in dense CDFs that are kept", cdf, _by_cdf, None),
    ):
        # The rows are there already, in float32, half of what our own counts take: the peer only draws.
        theirs = partial(draw, rows_at_hand)
        check_voted_for(theirs(), dense)
        times = alternate(ours, lambda: [theirs() for _ in range(max(1, n // block))], 3, time.process_time)  # noqa: B023
        yield times.row("SLS labels from sparse votes", peer, "times as fast", target, sizes=sizes, checked=checked)

    few, many = (max(1, peak_memory(from_sparse, n, classes)) for classes in (MANY_CLASSES, 10 * MANY_CLASSES))
    yield Row(
        "peak memory of these labels at 10,000 classes",
        "the same at 1,000 classes",
        many / few,
        "times as much",
        "<= 1.1",
        sizes={
            "examples": n,
            "bytes at 1,000": few,
            "at 10,000": many,
            "dense float32 at 1,000": n * MANY_CLASSES * 4,
        },
        checked="the same number of votes",
    )
    sizes = {"examples": n, "classes": MANY_CLASSES}
    yield memory("SLS labels of an epoch", "the sparse votes", from_sparse, n, sizes=sizes)
    yield growth("SLS labels from sparse votes, growth", from_sparse, n, clock=time.process_time)


class _Linear(torch.nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.out = torch.nn.Linear(1, classes)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.out(x[:, None])}


def sparse_dataset(n: int, classes: int) -> Dataset:
    """The votes of [`sparse`] by the contract, with an input `x`."""
    ends = pa.array(np.arange(n + 1) * SPARSE_VOTES, pa.int32())
    labels, ones = sparse(n, classes).labels.numpy(), np.ones(n * SPARSE_VOTES, np.int32)
    lists = [pa.ListArray.from_arrays(ends, pa.array(values)) for values in (labels, ones)]
    columns = {
        "votes": pa.StructArray.from_arrays(lists, ["labels", "counts"]),
        "example_id": pa.array(np.arange(n)),
        "label": pa.nulls(n, pa.int64()),
    }
    features = votes_features([str(number) for number in range(classes)], sparse=True)
    table = pa.table(columns).cast(features.arrow_schema)
    return Dataset(table.append_column("x", pa.array(np.random.default_rng(1).random(n, np.float32))))


def sparse_training(n: int, classes: int = MANY_CLASSES) -> Callable[[], SLSTrainer]:
    """20 steps of a trainer that is made for them, and the checkpoint after them."""
    data = sparse_dataset(n, classes)

    def train() -> SLSTrainer:
        with TemporaryDirectory() as folder:
            options = {"max_steps": 20, "save_steps": 20, "disable_tqdm": True, "report_to": "none", "use_cpu": True}
            args = SoftLabelConfig(output_dir=folder, logging_strategy="no", **options)
            trainer = SLSTrainer(model=_Linear(classes), args=args, train_dataset=data)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return trainer

    return train


def _training(n: int) -> Iterator[Row]:
    peak, counted = peak_memory(sparse_training, n), n * MANY_CLASSES * 8
    what = "building an SLSTrainer, 20 steps and a checkpoint, sparse votes"
    sizes = {"examples": n, "classes": MANY_CLASSES, "votes each": SPARSE_VOTES, "bytes beyond the votes": peak}
    against = "the bytes of (N, C) counts"
    yield Row(f"peak memory of {what}", against, peak / counted, "of these bytes", sizes={**sizes, "counts": counted})
    yield memory(what, "the sparse votes", sparse_training, n, sizes=sizes)
