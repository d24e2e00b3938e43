"""What the simulated model says by itself, without a server or a gateway around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.generation import Context, ReplyRule, Voice
from tests.stories.house import demo_tokenizer

BLOCK = 16


def ids_of(text: str) -> list[int]:
    return list(demo_tokenizer()[0].encode(text))


def text_of(ids: Sequence[int]) -> str:
    return demo_tokenizer()[0].decode(ids)


def chat_ids(*messages: dict[str, Any]) -> list[int]:
    return demo_tokenizer()[0].render(messages)


def answer_ids(prompt: str | Sequence[int], count: int) -> list[int]:
    """The greedy answer's first ids."""
    voice = Voice(demo_tokenizer()[1], ReplyRule(), 0)
    context = Context(ids_of(prompt) if isinstance(prompt, str) else prompt, BLOCK, voice)
    answer = []
    for _ in range(count):
        token_id = voice.next_id(context, voice.draw(context, 0.0, None))
        context.append(token_id, voice)
        answer.append(token_id)
    return answer


def answer(prompt: str | Sequence[int], count: int) -> str:
    """The greedy answer's text."""
    return text_of(answer_ids(prompt, count))
