"""HTTP/1.1 by hand: bytes out, bytes in, and a strict reading of event streams."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

EVENT = re.compile(rb"data: (?P<data>[^\r\n]+)\n\n|(?P<ping>: ping\n)")


@dataclass
class Reply:
    """One response. `headers` as they came, names in lower case; `informational`: the 1xx statuses before it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    informational: list[int] = field(default_factory=list)

    def header(self, name: str) -> str:
        """The one header of this name. Fails when there is none or more than one."""
        found = [value for key, value in self.headers if key == name]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def count(self, name: str) -> int:
        return sum(key == name for key, _ in self.headers)

    def json(self) -> Any:
        return orjson.loads(self.body)


class Wire:
    """A connection. `receive_buffer`: the kernel's buffer, in bytes, for clients that do not read."""

    def __init__(self, host: str, port: int, *, receive_buffer: int | None = None, timeout_s: float = 10.0) -> None:
        self.host = host
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect((host, port))
        self._read = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- out

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, path: str, body: Any, **headers: str) -> None:
        """A whole request; `body` as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        self.send(request_bytes("POST", path, data, {"content-type": "application/json", **headers}))

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        self.send(request_bytes(method, path, None, headers))
        return self.reply(head_only=method == "HEAD")

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Leaves by a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # ---- in

    def reply(self, *, head_only: bool = False) -> Reply:
        """The next response, to its end."""
        reply = self.head()
        if not head_only:
            reply.body = b"".join(self.pieces(reply))
        return reply

    def head(self) -> Reply:
        """The next response's head; 1xx before it are noted."""
        informational = []
        while True:
            lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            version, status, *_ = lines[0].split(" ")
            assert version == "HTTP/1.1"
            if not 100 <= int(status) < 200:
                break
            informational.append(int(status))
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:-2])]
        return Reply(int(status), headers, informational=informational)

    def head_of_continue(self) -> int:
        """The status of an interim response that has to come by itself."""
        return int(self._until(b"\r\n\r\n").split(b" ")[1])

    def pieces(self, reply: Reply) -> Iterator[bytes]:
        """The body as it comes: chunk by chunk, or as a whole."""
        if reply.status in (204, 304):
            return
        if ("transfer-encoding", "chunked") in reply.headers:
            while size := int(self._until(b"\r\n"), 16):
                yield self._exactly(size)
                assert self._exactly(2) == b"\r\n"
            assert self._exactly(2) == b"\r\n"
        elif reply.count("content-length"):
            yield self._exactly(int(reply.header("content-length")))
        else:
            yield from self._rest()

    def first_events(self, count: int) -> bytes:
        """The beginning of the next response, a stream, as soon as so many of its events have come."""
        read, pieces = b"", self.pieces(self.head())
        while read.count(b"data: ") < count:
            read += next(pieces)
        return read

    def closed(self) -> bool:
        """Has the other side closed, with nothing more to read?"""
        try:
            return self._read == b"" and self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _rest(self) -> Iterator[bytes]:
        """Up to the end of the connection."""
        while data := self._read or self.socket.recv(65536):
            self._read = b""
            yield data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            self._more()
        data, _, self._read = self._read.partition(mark)
        return data + mark

    def _exactly(self, count: int) -> bytes:
        while len(self._read) < count:
            self._more()
        data, self._read = self._read[:count], self._read[count:]
        return data

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("closed in the middle")
        self._read += data


def request_bytes(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: tandem.test", *(f"{k}: {v}" for k, v in headers.items())]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


@dataclass
class Events:
    """An event stream, read strictly: `chunks` without [DONE] and errors."""

    chunks: list[dict[str, Any]]
    pings: int
    done: int
    error: dict[str, Any] | None

    def text(self, index: int = 0) -> str:
        return "".join(
            _text(choice) for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index
        )

    def finishes(self, index: int = 0) -> list[str]:
        return [
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk["choices"]
            if choice["index"] == index and choice["finish_reason"]
        ]

    def usage(self) -> dict[str, Any] | None:
        found = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        assert len(found) <= 1, "usage is told once"
        return found[0] if found else None


def events_of(body: bytes) -> Events:
    """Reads a stream that must be whole events of one data line, comments between them, and nothing else.

    Nothing may follow an error or [DONE], and no chunk may be empty of news.
    """
    events = Events([], 0, 0, None)
    at = 0
    while at < len(body):
        match = EVENT.match(body, at)
        assert match is not None, f"not an event: {body[at : at + 80]!r}"
        assert events.error is None, "nothing follows an error"
        assert not events.done, "nothing follows [DONE]"
        at = match.end()
        if match["ping"]:
            events.pings += 1
        elif match["data"] == b"[DONE]":
            events.done += 1
        else:
            _take(events, orjson.loads(match["data"]))
    return events


def _take(events: Events, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        assert set(chunk["error"]) == {"message", "type", "param", "code"}
        events.error = chunk["error"]
        return
    assert chunk["choices"] or chunk.get("usage") or chunk.keys() & {"tandem", "nvext"}, "an empty chunk"
    for choice in chunk["choices"]:
        opening = choice.get("delta", {}).get("role") is not None
        assert opening or _tells(choice, events) or choice["finish_reason"], f"an empty choice: {choice}"
    events.chunks.append(chunk)


def _tells(choice: Mapping[str, Any], events: Events) -> bool:
    """Does it bring anything? An empty content does where null was said before: the answer is no call."""
    delta = choice.get("delta", {})
    if _text(choice) or any(delta.values()) or choice.get("logprobs"):
        return True
    return delta == {"content": ""} and not events.text(choice["index"])


def _text(choice: Mapping[str, Any]) -> str:
    if "text" in choice:
        return choice["text"] or ""
    return choice.get("delta", {}).get("content") or ""
