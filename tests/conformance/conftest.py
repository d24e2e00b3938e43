from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.options import TrtllmOptions
from tests.stories.conftest import no_bug_logged
from tests.stories.house import PAIRED, Hosted, House, pair, solo

__all__ = ["no_bug_logged"]

CALLED = (
    "<think>\nThe user asks for Paris.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Par\\u00eds 👩‍👩‍👧"}}\n</tool_call>'
)
"""What the models that call say: thoughts, a text, two calls."""
CRUMBS = (11, 61)
"""Sizes of the pieces in which some workers' replies come."""
GUIDED: dict[str, Any] = {"trtllm": TrtllmOptions(guided=True)}
"""Workers that can be bound to a form."""


@pytest.fixture(scope="session")
def conforming() -> Iterator[House]:
    """Every engine, aggregated and in pairs: models that say words, and models that think and call."""
    models = [
        *(pair(engine, prefill=1, decode=1, **GUIDED) for engine in PAIRED),
        *(solo(engine, **GUIDED) for engine in PAIRED),
        Hosted("solo-openai", "openai"),
        *(pair(engine, f"calls-pair-{engine}", prefill=1, decode=1, reply=CALLED, **GUIDED) for engine in PAIRED),
        *(solo(engine, f"calls-solo-{engine}", reply=CALLED, **GUIDED) for engine in PAIRED),
        *(
            solo(engine, f"crumbs-{size}-{engine}", segment_bytes=size, **GUIDED)
            for engine in (*PAIRED, "openai")
            for size in CRUMBS
        ),
        *(
            solo(engine, f"calls-crumbs-{size}-{engine}", segment_bytes=size, reply=CALLED)
            for engine in PAIRED
            for size in CRUMBS
        ),
    ]
    with House(models, logging={"level": "warning"}) as house:
        yield house


@pytest.fixture
def house(conforming: House) -> Iterator[House]:
    """Left as it was found: nothing held anywhere, no bug shown."""
    yield conforming
    conforming.rest()
