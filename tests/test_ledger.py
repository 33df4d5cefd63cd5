"""The ledger's digest: equal when the same labels were seen, whatever the order, processes and interruptions."""

from __future__ import annotations

import os
import tempfile
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trainers import text_trainer
from transformers import TrainerCallback

from hf_softlabel.hashing import hash64
from hf_softlabel.ledger import Ledger

ENTRIES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=30)
Batch = list[tuple[int, int]]


def record(ledger: Ledger, entries: Batch) -> None:
    ids, labels = (torch.tensor(column) for column in zip(*entries, strict=True))
    ledger.record(ids, labels)


def digest(*epochs: Batch) -> str:
    """Of a run on one process, with one batch for each epoch."""
    ledger = Ledger()
    for epoch, entries in enumerate(epochs):
        ledger.begin_epoch(epoch)
        record(ledger, entries)
    return ledger.digest()


FIRST, SECOND, THIRD = [(7, 0), (8, 1), (9, 2)], [(7, 1), (8, 1), (9, 0)], [(7, 0), (8, 2), (9, 2)]


def test_digest_is_the_sum_of_the_entries_hashes_modulo_2_to_the_64():
    by_hand = sum(
        hash64("ledger", epoch, torch.tensor(i), label).item()
        for epoch, entries in enumerate([FIRST, SECOND, THIRD])
        for i, label in entries
    )
    assert digest(FIRST, SECOND, THIRD) == f"{by_hand % 2**64:016x}"
    assert Ledger().digest() == "0" * 16


