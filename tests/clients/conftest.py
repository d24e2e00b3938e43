"""Real clients against Tandem in processes of its own; one demo and one gateway serve all tests of a run.

A test takes a few milliseconds to a second: the clients are as fast as they are, and answers are really streamed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import ENGINES, demo, thinkers


@pytest.fixture(scope="session")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with demo(tmp_path_factory.mktemp("demo")) as url:
        yield url


@pytest.fixture(scope="session")
def thinkers_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with thinkers(tmp_path_factory.mktemp("thinkers")) as url:
        yield url


@pytest.fixture
def base_url(demo_url: str) -> str:
    return f"{demo_url}/v1"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(engine: str) -> str:
    """Each model of the demo in turn: a prefill and decode pair of each engine."""
    return f"demo-{engine}"


@pytest.fixture
def thinker(engine: str) -> str:
    return f"thinks-{engine}"
