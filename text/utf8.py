"""The seam between tokens and characters: bytes that are not yet a whole character.

A tokenizer's ids end wherever the vocabulary likes, also inside a character. `Utf8Tail` keeps the bytes of the one
character that is still incomplete, and the ids they came from, and gives out everything before it. Bytes that can
never become a character turn into one U+FFFD per maximal subpart, as Rust's lossy decoding and Python's "replace" do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
_LONGEST_TAIL = 3


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end of `data` begin a character that further bytes could complete (0..3)."""
    for size in range(1, min(_LONGEST_TAIL, len(data)) + 1):
        byte = data[-size]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return size if _may_go_on(data[-size:]) else 0
    return 0


def _may_go_on(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


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
        self._keep(b"".join(map(self._piece_of, ids)), ids)
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
        text = data[: len(data) - incomplete_tail(data)].decode("utf-8", "replace")
        if tail and not self._ours and not _belongs_to(tail, new[:1]):
            text = text[1:]
        self._ours = True
        self._keep(data, [*self._ids, *token_ids])
        return text

    def break_off(self) -> str:
        """Gives up on the incomplete character: U+FFFD where one is owed."""
        text = REPLACEMENT if self.data and self._ours else ""
        self.data, self._ids = b"", []
        return text

    def _keep(self, data: bytes, ids: Sequence[int]) -> None:
        size = incomplete_tail(data)
        self.data = data[len(data) - size :]
        self._ids = _ids_of_last(ids, size, self._piece_of)


def _ids_of_last(ids: Sequence[int], size: int, piece_of: Callable[[int], bytes]) -> list[int]:
    """As many ids from the end as it takes to hold the last `size` bytes."""
    covered, start = 0, len(ids)
    while covered < size and start > 0:
        start -= 1
        covered += len(piece_of(ids[start]))
    return list(ids[start:])
