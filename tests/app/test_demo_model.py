"""The model that ships for the demo."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.demo_model.make import HERE, files
from text.fast_encoder import SAMPLES
from text.loading import load_model

MODEL = load_model(HERE, fast=False)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def prompt(*messages: dict[str, Any], **variables: Any) -> str:
    assert MODEL.chat_template is not None
    return MODEL.chat_template.render(messages, **variables)


def test_the_files_are_those_that_the_script_makes() -> None:
    # Over a second: the whole vocabulary is put together again.
    made = files((HERE / "words.txt").read_text(encoding="utf-8"))
    assert made == {name: orjson.loads((HERE / name).read_bytes()) for name in made}


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in Path(HERE).glob("*.*")) < 300_000
    assert 4_000 <= MODEL.vocab_size <= 8_000


def test_it_knows_its_end_and_its_limits() -> None:
    ends = [MODEL.tokenizer.token_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    assert sorted(MODEL.eos_token_ids) == sorted(ends)
    assert MODEL.context_length == 8192
    assert MODEL.vocab_size == MODEL.tokenizer.vocab_size
    assert MODEL.sampling_defaults == {"temperature": 0.7, "top_p": 0.95}


def test_tokens_that_begin_with_a_blank_read_like_words() -> None:
    texts = MODEL.tokenizer.token_texts(range(MODEL.vocab_size))
    words = [text for text in texts if text is not None and re.fullmatch(r" [A-Za-z]+", text)]
    assert len(words) > 2_000
    assert {" river", " Yesterday", " whispered"} <= set(words)
    assert not {" th", " whisp", " riv"} & set(words)


def test_random_ids_decode_to_text_that_reads_back() -> None:
    rng = random.Random(5)
    ids = [rng.randrange(300, MODEL.vocab_size) for _ in range(200)]
    text = MODEL.tokenizer.decode(ids, skip_special_tokens=False)
    again = MODEL.tokenizer.encode(text, add_special_tokens=False)
    assert MODEL.tokenizer.decode(again, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", SAMPLES)
def test_any_text_comes_back_whole(text: str) -> None:
    ids = MODEL.tokenizer.encode(text, add_special_tokens=False)
    assert MODEL.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_common_word_is_one_token() -> None:
    assert len(MODEL.tokenizer.encode(" mountain bridge whispered", add_special_tokens=False)) == 3


def test_a_conversation_becomes_a_prompt() -> None:
    text = prompt({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_tools_are_described_and_their_calls_and_results_shown() -> None:
    text = prompt(
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sun"}]},
        tools=[TOOL],
    )
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert '{"type": "function", "function": {"name": "weather"' in text
    assert f"<|im_start|>assistant\n{call}\n{call}<|im_end|>\n" in text
    assert (
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n"
        in text
    )


def test_thinking_can_be_switched_off() -> None:
    text = prompt({"role": "user", "content": "Hi"}, enable_thinking=False)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
