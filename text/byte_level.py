"""Which bytes a token stands for.

Byte-level BPE writes every byte as one printable character (the alphabet of GPT-2), so that a vocabulary is plain text.
SentencePiece's byte fallback writes a raw byte as `<0xE2>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _alphabet() -> dict[str, int]:
    """Printable Latin-1 stands for itself; the other 68 bytes, in order, for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(0x100 + n): byte for n, byte in enumerate(others)}}


ALPHABET = _alphabet()
"""The byte that each character of a byte-level vocabulary stands for."""


def piece_of(token: str) -> bytes:
    """The bytes of a byte-level token. One with a character outside the alphabet (an added token) is plain UTF-8."""
    try:
        return bytes([ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def is_byte_level(decoder: Mapping[str, Any] | None) -> bool:
    """Does tokenizer.json's `decoder` do nothing but turn the byte-level alphabet back into bytes?"""
    steps = _steps(decoder)
    return {"ByteLevel"} <= set(steps) <= {"ByteLevel", "Fuse"} and steps[0] == "ByteLevel"


def byte_fallback(decoder: Mapping[str, Any] | None, tokens: Iterable[tuple[str, int]]) -> dict[int, bytes]:
    """The ids that stand for one raw byte, and the byte; none where the decoder has no byte fallback."""
    if "ByteFallback" not in _steps(decoder):
        return {}
    found = ((token_id, _BYTE_TOKEN.fullmatch(token)) for token, token_id in tokens)
    return {token_id: bytes([int(match[1], 16)]) for token_id, match in found if match}


def _steps(decoder: Mapping[str, Any] | None) -> list[str]:
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [name for step in decoder.get("decoders", ()) for name in _steps(step)]
    return [str(decoder.get("type"))]
