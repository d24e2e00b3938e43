"""The id that a request is known by."""

from __future__ import annotations

import re

import pytest

from app.api.identity import request_id_of

OWN = re.compile(rb"req-[0-9a-f]{24}")


@pytest.mark.parametrize("name", [b"a", b"trace-1", b"0b3c/7=+.:@_", b"two words", b"a,b", b"<a>", b"x" * 128])
def test_a_short_and_plain_id_is_kept(name: bytes) -> None:
    assert request_id_of([(b"accept", b"*/*"), (b"x-request-id", name)]) == name


@pytest.mark.parametrize(
    "name", [b"", b" ", b"x" * 129, b" a", b"a ", b"a\r\nset-cookie: b", b"caf\xe9", b"\x00", b"a\tb", b"\x7f"]
)
def test_any_other_is_replaced(name: bytes) -> None:
    assert OWN.fullmatch(request_id_of([(b"x-request-id", name)]))


def test_without_one_each_request_gets_its_own() -> None:
    assert len({request_id_of([]) for _ in range(100)}) == 100


def test_of_several_the_first_sane_one_counts() -> None:
    assert (
        request_id_of([(b"x-request-id", b"n\xf3 good"), (b"x-request-id", b"good"), (b"x-request-id", b"late")])
        == b"good"
    )
