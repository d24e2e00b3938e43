"""Answers on a turn, whose client takes them, or takes no more, or leaves."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from app.responses import PING, EventStream, error_event, send_error, send_json
from pipeline.context import Flow
from pipeline.ticker import Ticker
from protocols.errors import ClientGone, InvalidRequest, NoAvailableWorkers
from tests.app.client_turn import Client

HEADERS = [(b"content-type", b"text/event-stream")]


@dataclass
class Limits:
    first_byte_hold_s: float = 15.0
    ping_interval_s: float = 15.0


class Reply:
    """A worker's reply that can be paused."""

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Scene:
    """A stream, its client, and the reply that feeds it."""

    def __init__(self, **limits: float) -> None:
        self.client = Client()
        self.ticker = Ticker()
        self.reply = Reply()
        self.headers: list[tuple[bytes, bytes]] = list(HEADERS)
        flow = Flow()
        flow.join(self.reply)
        self.stream = EventStream(
            self.client.turn, headers=lambda: self.headers, flow=flow, ticker=self.ticker, limits=Limits(**limits)
        )
        self.opened_at = time.monotonic()

    def tick(self, seconds: float) -> None:
        """The ticker comes by, so long after the stream was opened."""
        self.stream.tick(self.opened_at + seconds)


@pytest.fixture
async def scene() -> Any:
    scene = Scene(first_byte_hold_s=1.0, ping_interval_s=2.0)
    yield scene
    scene.stream.close()
    scene.ticker.close()


# ---- writing


async def test_nothing_is_said_before_there_is_something_to_say(scene: Scene) -> None:
    assert not scene.stream.started
    assert scene.client.writes == []


async def test_the_head_comes_with_the_first_bytes_and_knows_what_is_known_by_then(scene: Scene) -> None:
    scene.headers.append((b"x-tandem-decode-worker", b"7"))

    scene.stream.write(b"data: 1\n\n")

    assert scene.client.status == 200
    assert scene.headers == [pair for pair in scene.client.headers.items() if pair[0] != b"connection"]
    assert scene.client.bodies() == [b"data: 1\n\n"]
    assert not scene.client.over


async def test_what_is_written_is_with_the_server_when_write_returns(scene: Scene) -> None:
    tasks = asyncio.all_tasks()

    for number in range(3):
        scene.stream.write(b"data: %d\n\n" % number)
        assert scene.client.bodies()[-1] == b"data: %d\n\n" % number

    assert asyncio.all_tasks() == tasks
    assert not scene.reply.paused


async def test_a_client_that_takes_no_more_pauses_the_reply_until_it_does(scene: Scene) -> None:
    scene.stream.write(b"1")
    scene.client.fill()

    scene.stream.write(b"2")

    assert scene.client.bodies() == [b"1", b"2"]
    assert scene.reply.paused
    await scene.client.drain()
    assert not scene.reply.paused


async def test_what_a_paused_reply_still_brings_is_written(scene: Scene) -> None:
    scene.client.fill()

    for piece in (b"1", b"2", b"3"):
        scene.stream.write(piece)

    assert scene.client.bodies() == [b"1", b"2", b"3"]
    assert scene.reply.paused


async def test_a_client_may_be_slow_again_and_again(scene: Scene) -> None:
    for _ in range(2):
        scene.client.fill()
        scene.stream.write(b"1")
        assert scene.reply.paused
        await scene.client.drain()
        assert not scene.reply.paused


async def test_a_reply_that_joins_while_the_client_is_slow_starts_paused(scene: Scene) -> None:
    scene.client.fill()
    scene.stream.write(b"1")
    late = Reply()

    scene.stream._flow.join(late)

    assert late.paused
    await scene.client.drain()
    assert not late.paused


# ---- the end


async def test_the_end_is_the_last_message(scene: Scene) -> None:
    scene.stream.write(b"1")

    await scene.stream.end(b"data: [DONE]\n\n")

    assert scene.client.bodies() == [b"1", b"data: [DONE]\n\n"]
    assert scene.client.over
    assert len(scene.ticker) == 0


async def test_an_answer_of_nothing_has_a_head_all_the_same(scene: Scene) -> None:
    await scene.stream.end(b"data: [DONE]\n\n")

    assert scene.client.status == 200
    assert scene.client.bodies() == [b"data: [DONE]\n\n"]


async def test_the_end_waits_until_a_slow_client_has_taken_enough(scene: Scene) -> None:
    scene.client.fill()
    scene.stream.write(b"1")

    ending = asyncio.create_task(scene.stream.end(b"2"))
    await asyncio.sleep(0)

    assert not scene.client.over
    await scene.client.drain()
    await ending
    assert scene.client.bodies() == [b"1", b"2"]
    assert scene.client.over


async def test_nothing_is_written_after_the_end(scene: Scene) -> None:
    await scene.stream.end(b"end")

    scene.stream.write(b"late")
    scene.tick(1000)
    await scene.stream.end(b"again")

    assert scene.client.bodies() == [b"end"]


