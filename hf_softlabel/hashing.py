"""A stateless, vectorised integer hash: every random choice of this library is a function of what it is for.

`torch.Generator` and numpy's generators carry state, so what they draw depends on the number of processes, on the
workers and on where a run was interrupted. Here the randomness is `hash64(seed, purpose, epoch, example_id, ...)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Of a whole data set so many rows are permuted at a time: more would not fit a processor's cache.
_CHUNK = 1 << 14


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as `value` (torch has no wrapping uint64 arithmetic)."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


_MUL1, _MUL2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _mix_tensor(x: Tensor) -> Tensor:
    # `>>` on int64 copies the sign bit; the mask makes it the logical shift that splitmix64 is defined with.
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MUL1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MUL2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


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
            state = _mix_tensor(left ^ right)
    if isinstance(state, int):
        raise TypeError("hash64 needs at least one tensor among its keys")
    return state


def uniform(bits: Tensor) -> Tensor:
    """float64 in [0, 1) from the upper 53 bits of a hash; same shape and device."""
    return ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def below(bits: Tensor, n: Tensor | int) -> Tensor:
    """Integers in [0, n) from a hash (the modulo's bias is below n / 2**63)."""
    return ((bits >> 1) & ((1 << 63) - 1)) % n


def permuted_position(position: Tensor, size: Tensor, key: Tensor, rounds: int = 24) -> Tensor:
    """Where a keyed random permutation of {0, ..., size - 1} sends `position`, without building the permutation.

    The swap-or-not shuffle (Hoang, Morris and Rogaway, 2012): it works on a domain of any size, has no loop whose
    length depends on the data (so nothing to wait for on a GPU), and stores nothing.

    Args:
        position: (N,) int64, in [0, size).
        size: (N,) int64, > 0, the size of each permutation's domain.
        key: (N,) int64, one permutation for each.
        rounds: 24 leave no deviation from uniform that a chi-square test over a million keys finds.
    """
    if len(key) > _CHUNK:
        parts = zip(position.split(_CHUNK), size.split(_CHUNK), key.split(_CHUNK), strict=True)
        return torch.cat([permuted_position(*part, rounds) for part in parts])
    # All rounds' secrets at once: for a batch the cost is the number of kernels, not of numbers.
    number = torch.arange(rounds, device=key.device)[:, None]
    pivots = below(hash64("pivot", key, number), size)
    slopes, offsets = hash64("slope", key, number), hash64("offset", key, number)
    for pivot, slope, offset in zip(pivots, slopes, offsets, strict=True):
        partner = (pivot - position) % size
        # Both members of a pair toss the same coin, so that they swap or stay together: the top bit of a random line
        # (multiply-shift hashing), which costs two operations.
        swap = torch.maximum(position, partner) * slope + offset < 0
        position = torch.where(swap, partner, position)
    return position
