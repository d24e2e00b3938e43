from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
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
    shared.rest()


@pytest.fixture(scope="session")
def left_houses() -> Iterator[list[House]]:
    """Houses that are closing while the next story goes on: a server takes its time to end."""
    houses: list[House] = []
    yield houses
    for house in houses:
        house.closed()


@pytest.fixture
def open_house(left_houses: list[House]) -> Iterator[Callable[..., House]]:
    """Opens houses of a story's own; at its end each must be at rest, too."""
    opened: list[House] = []

    def open_one(*models: Hosted, **settings: Mapping[str, Any]) -> House:
        opened.append(House(models, **settings).__enter__())
        return opened[-1]

    yield open_one
    try:
        for house in opened:
            house.rest()
    finally:
        for house in opened:
            house.leave()
        left_houses += opened


@pytest.fixture(autouse=True)
def no_bug_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a story does, nothing of it is an error of our own."""
    yield
    logged = [record for when in ("setup", "call") for record in caplog.get_records(when)]  # type: ignore[arg-type]
    assert [record.getMessage() for record in logged if record.levelno >= logging.ERROR] == []
