from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo import fleet_options, settings_for, welcome
from protocols.worker import Engine, Role
from simulator.fleet import Fleet

ROOT = Path(__file__).parents[2]
START_S = 30.0
STOP_S = 10.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_fleet_has_two_prefill_and_two_decode_workers_for_each_engine() -> None:
    counted = Counter((options.model, options.engine, options.role) for options in fleet_options())

    assert counted == {
        (f"demo-{engine}", engine, role): 2 for engine in ("vllm", "sglang", "trtllm") for role in ("prefill", "decode")
    }


def test_the_fleet_may_be_hurried() -> None:
    assert {options.pace.speed for options in fleet_options()} == {1.0}
    assert {options.pace.speed for options in fleet_options(speed=0)} == {0}


async def test_the_gateway_is_configured_for_the_running_fleet() -> None:
    async with Fleet(fleet_options()) as fleet:
        settings = settings_for(fleet.simulators, "127.0.0.1", 0)

    workers = {model.name: settings.workers_of(model) for model in settings.models}
    assert list(workers) == ["demo-vllm", "demo-sglang", "demo-trtllm"]
    assert [worker.url for served in workers.values() for worker in served] == [sim.url for sim in fleet.simulators]
    assert Counter((worker.engine, worker.role) for worker in workers["demo-sglang"]) == {
        (Engine.SGLANG, Role.PREFILL): 2,
        (Engine.SGLANG, Role.DECODE): 2,
    }
    assert all(worker.bootstrap_port for worker in workers["demo-sglang"] if worker.role is Role.PREFILL)


async def test_the_welcome_names_every_worker_and_what_to_paste() -> None:
    async with Fleet(fleet_options()) as fleet:
        text = welcome(fleet.simulators, "0.0.0.0", 8123)

    assert [simulator.url for simulator in fleet.simulators if simulator.url not in text] == []
    assert "curl -N http://127.0.0.1:8123/v1/chat/completions" in text
    assert 'OpenAI(base_url="http://127.0.0.1:8123/v1"' in text


# ---- the command itself: a process of its own, a few seconds, since only that shows that all of it ends


@contextlib.contextmanager
def demo(port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "app", "demo", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def welcome_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "Ctrl-C" in line:
            return said
    pytest.fail(f"the demo ended: {said}")


def pasted(said: str) -> tuple[str, bytes]:
    """URL and body of the curl line that the demo prints."""
    url = re.search(r"curl -N (\S+/v1/chat/completions)", said)
    body = re.search(r"-d '(\{.*\})'", said)
    assert url, said
    assert body, said
    return url[1], body[1].encode()


def streamed_text(url: str, body: bytes) -> str:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_S) as reply:
        events = [line.removeprefix(b"data: ") for line in reply.read().splitlines() if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_answers_what_it_tells_to_paste_and_ends_without_a_trace(number: signal.Signals) -> None:
    port = free_port()
    with demo(port) as process:
        said = welcome_of(process)
        workers = [int(found) for found in re.findall(r"  (?:prefill|decode) +http://127\.0\.0\.1:(\d+)", said)]

        text = streamed_text(*pasted(said))
        process.send_signal(number)
        code = process.wait(STOP_S)

    assert text
    assert code == 0
    assert len(workers) == 12
    assert [taken for taken in (port, *workers) if is_listening(taken)] == []


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
