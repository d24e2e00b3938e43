"""MessagePack out of a growing buffer, where the `msgpack` extra is installed.

A header may claim any length before its elements come, and the usual decoders reserve on its word. `ObjectScanner`
finds where the first object ends without building it: a claim of 2^31 elements costs one integer, and `unpack` is given
a slice that is known to be whole.
"""

from __future__ import annotations

from typing import Any

from protocols.errors import ProtocolViolation

try:
    import msgpack  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    msgpack = None

INSTALLED = msgpack is not None


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(whole: bytes | bytearray) -> Any:
    """One object; raises ValueError when it is not one. Keys of maps may be of any kind."""
    return msgpack.unpackb(whole, strict_map_key=False)


_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""Numbers: bytes after the type byte."""
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
"""Extensions of fixed size: their type and data."""
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""Binaries and strings: (bytes of the size, bytes beside it)."""
_SIZED |= {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
"""Extensions of any size."""
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Arrays and maps: (bytes of the count, objects per element)."""


class ObjectScanner:
    """Scans one object; `feed` may be called again with the same buffer, grown at its end.

    `end` is the offset behind the object once it is complete, else None.
    """

    __slots__ = ("_at", "_awaited", "end")

    def __init__(self) -> None:
        self._at = 0
        self._awaited = 1
        self.end: int | None = None

    def feed(self, buffer: bytes | bytearray) -> int | None:
        """Goes on where it stopped. Raises ProtocolViolation at a byte that begins no object."""
        size = len(buffer)
        while self._awaited and self._at < size:
            step = self._step(buffer, size)
            if step is None or self._at + step[0] > size:
                return None
            self._at += step[0]
            self._awaited += step[1] - 1
        if not self._awaited:
            self.end = self._at
        return self.end

    def _step(self, buffer: bytes | bytearray, size: int) -> tuple[int, int] | None:
        """(bytes of the next object without its elements, its elements); None when its head is not all there."""
        kind = buffer[self._at]
        if kind < 0x80 or kind >= 0xE0 or kind in (0xC0, 0xC2, 0xC3):
            return 1, 0
        if kind < 0x90:
            return 1, 2 * (kind & 0x0F)
        if kind < 0xA0:
            return 1, kind & 0x0F
        if kind < 0xC0:
            return 1 + (kind & 0x1F), 0
        if kind in _FIXED:
            return 1 + _FIXED[kind], 0
        width, factor = _SIZED.get(kind) or _COUNTED.get(kind) or (0, 0)
        if not width:
            raise ProtocolViolation(f"byte 0x{kind:02x} begins no MessagePack object")
        body = self._at + 1 + width
        if body > size:
            return None
        number = int.from_bytes(buffer[self._at + 1 : body], "big")
        return (1 + width, number * factor) if kind in _COUNTED else (1 + width + factor + number, 0)
