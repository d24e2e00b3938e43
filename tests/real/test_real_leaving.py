"""A client that leaves frees everything, on both workers, whenever it goes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.real.fleets import PAIRS, SETUPS, Fleet, on
from tests.real.processes import GatewayServer, eventually
from tests.real.prompts import LONG, SHORT

SOON_S = 2.0
"""An engine ends the step it is in, and here a step is a tenth of a second."""
PREFILL_S = 20.0
"""The step of a prompt of `LONG_IDS` cannot be broken off."""
LONG_IDS = 1_900


@pytest.fixture(autouse=True)
def nothing_expires(fleet: Fleet, gateway: GatewayServer) -> Iterator[None]:
    """What was pinned is freed because a decode worker fetched it, not because its lease ran out."""
    before = fleet.expired()
    yield
    assert fleet.expired() == before


def asked(prompt: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": "smol",
        "prompt": prompt,
        "max_tokens": 100,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": uuid.uuid4().hex,
        **more,
    }


@on(*SETUPS)
def test_a_client_that_leaves_a_stream_leaves_nothing(fleet: Fleet, gateway: GatewayServer) -> None:
    with gateway.http.stream("POST", "/v1/completions", json=asked(LONG, stream=True)) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        events = [next(lines) for _ in range(4)]

    assert len(events) == 4
    print(f"at rest after {eventually(lambda: not fleet.busy(), SOON_S, 0.05):.2f} s")


@on(*SETUPS)
def test_a_client_that_leaves_while_a_whole_answer_is_made_leaves_nothing(fleet: Fleet, gateway: GatewayServer) -> None:
    leave_after(gateway, 2.0, asked(SHORT))

    print(f"at rest after {eventually(lambda: not fleet.busy(), SOON_S, 0.05):.2f} s")


@on(*SETUPS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_leaves_nothing(
    fleet: Fleet, gateway: GatewayServer, stream: bool
) -> None:
    prompt = [300 + n for n in range(LONG_IDS)]

    leave_after(gateway, 1.0, asked(prompt, stream=stream))

    print(f"at rest after {eventually(lambda: not fleet.busy(), PREFILL_S, 0.05):.2f} s")


@on("sglang", "sglang-pair")
def test_sglang_is_told_to_abort_once_on_every_worker(fleet: Fleet, gateway: GatewayServer) -> None:
    told = [server.said("POST /abort_request") for server in fleet.servers]

    leave_after(gateway, 1.0, asked([300 + n for n in range(LONG_IDS)]))

    eventually(lambda: [server.said("POST /abort_request") for server in fleet.servers] == [n + 1 for n in told], 10)


@on(*PAIRS)
def test_whenever_a_client_leaves_nothing_stays_pinned(fleet: Fleet, gateway: GatewayServer) -> None:
    for tenths in range(1, 16):
        leave_after(gateway, tenths / 10, asked(LONG, stream=bool(tenths % 2)))

    print(f"at rest after {eventually(lambda: not fleet.busy(), SOON_S, 0.05):.2f} s")


@on(*SETUPS)
def test_after_all_that_leaving_the_engines_answer(fleet: Fleet, gateway: GatewayServer) -> None:
    answer = gateway.sdk.completions.create(model="smol", prompt=SHORT, max_tokens=4)

    assert answer.usage.completion_tokens == 4


def leave_after(gateway: GatewayServer, seconds: float, body: dict[str, Any]) -> None:
    """Asks, and hangs up so many seconds later, whatever has come."""
    hangs_up_at = time.monotonic() + seconds
    try:
        with httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=seconds) as reply:
            for _ in reply.iter_raw():
                if time.monotonic() > hangs_up_at:
                    return
    except httpx.ReadTimeout:
        return
