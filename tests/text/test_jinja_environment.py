"""The chat templates' sandbox finds what Jinja's own finds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from text.jinja_environment import chat_environment

ENVIRONMENT = chat_environment(datetime.now)
REFERENCE = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
MESSAGE = {"role": "user", "items": "a member", "_private": "shown", "__class__": "hidden", "text": "{0.__class__}"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ m.role }}",
        "{{ m['role'] }}",
        "{{ m.items is string }}",
        "{{ m['items'] }}",
        "{{ m._private }}",
        "{{ m.missing is defined }}",
        "{{ m.keys() | list }}",
        "{{ m.missing }}",
        "{% set ns = namespace(a=m, b=1) %}{{ ns.a.role }}{{ ns.b }}{{ ns.c is defined }}",
        "{% set ns = namespace(a=m.text.upper) %}{{ ns.a() }}",
        "{% set ns = namespace(f=m.text.format) %}{{ ns.f(1) }}",
    ],
)
def test_a_look_up_finds_the_same_as_jinjas(source: str) -> None:
    assert ENVIRONMENT.from_string(source).render(m=MESSAGE) == REFERENCE.from_string(source).render(m=MESSAGE)


@pytest.mark.parametrize(
    "source",
    [
        "{{ m.__class__.__mro__ }}",
        "{{ m.update(a=1) }}",
        "{% set ns = namespace() %}{{ ns.__class__.__mro__ }}",
        "{% set ns = namespace() %}{{ ns._Namespace__attrs.x }}",
    ],
)
def test_what_jinjas_refuses_is_refused(source: str) -> None:
    refused = _error(REFERENCE, source)

    assert issubclass(refused, SecurityError | UndefinedError)
    assert _error(ENVIRONMENT, source) is refused


def _error(environment: ImmutableSandboxedEnvironment, source: str) -> Any:
    with pytest.raises((SecurityError, UndefinedError)) as caught:
        environment.from_string(source).render(m=dict(MESSAGE))
    return caught.type
