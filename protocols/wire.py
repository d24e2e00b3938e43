"""Dataclasses to and from their wire form (JSON or msgpack maps).

Each field says how it travels by `wire(...)`; a class's plan is made once. A value that is None is left out unless the
field is marked `null`; a `local` field never travels; unknown members of a map are ignored, as the seeds' readers do.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_DECIMAL = re.compile(r"-?[0-9]{1,20}")


class WireError(ValueError):
    """A value from the wire has the wrong shape. The message starts with the place, e.g. `routing.dp_rank: …`."""


def wire(
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    name: str | None = None,
    null: bool = False,
    omit_false: bool = False,
    required: bool = False,
    local: bool = False,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Any:
    """A dataclass field with wire rules.

    `name`: its name on the wire. `null`: None is written as null. `omit_false`: False is left out.
    `required`: must be in the map that is read, though it has a default here. `local`: never written, never read.
    `encode`/`decode`: own conversion of this field's value.
    """
    how = {
        "name": name,
        "null": null,
        "omit_false": omit_false,
        "required": required,
        "local": local,
        "encode": encode,
        "decode": decode,
    }
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata={"wire": how})
    return dataclasses.field(default=default, metadata={"wire": how})


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    attr: str
    name: str
    null: bool
    omit_false: bool
    required: bool
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@functools.cache
def _plan(cls: Any) -> tuple[_Member, ...]:
    hints = typing.get_type_hints(cls)
    members = []
    for field in dataclasses.fields(cls):
        how = field.metadata.get("wire", {})
        if how.get("local"):
            continue
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        members.append(
            _Member(
                attr=field.name,
                name=how.get("name") or field.name,
                null=how.get("null", False),
                omit_false=how.get("omit_false", False),
                required=how.get("required", False) or required,
                encode=how.get("encode") or to_wire,
                decode=how.get("decode") or _decoder(hints[field.name]),
            )
        )
    return tuple(members)


def to_wire(value: Any) -> Any:
    """The wire form of a value: dataclasses become dicts by their plan, enums their value, sets sorted lists."""
    if isinstance(value, (str, int, float, bytes)) or value is None:
        return value.value if isinstance(value, enum.Enum) else value
    if hasattr(value, "__wire__"):
        return value.__wire__()
    if dataclasses.is_dataclass(value):
        out: dict[str, Any] = {}
        kind: Any = type(value)
        for member in _plan(kind):
            attr = getattr(value, member.attr)
            if attr is None:
                if member.null:
                    out[member.name] = None
            elif not (member.omit_false and attr is False):
                out[member.name] = member.encode(attr)
        return out
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(to_wire(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value


def from_wire(cls: type[T], value: Any) -> T:
    """Reads `cls` from a map. Raises WireError naming the member that does not fit."""
    if not isinstance(value, Mapping):
        raise WireError(f"expected an object, got {_kind(value)}")
    known = {}
    kind: Any = cls
    for member in _plan(kind):
        if member.name not in value:
            if member.required:
                raise WireError(f"{member.name}: missing")
            continue
        raw = value[member.name]
        try:
            known[member.attr] = member.decode(raw)
        except WireError as error:
            raise WireError(_placed(member.name, error)) from None
    return cls(**known)


def _placed(name: str, error: WireError) -> str:
    text = str(error)
    head = text.split(": ", 1)[0]
    inner = " " not in head and ": " in text
    return f"{name}.{text}" if inner and not head.startswith("[") else f"{name}{text}" if inner else f"{name}: {text}"


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", type(None): "null"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}")


def _decoder(hint: Any) -> Callable[[Any], Any]:
    """How to read a value of this type. `int` takes no bool, `float` takes ints, tuples come from lists."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return lambda value: value
    if origin in (typing.Union, types.UnionType):
        return _optional([arg for arg in args if arg is not type(None)], type(None) in args)
    if hasattr(hint, "__from_wire__"):
        return typing.cast(Callable[[Any], Any], hint.__from_wire__)
    if dataclasses.is_dataclass(hint):
        return functools.partial(from_wire, typing.cast(type, hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_enum, hint)
    if origin in (tuple, list, frozenset):
        return functools.partial(_items, origin, _decoder(args[0]))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_map, _decoder(args[0]), _decoder(args[1]))
    return functools.partial(_scalar, hint)


def _optional(choices: list[Any], nullable: bool) -> Callable[[Any], Any]:
    decoders = [_decoder(choice) for choice in choices]

    def decode(value: Any) -> Any:
        if value is None and nullable:
            return None
        error = WireError("unexpected null")
        for one in decoders:
            try:
                return one(value)
            except WireError as caught:
                error = caught
        raise error

    return decode


def _scalar(hint: type, value: Any) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and isinstance(value, str):
        raise WireError(f"expected an integer, got {_kind(value)}")
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise WireError(f"expected {_expected(hint)}, got {_kind(value)}")


def _expected(hint: type) -> str:
    return {int: "an integer", float: "a number", str: "a string", bool: "a boolean"}.get(hint, hint.__name__)


def _enum(hint: type[enum.Enum], value: Any) -> enum.Enum:
    try:
        return hint(value)
    except ValueError:
        allowed = ", ".join(str(item.value) for item in hint)
        raise WireError(f"expected one of {allowed}, got {value!r}") from None


def _items(kind: type, decode: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise WireError(f"expected an array, got {_kind(value)}")
    items = []
    for place, item in enumerate(value):
        try:
            items.append(decode(item))
        except WireError as error:
            raise WireError(_placed(f"[{place}]", error)) from None
    return kind(items)


def _map(key_of: Callable[[Any], Any], decode: Callable[[Any], Any], value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise WireError(f"expected an object, got {_kind(value)}")
    out = {}
    for key, item in value.items():
        try:
            out[_key(key_of, key)] = decode(item)
        except WireError as error:
            raise WireError(_placed(str(key), error)) from None
    return out


def _key(key_of: Callable[[Any], Any], key: Any) -> Any:
    """JSON has string keys only; a map keyed by integers is read from their decimal form."""
    if isinstance(key, str) and _DECIMAL.fullmatch(key):
        try:
            return key_of(int(key))
        except WireError:
            return key_of(key)
    return key_of(key)
