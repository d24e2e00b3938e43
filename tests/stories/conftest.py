from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.stories.house import PAIRED, QUOTED, Hosted, House, pair, solo


@pytest.fixture(scope="session")
def shared() -> Iterator[House]:
    """One house of every kind of worker for all stories that break nothing in it."""
    models = [
        *(pair(engine) for engine in PAIRED),
        *(solo(engine) for engine in PAIRED),
        Hosted("solo-openai", "openai"),
        Hosted("org/demo-8b", "vllm", settings={"aliases": ["chat", "org/alias"]}),
        solo("vllm", "quoted", reply=QUOTED),
    ]
    with House(models, logging={"level": "warning"}) as house:
        yield house


@pytest.fixture
def house(shared: House) -> Iterator[House]:
    """The shared house, which must be left as it was found: nothing held anywhere, no bug shown."""
    yield shared
    shared.settle()
    assert shared.faults == []


@pytest.fixture
def open_house() -> Iterator[Callable[..., House]]:
    """Opens houses of a story's own; at its end each must be at rest, too."""
    with ExitStack() as stack:
        opened: list[House] = []

        def open_one(*models: Hosted, **settings: Mapping[str, Any]) -> House:
            opened.append(stack.enter_context(House(models, **settings)))
            return opened[-1]

        yield open_one
        for house in opened:
            house.settle()
            assert house.faults == []


@pytest.fixture(autouse=True)
def no_bug_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a story does, nothing of it is an error of our own."""
    yield
    logged = [record for when in ("setup", "call") for record in caplog.get_records(when)]  # type: ignore[arg-type]
    assert [record.getMessage() for record in logged if record.levelno >= logging.ERROR] == []
