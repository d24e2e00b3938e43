"""Replies reduced to what must be equal: keys in their order, nulls, types, and the values that mean something.

Ids, times, texts and log probabilities are anybody's; finishes, usage and the echoed prompt are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

GOLDEN = Path(__file__).parent.parent / "golden"

EXACT = frozenset(
    {
        "object", "model", "role", "index", "finish_reason", "stop_reason", "matched_stop", "output_mode",
        "prompt_tokens", "total_tokens", "completion_tokens", "cached_tokens", "created_cache_tokens",
        "version", "start", "end", "type", "matched", "length", "prompt_token_ids", "tp_size", "dcp_size",
        "pp_size", "remote_num_tokens", "transfer_mode", "remote_prefill_cached_tokens", "do_remote_prefill",
        "do_remote_decode", "max_model_len", "owned_by", "output_token_logprobs_length", "reasoning_tokens",
        "num_retractions", "weight_version", "status_code", "err_type", "message", "code", "param",
        "request_type", "disagg_request_id", "ctx_request_id", "schedule_style", "device", "host", "error",
        "detail", "avg_decoded_tokens_per_iter",
    }
)  # fmt: skip
"""Keys whose values are compared, not only their types."""

MAPS = frozenset({"top_logprobs"})
"""Keys of maps from text to number: which texts is anybody's, and some fall together."""


@dataclass(frozen=True)
class Reply:
    """A reply as it came. `chunks`: the body's HTTP chunks, or the whole body as one."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def json(self) -> Any:
        return orjson.loads(self.body)

    def events(self) -> list[Any]:
        """One event per chunk; the end mark as it is."""
        out = []
        for chunk in self.chunks:
            assert chunk.startswith(b"data: ")
            assert chunk.endswith(b"\n\n")
            data = chunk[6:-2]
            out.append("[DONE]" if data == b"[DONE]" else orjson.loads(data))
        return out


def read_reply(raw: bytes) -> Reply:
    """A reply from its bytes; status 0 when there are none."""
    if not raw.strip():
        return Reply(0, {}, [])
    head, _, body = raw.partition(b"\r\n\r\n")
    start, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    chunks = _chunks(body) if headers.get("transfer-encoding", "").lower() == "chunked" else [body]
    return Reply(int(start.split()[1]), headers, chunks)


def _chunks(body: bytes) -> list[bytes]:
    out = []
    while body:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16):
            out.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return out


def golden_reply(name: str) -> Reply:
    """`golden_reply("vllm/20_completion_ids")`"""
    return read_reply((GOLDEN / f"{name}.resp").read_bytes())


def golden_request(name: str) -> bytes:
    """The request's bytes as they were sent."""
    return (GOLDEN / f"{name}.req").read_bytes()


def golden_body(name: str) -> Any:
    return orjson.loads(golden_request(name).partition(b"\r\n\r\n")[2])


def with_body(raw: bytes, body: Any) -> bytes:
    """The same request with another body."""
    head, _, _ = raw.partition(b"\r\n\r\n")
    data = orjson.dumps(body)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(data)]) + b"\r\n\r\n" + data


async def received(port: int, raw: bytes) -> tuple[bytes, bool]:
    """Sends a request's very bytes and reads to the end. The end was in good order (True), or a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head, separator, body = raw.partition(b"\r\n\r\n")
    if b"connection:" not in head.lower():
        head += b"\r\nconnection: close"
    data, orderly = b"", True
    try:
        writer.write(head + separator + body)
        while part := await reader.read(65536):
            data += part
    except ConnectionResetError:
        orderly = False
    finally:
        writer.close()
    return data, orderly


async def exchange(port: int, raw: bytes) -> Reply:
    """Sends a request's very bytes and reads the reply until the server closes."""
    data, _ = await received(port, raw)
    return read_reply(data)


def post(path: str, body: Any) -> bytes:
    """A request's bytes."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return f"{head}\r\nconnection: close\r\n\r\n".encode() + data


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


async def until(condition: Callable[[], bool], limit: float = 2.0) -> None:
    """Waits for something that another party does in its own time."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.001)


def form(value: Any, key: str = "", loose: Collection[str] = ()) -> Any:
    """What must be equal of a value. `loose`: more keys whose values are anybody's."""
    if isinstance(value, dict):
        if key in MAPS or (value and all(name.isdigit() for name in value)):
            return "map"
        return [(name, form(inner, name, loose)) for name, inner in value.items()]
    if isinstance(value, list):
        if all(type(item) is int for item in value) and key not in EXACT:
            return ("ids", len(value)) if key != "bytes" else "bytes"
        return [form(item, key, loose) for item in value] if key not in EXACT else value
    if value is None or (key in EXACT and key not in loose):
        return value
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def forms(reply: Reply, loose: Collection[str] = ()) -> Any:
    """A whole reply's: status, kind of content, and the body's or every event's."""
    kind = reply.headers.get("content-type", "")
    if reply.streamed:
        return reply.status, kind, [form(event, loose=loose) for event in reply.events()]
    return reply.status, kind, form(reply.json(), loose=loose) if "json" in kind and reply.body else reply.body
