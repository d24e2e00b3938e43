"""The wire codec: what is written, what is read, and where a wrong value stands."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from protocols.wire import WireError, from_wire, to_wire, wire


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: int
    ratio: float = 1.0


@dataclass
class Outer:
    name: str
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    by_id: Mapping[int, float] = wire(default_factory=dict)
    by_name: Mapping[str, int] = wire(default_factory=dict)
    colour: Colour = Colour.RED
    either: str | int | None = None
    anything: Any = None
    renamed: int | None = wire(default=None, name="_NAME", null=True)
    flag: bool = wire(default=False, omit_false=True)
    needed: list[int] = wire(default_factory=list, required=True)
    own: int = wire(default=5, local=True)


def read(**members):
    return from_wire(Outer, {"name": "n", "needed": [], **members})


def test_a_value_comes_back():
    value = Outer(
        "n",
        Inner(1, 2.0),
        (Inner(2),),
        {7: 0.5},
        {"7": 1, "x": 2},
        Colour.BLUE,
        13,
        {"a": [None]},
        3,
        True,
        [1],
    )

    assert from_wire(Outer, to_wire(value)) == value


def test_what_is_not_said_is_left_out_and_own_fields_never_travel():
    assert to_wire(Outer("n", own=9)) == {
        "name": "n",
        "items": [],
        "by_id": {},
        "by_name": {},
        "colour": "red",
        "_NAME": None,
        "needed": [],
    }
    assert read(own=9).own == 5


def test_unknown_members_are_ignored():
    assert read(of_tomorrow=1) == Outer("n")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"name": 5}, "name: expected a string, got an integer"),
        ({"name": None}, "name: expected a string, got null"),
        ({"needed": None}, "needed: expected an array, got null"),
        ({"inner": 5}, "inner: expected an object, got an integer"),
        ({"inner": {}}, "inner.number: missing"),
        ({"inner": {"number": "5"}}, "inner.number: expected an integer, got a string"),
        ({"inner": {"number": True}}, "inner.number: expected an integer, got a boolean"),
        ({"inner": {"number": 1.0}}, "inner.number: expected an integer, got a number"),
        ({"inner": {"number": 1, "ratio": "1"}}, "inner.ratio: expected a number, got a string"),
        ({"items": {}}, "items: expected an array, got an object"),
        ({"items": [{"number": 1}, {}]}, "items[1].number: missing"),
        ({"by_id": {"x": 1.0}}, "by_id.x: expected an integer, got a string"),
        ({"by_id": {"7": "x"}}, "by_id.7: expected a number, got a string"),
        ({"by_id": []}, "by_id: expected an object, got a list"),
        ({"colour": "green"}, "colour: expected one of red, blue, got 'green'"),
        ({"either": 1.5}, "either: expected an integer, got a number"),
        ({"flag": None}, "flag: expected a boolean, got null"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(members, words):
    with pytest.raises(WireError) as caught:
        read(**members)

    assert str(caught.value) == words


def test_what_must_be_there_is_missed_though_it_has_a_default():
    with pytest.raises(WireError, match="needed: missing"):
        from_wire(Outer, {"name": "n"})


@pytest.mark.parametrize("value", [None, [], "x", 5])
def test_a_class_is_read_from_an_object(value):
    with pytest.raises(WireError, match="expected an object"):
        from_wire(Outer, value)


def test_a_number_may_be_whole():
    read_ratio = read(inner={"number": 1, "ratio": 2}).inner.ratio

    assert (read_ratio, type(read_ratio)) == (2.0, float)


@pytest.mark.parametrize(("key", "number"), [("7", 7), ("-7", -7), (7, 7), ("18446744073709551615", 2**64 - 1)])
def test_keys_of_integers_are_decimal_strings_in_json(key, number):
    assert read(by_id={key: 1.0}).by_id == {number: 1.0}


@pytest.mark.parametrize("key", ["²", "--1", "1_0", " 1", "", "9" * 5000])
def test_keys_that_only_look_like_integers_are_refused(key):
    with pytest.raises(WireError, match="expected an integer"):
        read(by_id={key: 1.0})


def test_keys_that_are_strings_stay_strings():
    assert read(by_name={"7": 1}).by_name == {"7": 1}


def test_every_kind_of_container_is_written():
    value = {"set": {3, 1}, "frozen": frozenset({"b", "a"}), "tuple": (Colour.RED, Inner(1)), "bytes": b"x"}

    assert to_wire(value) == {
        "set": [1, 3],
        "frozen": ["a", "b"],
        "tuple": ["red", {"number": 1, "ratio": 1.0}],
        "bytes": b"x",
    }
