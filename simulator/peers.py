"""How simulated workers reach each other: small JSON calls over plain HTTP, on private routes.

Stands in for what real engines do by RDMA and ZMQ. A peer that is gone is really unreachable.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson


class PeerLost(Exception):
    """The peer cannot be reached, or broke off before it answered."""


async def call_peer(host: str, port: int, path: str, payload: Any, timeout_s: float | None = None) -> tuple[int, Any]:
    """POSTs `payload` and returns status and parsed body. Cancelling closes the connection. Raises PeerLost."""
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), port)
            body = orjson.dumps(payload)
            head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
            head += f"content-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            reply = await reader.read()
    except (OSError, TimeoutError) as error:
        raise PeerLost(f"{host}:{port}: {error or 'timed out'}") from error
    finally:
        if writer is not None:
            writer.close()
    head_bytes, _, content = reply.partition(b"\r\n\r\n")
    try:
        status = int(head_bytes.split(b" ", 2)[1])
        return status, orjson.loads(content) if content else None
    except (IndexError, ValueError) as error:
        raise PeerLost(f"{host}:{port} broke off") from error
