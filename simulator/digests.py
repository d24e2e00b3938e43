"""Digests of token ids: what the pretend GPU computes, and what it writes into KV blocks."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """64 well-mixed bits from any integer (splitmix64's finalizer)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def digest_of(prefix: int, ids: Sequence[int]) -> int:
    """What KV slots hold: the ids in them, and everything before them that they were computed from."""
    return _int(hashlib.blake2b(prefix.to_bytes(8, "big") + array("I", ids).tobytes(), digest_size=8).digest())


class Chain:
    """A running digest over ids: equal ids give an equal value, however they were cut into calls."""

    __slots__ = ("_hash",)

    def __init__(self, seed: int = 0) -> None:
        self._hash = hashlib.blake2b(seed.to_bytes(8, "big", signed=False), digest_size=8)

    def extend(self, ids: Sequence[int]) -> None:
        self._hash.update(array("I", ids).tobytes())

    @property
    def value(self) -> int:
        return _int(self._hash.digest())


def _int(digest: bytes) -> int:
    return int.from_bytes(digest, "big")
