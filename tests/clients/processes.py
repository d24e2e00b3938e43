"""Tandem as its users start it: `tandem demo`, and `tandem serve` before workers of `tandem simulate`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TANDEM = os.environ.get("TANDEM") or str(ROOT / ".venv/bin/tandem")
START_S = 60.0
STOP_S = 20.0
ENGINES = ("vllm", "sglang", "trtllm")
THOUGHTS, SAID = "The user greets me.", "Hello there."
_FAULTS = ("ERROR", "Traceback", "Exception ignored")


@contextlib.contextmanager
def demo(folder: Path) -> Iterator[str]:
    """The demo, twenty times faster than it shows itself. Gives the URL to call."""
    port = free_port()
    with running(folder / "demo.log", ["demo", "--port", str(port), "--speed", "20"]):
        url = f"http://127.0.0.1:{port}"
        wait_for(url, folder / "demo.log")
        yield url


@contextlib.contextmanager
def thinkers(folder: Path) -> Iterator[str]:
    """One worker for each engine whose model thinks before it speaks, and a gateway before them."""
    ports = {engine: free_port() for engine in ENGINES}
    with contextlib.ExitStack() as stack:
        for engine, port in ports.items():
            reply = f"<think>\n{THOUGHTS}\n</think>\n\n{SAID}"
            arguments = ["--engine", engine, "--port", str(port), "--model", f"thinks-{engine}", "--speed", "0"]
            stack.enter_context(running(folder / f"{engine}.log", ["simulate", *arguments, "--reply", reply]))
        file = folder / "tandem.yaml"
        file.write_text(json.dumps(configuration(ports)))
        port = free_port()
        log = folder / "serve.log"
        stack.enter_context(running(log, ["serve", "--config", str(file), "--port", str(port)]))
        url = f"http://127.0.0.1:{port}"
        wait_for(url, log)
        yield url


def configuration(ports: dict[str, int]) -> dict[str, object]:
    """What JSON says, YAML says."""
    model = str(ROOT / "app/demo_model")
    return {
        "models": [
            {
                "name": f"thinks-{engine}",
                "path": model,
                "workers": [{"url": f"http://127.0.0.1:{port}", "engine": engine}],
            }
            for engine, port in ports.items()
        ],
    }


@contextlib.contextmanager
def running(log: Path, arguments: Sequence[str]) -> Iterator[None]:
    """One process of Tandem. Whoever uses it must not have brought it to log an error; and it must end well."""
    with log.open("w") as output:
        process = subprocess.Popen([TANDEM, *arguments], cwd=log.parent, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_S)
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert code == 0, said
    assert [line for line in said.splitlines() if any(fault in line for fault in _FAULTS)] == []


def wait_for(url: str, log: Path) -> None:
    """Until every model can be served."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=START_S) as reply:
            if json.load(reply)["status"] == "healthy":
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not become healthy: {log.read_text()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
