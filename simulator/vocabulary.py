"""What a simulated engine knows of its model: which ids there are, which end an answer, which look like words.

The simulator never imports a tokenizer. Text comes from a `Codec` that the application hands in; without one, a tiny
codec of made-up words serves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from simulator.digests import mix

_WORD = re.compile(r"^[Ġ▁][A-Za-z]{2,12}$")
_MIN_WORDS = 16


@dataclass(frozen=True)
class Vocabulary:
    """A model's ids.

    `size`: ids are in [0, size). `special`: ids whose text is not shown by default (the eos ids among them).
    `words`: the ids that answers are made of.
    """

    size: int
    eos_ids: tuple[int, ...]
    special: frozenset[int]
    words: tuple[int, ...]

    @classmethod
    def synthetic(cls, size: int = 32_000, eos_id: int = 2) -> Vocabulary:
        """A vocabulary without a model: ids 0, 1 and 2 are special."""
        return cls(size, (eos_id,), frozenset({0, 1, eos_id}), tuple(range(min(100, size // 2), size)))


@dataclass(frozen=True)
class Codec:
    """Text to ids and back. `decode` shows special ids too: callers leave them out. `chat` renders messages to ids.

    What the template refuses is a ValueError.
    """

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    chat: Callable[[Sequence[Mapping[str, Any]]], Sequence[int]] | None = None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt of a conversation: the model's own template, or `role: content` lines where there is none."""
        if self.chat is not None:
            return list(self.chat(messages))
        lines = [f"{message.get('role', 'user')}: {_content(message.get('content'))}" for message in messages]
        return list(self.encode("\n".join([*lines, "assistant:"])))


def word_codec(vocabulary: Vocabulary) -> Codec:
    """A codec without a model: id 17 is the text ` w17`; other words get an id by their digest."""

    def encode(text: str) -> list[int]:
        return [_word_id(word, vocabulary) for word in text.split()]

    def decode(ids: Sequence[int]) -> str:
        return "".join(f"<s{i}>" if i in vocabulary.special else f" w{i}" for i in ids)

    return Codec(encode, decode)


def load_vocabulary(directory: Path) -> Vocabulary:
    """Reads tokenizer.json and the model's configs. Raises OSError or ValueError (orjson's included) when it cannot."""
    tokenizer = orjson.loads((directory / "tokenizer.json").read_bytes())
    vocab = _vocab(tokenizer.get("model", {}).get("vocab", {}))
    added = tokenizer.get("added_tokens") or []
    special = {entry["id"] for entry in added if entry.get("special")}
    by_text = {**vocab, **{entry["content"]: entry["id"] for entry in added}}
    config = _optional(directory / "config.json")
    size = max([*by_text.values(), int(config.get("vocab_size") or 0) - 1, 0]) + 1
    eos = _eos_ids(directory, config, by_text)
    special |= set(eos)
    return Vocabulary(size, eos, frozenset(special), _words(vocab, special))


def _vocab(vocab: Any) -> dict[str, int]:
    """BPE and WordPiece have a map, Unigram a list of [token, score]."""
    if isinstance(vocab, dict):
        return vocab
    return {entry[0]: place for place, entry in enumerate(vocab)}


def _words(vocab: Mapping[str, int], special: Iterable[int]) -> tuple[int, ...]:
    hidden = set(special)
    words = sorted(i for token, i in vocab.items() if i not in hidden and _WORD.match(token))
    if len(words) < _MIN_WORDS:
        words = sorted(i for token, i in vocab.items() if i not in hidden and token.isascii() and token.isprintable())
    return tuple(words or sorted(i for i in vocab.values() if i not in hidden) or [0])


def _eos_ids(directory: Path, config: Mapping[str, Any], by_text: Mapping[str, int]) -> tuple[int, ...]:
    for source in (_optional(directory / "generation_config.json"), config):
        eos = source.get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (int(eos),)
    token = _optional(directory / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    return (by_text[text],) if isinstance(text, str) and text in by_text else ()


def _optional(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = orjson.loads(path.read_bytes())
    return content if isinstance(content, dict) else {}


def _word_id(word: str, vocabulary: Vocabulary) -> int:
    if word[:1] == "w" and word[1:].isdigit() and int(word[1:]) < vocabulary.size:
        return int(word[1:])
    return vocabulary.words[mix(int.from_bytes(word.encode()[:64], "big")) % len(vocabulary.words)]


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
