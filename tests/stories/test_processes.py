"""Workers as processes of their own, ended by signals: what a machine's failure looks like.

Slower than other stories (a few seconds): twelve interpreters start.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.simulate import DEMO_MODEL
from protocols.worker import worker_id_of
from tests.stories.house import House, second
from tests.stories.oracle import answer, ids_of
from tests.stories.wire import Wire, events_of

ROOT = Path(__file__).parents[2]
PROMPT = "Tell me of the sea and of the ships."
TOKENS = 60
ROLES = ("prefill", "prefill", "decode", "decode")
REQUEST: dict[str, Any] = {
    "model": "far",
    "prompt": PROMPT,
    "max_tokens": TOKENS,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Process:
    """A simulated worker in a process. `url` is known once it says so."""

    def __init__(self, engine: str, role: str) -> None:
        self.role = role
        self.bootstrap_port = free_port()
        command = [sys.executable, "-m", "app", "simulate", "--engine", engine, "--role", role, "--model", "far"]
        options = ["--port", "0", "--bootstrap-port", str(self.bootstrap_port), "--ttft-ms", "5", "--token-ms", "3"]
        endless = ["--mean-length", "0"]
        self._process = subprocess.Popen([*command, *options, *endless], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.url = ""

    def wait_until_it_listens(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        self.url = found[0]

    def settings(self, engine: str) -> dict[str, Any]:
        bootstrap = {"bootstrap_port": self.bootstrap_port} if engine == "sglang" and self.role == "prefill" else {}
        return {"url": self.url, "engine": engine, "role": self.role, **bootstrap}

    def hesitate(self) -> None:
        """From its next request on it keeps its reply to itself."""
        httpx.post(f"{self.url}/_sim/faults", json={"faults": ["slow=60@request"]}).raise_for_status()

    def relent(self) -> None:
        httpx.delete(f"{self.url}/_sim/faults").raise_for_status()

    @property
    def hesitates(self) -> bool:
        return bool(httpx.get(f"{self.url}/_sim/state").json()["faults_committed"])

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait(5)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["vllm", "sglang", "trtllm"])
def processes(request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        started = [Process(request.param, role) for role in ROLES]
        for process in started:
            stack.callback(process.close)
        for process in started:
            process.wait_until_it_listens()
        yield started


@pytest.fixture
def house(request: pytest.FixtureRequest, processes: list[Process]) -> Iterator[House]:
    engine = request.node.callspec.params["processes"]
    model = {"name": "far", "path": str(DEMO_MODEL), "workers": [process.settings(engine) for process in processes]}
    with House([], [model]) as house:
        yield house
        house.rest()


def begin(house: House) -> Wire:
    wire = house.wire()
    wire.post("/v1/completions", REQUEST, **{"x-tandem-explain": "1"})
    return wire


def assert_whole(body: bytes) -> None:
    """The answer, as if nothing had happened."""
    events = events_of(body)
    assert (events.text(), events.finishes(), events.done) == (answer(PROMPT, TOKENS), ["length"], 1)
    usage = events.usage()
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids_of(PROMPT)), TOKENS)


def until_one(processes: list[Process], role: str, true: Callable[[Process], bool]) -> Process:
    began = time.monotonic()
    while time.monotonic() - began < 5:
        for process in processes:
            if process.role == role and true(process):
                return process
    raise AssertionError(f"no such {role} worker")


def test_processes_are_killed_one_after_the_other(house: House, processes: list[Process]) -> None:
    # A decode worker, in the middle of its answer.
    wire = begin(house)
    head = wire.head()
    pieces = wire.pieces(head)
    seen = [next(pieces) for _ in range(3)]
    served = int(head.header("x-tandem-decode-worker"))
    until_one(processes, "decode", lambda process: worker_id_of(process.url) == served).end(signal.SIGKILL)
    assert_whole(b"".join([*seen, *pieces]))

    # A prefill worker, while it prefills.
    for process in processes[:2]:
        process.hesitate()
    wire = begin(house)
    hesitating = until_one(processes, "prefill", lambda process: process.hesitates)
    until_one(processes, "prefill", lambda process: process is not hesitating).relent()
    hesitating.end(signal.SIGKILL)
    assert_whole(wire.reply().body)

    # The last decode worker: nobody is left to go on.
    wire = begin(house)
    pieces = wire.pieces(wire.head())
    seen = [next(pieces) for _ in range(3)]
    until_one(processes, "decode", lambda process: process.running).end(signal.SIGKILL)
    died = time.monotonic()
    events = events_of(b"".join([*seen, *pieces]))
    assert time.monotonic() - died < second()
    assert answer(PROMPT, TOKENS).startswith(events.text())
    assert events.error is not None
    assert events.error["code"] == "worker_failed"
    assert (events.finishes(), events.done) == ([], 0)

    # Whoever is left ends in good order when told to.
    assert until_one(processes, "prefill", lambda process: process.running).end(signal.SIGTERM) == 0
