"""Work whose memory is known, for processes that import nothing else."""

from __future__ import annotations

from collections.abc import Callable


def allocate(megabytes: int) -> Callable[[], bytearray]:
    return lambda: bytearray(b"x") * (megabytes << 20)


def allocate_less_and_less(megabytes: int) -> Callable[[], bytearray]:
    return allocate(96 - megabytes)


def allocate_beside_16(megabytes: int) -> Callable[[], bytearray]:
    return allocate(16 + megabytes)
