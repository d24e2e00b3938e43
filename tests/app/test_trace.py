"""What workers are told of a request's trace."""

from __future__ import annotations

import pytest

from app.api.trace import trace_of

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_passes_as_it_came() -> None:
    named = {b"traceparent": PARENT, b"tracestate": b"vendor=1,other=2"}

    assert trace_of(named, b"ours") == (("traceparent", PARENT.decode()), ("tracestate", "vendor=1,other=2"))


def test_a_request_of_no_trace_tells_none() -> None:
    assert trace_of({b"accept": b"*/*"}, b"ours") == ()


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        PARENT.upper(),
        PARENT + b"-more",
        PARENT + b"\r\nx: y",
    ],
)
def test_what_is_no_trace_is_not_passed_on_nor_is_its_state(parent: bytes) -> None:
    assert trace_of({b"traceparent": parent, b"tracestate": b"vendor=1"}, b"ours") == ()


@pytest.mark.parametrize("state", [b"", b"x" * 513, b"a\tb", b"caf\xe9"])
def test_an_odd_state_is_left_out(state: bytes) -> None:
    assert trace_of({b"traceparent": PARENT, b"tracestate": state}, b"ours") == (("traceparent", PARENT.decode()),)


def test_the_clients_own_id_is_baggage() -> None:
    assert trace_of({b"x-request-id": b"a b,c;d"}, b"a b,c;d") == (("baggage", "request_id=a%20b%2Cc%3Bd"),)


def test_an_id_that_was_replaced_is_not_told() -> None:
    assert trace_of({b"x-request-id": b"caf\xe9"}, b"req-1") == ()
