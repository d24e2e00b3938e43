"""Exchanges with real servers, kept byte for byte under `tests/golden/<engine>/NAME.req` and `NAME.resp`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Recording:
    """One exchange. `body` is the reply's, without its HTTP chunk framing; `status` 0: the server sent nothing."""

    name: str
    method: str
    path: str
    request: Any
    status: int
    body: bytes


def recording(engine: str, name: str) -> Recording:
    asked, told = ((FOLDER / engine / f"{name}.{kind}").read_bytes() for kind in ("req", "resp"))
    head, _, body = asked.partition(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n")[0].decode().split(" ", 2)
    status, reply = _reply(told)
    return Recording(name, method, path, _json(body), status, reply)


def names(engine: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / engine).glob("*.resp"))


def _reply(told: bytes) -> tuple[int, bytes]:
    head, _, body = told.partition(b"\r\n\r\n")
    if not head:
        return 0, b""
    if b"transfer-encoding: chunked" in head.lower():
        body = _unframed(body)
    return int(head.split(b" ", 2)[1]), body


def _unframed(body: bytes) -> bytes:
    """The chunks' contents, as far as they came."""
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        out += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return out


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
