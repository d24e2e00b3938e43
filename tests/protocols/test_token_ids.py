"""Token ids on the wire: sequences, and packed little-endian int32 where a binary codec's reader says so."""

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.preprocessed import PreprocessedRequest
from protocols.token_ids import I32_MAX, MAX_TOKEN_ID, pack_token_ids, read_token_ids, read_token_list
from protocols.wire import WireError

IDS = (0, 1, 128_000, I32_MAX)
PACKED = bytes.fromhex("00000000 01000000 00f40100 ffffff7f")
VALUE_OFFSET = 1 + 1 + len("token_ids")


def encoded(ids, *, packed):
    """The map {token_ids} alone, as msgpack: the key's bytes, then the value."""
    return msgpack.packb({"token_ids": PreprocessedRequest(ids).to_wire(packed=packed)["token_ids"]})


def decoded(payload):
    return PreprocessedRequest.from_wire(msgpack.unpackb(payload)).token_ids


def test_packed_ids_are_read_from_msgpack_bytes():
    assert decoded(msgpack.packb({"token_ids": PACKED})) == IDS


def test_packed_ids_of_an_odd_length_are_refused():
    with pytest.raises(WireError, match="token_ids: packed token_ids byte length is not a multiple of 4"):
        decoded(msgpack.packb({"token_ids": b"\1\0\0"}))


def test_a_sequence_is_still_read():
    assert decoded(msgpack.packb({"token_ids": [7, 8, 9]})) == (7, 8, 9)


def test_packed_ids_are_little_endian_int32_bytes_and_come_back():
    payload = encoded(IDS, packed=True)

    assert (payload[VALUE_OFFSET], payload[VALUE_OFFSET + 2 :]) == (0xC4, PACKED)
    assert decoded(payload) == IDS


def test_ids_above_int32_keep_the_sequence_form():
    ids = (7, I32_MAX + 1)

    payload = encoded(ids, packed=True)

    assert payload[VALUE_OFFSET] == 0x92
    assert payload == encoded(ids, packed=False)
    assert decoded(payload) == ids


def test_without_packing_ids_are_a_sequence_in_json_too():
    assert orjson.dumps({"token_ids": PreprocessedRequest((1, 2)).to_wire()["token_ids"]}) == b'{"token_ids":[1,2]}'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, -1], r"\[1\]: expected a token id"),
        ([MAX_TOKEN_ID + 1], "expected a token id"),
        ([True], "expected a token id"),
        ([1.0], "expected a token id"),
        (["1"], "expected a token id"),
        ("12", "expected a sequence"),
        (None, "expected a sequence"),
        ({}, "expected a sequence"),
    ],
)
def test_what_is_no_token_id_is_refused(value, words):
    with pytest.raises(WireError, match=words):
        read_token_ids(value)


@given(st.lists(st.integers(0, MAX_TOKEN_ID)))
def test_any_ids_come_back(ids):
    """A hundred lists: over 50 ms."""
    assert read_token_ids(pack_token_ids(ids)) == tuple(ids)
    assert read_token_list(bytearray(pack_token_ids([]))) == []
