"""A model's tokenizer: text to ids and back. Reads nothing itself: `text.loading` brings the bytes of tokenizer.json.

Encoding goes by `encode_batch_fast`, even for one text: the plain `encode` of HF tokenizers holds the GIL and stalls
the loop for seconds on a long prompt. So `encode` may be called in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from tokenizers import Tokenizer as HfTokenizer

from protocols.errors import InvalidRequest
from text.byte_level import byte_fallback, is_byte_level
from text.decode_stream import DecodeStream
from text.fast_encoder import Encode, fast_definition, fast_encoder
from text.token_texts import ByteTexts, TokenTexts, WindowTexts

_TRIAL_TOKENS = 64
"""Added tokens that fastokens is tried with. Some vocabularies have thousands, all alike."""


class Tokenizer:
    """One model's tokenizer. Immutable, and safe to use from several threads.

    `vocab_size` is the largest id + 1, added tokens included; ids from there on mean nothing and decode to "".
    `special_token_ids`: the ids that `skip_special_tokens` leaves out.
    """

    def __init__(self, definition: bytes, *, fast: bool = True) -> None:
        """`definition`: tokenizer.json. `fast`: use fastokens if it is there and gives the same ids.

        Raises ValueError when it is not a tokenizer.json.
        """
        self._hf = _read(definition)
        tokens = self._hf.get_vocab(with_added_tokens=True)
        if not tokens:
            raise ValueError("the vocabulary is empty")
        added = self._hf.get_added_tokens_decoder()
        self.vocab_size = max(tokens.values()) + 1
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        trial = [token.content for token in added.values()][:_TRIAL_TOKENS]
        self._fast: Encode | None = None
        if fast:
            self._fast = fast_encoder(fast_definition(definition, self._hf), self._encode_by_hf, trial)
        self._encode: Encode = self._fast or self._encode_by_hf
        # As it stands in tokenizer.json; to read it there, the whole vocabulary would be unfolded.
        decoder = orjson.loads(self._hf.decoder.__getstate__()) if self._hf.decoder is not None else None
        self._texts: TokenTexts
        if is_byte_level(decoder):
            self._texts = ByteTexts(self._hf, self.vocab_size, self.special_token_ids)
        else:
            raw_bytes = byte_fallback(decoder, tokens.items())
            self._texts = WindowTexts(self._hf, self._decode, raw_bytes)

    @property
    def fast(self) -> bool:
        """Does fastokens encode?"""
        return self._fast is not None

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        token_id: int | None = self._hf.token_to_id(token)
        return token_id

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Each token's name in the vocabulary, in the tokenizer's own alphabet ("Ġthe"); "" for an id without one."""
        return [self._hf.id_to_token(token_id) or "" for token_id in token_ids]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text. `add_special_tokens`: with what the tokenizer itself puts around it (BOS).

        Raises InvalidRequest when the text is no Unicode text (a lone surrogate).
        """
        try:
            return self._encode(text, add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("the text holds a lone surrogate, which is no character") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of whole ids, as HF gives it."""
        return self._decode(token_ids, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """One token's own text, special tokens' too; U+FFFD for bytes that are no whole character."""
        return self._texts.text_of(token_id)

    def token_texts(self, token_ids: Sequence[int]) -> list[str | None]:
        """`token_text` of each."""
        return list(map(self._texts.text_of, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        """One token's own bytes; they may be a part of a character only."""
        return self._texts.bytes_of(token_id)

    def decode_stream(
        self,
        *,
        skip_special_tokens: bool,
        context: Sequence[int] = (),
        pending: Sequence[int] = (),
        shown: frozenset[int] = frozenset(),
    ) -> DecodeStream:
        """A stream that goes on behind `context` (the last ids before it) and `pending` (an earlier stream's).

        `shown`: special tokens that are not left out all the same.
        """
        hidden = self.special_token_ids if skip_special_tokens else frozenset()
        return self._texts.stream(hidden - shown if shown else hidden, context, pending)

    def _decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        text: str = self._hf.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def _encode_by_hf(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._hf.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids


def _read(definition: bytes) -> HfTokenizer:
    tokenizer: HfTokenizer = HfTokenizer.from_buffer(definition)
    # A truncation stored with a tokenizer is its trainer's, not the model's limit: prompts would be cut in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
