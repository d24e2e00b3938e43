"""A quicker `__init__` leaves a frozen dataclass what it was."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from protocols.quick_init import quick_init


@dataclass(frozen=True, slots=True)
class Plain:
    place: int
    name: str = "unnamed"
    marks: tuple[int, ...] = ()


@quick_init
@dataclass(frozen=True, slots=True)
class Quick:
    place: int
    name: str = "unnamed"
    marks: tuple[int, ...] = ()


@pytest.mark.parametrize("arguments", [{"place": 1}, {"place": 2, "marks": (3,)}, {"name": "x", "place": 4}])
def test_the_same_arguments_make_the_same_fields(arguments: dict[str, Any]) -> None:
    plain, quick = Plain(**arguments), Quick(**arguments)

    assert (quick.place, quick.name, quick.marks) == (plain.place, plain.name, plain.marks)


def test_positions_name_the_fields_in_order() -> None:
    assert Quick(1, "a", (2,)) == Quick(marks=(2,), name="a", place=1)


def test_the_signature_is_the_dataclass_s() -> None:
    assert inspect.signature(Quick) == inspect.signature(Plain)


@pytest.mark.parametrize("arguments", [{}, {"place": 1, "colour": 2}])
def test_missing_and_unknown_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="argument"):
        Quick(**arguments)


def test_an_instance_stays_frozen() -> None:
    quick = Quick(1)

    with pytest.raises(FrozenInstanceError):
        quick.place = 2  # type: ignore[misc]


def test_replace_makes_another_and_leaves_the_first() -> None:
    first = Quick(1, marks=(5,))

    second = replace(first, place=2)

    assert (first, second) == (Quick(1, marks=(5,)), Quick(2, marks=(5,)))


def test_equal_fields_make_equal_hashes() -> None:
    assert {Quick(1), Quick(1), Quick(2)} == {Quick(1), Quick(2)}


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda quick: pickle.loads(pickle.dumps(quick))])
def test_a_copy_is_equal(again: Any) -> None:
    assert again(Quick(1, "a")) == Quick(1, "a")


def _with_factory() -> type:
    @dataclass(frozen=True, slots=True)
    class Factory:
        marks: list[int] = field(default_factory=list)

    return Factory


def _without_slots() -> type:
    @dataclass(frozen=True)
    class Loose:
        place: int = 0

    return Loose


def _with_post_init() -> type:
    @dataclass(frozen=True, slots=True)
    class Checked:
        place: int

        def __post_init__(self) -> None:
            assert self.place

    return Checked


def _with_keyword_only() -> type:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        place: int

    return Named


@pytest.mark.parametrize("make", [_with_factory, _without_slots, _with_post_init, _with_keyword_only])
def test_what_a_setter_cannot_do_is_refused_when_the_class_is_made(make: Any) -> None:
    with pytest.raises(TypeError, match="cannot be set by its slot alone"):
        quick_init(make())
