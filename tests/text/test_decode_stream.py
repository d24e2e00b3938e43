"""Ids to text, in any portions, from any place."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text import small_tokenizers
from text.decode_stream import DecodeStream
from text.tokenizer import Tokenizer

BYTE_LEVEL = small_tokenizers.byte_level()
EOS = BYTE_LEVEL.vocab_size - 3

ANY_IDS = st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 2), max_size=14)
HIGH_BYTES = st.lists(st.sampled_from([0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0x61, EOS]), max_size=14)
IDS = ANY_IDS | HIGH_BYTES | st.tuples(HIGH_BYTES, ANY_IDS).map(lambda both: both[0] + both[1])
CUTS = st.lists(st.integers(0, 14), max_size=4).map(sorted)


def fed(stream: DecodeStream, ids: list[int], cuts: list[int]) -> str:
    bounds = [0, *(min(cut, len(ids)) for cut in cuts), len(ids)]
    return "".join(stream.feed(ids[start:end]) for start, end in pairwise(bounds))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@given(IDS, CUTS, st.booleans())
def test_byte_level_text_equals_the_reference_on_the_whole(ids: list[int], cuts: list[int], skip: bool) -> None:
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=skip)
    text = fed(stream, ids, cuts) + stream.flush()
    assert text == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(IDS, IDS, st.integers(0, 14), st.booleans())
def test_a_new_stream_goes_on_where_another_stood(prompt: list[int], ids: list[int], cut: int, skip: bool) -> None:
    whole = BYTE_LEVEL.decode_stream(skip_special_tokens=skip, context=prompt)
    expected = whole.feed(ids) + whole.flush()

    first = BYTE_LEVEL.decode_stream(skip_special_tokens=skip, context=prompt)
    text = first.feed(ids[:cut])
    pending = first.pending
    seen = prompt + ids[:cut]
    context = seen[: len(seen) - len(pending)]
    second = BYTE_LEVEL.decode_stream(skip_special_tokens=skip, context=context, pending=pending)
    assert text + second.feed(ids[cut:]) + second.flush() == expected


@given(IDS)
def test_pending_ids_are_the_last_ones_fed(ids: list[int]) -> None:
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=True)
    stream.feed(ids)
    pending = stream.pending
    assert list(pending) == ids[len(ids) - len(pending) :]


@given(IDS)
def test_text_before_the_flush_ends_on_a_whole_character(ids: list[int]) -> None:
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=True)
    text = stream.feed(ids)
    assert BYTE_LEVEL.decode(ids).startswith(text)
    assert text + stream.flush() == BYTE_LEVEL.decode(ids)


def test_a_character_in_four_tokens_comes_with_the_last() -> None:
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=True)
    assert [stream.step(byte) for byte in "😀".encode()] == ["", "", "", "😀"]


def test_characters_come_as_soon_as_they_are_complete_though_every_token_straddles_two() -> None:
    straddling = BYTE_LEVEL.token_texts(range(256, BYTE_LEVEL.vocab_size)).index("\ufffd\ufffd") + 256
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=True, context=[0xF0, 0x9F, 0x98])
    assert BYTE_LEVEL.token_bytes(straddling) == b"\x80\xf0\x9f"
    assert [stream.step(i) for i in (straddling, 0x98, straddling, 0x98)] == ["😀", "", "😀", ""]


def test_a_special_token_is_shown_only_when_asked_for() -> None:
    ids = [*ids_of(BYTE_LEVEL, "the"), EOS, *ids_of(BYTE_LEVEL, "stop")]
    assert BYTE_LEVEL.decode_stream(skip_special_tokens=True).feed(ids) == "thestop"
    assert BYTE_LEVEL.decode_stream(skip_special_tokens=False).feed(ids) == "the<|end|>stop"


@pytest.mark.parametrize("token_id", [BYTE_LEVEL.vocab_size, -1, 2**31 - 1, 2**40])
def test_an_id_outside_the_vocabulary_is_no_text(token_id: int) -> None:
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=True)
    assert stream.step(token_id) + stream.feed([token_id, 0x61, token_id]) + stream.flush() == "a"


def test_the_prompt_is_not_shown_again() -> None:
    prompt = [*ids_of(BYTE_LEVEL, "the "), 0xE2, 0x82]
    stream = BYTE_LEVEL.decode_stream(skip_special_tokens=True, context=prompt)
    assert stream.feed([0xAC, *ids_of(BYTE_LEVEL, " a")]) == "€ a"


TEXTS = st.text(st.sampled_from("Heloword. thstpéa€😀it's\n"), max_size=20)


@pytest.mark.parametrize("kind", small_tokenizers.ALL)
@given(text=TEXTS, prompt=TEXTS, cuts=CUTS)
def test_text_behind_a_prompt_is_what_the_prompt_lacks_of_the_whole(
    kind: str, text: str, prompt: str, cuts: list[int]
) -> None:
    tokenizer = small_tokenizers.ALL[kind]()
    before, ids = ids_of(tokenizer, prompt), ids_of(tokenizer, text)
    stream = tokenizer.decode_stream(skip_special_tokens=True, context=before)
    shown = fed(stream, ids, cuts) + stream.flush()
    assert tokenizer.decode(before) + shown == tokenizer.decode(before + ids)


@pytest.mark.parametrize("kind", ["llama_2", "gemma", "metaspace", "word_piece"])
@given(data=st.data())
def test_a_window_stream_goes_on_where_another_stood(kind: str, data: st.DataObject) -> None:
    tokenizer = small_tokenizers.ALL[kind]()
    some_ids = st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=12)
    prompt, ids, cut = data.draw(some_ids), data.draw(some_ids), data.draw(st.integers(0, 12))
    whole = tokenizer.decode_stream(skip_special_tokens=True, context=prompt)
    expected = whole.feed(ids) + whole.flush()

    first = tokenizer.decode_stream(skip_special_tokens=True, context=prompt)
    text = first.feed(ids[:cut])
    seen, pending = prompt + ids[:cut], first.pending
    context = seen[: len(seen) - len(pending)]
    second = tokenizer.decode_stream(skip_special_tokens=True, context=context, pending=pending)
    assert text + second.feed(ids[cut:]) + second.flush() == expected


def test_the_first_blank_is_dropped_at_the_beginning_of_a_text_only() -> None:
    llama = small_tokenizers.llama_2()
    hello = ids_of(llama, "Hello")
    assert llama.decode_stream(skip_special_tokens=True).feed(hello) == "Hello"
    assert llama.decode_stream(skip_special_tokens=True, context=hello).feed(hello) == " Hello"


def test_special_tokens_at_the_prompts_end_do_not_make_a_new_beginning() -> None:
    llama = small_tokenizers.llama_2()
    hello, end = ids_of(llama, "Hello"), llama.token_id("</s>")
    stream = llama.decode_stream(skip_special_tokens=True, context=[*hello, *[end] * 40])
    assert stream.feed(hello) == " Hello"


def raw(data: bytes) -> list[int]:
    return [3 + byte for byte in data]


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [
        (b"", b"\xf0\x9f\x98\x80", "😀"),
        (b"", b"\xf0\x9f\x98", "\ufffd"),
        (b"", b"\xf0\x9f\x98\x80\xff\xc3\xa9", "😀\ufffdé"),  # the reference takes the emoji back
        (b"\xf0\x9f", b"\x98\x80", "😀"),
        (b"\xf0\x9f", b"a", "a"),
    ],
)
def test_raw_byte_tokens_become_characters(prompt: bytes, answer: bytes, text: str) -> None:
    stream = small_tokenizers.gemma().decode_stream(skip_special_tokens=True, context=raw(prompt))
    assert stream.feed(raw(answer)) + stream.flush() == text


def test_a_word_after_a_broken_byte_keeps_its_blank() -> None:
    gemma = small_tokenizers.gemma()
    stream = gemma.decode_stream(skip_special_tokens=True)
    assert stream.feed([*raw(b"\xf0\x9f"), *ids_of(gemma, "world")]) == "\ufffd world"


@pytest.mark.parametrize("name", ["llama_2", "gemma"])
def test_special_tokens_that_are_shown_stand_where_they_were(name: str) -> None:
    tokenizer = small_tokenizers.ALL[name]()
    special, other = tokenizer.token_id("<s>"), tokenizer.token_id("</s>")
    assert special is not None
    assert other is not None
    words = tokenizer.encode("Hello world", add_special_tokens=False)
    stream = tokenizer.decode_stream(skip_special_tokens=True, shown=frozenset({special}))

    text = stream.feed([*words, special, other, *words]) + stream.flush()

    assert text.replace(" ", "") == "Helloworld<s>Helloworld"
