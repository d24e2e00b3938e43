"""Text to ids and back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import orjson
import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import pre_tokenizers

from protocols.errors import InvalidRequest
from tests.text import small_tokenizers
from text.fast_encoder import SAMPLES, fast_definition
from text.tokenizer import Tokenizer

BYTE_LEVEL = small_tokenizers.byte_level()
EOS, CALL, THINK = range(BYTE_LEVEL.vocab_size - 3, BYTE_LEVEL.vocab_size)


def definition(tokenizer: Tokenizer) -> bytes:
    return tokenizer._hf.to_str().encode()


@pytest.mark.parametrize("text", SAMPLES)
def test_byte_level_text_comes_back_whole(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == text


def test_the_vocabulary_counts_added_tokens() -> None:
    assert BYTE_LEVEL.token_id("<think>") == BYTE_LEVEL.vocab_size - 1


def test_only_special_tokens_are_special() -> None:
    assert BYTE_LEVEL.special_token_ids == {EOS, CALL}


def test_special_tokens_in_a_text_are_one_id_each() -> None:
    assert BYTE_LEVEL.encode("a<|end|>", add_special_tokens=False) == [0x61, EOS]


def test_a_token_reads_as_its_own_text_also_when_it_is_special() -> None:
    assert BYTE_LEVEL.token_texts([0x61, EOS, THINK, 0xE2]) == ["a", "<|end|>", "<think>", "\ufffd"]


def test_a_part_of_a_character_has_its_bytes() -> None:
    assert BYTE_LEVEL.token_bytes(0xE2) == b"\xe2"


def test_ids_outside_the_vocabulary_are_no_text() -> None:
    assert BYTE_LEVEL.decode([-1, 0x61, BYTE_LEVEL.vocab_size, 2**40]) == "a"
    assert BYTE_LEVEL.token_text(BYTE_LEVEL.vocab_size) == BYTE_LEVEL.token_text(-1) == ""
    assert BYTE_LEVEL.token_bytes(-1) == b""


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("llama_2", "▁Hello", " Hello"),
        ("llama_2", "</s>", "</s>"),
        ("gemma", "▁▁", "  "),
        ("word_piece", "##ping", "ping"),
        ("word_piece", "the", " the"),
    ],
)
def test_a_token_of_a_context_dependent_vocabulary_keeps_its_blank(kind: str, name: str, text: str) -> None:
    tokenizer = small_tokenizers.ALL[kind]()
    token_id = tokenizer.token_id(name)
    assert token_id is not None
    assert tokenizer.token_text(token_id) == text
    assert tokenizer.token_bytes(token_id) == text.encode()


def test_a_raw_byte_token_is_its_byte() -> None:
    gemma = small_tokenizers.gemma()
    token_id = gemma.token_id("<0xE2>")
    assert token_id is not None
    assert gemma.token_bytes(token_id) == b"\xe2"
    assert gemma.token_text(token_id) == "\ufffd"


def test_a_lone_surrogate_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        BYTE_LEVEL.encode("a\ud800", add_special_tokens=False)


def test_a_truncation_stored_with_the_tokenizer_does_not_cut_prompts() -> None:
    document = orjson.loads(definition(BYTE_LEVEL))
    document["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = None
    cutting = Tokenizer(orjson.dumps(document))
    assert cutting.encode("xyz", add_special_tokens=False) == [0x78, 0x79, 0x7A]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"model": {"type": "Magic"}}'])
def test_what_is_no_tokenizer_json_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        Tokenizer(content)


class Backend:
    """A stand-in for fastokens that encodes by the given function."""

    def __init__(self, encode: object) -> None:
        self.Tokenizer = SimpleNamespace(from_json_str=lambda _: self)
        self._encode = encode

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(ids=self._encode(text, add_special_tokens))  # type: ignore[operator]


def test_an_encoder_that_gives_the_same_ids_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def encode(text: str, flag: bool) -> list[int]:
        seen.append(text)
        return BYTE_LEVEL.encode(text, add_special_tokens=flag)

    monkeypatch.setitem(sys.modules, "fastokens", Backend(encode))
    tokenizer = Tokenizer(definition(BYTE_LEVEL))
    tokenizer.encode("by whom?", add_special_tokens=False)
    assert tokenizer.fast
    assert seen[-1] == "by whom?"


def test_an_encoder_that_differs_in_one_id_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(text: str, flag: bool) -> list[int]:
        ids = BYTE_LEVEL.encode(text, add_special_tokens=flag)
        return ids[:-1] if text == SAMPLES[-1] else ids

    monkeypatch.setitem(sys.modules, "fastokens", Backend(encode))
    assert not Tokenizer(definition(BYTE_LEVEL)).fast


def test_an_encoder_that_cannot_read_the_file_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(text: str, flag: bool) -> list[int]:
        raise ValueError("unsupported normalizer")

    monkeypatch.setitem(sys.modules, "fastokens", Backend(encode))
    assert not Tokenizer(definition(BYTE_LEVEL)).fast


def byte_level_by_itself(*, add_prefix_space: bool) -> HfTokenizer:
    """The words of GPT-2, named by `use_regex` alone."""
    hf = HfTokenizer.from_buffer(definition(BYTE_LEVEL))
    step = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=True)
    hf.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), step])
    return hf


@pytest.mark.parametrize("text", SAMPLES)
def test_a_pattern_that_is_spelled_out_splits_as_the_step_that_only_names_it(text: str) -> None:
    hf = byte_level_by_itself(add_prefix_space=False)

    spelled = HfTokenizer.from_buffer(fast_definition(hf.to_str().encode(), hf))

    assert b'"Split"' in spelled.pre_tokenizer.__getstate__()
    assert spelled.encode(text, add_special_tokens=False).ids == hf.encode(text, add_special_tokens=False).ids


def test_spelling_the_pattern_out_leaves_the_reference_as_it_was() -> None:
    hf = byte_level_by_itself(add_prefix_space=False)
    before = hf.to_str()

    fast_definition(before.encode(), hf)

    assert hf.to_str() == before


def test_what_puts_a_blank_before_each_piece_is_read_as_it_stands() -> None:
    hf = byte_level_by_itself(add_prefix_space=True)
    given = hf.to_str().encode()

    assert fast_definition(given, hf) == given


def test_without_the_optional_encoder_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    tokenizer = Tokenizer(definition(BYTE_LEVEL))
    assert not tokenizer.fast
    assert tokenizer.encode("the", add_special_tokens=False) == BYTE_LEVEL.encode("the", add_special_tokens=False)
