"""The client's side of an answer, against a server that takes, fills up, drains, and loses its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from app.responses import PING, ClientWatch, EventStream, error_event, send_error, send_json
from pipeline.context import Flow
from pipeline.ticker import Ticker
from protocols.errors import ClientGone, InvalidRequest, NoAvailableWorkers

HEADERS = [(b"content-type", b"text/event-stream")]


@dataclass
class Limits:
    first_byte_hold_s: float = 15.0
    ping_interval_s: float = 15.0


class Server:
    """`send` as the connection's: it waits only while the transport is full."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.client_left = False
        self._drained: asyncio.Future[None] | None = None

    async def send(self, message: Any) -> None:
        if self._drained is not None:
            await self._drained
        if self.client_left:
            raise ClientGone("the client is gone")
        self.taken.append(message)

    def fill(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    async def drain(self) -> None:
        """Lets go whoever waits, and lets the loop turn until they have done so."""
        drained, self._drained = self._drained, None
        assert drained is not None
        drained.set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)

    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.taken if message["type"] == "http.response.body"]


class Reply:
    """A worker's reply that can be paused."""

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Scene:
    """A stream, its server, and the reply that feeds it."""

    def __init__(self, **limits: float) -> None:
        self.server = Server()
        self.ticker = Ticker()
        self.reply = Reply()
        self.dropped = 0
        self.headers: list[tuple[bytes, bytes]] = list(HEADERS)
        flow = Flow()
        flow.join(self.reply)
        self.stream = EventStream(
            self.server.send,
            headers=lambda: self.headers,
            flow=flow,
            ticker=self.ticker,
            limits=Limits(**limits),
            drop=self._drop,
        )
        self.opened_at = time.monotonic()

    def _drop(self) -> None:
        self.dropped += 1

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
    assert scene.server.taken == []


async def test_the_head_comes_with_the_first_bytes_and_knows_what_is_known_by_then(scene: Scene) -> None:
    scene.headers.append((b"x-tandem-decode-worker", b"7"))

    scene.stream.write(b"data: 1\n\n")

    start, body = scene.server.taken
    assert start == {"type": "http.response.start", "status": 200, "headers": scene.headers}
    assert body == {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}


async def test_what_is_written_is_with_the_server_when_write_returns(scene: Scene) -> None:
    tasks = asyncio.all_tasks()

    for number in range(3):
        scene.stream.write(b"data: %d\n\n" % number)
        assert scene.server.bodies()[-1] == b"data: %d\n\n" % number

    assert asyncio.all_tasks() == tasks
    assert not scene.reply.paused


async def test_a_full_server_pauses_the_reply_and_what_comes_meanwhile_leaves_in_one_piece(scene: Scene) -> None:
    scene.stream.write(b"1")
    scene.server.fill()

    for piece in (b"2", b"3", b"4"):
        scene.stream.write(piece)

    assert scene.server.bodies() == [b"1"]
    assert scene.reply.paused
    await scene.server.drain()
    assert scene.server.bodies() == [b"1", b"2", b"34"]
    assert not scene.reply.paused


async def test_a_server_that_was_full_from_the_start_gets_the_head_first(scene: Scene) -> None:
    scene.server.fill()

    scene.stream.write(b"1")

    assert scene.server.taken == []
    await scene.server.drain()
    assert [message["type"] for message in scene.server.taken] == ["http.response.start", "http.response.body"]
    assert scene.server.bodies() == [b"1"]


async def test_a_reply_that_joins_while_the_client_is_slow_starts_paused(scene: Scene) -> None:
    scene.server.fill()
    scene.stream.write(b"1")
    late = Reply()

    scene.stream._flow.join(late)

    assert late.paused
    await scene.server.drain()
    assert not late.paused


# ---- the end


async def test_the_end_is_the_last_message(scene: Scene) -> None:
    scene.stream.write(b"1")

    await scene.stream.end(b"data: [DONE]\n\n")

    assert scene.server.taken[-1] == {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}
    assert len(scene.ticker) == 0


async def test_an_answer_of_nothing_has_a_head_all_the_same(scene: Scene) -> None:
    await scene.stream.end(b"data: [DONE]\n\n")

    assert scene.server.taken[0]["type"] == "http.response.start"
    assert scene.server.bodies()[-1] == b"data: [DONE]\n\n"


async def test_the_end_waits_until_a_slow_client_has_taken_everything(scene: Scene) -> None:
    scene.stream.write(b"1")
    scene.server.fill()
    scene.stream.write(b"2")
    scene.stream.write(b"3")

    ending = asyncio.create_task(scene.stream.end(b"4"))
    await asyncio.sleep(0)

    assert not ending.done()
    await scene.server.drain()
    await ending
    assert b"".join(scene.server.bodies()) == b"1234"
    assert [message.get("more_body") for message in scene.server.taken[1:]] == [True, True, False]


async def test_nothing_is_written_after_the_end(scene: Scene) -> None:
    await scene.stream.end(b"end")

    scene.stream.write(b"late")
    scene.tick(1000)
    await scene.stream.end(b"again")

    assert scene.server.bodies() == [b"end"]


async def test_a_closed_stream_writes_nothing_more(scene: Scene) -> None:
    scene.stream.write(b"1")

    scene.stream.close()
    scene.stream.write(b"2")

    assert scene.server.bodies() == [b"1"]
    assert len(scene.ticker) == 0


