"""Firing at a house: many requests, a few at a time, each answered as it should be whatever it says."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import httpx
import orjson

from tests.conformance.strict import Envelope, check
from tests.fuzz.mutations import Shot
from tests.stories.house import House, second
from tests.stories.wire import events_of

AT_ONCE = 8
DEADLINE_S = 20.0
"""Seconds of a machine that has nothing else to do; the longest answers here are a whole context of words."""


@dataclass
class Score:
    """What came back: statuses counted, and what must not be, with the request that brought it."""

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    faults: list[tuple[str, Shot]] = field(default_factory=list)

    def told(self) -> str:
        """The first few faults, in words."""
        return "\n".join(
            f"{fault}\n    {shot.path} {shot.content_type!r} {shot.body[:2000]!r}" for fault, shot in self.faults[:5]
        )


def fire(house: House, shots: Iterable[Shot]) -> Score:
    """All of them; ends by itself however the house behaves."""
    score = Score()
    asyncio.run(_fire(house.base_url, iter(shots), score))
    return score


async def _fire(base_url: str, shots: Iterator[Shot], score: Score) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE)
    client = httpx.AsyncClient(base_url=base_url, timeout=None, limits=limits)
    async with client, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(_fire_on(client, shots, score))


async def _fire_on(client: httpx.AsyncClient, shots: Iterator[Shot], score: Score) -> None:
    for shot in shots:
        headers = [(b"content-type", shot.content_type)]
        try:
            async with asyncio.timeout(DEADLINE_S * second()):
                reply = await client.post(shot.path, content=shot.body, headers=headers)
        except TimeoutError:
            score.faults.append(("no answer in time", shot))
            continue
        except httpx.HTTPError as error:
            score.faults.append((f"no answer: {error!r}", shot))
            continue
        score.statuses[reply.status_code] += 1
        fault = fault_of(reply)
        if fault is not None:
            score.faults.append((fault, shot))


def fault_of(reply: httpx.Response) -> str | None:
    """What is wrong with an answer to any body whatever, or None."""
    try:
        if reply.status_code == 200:
            _check_answer(reply)
        elif reply.status_code in (400, 404, 413, 415):
            check(Envelope, reply.content)
            assert len(reply.content) < 2000, "an error quotes too much"
        else:
            return f"{reply.status_code}: {reply.text[:300]}"
    except (AssertionError, ValueError) as error:
        return f"{reply.status_code}: {error}"
    return None


def _check_answer(reply: httpx.Response) -> None:
    if reply.headers["content-type"].startswith("text/event-stream"):
        events = events_of(reply.content)
        assert events.error is None, events.error
        assert events.done == 1, "a stream without its end"
    else:
        assert isinstance(orjson.loads(reply.content), dict)
