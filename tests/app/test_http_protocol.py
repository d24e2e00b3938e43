"""The connection as its client and its ASGI application see it: writes, order, flow and time, by values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import uvicorn
from uvicorn.server import ServerState

from app.http_protocol import MAX_WAITING, HttpProtocol
from protocols.errors import ClientGone

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass
class Limits:
    keep_alive_s: float = 75.0
    write_timeout_s: float = 60.0
    request_timeout_s: float = 600.0
    max_request_line_bytes: int = 1024
    max_header_bytes: int = 4096


@dataclass
class Transport:
    """What a connection does to its socket. `unsent`: bytes that the client has not taken."""

    writes: list[bytes] = field(default_factory=list)
    unsent: int = 0
    reading: bool = True
    ended: str = ""

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)

    def is_closing(self) -> bool:
        return self.ended in ("closed", "aborted")

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def write_eof(self) -> None:
        self.ended = "shut"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Clock:
    """The loop's, as far as a connection asks it: time goes on by `pass_by`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self._due = [(self.now + delay, call)]
        return asyncio.TimerHandle(self.now + delay, call, (), asyncio.get_running_loop())

    def create_task(self, work: Any) -> Any:
        return asyncio.get_running_loop().create_task(work)

    def create_future(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, call = self._due.pop(0)
            call()
        self.now = until


class Line:
    """A connection with an application behind it, and its ends."""

    def __init__(self, app: Callable[..., Any], **limits: float) -> None:
        self.clock = Clock()
        self.transport = Transport()
        self.state = ServerState()
        config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_config=None)
        config.load()
        self.protocol = HttpProtocol(
            config,
            self.state,
            {},
            self.clock,  # type: ignore[arg-type]
            answer=lambda turn: turn.serve(app),
            limits=Limits(**limits),  # type: ignore[arg-type]
        )
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]

    async def gets(self, data: bytes) -> bytes:
        """What the connection writes for these bytes."""
        before = len(self.transport.writes)
        self.protocol.data_received(data)
        await turns()
        return b"".join(self.transport.writes[before:])


