"""What each token of a vocabulary reads as, alone and in a stream.

Byte-level vocabularies are unrolled into tables once; others are asked, one token behind an ordinary one, so that the
blank a token brings along is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer as HfTokenizer

from text.byte_level import piece_of
from text.decode_stream import ByteStream, ByteTable, DecodeStream, WindowStream


class TokenTexts(Protocol):
    def text_of(self, token_id: int) -> str: ...

    def bytes_of(self, token_id: int) -> bytes: ...

    def stream(self, hidden: frozenset[int], context: Sequence[int], pending: Sequence[int]) -> DecodeStream:
        """A stream in which the ids in `hidden` have no text."""
        ...


class ByteTexts:
    """A byte-level vocabulary, unrolled: about 75 bytes of memory per id."""

    def __init__(self, hf: HfTokenizer, size: int, special: frozenset[int]) -> None:
        tokens = (hf.id_to_token(token_id) for token_id in range(size))
        self._all = ByteTable.of(piece_of(token) if token is not None else b"" for token in tokens)
        self._tables = {frozenset[int](): self._all, special: self._all.without(special)}
        """By what they hide; a model's markup and thoughts ask for two or three more."""

    def text_of(self, token_id: int) -> str:
        text = self._all.texts[token_id] if 0 <= token_id < len(self._all.texts) else ""
        return text if text is not None else self._all.broken[token_id].decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        return self._all.piece(token_id)

    def stream(self, hidden: frozenset[int], context: Sequence[int], pending: Sequence[int]) -> DecodeStream:
        table = self._tables.get(hidden)
        if table is None:
            table = self._tables[hidden] = self._all.without(hidden)
        return ByteStream(table, context, pending)


class WindowTexts:
    """A vocabulary whose texts depend on their neighbours. Own texts are kept once asked for."""

    def __init__(
        self,
        hf: HfTokenizer,
        decode: Callable[[Sequence[int], bool], str],
        raw_bytes: Mapping[int, bytes],
    ) -> None:
        self._hf = hf
        self._decode = decode
        self._raw_bytes = raw_bytes
        self._own = {token_id: token.content for token_id, token in hf.get_added_tokens_decoder().items()}
        self._anchor = hf.encode("a", add_special_tokens=False).ids[-1:]

    def text_of(self, token_id: int) -> str:
        raw = self._raw_bytes.get(token_id)
        if raw is not None:
            return raw.decode("utf-8", "replace")
        text = self._own.get(token_id)
        if text is None:
            alone = self._decode(self._anchor, False)
            text = self._own[token_id] = self._decode([*self._anchor, token_id], False)[len(alone) :]
        return text

    def bytes_of(self, token_id: int) -> bytes:
        raw = self._raw_bytes.get(token_id)
        return raw if raw is not None else self.text_of(token_id).encode("utf-8")

    def stream(self, hidden: frozenset[int], context: Sequence[int], pending: Sequence[int]) -> DecodeStream:
        def decode(token_ids: Sequence[int]) -> str:
            return self._decode(token_ids, False)

        return WindowStream(decode, hidden=hidden, bytes_of=self._raw_bytes, context=context, pending=pending)
