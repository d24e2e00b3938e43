"""Many at once: each gets its own answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import openai

from simulator.options import NativeOptions, TrtllmOptions, VllmOptions
from tests.stories.house import PAIRED, House, pair, solo
from tests.stories.oracle import answer, chat_ids

BRIEFLY = {
    "vllm": VllmOptions(lease_s=0.5),
    "trtllm": TrtllmOptions(transfer_timeout_s=0.5, leave_s=0.01),
    "native": NativeOptions(pin_s=0.5),
}
MODELS = [*(f"pair-{engine}" for engine in PAIRED), *(f"solo-{engine}" for engine in PAIRED), "solo-openai"]


async def told(client: openai.AsyncOpenAI, number: int) -> tuple[str, str]:
    """What the client was told, and what it should have been."""
    model, tokens = MODELS[number % len(MODELS)], 10 + number % 30
    request: dict[str, Any] = {"model": model, "max_tokens": tokens, "temperature": 0}
    if number % 3:
        message = {"role": "user", "content": f"Question {number}"}
        stream: Any = await client.chat.completions.create(**request, messages=[message], stream=True)
        text = "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])
        return text, answer(chat_ids(message), tokens)
    prompt = f"Story {number}: once upon a time"
    completion = await client.completions.create(**request, prompt=prompt)
    return completion.choices[0].text, answer(prompt, tokens)


def test_sixty_four_clients_at_once_get_each_their_own_answer(house: House) -> None:
    async def all_at_once() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=f"{house.base_url}/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*(told(client, number) for number in range(64)))

    pairs = asyncio.run(all_at_once())

    assert [text for text, _ in pairs] == [right for _, right in pairs]
    assert len({text for text, _ in pairs}) == 64


def test_those_who_stay_get_their_answers_while_others_leave(open_house: Callable[..., House]) -> None:
    # Whoever leaves just as prefill ends may leave blocks pinned to the end of their lease; here it is short.
    models = [*(pair(engine, **BRIEFLY) for engine in PAIRED), *(solo(engine) for engine in (*PAIRED, "openai"))]
    house = open_house(*models)

    async def one(client: openai.AsyncOpenAI, number: int, leaves: bool) -> tuple[str, str] | None:
        asked = asyncio.create_task(told(client, number))
        if not leaves:
            return await asked
        await asyncio.wait([asked], timeout=random.Random(number).random() * 0.05)
        asked.cancel()
        await asyncio.wait([asked])
        return None

    async def all_at_once() -> list[tuple[str, str] | None]:
        async with openai.AsyncOpenAI(base_url=f"{house.base_url}/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number, number % 2 == 0) for number in range(48)))

    pairs = [pair for pair in asyncio.run(all_at_once()) if pair is not None]

    assert len(pairs) == 24
    assert [text for text, _ in pairs] == [right for _, right in pairs]
