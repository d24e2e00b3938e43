"""The worker client against scripted peers over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from engines.base import Call
from protocols.errors import CannotConnect, Disconnected, Enough, ProtocolViolation, SinkFailed
from tests.workers.wire_server import Peer, wire_server
from workers.client import MAX_HEAD_BYTES, WorkerClient

CALL = Call("/generate", b'{"a":1}', (("x-request-id", "r1"),))
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LENGTH_2 = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Collected:
    """A reader that keeps what it is given, read by read."""

    def __init__(self, fail_with: BaseException | None = None) -> None:
        self.status = 0
        self.reads: list[bytes] = []
        self.first = asyncio.Event()
        self._fail_with = fail_with

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    def head(self, status: int) -> None:
        self.status = status

    def data(self, data: bytes) -> None:
        self.reads.append(data)
        self.first.set()
        if self._fail_with is not None:
            raise self._fail_with


@pytest.fixture
async def client():
    client = WorkerClient(connect_timeout_s=1.0)
    yield client
    client.close()
    await asyncio.sleep(0)


async def test_a_reply_is_pushed_and_its_connection_is_used_again(client):
    seen = []

    async def script(peer: Peer) -> None:
        for _ in range(2):
            seen.append(await peer.request())
            await peer.send(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n")

    async with wire_server(script) as server:
        for _ in range(2):
            reader = Collected()
            exchange = await client.send(server.url, CALL, reader)
            await exchange.wait()
            assert (reader.status, reader.body) == (200, b"hi")
        assert server.connections == 1
    head, body = seen[0]
    assert head.startswith("POST /generate HTTP/1.1\r\n")
    assert "x-request-id: r1\r\n" in head
    assert "content-type: application/json\r\n" in head
    assert body == b'{"a":1}'


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
async def test_any_cut_of_the_reply_gives_the_same_body(client, step):
    whole = CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*[whole[i : i + step] for i in range(0, len(whole), step)])

    async with wire_server(script) as server:
        reader = Collected()
        await (await client.send(server.url, CALL, reader)).wait()
        assert reader.body == b"hello world"


async def test_interim_replies_are_skipped(client):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + LENGTH_2 + b"ok"
        )

    async with wire_server(script) as server:
        reader = Collected()
        await (await client.send(server.url, CALL, reader)).wait()
        assert (reader.status, reader.body) == (200, b"ok")


async def test_a_refused_connection_cannot_connect(client):
    async with wire_server(Peer.gone) as server:
        url = server.url
    with pytest.raises(CannotConnect, match="cannot connect"):
        await client.send(url, CALL, Collected())


@pytest.mark.parametrize("sent", [b"", CHUNKED, CHUNKED + b"2\r\nhi\r\n", LENGTH_2 + b"o", b"HTTP/1.1 200"])
async def test_a_reply_that_breaks_off_is_a_disconnect(client, sent):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)

    async with wire_server(script) as server:
        exchange = await client.send(server.url, CALL, Collected())
        with pytest.raises(Disconnected):
            await exchange.wait()
        assert client.open_connections() == 0


@pytest.mark.parametrize(
    "sent",
    [b"SSH-2.0-x\r\n\r\n", CHUNKED + b"zz\r\nhi\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1)],
    ids=["not HTTP", "bad chunk", "endless head"],
)
async def test_bytes_that_are_no_reply_are_a_violation(client, sent):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.gone()

    async with wire_server(script) as server:
        exchange = await client.send(server.url, CALL, Collected())
        with pytest.raises(ProtocolViolation):
            await exchange.wait()


async def test_a_body_without_length_ends_with_its_connection(client):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it")

    async with wire_server(script) as server:
        reader = Collected()
        await (await client.send(server.url, CALL, reader)).wait()
        assert reader.body == b"all of it"


async def test_enough_comes_out_of_wait_and_closes_the_connection(client):
    closed = asyncio.Event()
    owner = object()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"2\r\nhi\r\n")
        await peer.gone()
        closed.set()

    async with wire_server(script) as server:
        exchange = await client.send(server.url, CALL, Collected(fail_with=Enough(owner)))
        with pytest.raises(Enough) as raised:
            await exchange.wait()
        assert raised.value.owner is owner
        await asyncio.wait_for(closed.wait(), 1)


async def test_what_else_a_sink_raises_is_a_failed_sink(client):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH_2 + b"hi")
        await peer.gone()

    async with wire_server(script) as server:
        exchange = await client.send(server.url, CALL, Collected(fail_with=KeyError("bug")))
        with pytest.raises(SinkFailed) as raised:
            await exchange.wait()
        assert isinstance(raised.value.__cause__, KeyError)


async def test_after_close_the_reader_is_silent_and_the_worker_sees_it(client):
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"2\r\nhi\r\n")
        await peer.gone()
        closed.set()

    async with wire_server(script) as server:
        reader = Collected()
        exchange = await client.send(server.url, CALL, reader)
        await reader.first.wait()
        exchange.close()
        await asyncio.wait_for(closed.wait(), 1)
        assert reader.reads == [b"hi"]


async def test_a_reply_given_up_after_its_end_marker_leaves_a_usable_connection(client):
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await peer.send(CHUNKED + b"2\r\nhi\r\n")
            await go_on.wait()
            await peer.send(b"0\r\n\r\n")

    async with wire_server(script) as server:
        for _ in range(2):
            reader = Collected()
            exchange = await client.send(server.url, CALL, reader)
            await reader.first.wait()
            exchange.finish()
            await exchange.wait()
            go_on.set()
            while not client.idle_connections():
                await asyncio.sleep(0)
        assert server.connections == 1


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", LENGTH_2 + b"ok" + LENGTH_2 + b"no"],
    ids=["asked to close", "something follows"],
)
async def test_a_connection_that_is_not_clean_is_not_pooled(client, reply):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply)
        await peer.gone()

    async with wire_server(script) as server:
        reader = Collected()
        await (await client.send(server.url, CALL, reader)).wait()
        assert reader.body == b"ok"
        assert client.idle_connections() == 0


async def test_a_pooled_connection_that_died_says_that_it_was_reused(client):
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH_2 + b"ok")
        await peer.request()

    async with wire_server(script) as server:
        await (await client.send(server.url, CALL, Collected())).wait()
        exchange = await client.send(server.url, CALL, Collected())
        with pytest.raises(Disconnected):
            await exchange.wait()
        assert exchange.reused
        assert exchange.began_at is None


async def test_a_paused_exchange_reads_nothing_until_resumed(client):
    asked = asyncio.Event()
    sent = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await asked.wait()
        await peer.send(LENGTH_2 + b"ok")
        sent.set()
        await peer.gone()

    async with wire_server(script) as server:
        reader = Collected()
        exchange = await client.send(server.url, CALL, reader)
        exchange.pause()
        asked.set()
        await sent.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert reader.reads == []
        exchange.resume()
        await exchange.wait()
        assert reader.body == b"ok"


async def test_cancelling_wait_leaves_the_reply_running(client):
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await go_on.wait()
        await peer.send(LENGTH_2 + b"ok")

    async with wire_server(script) as server:
        reader = Collected()
        exchange = await client.send(server.url, CALL, reader)
        waiting = asyncio.create_task(exchange.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        await exchange.wait()
        assert reader.body == b"ok"
