"""Routing headers in, RoutingHints out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import InvalidRequest
from protocols.preprocessed import RoutingHints
from routers.hints import HINT_HEADERS, read_hints

ORDINARY = [(b"host", b"gateway"), (b"content-type", b"application/json"), (b"x-request-id", b"7")]


def test_ordinary_headers_give_no_hints():
    assert read_hints(ORDINARY) is None


@pytest.mark.parametrize("name", [b"x-tandem-worker", b"x-dynamo-worker-instance-id", b"x-worker-instance-id"])
def test_a_worker_header_pins_backend_and_decode(name):
    assert read_hints([*ORDINARY, (name, b"9007199254740993")]) == RoutingHints(
        backend_instance_id=9007199254740993, decode_worker_id=9007199254740993
    )


@pytest.mark.parametrize(
    "name", [b"x-tandem-prefill-worker", b"x-dynamo-prefill-instance-id", b"x-prefill-instance-id"]
)
def test_a_prefill_worker_header_pins_prefill(name):
    assert read_hints([(name, b"0")]) == RoutingHints(prefill_worker_id=0)


@pytest.mark.parametrize("name", [b"x-tandem-dp-rank", b"x-dynamo-dp-rank", b"x-dp-rank", b"x-data-parallel-rank"])
def test_a_rank_header_sets_the_rank(name):
    assert read_hints([(name, b"3")]) == RoutingHints(dp_rank=3)


@pytest.mark.parametrize("name", [b"x-tandem-prefill-dp-rank", b"x-dynamo-prefill-dp-rank", b"x-prefill-dp-rank"])
def test_a_prefill_rank_header_sets_the_prefill_rank(name):
    assert read_hints([(name, b"0")]) == RoutingHints(prefill_dp_rank=0)


@pytest.mark.parametrize("name", [b"x-tandem-dp-rank", b"x-tandem-prefill-dp-rank"])
def test_a_rank_of_u32_max_is_unset(name):
    assert read_hints([(name, b"4294967295")]) is None


def test_a_tenant_becomes_the_cache_namespace():
    assert read_hints([(b"x-tenant-id", "Żółw".encode())]) == RoutingHints(cache_namespace="Żółw")


def test_an_empty_tenant_is_absent():
    assert read_hints([(b"x-tenant-id", b"  ")]) is None


def test_several_headers_make_one_hint():
    headers = [(b"x-tandem-prefill-worker", b"1"), (b"x-tandem-worker", b" 2 "), (b"x-tenant-id", b"t")]

    assert read_hints(headers) == RoutingHints(
        backend_instance_id=2, decode_worker_id=2, prefill_worker_id=1, cache_namespace="t"
    )


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-worker-instance-id", b"3"), (b"x-dynamo-worker-instance-id", b"2"), (b"x-tandem-worker", b"1")],
        [(b"x-tandem-worker", b"1"), (b"x-worker-instance-id", b"3")],
    ],
)
def test_tandems_own_name_wins_over_aliases_in_any_order(headers):
    assert read_hints(headers).decode_worker_id == 1


def test_a_header_repeated_with_the_same_value_is_one():
    assert read_hints([(b"x-tandem-worker", b"1"), (b"x-tandem-worker", b"1")]).decode_worker_id == 1


def test_a_header_given_twice_with_different_values_is_refused():
    with pytest.raises(InvalidRequest, match="x-tandem-worker: given twice with different values"):
        read_hints([(b"x-tandem-worker", b"1"), (b"x-tandem-worker", b"2")])


@pytest.mark.parametrize(
    "value", [b"", b"abc", b"-1", b"+1", b"1.0", b"0x1f", b"1 2", b"18446744073709551616", b"9" * 40]
)
@pytest.mark.parametrize("name", ["x-tandem-worker", "x-prefill-instance-id"])
def test_a_malformed_worker_id_names_the_header_the_client_sent(name, value):
    with pytest.raises(InvalidRequest, match=f"{name}: expected a worker id") as refused:
        read_hints([(name.encode(), value)])
    assert refused.value.param == name


@pytest.mark.parametrize("value", [b"", b"one", b"-1", b"4294967296"])
def test_a_malformed_rank_names_the_header_the_client_sent(value):
    with pytest.raises(InvalidRequest, match="x-dp-rank: expected a data-parallel rank"):
        read_hints([(b"x-dp-rank", value)])


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\x00b", b"a" * 257])
def test_a_malformed_tenant_is_refused(value):
    with pytest.raises(InvalidRequest, match="x-tenant-id: expected"):
        read_hints([(b"x-tenant-id", value)])


def test_where_clients_may_not_choose_pins_are_not_even_read():
    headers = [(b"x-tandem-worker", b"nonsense"), (b"x-tandem-dp-rank", b"1"), (b"x-tenant-id", b"t")]

    assert read_hints(headers, pins=False) == RoutingHints(cache_namespace="t")


@given(st.sampled_from(sorted(HINT_HEADERS)), st.binary(max_size=30))
def test_any_bytes_give_hints_or_an_error_that_names_the_header(name, value):
    assert outcome(name, value) in (RoutingHints, type(None), name.decode())


def outcome(name, value):
    """What reading gives: the type of the answer, or the field that the refusal names."""
    try:
        return type(read_hints([(name, value)]))
    except InvalidRequest as refused:
        return refused.param
