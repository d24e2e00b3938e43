"""Reading a request's body: what is refused, when, and that nothing of it is left in the accounts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from app.api.bodies import BodyBudget
from protocols.errors import BodyTooLarge, ClientGone, InvalidRequest, Overloaded, UnsupportedMediaType

JSON = (b"content-type", b"application/json")
GONE = {"type": "http.disconnect"}


def budget(max_body: int = 100, max_in_flight: int = 1000, max_requests: int = 2) -> BodyBudget:
    return BodyBudget(max_body=max_body, max_in_flight=max_in_flight, max_requests=max_requests)


def announced(length: int) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % length)


class Client:
    """A `receive` that gives these parts, and notes how many were taken."""

    def __init__(self, parts: Iterable[bytes | dict[str, Any]], *, more: bool = False) -> None:
        self._parts = list(parts)
        self._more = more
        self.taken = 0

    async def __call__(self) -> Any:
        part = self._parts[self.taken]
        self.taken += 1
        if isinstance(part, dict):
            return part
        return {"type": "http.request", "body": part, "more_body": self._more or self.taken < len(self._parts)}


@pytest.mark.parametrize("parts", [[b"whole"], [b"wh", b"", b"ole"], [b"", b"whole", b""]])
async def test_a_body_is_joined_of_its_parts(parts: list[bytes]) -> None:
    assert await budget().read(dict([JSON]), Client(parts)) == b"whole"


async def test_a_body_of_just_the_limit_is_taken() -> None:
    assert await budget(max_body=4).read(dict([JSON, announced(4)]), Client([b"1234"])) == b"1234"


async def test_an_announced_length_beyond_the_limit_is_refused_unread() -> None:
    client = Client([b"12345"])

    with pytest.raises(BodyTooLarge):
        await budget(max_body=4).read(dict([JSON, announced(5)]), client)

    assert client.taken == 0


async def test_an_unannounced_body_is_refused_where_it_passes_the_limit() -> None:
    client = Client([b"123", b"45", b"more"])

    with pytest.raises(BodyTooLarge):
        await budget(max_body=4).read(dict([JSON]), client)

    assert client.taken == 2


@pytest.mark.parametrize("kind", [b"application/json", b"Application/JSON ; charset=utf-8", b"application/geo+json"])
async def test_json_is_taken_by_any_of_its_names(kind: bytes) -> None:
    assert await budget().read({b"content-type": kind}, Client([b"{}"])) == b"{}"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"text/plain; application/json")],
        [(b"content-type", b"\xff\xfe")],
        [JSON, (b"content-encoding", b"gzip")],
    ],
)
async def test_anything_else_is_refused_unread(headers: list[tuple[bytes, bytes]]) -> None:
    client = Client([b"{}"])

    with pytest.raises(UnsupportedMediaType):
        await budget().read(dict(headers), client)

    assert client.taken == 0


async def test_the_identity_is_no_encoding() -> None:
    assert await budget().read(dict([JSON, (b"content-encoding", b"identity")]), Client([b"{}"])) == b"{}"


async def test_a_length_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        await budget().read(dict([JSON, (b"content-length", b"-1")]), Client([b"{}"]))


async def test_what_others_have_announced_counts_before_it_has_come() -> None:
    bodies = budget(max_in_flight=150)
    first = bodies.read(dict([JSON, announced(100)]), Suspended())
    start(first)

    with pytest.raises(Overloaded):
        await bodies.read(dict([JSON, announced(60)]), Client([b"{}"]))

    assert await bodies.read(dict([JSON, announced(50)]), Client([b"{}"])) == b"{}"
    first.close()


async def test_what_nobody_announced_counts_as_it_comes() -> None:
    bodies = budget(max_in_flight=150)
    first = bodies.read(dict([JSON, announced(100)]), Suspended())
    start(first)

    with pytest.raises(Overloaded):
        await bodies.read(dict([JSON]), Client([b"x" * 40, b"x" * 40]))

    first.close()
    assert bodies.bytes == 0


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        ([JSON], [b"{}"]),
        ([JSON, announced(9)], [b"{}", GONE]),
        ([JSON, announced(101)], [b"{}"]),
        ([JSON], [b"x" * 101]),
        ([], [b"{}"]),
    ],
)
async def test_however_a_reading_ends_no_byte_of_it_stays_in_the_account(
    headers: list[tuple[bytes, bytes]], parts: list[Any]
) -> None:
    bodies = budget()

    try:
        await bodies.read(dict(headers), Client(parts))
    except (InvalidRequest, ClientGone):
        pass

    assert bodies.bytes == 0


async def test_a_client_that_leaves_in_the_middle_is_told_apart() -> None:
    with pytest.raises(ClientGone):
        await budget().read(dict([JSON, announced(9)]), Client([b"{}", GONE], more=True))


def test_requests_are_counted_up_to_their_limit() -> None:
    bodies = budget(max_requests=2)
    bodies.enter()
    bodies.enter()

    with pytest.raises(Overloaded):
        bodies.enter()

    bodies.leave()
    bodies.enter()
    assert bodies.requests == 2


class Suspended:
    """A `receive` of a client that has not sent its body yet."""

    async def __call__(self) -> Any:
        await self

    def __await__(self) -> Any:
        yield


def start(reading: Any) -> None:
    """Runs it up to its first wait."""
    reading.send(None)
