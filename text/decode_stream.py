"""Token ids to text, step by step, never splitting a character.

Two streams. `ByteStream` serves byte-level vocabularies: an id is a fixed run of bytes, so text is a table lookup, and
all that was fed plus `flush` equals what the tokenizer makes of the whole. `WindowStream` serves the others
(SentencePiece, WordPiece), where an id's text depends on its neighbours: it decodes a few ids of context along.

A stream's state is a function of the ids alone, not of how they were cut. So a replay that starts a new stream behind
prompt and answer so far, with the old one's `pending`, goes on exactly where the old one stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from text.utf8 import Utf8Tail

_WINDOW = 5
"""Ids decoded along as context. Decoders look one token back; the rest lets hidden ids and lone bytes pass between."""


class DecodeStream(Protocol):
    @property
    def pending(self) -> tuple[int, ...]:
        """The last ids fed (and maybe of the context) that are not, or not wholly, turned into text yet."""
        ...

    def feed(self, token_ids: Sequence[int], /) -> str:
        """Reads ids; returns the text that became complete, "" when none did. Ids without meaning add nothing."""
        ...

    def step(self, token_id: int, /) -> str:
        """`feed` of one id."""
        ...

    def flush(self) -> str:
        """Ends the text: an incomplete character becomes U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class ByteTable:
    """A byte-level vocabulary: each id's text; None where its bytes, then in `broken`, are no whole characters."""

    texts: Sequence[str | None]
    broken: Mapping[int, bytes]

    @classmethod
    def of(cls, pieces: Iterable[bytes]) -> ByteTable:
        """`pieces`: each id's bytes, from 0 on."""
        texts: list[str | None] = []
        broken: dict[int, bytes] = {}
        for token_id, piece in enumerate(pieces):
            try:
                texts.append(piece.decode("utf-8"))
            except UnicodeDecodeError:
                texts.append(None)
                broken[token_id] = piece
        return cls(texts, broken)

    def without(self, hidden: frozenset[int]) -> ByteTable:
        """The same table with no text for the ids in `hidden`."""
        texts = list(self.texts)
        for token_id in hidden:
            texts[token_id] = ""
        return ByteTable(texts, self.broken)

    def piece(self, token_id: int) -> bytes:
        """The id's bytes; none for an id outside the vocabulary."""
        if not 0 <= token_id < len(self.texts):
            return b""
        text = self.texts[token_id]
        return self.broken[token_id] if text is None else text.encode()


class ByteStream:
    """The stream of a byte-level vocabulary. `context`: the prompt's last ids; `pending`: an earlier stream's."""

    __slots__ = ("_size", "_tail", "_texts")

    def __init__(self, table: ByteTable, context: Sequence[int] = (), pending: Sequence[int] = ()) -> None:
        self._texts = table.texts
        self._size = len(table.texts)
        self._tail = Utf8Tail(table.piece)
        # A prompt that ends with whole characters, as nearly all do, leaves nothing to be completed.
        if pending or (context and not self._whole_text(context[-1])):
            self._tail.prime(context, pending)

    def _whole_text(self, token_id: int) -> bool:
        return 0 <= token_id < self._size and bool(self._texts[token_id])

    @property
    def pending(self) -> tuple[int, ...]:
        return self._tail.pending if self._tail.data else ()

    def feed(self, token_ids: Sequence[int], /) -> str:
        if len(token_ids) == 1:
            return self.step(token_ids[0])
        return "".join(map(self.step, token_ids))

    def step(self, token_id: int, /) -> str:
        if not self._tail.data and 0 <= token_id < self._size:
            text = self._texts[token_id]
            if text is not None:
                return text
        return self._tail.push((token_id,))

    def flush(self) -> str:
        return self._tail.break_off()


class WindowStream:
    """The stream of a vocabulary whose texts depend on their neighbours.

    `decode` gives the text of some ids, the ids that are not to be shown left out; `hidden` are those. `bytes_of` maps
    ids that stand for one raw byte: runs of them are assembled here, since a tokenizer may take back a character it
    had already shown once a broken byte follows.
    """

    __slots__ = ("_bytes_of", "_decode", "_hidden", "_tail", "_window")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        hidden: frozenset[int],
        bytes_of: Mapping[int, bytes],
        context: Sequence[int] = (),
        pending: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._hidden = hidden
        self._bytes_of = bytes_of
        self._tail = Utf8Tail(lambda token_id: bytes_of.get(token_id, b""))
        self._tail.prime(self._trailing_bytes(context), pending)
        self._window = self._visible(context, pending)

    @property
    def pending(self) -> tuple[int, ...]:
        return self._tail.pending

    def feed(self, token_ids: Sequence[int], /) -> str:
        return "".join(map(self.step, token_ids))

    def step(self, token_id: int, /) -> str:
        if token_id in self._hidden or token_id in self._bytes_of:
            text = self._tail.push((token_id,))
        else:
            text = self._tail.break_off() + self._decode_next(token_id)
        if token_id not in self._hidden:
            self._window = [*self._window[1 - _WINDOW :], token_id]
        return text

    def flush(self) -> str:
        return self._tail.break_off()

    def _decode_next(self, token_id: int) -> str:
        before = self._decode(self._window)
        text = self._decode([*self._window, token_id])
        return text[len(before) if text.startswith(before) else _shared(before, text) :]

    def _visible(self, context: Sequence[int], pending: Sequence[int]) -> list[int]:
        visible = [token_id for token_id in (*context, *pending) if token_id not in self._hidden]
        return visible[-_WINDOW:]

    def _trailing_bytes(self, context: Sequence[int]) -> Sequence[int]:
        """The context's last ids as far as they are raw bytes (or hidden): only there can a character be incomplete."""
        start = len(context)
        while start > 0 and (context[start - 1] in self._bytes_of or context[start - 1] in self._hidden):
            start -= 1
        return context[start:]


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
