"""`tandem simulate` and `tandem serve` as processes of their own: start, one answer, signal, exit code.

Two to three seconds each: interpreters start, and only real processes show that they end.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.simulate import DEMO_MODEL

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 30.0


@contextlib.contextmanager
def tandem(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "app", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """The process's next line that has the word in it."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if word in line:
            return line
        said.append(line)
    pytest.fail(f"the process ended without {word!r}: {''.join(said)}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def url_in(line: str) -> str:
    found = re.search(r"http://[\d.]+:\d+", line)
    assert found, line
    return found[0]


def completion(base: str) -> str:
    body = json.dumps({"model": "m", "prompt": "Once", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{base}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return str(json.load(reply)["choices"][0]["text"])


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """The URL of a simulated worker."""
    with tandem("simulate", "--engine", "vllm", "--port", "0", "--model", "m", "--speed", "0") as process:
        yield url_in(line_with(process, "worker of m on"))
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


@pytest.fixture
def config(worker: str, tmp_path: Path) -> Path:
    file = tmp_path / "tandem.yaml"
    file.write_text(f'models: [{{name: m, path: "{DEMO_MODEL}", workers: [{{url: "{worker}", engine: vllm}}]}}]\n')
    return file


@pytest.mark.parametrize(("processes", "number"), [(1, signal.SIGTERM), (1, signal.SIGINT), (2, signal.SIGTERM)])
def test_serve_answers_and_ends_well_when_told_to(
    config: Path, worker: str, processes: int, number: signal.Signals
) -> None:
    port = free_port()
    arguments = ["--config", str(config), "--port", str(port), "--processes", str(processes)]
    with tandem("serve", *arguments) as process:
        for _ in range(processes):
            line_with(process, f"at {worker} is ready")

        text = completion(f"http://127.0.0.1:{port}")
        process.send_signal(number)

        assert text
        assert process.wait(TIMEOUT_S) == 0


def test_serve_says_which_models_files_do_not_load(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace(str(DEMO_MODEL), str(tmp_path / "nowhere")))

    with tandem("serve", "--config", str(config), "--port", str(free_port())) as process:
        line = line_with(process, "nowhere")
        code = process.wait(TIMEOUT_S)

    assert line.startswith("tandem: ")
    assert code == 1