@given(ENTRIES, st.randoms(use_true_random=False), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_order_and_batch_size_do_not_matter(entries, rng, size):
    shuffled = entries.copy()
    rng.shuffle(shuffled)
    ledger = Ledger()
    ledger.begin_epoch(0)
    for start in range(0, len(shuffled), size):
        record(ledger, shuffled[start : start + size])
    assert ledger.digest() == digest(entries)


def test_another_label_epoch_or_id_changes_the_digest():
    digests = [
        digest(FIRST, SECOND),
        digest(FIRST, [(7, 2), *SECOND[1:]]),  # another label
        digest(FIRST, [(6, 1), *SECOND[1:]]),  # another id
        digest(SECOND, FIRST),  # the same entries in other epochs
        digest(FIRST),  # an epoch fewer
        digest(FIRST, SECOND[1:]),  # an entry fewer
        digest([(7, 1), (8, 0), (9, 2)], SECOND),  # labels swapped between two examples
    ]
    assert len(set(digests)) == len(digests)


def test_repeats_count_once_in_an_epoch_and_again_in_the_next():
    assert digest([*FIRST, FIRST[0], FIRST[2]]) == digest(FIRST)
    assert digest(FIRST, [*SECOND, *SECOND]) == digest(FIRST, SECOND)
    assert digest(FIRST, FIRST) != digest(FIRST)
    # Over two epochs the same (id, label) counts twice, as two other entries.
    assert int(digest(FIRST, FIRST), 16) != 2 * int(digest(FIRST), 16) % 2**64


def processes(parts: list[list[Batch]]) -> str:
    """The digest of a run whose epochs are spread over processes: parts[process][epoch]. All must agree on it."""
    ledgers: list[Ledger] = []

    # The collective calls of real processes meet; here they are made one by one, so a gather looks at what was set
    # aside just before the first of them.
    aside: list[np.ndarray] = []
    ledgers.extend(Ledger(gather=lambda array: aside) for _ in parts)
    for epoch in range(len(parts[0])):
        aside[:] = [ledger._own_entries() for ledger in ledgers]
        for ledger, epochs in zip(ledgers, parts, strict=True):
            ledger.begin_epoch(epoch)
            if epochs[epoch]:
                record(ledger, epochs[epoch])
    aside[:] = [ledger._own_entries() for ledger in ledgers]
    (only,) = {ledger.digest() for ledger in ledgers}
    return only


def test_two_processes_with_a_filled_up_tail_equal_one():
    # Three examples on two processes: the last batch is filled up with an example of the other process.
    parts = [[FIRST[:2], SECOND[:2]], [[FIRST[2], FIRST[0]], [SECOND[2], SECOND[1]]]]
    assert processes(parts) == digest(FIRST, SECOND)
    assert processes([[FIRST, SECOND], [[], []]]) == digest(FIRST, SECOND)
    assert processes([[FIRST[:2], SECOND[:2]], [FIRST[2:], [(9, 1)]]]) != digest(FIRST, SECOND)


@given(st.lists(ENTRIES, min_size=2, max_size=3), st.data())
@settings(max_examples=40, deadline=None)
def test_a_run_saved_and_resumed_anywhere_equals_one_that_was_not(epochs, data):
    stop = data.draw(st.integers(0, len(epochs) - 1), label="epoch of the save")
    cut = data.draw(st.integers(0, len(epochs[stop])), label="entries before the save")
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger()
        for epoch, entries in enumerate(epochs[: stop + 1]):
            ledger.begin_epoch(epoch)
            if entries[: cut if epoch == stop else None]:
                record(ledger, entries[: cut if epoch == stop else None])
        ledger.save(folder)
        resumed = Ledger()
        resumed.load(folder)
    assert resumed.digest() == ledger.digest()
    for epoch, entries in list(enumerate(epochs))[stop:]:
        resumed.begin_epoch(epoch)
        rest = entries[cut:] if epoch == stop else entries
        # The epoch's end repeats examples that were seen before the save.
        if rest + entries[:2]:
            record(resumed, rest + entries[:2])
    assert resumed.digest() == digest(*epochs)


def test_two_processes_resumed_count_the_entries_before_once(tmp_path):
    first = Ledger()
    record(first, FIRST[:2])
    first.save(tmp_path)
    mine, other = hash64("ledger", 0, torch.tensor([9]), 2), np.zeros(0, np.int64)
    resumed = Ledger(gather=lambda array: [mine.numpy(), other])
    resumed.load(tmp_path)
    resumed.begin_epoch(0)
    assert resumed.digest() == digest(FIRST)


def test_only_the_writing_process_saves(tmp_path):
    Ledger().save(tmp_path, write=False)
    assert not list(tmp_path.iterdir())


def soft_digest(target: torch.Tensor) -> str:
    ledger = Ledger()
    ledger.record(torch.arange(len(target)), target)
    return ledger.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_soft_targets_differ_by_a_thousandth_but_not_by_rounding(dtype):
    target = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.1, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    noise = 1e-9 * torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert soft_digest((target + noise).to(dtype)) == soft_digest(target)
    for row, shift in product(range(3), ([1e-3, -1e-3, 0.0], [0.0, 1e-3, -1e-3])):
        moved = target.clone()
        moved[row] += torch.tensor(shift)
        assert soft_digest(moved.to(dtype)) != soft_digest(target)


def test_soft_targets_count_by_class_and_by_example():
    target = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0]])
    assert soft_digest(target) != soft_digest(target.flip(1))
    assert soft_digest(target) != soft_digest(target.flip(0))
    one_by_one = Ledger()
    for i in range(2):
        one_by_one.record(torch.tensor([i]), target[[i]])
    assert one_by_one.digest() == soft_digest(target)


def test_workers_leave_no_open_files_behind(tmp_path, texts):
    """On a CPU each batch of a worker is an open file until it is freed, and a process may have 1,024."""
    open_files = []

    class Count(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            open_files.append(len(os.listdir("/proc/self/fd")))

    trainer = text_trainer(
        tmp_path, texts, per_device_train_batch_size=1, max_steps=40, dataloader_num_workers=1, use_cpu=True
    )
    trainer.add_callback(Count())
    trainer.train()
    assert len(open_files) == 40 and max(open_files) - open_files[5] < 15