async def turns(count: int = 5) -> None:
    """Lets the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    body = orjson.dumps(scope["path"])
    await send(starts(200, (b"content-length", b"%d" % len(body))))
    await send(piece(body))


def starts(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


# ---- writes


async def test_a_whole_answer_is_one_write() -> None:
    line = Line(hello)

    reply = await line.gets(GET)

    assert line.transport.writes == [reply]
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(b'\r\n\r\n"/"')
    assert (line.state.tasks, line.transport.ended) == (set(), "")


async def test_a_streams_head_leaves_with_its_first_piece_and_each_other_piece_is_a_write() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (starts(), piece(b"one", more=True), piece(b"two", more=True), piece(b"")):
            await send(message)

    line = Line(app)
    await line.gets(GET)

    assert [write[-8:] for write in line.transport.writes] == [b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"[-8:]]
    assert line.transport.writes[0].startswith(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")


async def test_an_empty_first_piece_sends_the_head_alone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (starts(), piece(b"", more=True), piece(b"x")):
            await send(message)

    line = Line(app)
    await line.gets(GET)

    assert line.transport.writes[0].endswith(b"chunked\r\n\r\n")
    assert line.transport.writes[1:] == [b"1\r\nx\r\n0\r\n\r\n"]


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_a_header_with_a_line_break_never_leaves(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(starts(200, (b"x-a", value)))
        await send(piece(b"x"))

    reply = await Line(app).gets(GET)

    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in reply
    caplog.clear()


@pytest.mark.parametrize("body", [b"", b"abcd"])
async def test_an_answer_of_another_length_than_was_said_ends_the_connection(body: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(starts(200, (b"content-length", b"3")))
        await send(piece(b"", more=True))
        await send(piece(body))

    line = Line(app)
    await line.gets(GET)

    assert line.transport.ended == "closed"


async def test_an_application_that_breaks_is_a_500_that_says_nothing_of_it() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a secret")

    reply = await Line(app).gets(GET)

    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in reply


# ---- order


async def test_requests_behind_one_are_answered_in_their_order() -> None:
    may_end = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/first":
            await may_end.wait()
        await hello(scope, receive, send)

    line = Line(app)
    assert await line.gets(GET.replace(b"/ ", b"/first ") + GET * 2) == b""

    may_end.set()
    await turns()
    await turns()

    assert [write.rpartition(b"\r\n")[2] for write in line.transport.writes] == [b'"/first"', b'"/"', b'"/"']


async def test_a_client_with_too_many_requests_waiting_is_read_no_further_until_one_is_answered() -> None:
    may_end = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_end.wait()
        await hello(scope, receive, send)

    line = Line(app)
    await line.gets(GET * (2 * MAX_WAITING + 1))
    assert not line.transport.reading

    may_end.set()
    await turns(MAX_WAITING)
    assert not line.transport.reading

    await turns(5 * MAX_WAITING)
    assert line.transport.reading
    assert len(line.transport.writes) == 2 * MAX_WAITING + 1


async def test_what_comes_behind_a_body_is_no_header_of_its_request() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])
        await hello(scope, receive, send)

    line = Line(app)
    await line.gets(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-request-id: late\r\n\r\n")

    assert seen == [[(b"transfer-encoding", b"chunked")]]


# ---- the client leaves, the server ends


async def test_who_leaves_is_noticed_at_once_by_receive_and_by_send() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        seen.append((await receive())["type"])
        with pytest.raises(ClientGone):
            await send(starts())
        seen.append("raised")

    line = Line(app)
    await line.gets(GET)
    line.protocol.connection_lost(None)
    await turns()

    assert seen == ["http.disconnect", "raised"]
    assert (line.state.connections, line.state.tasks) == (set(), set())


async def test_a_shutdown_ends_what_is_idle_at_once_and_what_is_busy_after_its_answer() -> None:
    may_end = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_end.wait()
        await hello(scope, receive, send)

    idle, busy = Line(app), Line(app)
    await busy.gets(GET)
    idle.protocol.shutdown()
    busy.protocol.shutdown()
    assert (idle.transport.ended, busy.transport.ended) == ("closed", "")

    may_end.set()
    await turns()

    assert b"connection: close\r\n" in busy.transport.writes[0]
    assert busy.transport.ended == "closed"


# ---- flow


async def test_send_waits_while_the_client_does_not_take_what_it_was_sent() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(starts())
        await send(piece(b"1", more=True))
        await send(piece(b"2"))

    line = Line(app)
    line.protocol.pause_writing()
    assert await line.gets(GET) == b""

    line.protocol.resume_writing()
    await turns()

    assert b"".join(line.transport.writes).endswith(b"1\r\n1\r\n1\r\n2\r\n0\r\n\r\n")


async def test_a_body_that_nobody_asks_for_is_read_no_further() -> None:
    may_read = asyncio.Event()
    read: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        read.append(len((await receive())["body"]))

    line = Line(app)
    await line.gets(b"POST / HTTP/1.1\r\ncontent-length: 200000\r\n\r\n" + b"x" * 100_000)
    assert not line.transport.reading

    may_read.set()
    await turns()

    assert (read, line.transport.reading) == ([100_000], True)


# ---- time


async def test_a_client_that_takes_nothing_is_dropped_and_one_that_takes_something_is_not() -> None:
    line = Line(hello, write_timeout_s=60.0)
    line.transport.unsent = 1000
    await line.gets(GET)

    line.clock.pass_by(59)
    line.transport.unsent = 999
    line.clock.pass_by(59)
    assert line.transport.ended == ""

    line.clock.pass_by(31)
    assert line.transport.ended == "aborted"


async def test_a_client_that_does_not_take_the_last_of_a_closed_connection_is_dropped_too() -> None:
    line = Line(hello, write_timeout_s=60.0)
    line.transport.unsent = 1000
    await line.gets(b"GET / HTTP/1.0\r\n\r\n")
    assert line.transport.ended == "closed"

    line.clock.pass_by(91)

    assert line.transport.ended == "aborted"


async def test_an_idle_connection_is_closed_after_its_time_and_not_before() -> None:
    line = Line(hello, keep_alive_s=75.0)
    line.clock.pass_by(50)
    await line.gets(GET)

    line.clock.pass_by(74)
    assert line.transport.ended == ""

    line.clock.pass_by(1.1)
    assert line.transport.ended == "closed"


async def test_a_head_that_does_not_come_to_its_end_is_408() -> None:
    line = Line(hello, keep_alive_s=75.0, request_timeout_s=10.0)
    assert await line.gets(b"GET / HTTP/1.1\r\nhost") == b""

    line.clock.pass_by(80)
    assert line.transport.writes == []
    line.clock.pass_by(20)

    assert line.transport.writes[0].startswith(b"HTTP/1.1 408 ")


async def test_a_refused_client_may_read_why_and_is_then_dropped() -> None:
    line = Line(hello)

    reply = await line.gets(b"no http\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert line.transport.ended == "shut"

    line.clock.pass_by(3)
    assert line.transport.ended == "aborted"


# ---- what else a request may be


async def test_a_proxy_is_not_what_this_is() -> None:
    reply = await Line(hello).gets(b"CONNECT far.test:443 HTTP/1.1\r\nhost: far.test\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 405 ")


async def test_what_follows_a_last_request_does_not_spoil_its_answer() -> None:
    line = Line(hello)

    reply = await line.gets(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n" + GET + b"\x00\x01")

    assert reply.startswith(b"HTTP/1.1 200 ")
    assert (len(line.transport.writes), line.transport.ended) == (1, "closed")


async def test_who_was_not_told_to_send_a_body_and_got_an_answer_may_not_go_on_here() -> None:
    line = Line(hello)

    reply = await line.gets(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n")

    assert b"connection: close\r\n" in reply
    assert line.transport.ended == "closed"
