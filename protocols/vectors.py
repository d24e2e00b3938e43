"""Vectors on the wire: base64 of little-endian float32, as OpenAI's SDK reads them by default, or a list of numbers."""

from __future__ import annotations

import array
import base64
import binascii
import math
import sys
from collections.abc import Sequence

from protocols.wire import WireError

_FLOAT_BYTES = 4


def pack_vector(numbers: Sequence[float]) -> str:
    """The base64 form. Raises WireError for no numbers at all, and for what no float32 holds."""
    if not numbers:
        raise WireError("an empty vector")
    if not set(map(type, numbers)) <= {float, int}:
        raise WireError("a vector of something else than numbers")
    packed = array.array("f", numbers)
    if not math.isfinite(sum(packed)):
        raise WireError("a vector with a number that float32 does not hold")
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode("ascii")


def unpack_vector(packed: str) -> list[float]:
    """The numbers. Raises WireError for what is not the base64 form, and for numbers that are none (NaN, infinity)."""
    vector = array.array("f", _bytes_of(packed))
    if sys.byteorder == "big":
        vector.byteswap()
    numbers = vector.tolist()
    if not math.isfinite(sum(numbers)):
        raise WireError("a vector with a number that is not finite")
    return numbers


def vector_length(packed: str) -> int:
    """How many numbers the base64 form holds; told by its length alone. Raises WireError when it cannot be one."""
    size, remainder = divmod(len(packed) * 3 // 4 - packed[-2:].count("="), _FLOAT_BYTES)
    if len(packed) % 4 or remainder or not size:
        raise WireError("not the base64 of float32 numbers")
    return size


def _bytes_of(packed: str) -> bytes:
    vector_length(packed)
    try:
        return base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("not the base64 of float32 numbers") from None
