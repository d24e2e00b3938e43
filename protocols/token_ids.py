"""Token ids on the wire: a sequence, or packed little-endian int32 bytes where a binary codec's reader says so.

The packed form spares a reader one object per token. Readers take both forms; ids above int32 keep the sequence form,
because the packed one is read as signed by engines (dynamo-llm 1.6).
"""

from __future__ import annotations

import array
import sys
from collections.abc import Sequence
from typing import Any

from protocols.wire import WireError

I32_MAX = 2**31 - 1
MAX_TOKEN_ID = 2**32 - 1


def pack_token_ids(token_ids: Sequence[int]) -> bytes | list[int]:
    """Little-endian int32 bytes for a binary codec; with an id above int32, the sequence."""
    if token_ids and max(token_ids) > I32_MAX:
        return list(token_ids)
    packed = array.array("i", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def read_token_ids(value: Any) -> tuple[int, ...]:
    """Ids from a sequence or from packed bytes. Raises WireError otherwise."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _unpacked(bytes(value))
    if not isinstance(value, (list, tuple)):
        raise WireError("expected a sequence of token ids or packed little-endian int32 bytes")
    for place, token_id in enumerate(value):
        if type(token_id) is not int or not 0 <= token_id <= MAX_TOKEN_ID:
            raise WireError(f"[{place}]: expected a token id (0..2^32-1), got {token_id!r:.40}")
    return tuple(value)


def read_token_list(value: Any) -> list[int]:
    """The same as a list, for outputs."""
    return list(read_token_ids(value))


def _unpacked(raw: bytes) -> tuple[int, ...]:
    if len(raw) % 4:
        raise WireError("packed token_ids byte length is not a multiple of 4")
    packed = array.array("I", raw)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)
