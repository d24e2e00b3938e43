"""Reading a request's body within the gateway's limits, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping

from app.http_turn import Receive
from protocols.errors import BodyTooLarge, ClientGone, InvalidRequest, Overloaded, UnsupportedMediaType


class BodyBudget:
    """How many bytes of bodies this process holds at a time, and how many requests."""

    def __init__(self, *, max_body: int, max_in_flight: int, max_requests: int) -> None:
        self.max_body = max_body
        self._max_in_flight = max_in_flight
        self._max_requests = max_requests
        self.bytes = 0
        self.requests = 0

    def enter(self) -> None:
        """A request begins. Raises Overloaded when there are too many."""
        if self.requests >= self._max_requests:
            raise Overloaded(f"the gateway already serves {self._max_requests} requests")
        self.requests += 1

    def leave(self) -> None:
        self.requests -= 1

    def checked(self, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
        """A body that came whole, with its request's head. Raises as `read` does."""
        check_headers(headers, self.max_body)
        if len(body) > self.max_body:
            raise _too_large(self.max_body)
        if self.bytes + len(body) > self._max_in_flight:
            raise _too_many_bytes()
        return body

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """The whole body. Raises InvalidRequest kinds, Overloaded, or ClientGone when the client left meanwhile."""
        held = check_headers(headers, self.max_body) or 0
        self._hold(held)
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client left before its request was complete")
                part = message.get("body", b"")
                size += len(part)
                if size > self.max_body:
                    raise _too_large(self.max_body)
                if size > held:
                    self._hold(size - held)
                    held = size
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self.bytes -= held

    def _hold(self, size: int) -> None:
        """What is announced counts from the start, what is not as it comes."""
        if self.bytes + size > self._max_in_flight:
            raise _too_many_bytes()
        self.bytes += size


def check_headers(headers: Mapping[bytes, bytes], max_body: int) -> int | None:
    """The announced length. Refuses what is not plain JSON, and a length beyond the limit, unread."""
    announced, coding = headers.get(b"content-length"), headers.get(b"content-encoding")
    length = None if announced is None else _length(announced)
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        shown = coding[:80].decode("latin-1")
        raise UnsupportedMediaType(f"Expected a request without content-encoding, but got {shown}.")
    content_type = headers.get(b"content-type", b"")
    if content_type != b"application/json":
        _check_type(content_type)
    if length is not None and length > max_body:
        raise _too_large(max_body)
    return length


def _check_type(content_type: bytes) -> None:
    media = content_type.partition(b";")[0].strip().lower()
    if media != b"application/json" and not media.endswith(b"+json"):
        shown = content_type[:80].decode("latin-1") or "none"
        raise UnsupportedMediaType(f"Expected a request with content-type application/json, but got {shown}.")


def _length(value: bytes) -> int:
    if not value.isdigit():
        raise InvalidRequest("The content-length header is not a number.")
    return int(value)


def _too_many_bytes() -> Overloaded:
    return Overloaded("the gateway already reads as many bytes of requests as it may")


def _too_large(max_body: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body exceeds the limit of {max_body} bytes (server.max_body_bytes).")