# ---- time


async def test_the_status_is_held_back_for_so_long_and_no_longer(scene: Scene) -> None:
    scene.tick(0.9)
    assert not scene.stream.started

    scene.tick(1.1)

    assert scene.stream.started
    assert [message["type"] for message in scene.server.taken] == ["http.response.start", "http.response.body"]
    assert scene.server.bodies() == [b""]


async def test_a_silent_stream_is_kept_alive_by_comments_of_one_line(scene: Scene) -> None:
    for quarter in range(25):
        scene.tick(quarter / 4)

    assert PING == b": ping\n"
    assert scene.server.bodies() == [b"", PING, PING]


async def test_a_stream_that_talks_gets_no_comments(scene: Scene) -> None:
    for seconds in range(10):
        scene.stream.write(b"word")
        scene.tick(float(seconds))

    assert PING not in scene.server.bodies()


async def test_a_client_that_is_slow_gets_no_comments(scene: Scene) -> None:
    scene.stream.write(b"1")
    scene.server.fill()
    scene.stream.write(b"2")

    scene.tick(4.0)

    await scene.server.drain()
    assert scene.server.bodies() == [b"1", b"2"]


async def test_an_end_that_is_not_taken_is_a_client_that_has_left(scene: Scene) -> None:
    scene.stream.write(b"1")
    scene.server.fill()
    ending = asyncio.create_task(scene.stream.end(b"2"))
    await asyncio.sleep(0)

    scene.server.client_left = True
    await scene.server.drain()

    await ending
    assert scene.dropped == 1
    assert len(scene.ticker) == 0


# ---- the client leaves


async def test_a_send_that_fails_means_that_the_client_has_left(scene: Scene) -> None:
    scene.stream.write(b"1")
    scene.server.fill()
    scene.stream.write(b"2")
    scene.server.client_left = True

    await scene.server.drain()

    assert scene.dropped == 1
    scene.stream.write(b"3")
    assert scene.server.bodies() == [b"1"]


async def test_a_send_that_fails_at_once_means_the_same(scene: Scene) -> None:
    scene.server.client_left = True

    scene.stream.write(b"1")

    assert scene.dropped == 1
    assert len(scene.ticker) == 0


class Client:
    """`receive` as the connection's: it waits until the client does something."""

    def __init__(self) -> None:
        self._happened: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self) -> Any:
        return await self._happened.get()

    async def does(self, kind: str) -> None:
        self._happened.put_nowait({"type": kind})
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_watch_tells_once_that_the_client_has_left() -> None:
    told: list[str] = []
    client = Client()
    watch = ClientWatch(client.receive, lambda: told.append("gone"))

    await client.does("http.disconnect")
    await client.does("http.disconnect")

    assert told == ["gone"]
    watch.stop()


async def test_a_watch_does_not_mind_what_else_comes() -> None:
    told: list[str] = []
    client = Client()
    watch = ClientWatch(client.receive, lambda: told.append("gone"))

    await client.does("http.request")
    assert told == []

    await client.does("http.disconnect")
    assert told == ["gone"]
    watch.stop()


async def test_a_watch_that_was_stopped_says_nothing() -> None:
    told: list[str] = []
    client = Client()
    watch = ClientWatch(client.receive, lambda: told.append("gone"))

    watch.stop()
    await client.does("http.disconnect")

    assert told == []


async def test_a_watch_needs_no_task_of_its_own() -> None:
    tasks = asyncio.all_tasks()

    watch = ClientWatch(Client().receive, lambda: None)

    assert asyncio.all_tasks() == tasks
    watch.stop()


# ---- whole responses


async def test_a_json_response_is_announced_by_its_length() -> None:
    server = Server()

    await send_json(server.send, 201, b'{"a":1}', [(b"x-request-id", b"r")])

    start, body = server.taken
    assert start["status"] == 201
    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"content-length": b"7",
        b"x-request-id": b"r",
    }
    assert (body["body"], body["more_body"]) == (b'{"a":1}', False)


@pytest.mark.parametrize(("retry_after", "told"), [(1.0, b"1"), (0.2, b"1"), (7.4, b"7")])
async def test_an_error_that_knows_when_to_come_again_says_so(retry_after: float, told: bytes) -> None:
    server = Server()

    await send_error(server.send, NoAvailableWorkers("nobody", retry_after=retry_after), [])

    assert server.taken[0]["status"] == 503
    assert dict(server.taken[0]["headers"])[b"retry-after"] == told


async def test_an_error_may_be_sent_by_another_status_than_its_own() -> None:
    server = Server()

    await send_error(server.send, InvalidRequest("no", param="n"), [], status=418)

    assert server.taken[0]["status"] == 418
    assert orjson.loads(server.taken[1]["body"])["error"]["param"] == "n"


@pytest.mark.parametrize("message", ['a "quoted"\nand broken', "data: [DONE]\n\n", "\u2028 \x00 é"])
def test_an_error_in_a_stream_is_one_line_whatever_it_says(message: str) -> None:
    event = error_event(InvalidRequest(message), "r")

    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert orjson.loads(event.removeprefix(b"data: "))["error"]["message"] == message


@pytest.fixture(autouse=True)
def no_loose_ends(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """No coroutine that was driven by hand is left half-way."""
    yield
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []
