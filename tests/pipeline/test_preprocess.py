"""From an OpenAI request to what the workers are sent: templates' arguments, truncation, media, and readings."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pipeline.preprocess import Prepared, Preprocessor
from protocols.errors import InvalidRequest
from protocols.model_card import ModelCard
from protocols.openai import parse_chat, parse_completion
from tests.pipeline.engines_in_process import context_of
from tests.text.small_tokenizers import byte_level
from text.answer_parser import ModelMarkup
from text.chat_reader import ChatReader
from text.chat_template import ChatTemplate

CARD = ModelCard("m", context_length=20, vocab_size=300, eos_token_ids=(2,))
SAYING = "{{ messages[0].content }}"
THINKING = "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}"
PICTURES = (
    "{% for part in messages[0].content %}"
    "{{ part.text if part.type == 'text' else '<image>' if part.type == 'image' else '' }}"
    "{% endfor %}"
)
PICTURE = {"type": "image_url", "image_url": {"url": "http://x"}}


async def prepared(template: str = SAYING, markup: ModelMarkup | None = None, **fields: Any) -> Prepared:
    tokenizer = byte_level()
    reader = ChatReader(markup, tokenizer) if markup is not None else None
    preprocessor = Preprocessor(CARD, tokenizer, ChatTemplate(template), reader=reader)
    if "prompt" in fields:
        return await preprocessor.prepare(parse_completion(orjson.dumps({"model": "m", **fields})), context_of(), 0)
    body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], **fields}
    return await preprocessor.prepare(parse_chat(orjson.dumps(body)), context_of(), 0)


def text_of(prepared: Prepared) -> bytes:
    return bytes(prepared.prompts[0].token_ids)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"reasoning_effort": "none"}, b"False False none"),
        ({"thinking": {"type": "disabled"}}, b"False False "),
        ({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False}}, b"False True "),
        ({"reasoning_effort": "low"}, b"  low"),
    ],
)
async def test_the_template_is_told_whether_to_think(fields: dict[str, Any], text: bytes) -> None:
    assert text_of(await prepared(THINKING, **fields)) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"truncate_prompt_tokens": 3}, b"ef?"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, b"ef?"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, b"abc"),
        ({"truncate_prompt_tokens": 99}, b"abcdef?"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 15}, b"cdef?"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 99}, b"?"),
    ],
)
async def test_a_long_prompt_is_cut_to_the_length_asked_for(fields: dict[str, Any], text: bytes) -> None:
    chat = await prepared(messages=[{"role": "user", "content": "abcdef?"}], **fields)
    completion = await prepared(prompt="abcdef?", echo=True, **fields)

    assert text_of(chat) == text_of(completion) == text
    assert completion.form.prompts[0].text == text.decode()


async def test_a_prompt_without_end_is_cut_before_it_is_too_long() -> None:
    assert len(text_of(await prepared(prompt="x" * 500, max_tokens=4, truncate_prompt_tokens=-1))) == 16


async def test_a_picture_that_no_worker_would_be_sent_is_refused() -> None:
    content = [{"type": "text", "text": "What is it?"}, PICTURE]

    with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[1\]: image input cannot be sent"):
        await prepared(PICTURES, messages=[{"role": "user", "content": content}])
    assert text_of(await prepared(PICTURES, messages=[{"role": "user", "content": content[:1]}])) == b"What is it?"


async def test_a_chat_has_candidates_too() -> None:
    form = (await prepared(best_of=3)).form

    assert (form.n, form.candidates, form.ranked) == (1, 3, True)


@pytest.mark.parametrize(
    ("last", "lead"),
    [
        ({"role": "assistant", "content": "So"}, "So"),
        ({"role": "assistant", "content": [{"type": "text", "text": "S"}, {"type": "text", "text": "o"}]}, "So"),
        ({"role": "assistant", "tool_calls": []}, ""),
        ({"role": "user", "content": "So"}, ""),
    ],
)
async def test_an_echoing_chat_begins_with_what_the_assistant_had_said(last: dict[str, Any], lead: str) -> None:
    messages = [{"role": "user", "content": "Why?"}, last]

    assert (await prepared(messages=messages, echo=True)).form.lead == lead
    assert (await prepared(messages=messages)).form.lead == ""


async def read(**fields: Any) -> Any:
    tools = [{"type": "function", "function": {"name": "f"}}]
    return (await prepared(markup=ModelMarkup("hermes", "qwen3"), tools=tools, **fields)).form.reading


async def test_thoughts_are_told_apart_left_out_or_left_in() -> None:
    apart, out, left_in = await read(), await read(include_reasoning=False), await read(separate_reasoning=False)

    assert (apart.told, apart.style is not None) == (True, True)
    assert (out.told, out.style) == (False, apart.style)
    assert (left_in.tool_calls, left_in.style) == ("hermes", None)


async def test_a_text_in_which_nothing_is_told_apart_is_not_read() -> None:
    assert await read(separate_reasoning=False, tool_choice="none") is None