async def test_a_closed_stream_writes_nothing_more(scene: Scene) -> None:
    scene.stream.write(b"1")

    scene.stream.close()
    scene.stream.write(b"2")

    assert scene.client.bodies() == [b"1"]
    assert len(scene.ticker) == 0


# ---- time


async def test_the_status_is_held_back_for_so_long_and_no_longer(scene: Scene) -> None:
    scene.tick(0.9)
    assert not scene.stream.started

    scene.tick(1.1)

    assert scene.stream.started
    assert scene.client.bodies() == [b""]


async def test_a_silent_stream_is_kept_alive_by_comments_of_one_line(scene: Scene) -> None:
    for quarter in range(25):
        scene.tick(quarter / 4)

    assert PING == b": ping\n"
    assert scene.client.bodies() == [b"", PING, PING]


async def test_a_stream_that_talks_gets_no_comments(scene: Scene) -> None:
    for seconds in range(10):
        scene.stream.write(b"word")
        scene.tick(float(seconds))

    assert PING not in scene.client.bodies()


async def test_a_client_that_is_slow_gets_no_comments(scene: Scene) -> None:
    scene.client.fill()
    scene.stream.write(b"1")

    scene.tick(4.0)
    scene.tick(8.0)

    assert scene.client.bodies() == [b"1"]


# ---- the client leaves


async def test_a_client_that_leaves_before_the_end_was_not_told_it(scene: Scene) -> None:
    scene.client.fill()
    scene.stream.write(b"1")
    ending = asyncio.create_task(scene.stream.end(b"2"))
    await asyncio.sleep(0)

    await scene.client.leave()

    with pytest.raises(ClientGone):
        await ending
    assert scene.client.bodies() == [b"1"]
    assert len(scene.ticker) == 0


async def test_nothing_is_written_to_a_client_that_has_left(scene: Scene) -> None:
    await scene.client.leave()

    scene.stream.write(b"1")
    scene.tick(1000)

    assert scene.client.writes == []


async def test_whoever_watches_a_turn_is_told_once_that_its_client_has_left(scene: Scene) -> None:
    told: list[str] = []
    scene.client.turn.watch(lambda: told.append("gone"))

    await scene.client.leave()

    assert told == ["gone"]


async def test_whoever_watches_a_turn_too_late_is_told_at_once(scene: Scene) -> None:
    told: list[str] = []
    await scene.client.leave()

    scene.client.turn.watch(lambda: told.append("gone"))

    assert told == ["gone"]


async def test_whoever_no_longer_watches_is_not_told(scene: Scene) -> None:
    told: list[str] = []
    scene.client.turn.watch(lambda: told.append("gone"))

    scene.client.turn.watch(None)
    await scene.client.leave()

    assert told == []


# ---- whole responses


async def test_a_json_response_is_announced_by_its_length_and_leaves_in_one_write() -> None:
    client = Client()

    await send_json(client.turn, 201, b'{"a":1}', [(b"x-request-id", b"r")])

    assert client.status == 201
    assert client.headers == {
        b"content-type": b"application/json",
        b"content-length": b"7",
        b"x-request-id": b"r",
        b"connection": b"close",
    }
    assert client.bodies() == [b'{"a":1}']
    assert client.over


async def test_a_json_response_waits_for_a_client_that_takes_no_more() -> None:
    client = Client()
    client.fill()

    sending = asyncio.create_task(send_json(client.turn, 200, b"{}", []))
    await asyncio.sleep(0)

    assert client.writes == []
    await client.drain()
    await sending
    assert client.bodies() == [b"{}"]


async def test_a_client_that_left_is_told_of_no_error() -> None:
    client = Client()
    await client.leave()

    await send_error(client.turn, NoAvailableWorkers("nobody"), [])

    assert client.writes == []


@pytest.mark.parametrize(("retry_after", "told"), [(1.0, b"1"), (0.2, b"1"), (7.4, b"7")])
async def test_an_error_that_knows_when_to_come_again_says_so(retry_after: float, told: bytes) -> None:
    client = Client()

    await send_error(client.turn, NoAvailableWorkers("nobody", retry_after=retry_after), [])

    assert client.status == 503
    assert client.headers[b"retry-after"] == told


async def test_an_error_may_be_sent_by_another_status_than_its_own() -> None:
    client = Client()

    await send_error(client.turn, InvalidRequest("no", param="n"), [], status=418)

    assert client.status == 418
    assert orjson.loads(client.bodies()[0])["error"]["param"] == "n"


@pytest.mark.parametrize("message", ['a "quoted"\nand broken', "data: [DONE]\n\n", "\u2028 \x00 é"])
def test_an_error_in_a_stream_is_one_line_whatever_it_says(message: str) -> None:
    event = error_event(InvalidRequest(message), "r")

    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert orjson.loads(event.removeprefix(b"data: "))["error"]["message"] == message
