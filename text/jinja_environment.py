"""The Jinja environment that chat templates are written for, as Hugging Face transformers (5.24) sets it up.

Templates come from model repositories: they run in Jinja's immutable sandbox and see plain JSON values only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing


def chat_environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """`clock` gives the local time that `strftime_now` prints."""
    environment = _ChatSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    environment.globals["dict"] = _DictGlobal()
    environment.globals["namespace"] = _GuardedNamespace
    return environment


class _ChatSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which finds what templates look up most at once: a message's member, a namespace's variable.

    Jinja's own way gives the same: it looks for an attribute first, and judges what it found.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict:
            if attribute in obj and attribute not in _DICT_ATTRIBUTES:
                return obj[attribute]
        elif type(obj) is _GuardedNamespace and attribute[:1] != "_":
            value = getattr(obj, attribute, missing)
            if value is not missing and not callable(value):
                return value
        return super().getattr(obj, attribute)


_DICT_ATTRIBUTES = frozenset(dir(dict))


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training. Here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model has seen in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


class _DictGlobal:
    """`dict(...)` and `dict.fromkeys(...)`, without the type itself in a template's hands."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _GuardedNamespace(Namespace):
    """Jinja's `namespace`, which would store names that the sandbox then refuses to read."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` may be one of the template's own names, so this takes no named argument.
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the private name {name!r}")
