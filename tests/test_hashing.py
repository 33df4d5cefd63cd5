"""The stateless hash against splitmix64 written out in Python, and its permutations against exact counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, kstest

from hf_softlabel import hashing
from hf_softlabel.hashing import below, hash64, permuted_position, uniform

MASK64 = (1 << 64) - 1
INT64 = st.integers(-(2**63), 2**63 - 1)


def splitmix64(state: int) -> int:
    """One step of Vigna's reference, https://prng.di.unimi.it/splitmix64.c: returns the output for `state`."""
    z = (state + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def scalar_hash(*keys: int) -> int:
    """hash64 for 64-bit integers, in Python's integers: the key is mixed into the state before each finaliser."""
    state = 0
    for key in keys:
        increased = (state + 0x9E3779B97F4A7C15) & MASK64
        state = splitmix64(((increased ^ (key & MASK64)) - 0x9E3779B97F4A7C15) & MASK64)
    return state


def unsigned(bits: torch.Tensor) -> list[int]:
    return [value & MASK64 for value in bits.tolist()]


def permutations(m: int, keys: torch.Tensor) -> np.ndarray:
    """(keys, m): where each key's permutation sends 0, ..., m - 1."""
    n = len(keys)
    position = torch.arange(m).repeat(n)
    sent = permuted_position(position, torch.full((n * m,), m), keys.repeat_interleave(m))
    return sent.view(n, m).numpy()


def permutation_numbers(m: int, keys: torch.Tensor) -> np.ndarray:
    """(keys,): the number of each key's permutation among the m! that there are."""
    every, number = np.unique(permutations(m, keys) @ (m ** np.arange(m)), return_inverse=True)
    assert len(every) == np.prod(np.arange(1, m + 1)), "some permutation never came up"
    return number


# The hash.


def test_hash_gives_the_published_outputs_of_splitmix64():
    # The first outputs of splitmix64 seeded with 1234567, as printed on rosettacode.org.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + i * golden) & MASK64 for i in range(3)]
    assert [splitmix64(state) for state in states] == published
    # The hash of one key is splitmix64's finaliser of golden ^ key, so this key makes it that generator's output.
    keys = [hashing._signed(((state + golden) & MASK64) ^ golden) for state in states]
    assert unsigned(hash64(torch.tensor(keys))) == published


@given(st.lists(INT64, min_size=1, max_size=4), st.lists(INT64, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_tensor_hash_equals_python_integer_arithmetic(before, values):
    expected = [scalar_hash(*before, value) for value in values]
    assert unsigned(hash64(*before, torch.tensor(values))) == expected


@pytest.mark.parametrize("value", [0, 1, -1, 2, -2, 2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1, 2**62, 2**31, 2**32])
def test_tensor_hash_equals_integer_arithmetic_at_the_edges_of_int64(value):
    expected = scalar_hash(1, value)
    assert unsigned(hash64(1, torch.tensor([value]))) == [expected]
    # The same key as a Python integer, folded before the tensor or after it.
    assert unsigned(hash64(1, value, torch.tensor([7]))) == [scalar_hash(1, value, 7)]
    assert unsigned(hash64(torch.tensor([7]), value)) == [scalar_hash(7, value)]
    assert unsigned(hash64(torch.tensor([7]), torch.tensor([value]))) == [scalar_hash(7, value)]


def test_unsigned_and_signed_integers_with_the_same_bits_are_one_key():
    t = torch.arange(4)
    assert torch.equal(hash64(2**64 - 1, t), hash64(-1, t))
    assert torch.equal(hash64(t, 2**63), hash64(t, -(2**63)))


def test_keys_longer_than_64_bits_count_whole_before_and_after_a_tensor():
    t = torch.arange(4)
    for one, other in [("12345678a", "12345678b"), ("12345678", "12345678a"), (5, 5 + 2**64), (2**70, 2**71)]:
        assert not (hash64(one, t) == hash64(other, t)).any()
        assert not (hash64(t, one) == hash64(t, other)).any()
    # Short strings are the integer of their bytes.
    assert unsigned(hash64("ab", torch.tensor([3]))) == [scalar_hash(ord("a") + 256 * ord("b"), 3)]


@given(INT64, INT64)
@settings(max_examples=100, deadline=None)
def test_order_of_keys_matters(a, b):
    swapped = torch.equal(hash64(torch.tensor([a]), b), hash64(torch.tensor([b]), a))
    assert swapped == (a == b)
    assert torch.equal(hash64(a, torch.tensor([b])), hash64(torch.tensor([a]), b))


def test_hash_is_without_collisions_on_a_grid_of_seeds_epochs_and_ids():
    ids = torch.arange(-5000, 5000)
    every = torch.cat([hash64("sls", seed, epoch, ids) for seed in range(3) for epoch in range(5)])
    assert len(every.unique()) == len(every)


def test_hash_broadcasts_and_needs_a_tensor():
    rows, columns = torch.arange(3)[:, None], torch.arange(4)
    table = hash64("x", rows, columns)
    assert table.shape == (3, 4) and table.dtype == torch.int64
    assert table[2, 1] == hash64("x", torch.tensor(2), 1)
    with pytest.raises(TypeError, match="at least one tensor"):
        hash64(1, "x")


@pytest.mark.parametrize("place", ["first", "last"])
def test_flipping_any_input_bit_flips_half_of_the_output_bits(place):
    x = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2000))
    bits = torch.arange(64)
    flips = torch.ones((), dtype=torch.int64) << bits[:, None]

    def hashed(t):
        return hash64(t, 5) if place == "first" else hash64(5, t)

    changed = hashed(x) ^ hashed(x ^ flips)  # (input bits, samples)
    rates = torch.stack([((changed >> bit) & 1).double().mean(1) for bit in bits], 1)  # (input bits, output bits)
    # The standard error of a rate is .5 / sqrt(2000) = .0112, and there are 4096 of them.
    assert (rates - 0.5).abs().max() < 5.5 * 0.0112
    assert abs(rates.mean() - 0.5) < 0.001


def test_uniform_numbers_lie_in_0_1_and_are_uniform():
    u = uniform(hash64("u", torch.arange(100_000))).numpy()
    assert u.dtype == np.float64
    assert u.min() >= 0 and u.max() < 1
    assert kstest(u, "uniform").pvalue > 1e-3
    edges = uniform(torch.tensor([0, -1, 2**63 - 1, -(2**63), 2047, 2048]))
    assert edges.tolist() == [0, 1 - 2**-53, 0.5 - 2**-53, 0.5, 0, 2**-53]


def test_below_keeps_its_range_and_is_uniform():
    bits = hash64("b", torch.arange(70_000))
    draws = below(bits, 7)
    assert chisquare(torch.bincount(draws, minlength=7).numpy()).pvalue > 1e-3
    sizes = torch.arange(70_000) % 9 + 1
    draws = below(bits, sizes)
    assert ((draws >= 0) & (draws < sizes)).all() and (draws[sizes == 1] == 0).all()
    # The upper 63 bits, modulo n, whatever the sign.
    assert below(torch.tensor([-1, -(2**63), 20]), 1000).tolist() == [(2**63 - 1) % 1000, 2**62 % 1000, 10]


# The permutations.


def test_permuted_position_is_a_bijection_for_every_size_to_70():
    keys = hash64("key", torch.arange(25))
    for m in range(1, 71):
        sent = permutations(m, keys)
        assert (np.sort(sent, 1) == np.arange(m)).all(), m


@given(st.integers(71, 3000), INT64)
@settings(max_examples=20, deadline=None)
def test_permuted_position_is_a_bijection_for_larger_sizes(m, key):
    assert (np.sort(permutations(m, torch.tensor([key]))[0]) == np.arange(m)).all()


@pytest.mark.parametrize("m", [2, 3, 4])
def test_every_permutation_comes_up_equally_often(m):
    number = permutation_numbers(m, hash64("key", torch.arange(200_000)))
    assert chisquare(np.bincount(number)).pvalue > 1e-3


@pytest.mark.parametrize("m", [3, 4])
def test_permutations_of_neighbouring_keys_are_independent(m):
    # Raw consecutive integers, as bad as keys get.
    number = permutation_numbers(m, torch.arange(100_000))
    table = np.zeros((number.max() + 1,) * 2)
    np.add.at(table, (number[:-1], number[1:]), 1)
    assert chi2_contingency(table).pvalue > 1e-3
    assert chisquare(table.sum(0)).pvalue > 1e-3


def test_positions_of_two_votes_out_of_fifty_are_jointly_uniform():
    keys = hash64("key", torch.arange(20_000)).repeat(2)
    sent = permuted_position(torch.arange(2).repeat_interleave(20_000), torch.full((40_000,), 50), keys)
    sent = sent.view(2, -1).numpy().T
    assert (sent[:, 0] != sent[:, 1]).all()
    for column in (0, 1):
        assert chisquare(np.bincount(sent[:, column], minlength=50)).pvalue > 1e-3
    step = (sent[:, 1] - sent[:, 0]) % 50
    assert chisquare(np.bincount(step, minlength=50)[1:]).pvalue > 1e-3


def test_chunks_of_rows_give_the_same_as_all_rows_at_once(monkeypatch):
    n = 1000
    size = torch.arange(n) % 60 + 1
    arguments = (below(hash64("p", torch.arange(n)), size), size, hash64("key", torch.arange(n)))
    whole, three_rounds = permuted_position(*arguments), permuted_position(*arguments, rounds=3)
    assert not torch.equal(whole, three_rounds)
    monkeypatch.setattr(hashing, "_CHUNK", 37)
    assert torch.equal(permuted_position(*arguments), whole)
    assert torch.equal(permuted_position(*arguments, rounds=3), three_rounds)


def test_other_devices_permute_as_the_cpu_does():
    # There is no GPU here; its way is the same function on tensors.
    n = 300
    size = torch.arange(n) % 60 + 1
    position, key = below(hash64("p", torch.arange(n)), size), hash64("key", torch.arange(n))
    begun = hash64("permute", key) + hashing._signed(hashing._GOLDEN)
    sent = hashing._swap_or_not(position, size, begun, torch.arange(24)[:, None])
    assert torch.equal(sent, permuted_position(position, size, key))


def test_permutations_are_those_of_python_integers():
    # Written out: a changed order of votes would change what past runs trained on.
    def sent(position, size, key):
        for number in range(24):
            bits = scalar_hash(int.from_bytes(b"permute", "little"), key, number)
            partner = (((bits >> 32) * size >> 32) - position) % size
            if ((max(position, partner) * (bits << 32) + (bits << 24)) & MASK64) >> 63:
                position = partner
        return position

    keys = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    for m in (1, 2, 7, 100, 2**31 - 1):
        position = torch.tensor([min(i, m - 1) for i in range(len(keys))])
        ours = permuted_position(position, torch.full((len(keys),), m), torch.tensor(keys))
        expected = [sent(p, m, key) for p, key in zip(position.tolist(), keys, strict=True)]
        assert ours.tolist() == expected, m
