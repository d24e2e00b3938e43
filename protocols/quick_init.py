"""A quicker `__init__` for frozen dataclasses that are made for every request.

The one that dataclasses write sets each field through `object.__setattr__`, which looks the name up again; this one
calls each slot's own setter. Nothing else about the class changes: it is as frozen, as equal and as replaceable.
"""

from __future__ import annotations

import dataclasses
from types import MemberDescriptorType
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(cls: type[T]) -> type[T]:
    """To be put above `@dataclass(frozen=True, slots=True)`. Making an instance costs about half of what it did.

    Raises TypeError for what a plain setter cannot do: default factories, `__post_init__`, fields that are keyword-only
    or no parameters, and dataclasses without slots.
    """
    kind: Any = cls
    parameters: list[str] = []
    body: list[str] = []
    names: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        slot = vars(kind).get(field.name)
        plain = field.init and not field.kw_only and field.default_factory is dataclasses.MISSING
        if type(slot) is not MemberDescriptorType or not plain or hasattr(kind, "__post_init__"):
            raise TypeError(f"{kind.__name__}.{field.name} cannot be set by its slot alone")
        default = "" if field.default is dataclasses.MISSING else f"=default_{field.name}"
        parameters.append(field.name + default)
        body.append(f"    set_{field.name}(self, {field.name})\n")
        names[f"set_{field.name}"] = slot.__set__
        names[f"default_{field.name}"] = field.default
    # By its source, as dataclasses do: no other way leads to named parameters.
    exec(f"def __init__(self, {', '.join(parameters)}):\n{''.join(body)}", names)  # noqa: S102
    quick, former = names["__init__"], kind.__init__
    quick.__module__, quick.__qualname__ = kind.__module__, former.__qualname__
    quick.__annotations__ = former.__annotations__
    kind.__init__ = quick
    return cls
