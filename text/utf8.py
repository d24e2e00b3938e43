"""The seam between tokens and characters: bytes that are not yet a whole character.

A tokenizer's ids end wherever the vocabulary likes, also inside a character. `Utf8Tail` keeps the bytes of the one
character that is still incomplete, and the ids they came from, and gives out everything before it. Bytes that can
never become a character turn into one U+FFFD per maximal subpart, as Rust's lossy decoding and Python's "replace" do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
_LONGEST_TAIL = 3
_LENGTHS = bytes(
    2 if 0xC2 <= b <= 0xDF else 3 if 0xE0 <= b <= 0xEF else 4 if 0xF0 <= b <= 0xF4 else 0 for b in range(256)
)
"""How many bytes a character has, by its first; 0 where none begins so."""
_SECOND_BYTES = {0xE0: range(0xA0, 0xC0), 0xED: range(0x80, 0xA0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
"""What may follow the first bytes that not every continuation byte may follow."""


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end of `data` begin a character that further bytes could complete (0..3)."""
    for size in range(1, min(_LONGEST_TAIL, len(data)) + 1):
        byte = data[-size]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            allowed = _SECOND_BYTES.get(byte)
            broken = size >= _LENGTHS[byte] or (allowed is not None and size > 1 and data[1 - size] not in allowed)
            return 0 if broken else size
    return 0


def _belongs_to(tail: bytes, byte: bytes) -> bool:
    """Does `byte` continue or complete the character that `tail` begins?"""
    try:
        (tail + byte).decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


class Utf8Tail:
    """The incomplete character at the end of what was read so far.

    `piece_of` gives an id's bytes. `data` is the incomplete character's bytes, empty when there is none.
    A tail may come from the prompt alone. Then it is not ours to show: completed by the answer it is shown whole,
    broken by the answer it is dropped, not shown as U+FFFD.
    """

    __slots__ = ("_ids", "_ours", "_piece_of", "data")

    def __init__(self, piece_of: Callable[[int], bytes]) -> None:
        self._piece_of = piece_of
        self.data = b""
        self._ids: list[int] = []
        self._ours = False

    def prime(self, context: Sequence[int], pending: Sequence[int]) -> None:
        """Starts behind `context` (the prompt's end) and `pending` (what `pending` gave at an earlier checkpoint)."""
        ids = list(pending) or _ids_of_last(context, _LONGEST_TAIL, self._piece_of)
        data = b"".join(map(self._piece_of, ids))
        self._keep(data, incomplete_tail(data), ids)
        self._ours = bool(pending)

    @property
    def pending(self) -> tuple[int, ...]:
        """The last ids read, as many as the incomplete character's bytes lie in; empty when none is owed."""
        return tuple(self._ids) if self.data and self._ours else ()

    def push(self, token_ids: Sequence[int]) -> str:
        """Reads ids; returns the text that is now complete."""
        tail, new = self.data, b"".join(map(self._piece_of, token_ids))
        if not new:
            if tail:
                self._ids += token_ids
            return ""
        data = tail + new
        size = incomplete_tail(data)
        text = data[: len(data) - size].decode("utf-8", "replace")
        if tail and not self._ours and not _belongs_to(tail, new[:1]):
            text = text[1:]
        self._ours = True
        self._keep(data, size, [*self._ids, *token_ids])
        return text

    def break_off(self) -> str:
        """Gives up on the incomplete character: U+FFFD where one is owed."""
        text = REPLACEMENT if self.data and self._ours else ""
        self.data, self._ids = b"", []
        return text

    def _keep(self, data: bytes, size: int, ids: Sequence[int]) -> None:
        """Keeps the last `size` bytes of `data`, which came from the last of `ids`."""
        self.data = data[len(data) - size :]
        self._ids = _ids_of_last(ids, size, self._piece_of)


def _ids_of_last(ids: Sequence[int], size: int, piece_of: Callable[[int], bytes]) -> list[int]:
    """As many ids from the end as it takes to hold the last `size` bytes."""
    covered, start = 0, len(ids)
    while covered < size and start > 0:
        start -= 1
        covered += len(piece_of(ids[start]))
    return list(ids[start:])
