"""Vectors in base64: what they hold, and what is none."""

from __future__ import annotations

import base64
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.vectors import pack_vector, unpack_vector, vector_length
from protocols.wire import WireError

NUMBERS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


@given(NUMBERS)
def test_a_vector_comes_back_as_it_was(numbers):
    packed = pack_vector(numbers)

    assert base64.b64decode(packed) == struct.pack(f"<{len(numbers)}f", *numbers)
    assert (unpack_vector(packed), vector_length(packed)) == (numbers, len(numbers))


def test_whole_numbers_are_numbers():
    assert unpack_vector(pack_vector([1, 0, -3])) == [1.0, 0.0, -3.0]


@pytest.mark.parametrize("numbers", [[], [None], ["1"], [True], [[1.0]], [1.0, None], [1e39], [math.inf], [math.nan]])
def test_what_float32_does_not_hold_is_no_vector(numbers):
    with pytest.raises(WireError):
        pack_vector(numbers)


@pytest.mark.parametrize("packed", ["", "A", "AAAA", "AAA=", "AAAAAA=", "AAAAAAAA", "????????", "AAAAA é="])
def test_what_is_not_base64_of_whole_numbers_is_no_vector(packed):
    with pytest.raises(WireError):
        unpack_vector(packed)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_none_is_no_vector(number):
    packed = base64.b64encode(struct.pack("<2f", 1.0, number)).decode()

    assert vector_length(packed) == 2
    with pytest.raises(WireError):
        unpack_vector(packed)
