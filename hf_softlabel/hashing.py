"""A stateless, vectorised integer hash: every random choice of this library is a function of what it is for.

`torch.Generator` and numpy's generators carry state, so what they draw depends on the number of processes, on the
workers and on where a run was interrupted. Here the randomness is `hash64(seed, purpose, epoch, example_id, ...)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Array = TypeVar("Array", Tensor, np.ndarray)

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# A permutation's domain must be smaller: its size times 32 random bits is an int64.
SIZE_LIMIT = 1 << 31
# Of a whole data set so many rows are permuted at a time: more would not fit a processor's cache.
_CHUNK = 1 << 12


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as `value` (torch has no wrapping uint64 arithmetic)."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


_MUL1, _MUL2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _mix(x: Array) -> Array:
    """In place, of int64."""
    for shift, factor in ((30, _MUL1), (27, _MUL2), (31, 1)):
        # `>>` on int64 copies the sign bit; the mask makes it the logical shift that splitmix64 is defined with.
        high = x >> shift
        high &= (1 << (64 - shift)) - 1
        x ^= high
        if factor != 1:
            x *= factor
    return x


def _words(keys: tuple[int | str | Tensor, ...]) -> Iterator[int | Tensor]:
    """The keys, with long strings and integers in pieces of 64 bits."""
    for key in keys:
        if isinstance(key, str):
            key = int.from_bytes(key.encode(), "little")
        yield key
        if isinstance(key, int):
            while (key := key >> 64) not in (0, -1):
                yield key


def hash64(*keys: int | str | Tensor) -> Tensor:
    """Hash a sequence of keys to 64 bits with the finaliser of splitmix64 (Steele, Lea and Flood, 2014).

    Args:
        keys: integers, short strings that name the purpose, or int64 tensors that broadcast against each other.
            At least one is a tensor. The order matters.

    Returns:
        int64 tensor of the broadcast shape, on the tensors' device.
    """
    state: int | Tensor = 0
    for key in _words(keys):
        if isinstance(state, int) and isinstance(key, int):
            # All keys before the first tensor are folded as Python integers: no kernel is launched for them.
            state = _mix_int(((state + _GOLDEN) & _MASK64) ^ (key & _MASK64))
        else:
            left = _signed(state + _GOLDEN) if isinstance(state, int) else state + _signed(_GOLDEN)
            right = _signed(key) if isinstance(key, int) else key
            state = _mix(left ^ right)
    if isinstance(state, int):
        raise TypeError("hash64 needs at least one tensor among its keys")
    return state


def uniform(bits: Tensor) -> Tensor:
    """float64 in [0, 1) from the upper 53 bits of a hash; same shape and device."""
    return ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def below(bits: Array, n: Array | int) -> Array:
    """Integers in [0, n) from a hash (the modulo's bias is below n / 2**63)."""
    return ((bits >> 1) & ((1 << 63) - 1)) % n


def permuted_position(position: Tensor, size: Tensor, key: Tensor, rounds: int = 24) -> Tensor:
    """Where a keyed random permutation of {0, ..., size - 1} sends `position`, without building the permutation.

    The swap-or-not shuffle (Hoang, Morris and Rogaway, 2012): it works on a domain of any size, has no loop whose
    length depends on the data (so nothing to wait for on a GPU), and stores nothing.

    Args:
        position: (N,) int64, in [0, size).
        size: (N,) int64, in (0, SIZE_LIMIT), the size of each permutation's domain. Votes are checked for it where
            they enter: here a GPU would be waited for in every batch.
        key: (N,) int64, one permutation for each.
        rounds: 24 leave no deviation from uniform that a chi-square test over a million keys finds.
    """
    # hash64("permute", key, number of the round) but for its last key, the number.
    begun = hash64("permute", key) + _signed(_GOLDEN)
    if key.device.type != "cpu":
        return _swap_or_not(position, size, begun, torch.arange(rounds, device=key.device)[:, None])
    # On a CPU the same by numpy, whose integer kernels take half of torch's time.
    out, number = np.empty(len(key), np.int64), np.arange(rounds)[:, None]
    arrays = [x.numpy() for x in (position, size, begun)]
    for start in range(0, len(key), _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = _swap_or_not(*(x[part] for x in arrays), number)
    return torch.from_numpy(out)


def _swap_or_not(position: Array, size: Array, begun: Array, number: Array) -> Array:
    """All rounds for (N,) positions. `begun` is the hash of each key before the round's number (rounds, 1)."""
    # All rounds' secrets at once: for a batch the cost is the number of kernels, not of numbers. Of each hash the
    # upper 32 bits give the pivot, the lower 32 the slope, and the offset begins between them: its first 8 bits are
    # the lowest of the pivot's, which hardly matter to it.
    bits = _mix(begun ^ number)
    pivots = (((bits >> 32) & 0xFFFFFFFF) * size) >> 32
    for pivot, slope, offset in zip(pivots, bits << 32, bits << 24, strict=True):
        partner = pivot - position
        partner += (partner >> 63) & size  # modulo size, without a division
        # Both members of a pair toss the same coin, so that they swap or stay together: the top bit of a random line
        # (multiply-shift hashing), which costs two operations.
        swap = (position.clip(partner) * slope + offset) >> 63
        # A choice by bits: a branch on coins is mispredicted every second time.
        position = position ^ ((position ^ partner) & swap)
    return position
