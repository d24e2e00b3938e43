"""Corked writes over uvicorn and real sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import uvicorn

from app.responses import send_json
from app.server import HttpProtocol, Server, corked


@asynccontextmanager
async def serving(app):
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=HttpProtocol, lifespan="off", log_config=None, access_log=False)
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def reply_to(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    reply = await asyncio.wait_for(reader.read(), 2)
    writer.close()
    return reply


async def test_a_reply_that_ends_its_connection_is_whole():
    async def app(scope, receive, send):
        await send_json(send, 200, b'{"a":1}', [])

    async with serving(app) as port:
        reply = await reply_to(port, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(b'\r\n\r\n{"a":1}')


async def test_what_is_written_while_corked_is_one_write():
    writes = []

    async def app(scope, receive, send):
        transport = send.__self__.transport
        inner = transport._transport

        class Counted:
            def write(self, data):
                writes.append(data)
                inner.write(data)

            def __getattr__(self, name):
                return getattr(inner, name)

        transport._transport = Counted()
        with corked(send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async with serving(app) as port:
        await reply_to(port, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert len(writes) == 2
    assert writes[0].endswith(b"3\r\none\r\n")


async def test_another_servers_send_is_left_alone():
    sent = []

    async def send(message):
        sent.append(message)

    with corked(send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
    assert len(sent) == 1
