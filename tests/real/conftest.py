"""Runs only when asked for (TANDEM_REAL=1, as run.sh sets it), set-up by set-up: see README.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.real.fleets import SETUPS, Fleet
from tests.real.processes import GatewayServer, eventually
from tests.real.prompts import Answers, Known

if os.environ.get("TANDEM_REAL") != "1":
    collect_ignore_glob = ["test_real_*.py"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one set-up in a row, so that its engines start once; those for none that was chosen not at all."""
    order = list(SETUPS)

    def setup_of(item: pytest.Item) -> object:
        call = getattr(item, "callspec", None)
        return call.params.get("fleet") if call is not None else None

    here = Path(__file__).parent
    others = [item for item in items if here not in item.path.parents]
    own = [item for item in items if here in item.path.parents and setup_of(item) in order]
    items[:] = others + sorted(own, key=lambda item: order.index(setup_of(item)))


@pytest.fixture(scope="session")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, answers: Answers) -> Iterator[Fleet]:
    """The engines of one set-up, running. What they answer alone is known before a pair of them starts."""
    fleet = Fleet(request.param)
    if fleet.is_pair:
        answers.of(fleet.engine)
    with fleet:
        if not fleet.is_pair:
            answers.take(fleet)
        yield fleet


@pytest.fixture
def known(fleet: Fleet, answers: Answers) -> Known:
    return answers.of(fleet.engine)


@pytest.fixture(scope="session")
def standing_gateway(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    gateway = fleet.gateway("gateway", tmp_path_factory.mktemp("gateway"))
    gateway.start()
    try:
        gateway.wait_for(f"{gateway.url}/live", 60)
        gateway.wait_until_all_up()
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def whole_gateway(fleet: Fleet, standing_gateway: GatewayServer) -> Iterator[GatewayServer]:
    """A gateway in front of the fleet, every engine of which runs; the test may kill some."""
    fleet.mend()
    standing_gateway.wait_until_all_up()
    yield standing_gateway
    assert standing_gateway.running


@pytest.fixture
def gateway(fleet: Fleet, whole_gateway: GatewayServer) -> Iterator[GatewayServer]:
    """The same, for a test that kills nobody: it must leave every engine at rest."""
    yield whole_gateway
    eventually(lambda: not fleet.busy(), 20)


@pytest.fixture
def open_gateway(fleet: Fleet, tmp_path: Path) -> Iterator[Callable[..., GatewayServer]]:
    """Opens further gateways in front of the fleet, with a model's settings of their own."""
    with ExitStack() as stack:

        def open_one(name: str, **settings: Any) -> GatewayServer:
            fleet.mend()
            opened = fleet.gateway(name, tmp_path, **settings)
            opened.start()
            stack.callback(opened.stop)
            opened.wait_for(f"{opened.url}/live", 60)
            opened.wait_until_all_up()
            return opened

        yield open_one
