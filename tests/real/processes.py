"""Processes of these tests: a real engine's server, and `tandem serve` in front of some.

Each leads a process group of its own, since an engine is several processes; all of it ends with the group.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai

from protocols.worker import worker_id_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOGS = Path(os.environ.get("TANDEM_REAL_LOGS", ROOT / ".real/logs"))
MODEL_FILES = os.environ.get("TANDEM_REAL_MODEL", str(ROOT / ".real/models/smollm2-135m-instruct"))
ENGINE_MODEL = "smollm2-135m"
"""The model's name at the engines."""
START_S = 300.0
PATIENCE_S = 180.0
"""For one answer: the first that wants logprobs compiles a kernel, which takes a CPU half a minute."""


class Process:
    """A command in a process group of its own, its output in a file."""

    def __init__(
        self, name: str, command: Sequence[str], *, nice: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._environment = dict(environment or {})
        self._command = ["nice", "-n", str(nice), *command]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        # What begins so is the gateway's configuration.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=inherited | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> float:
        """SIGKILL to all of it, at once; when, by `time.monotonic`."""
        self._signal(signal.SIGKILL)
        killed_at = time.monotonic()
        assert self._process is not None
        self._process.wait(30)
        return killed_at

    def kill_part(self, title: str) -> float:
        """SIGKILL to the processes among it that call themselves so; when, by `time.monotonic`."""
        assert self._process is not None
        parts = [pid for pid in _group(self._process.pid) if title in _title(pid)]
        assert parts, f"{self.name} has no part called {title}"
        for pid in parts:
            os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """All of it stands still: what is sent to it is neither read nor answered."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and after ten seconds SIGKILL, to whatever of it is there."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait(30)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait_for(self, url: str, within_s: float = START_S) -> None:
        """Until `url` answers 200. Raises AssertionError with the log's end when it does not, or the process ends."""

        def answers() -> bool:
            assert self.running, f"{self.name} has ended:\n{self.tail()}"
            return status(url) == 200

        try:
            eventually(answers, within_s)
        except TimeoutError:
            raise AssertionError(f"{self.name} is not up after {within_s:.0f} s:\n{self.tail()}") from None

    def said(self, words: str) -> int:
        """How often its log says so."""
        return self.log.read_text(errors="replace").count(words)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Server(Process):
    """It answers at `url`, in OpenAI's dialect."""

    def __init__(self, name: str, command: Sequence[str], port: int, **how: Any) -> None:
        super().__init__(name, command, **how)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.sdk = openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE_S)

    def stop(self) -> None:
        super().stop()
        self.sdk.close()

    @contextlib.contextmanager
    def client(self, body: Mapping[str, Any]) -> Iterator[None]:
        """One that asks for a completion, reads nothing, and leaves at the end of the `with`."""
        payload = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: server\r\ncontent-type: application/json\r\n"
            f"content-length: {len(payload)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(head.encode() + payload)
            yield


class EngineServer(Server):
    """One engine's server; `ask` goes to it past the gateway."""

    def __init__(self, engine: str, role: str, name: str, options: Sequence[str], side_port: int) -> None:
        self.engine = engine
        self.role = role
        self.side_port = side_port
        port = free_port()
        command = [str(HERE / "start_engine.sh"), engine, role, str(port), str(side_port), *options]
        places = {name: value for name, value in os.environ.items() if name.startswith("TANDEM_REAL_")}
        super().__init__(name, command, port, nice=int(os.environ.get("TANDEM_REAL_NICE", "0")), environment=places)

    @property
    def worker_id(self) -> str:
        """The worker's name in the gateway's explanations."""
        return str(worker_id_of(self.url))

    def wait_until_up(self) -> None:
        """SGLang is well only when its own first request has been answered, and says so at /ready."""
        self.wait_for(self.url + ("/health" if self.engine == "vllm" else "/ready"))

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """POSTs and gives the JSON that comes back. Raises httpx.HTTPStatusError."""
        reply = httpx.post(self.url + path, json=body, timeout=PATIENCE_S)
        reply.raise_for_status()
        return reply.json()

    def metric(self, family: str, **labels: str) -> float:
        """The sum of a family's series that have these labels; 0 where there is none."""
        return summed(httpx.get(f"{self.url}/metrics", timeout=30).text, family, labels)

    def busy(self) -> float:
        """Requests that it still has anything of, and what of its KV is kept for them; 0 at rest."""
        if self.engine == "vllm":
            # It counts when it makes a step, so it is given one to make.
            self.ask("/v1/completions", {"prompt": [300], "max_tokens": 1})
            families = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
            return sum(self.metric(family) for family in families)
        load = httpx.get(f"{self.url}/v1/loads?include=all", timeout=30).json()["loads"][0]
        pair, queues = load["disaggregation"], load["queues"]
        counts = [load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"], *queues.values()]
        return sum(counts) + sum(value for name, value in pair.items() if name.endswith("_queue_reqs"))


class GatewayServer(Server):
    """`tandem serve` with one model, "smol". `settings` are the model's, `sections` the configuration's others."""

    def __init__(self, name: str, workers: Sequence[Mapping[str, Any]], folder: Path, **settings: Any) -> None:
        self.workers = workers
        port = free_port()
        config = {
            "server": {"port": port, "request_timeout_s": PATIENCE_S},
            "deadlines": {"first_token_s": PATIENCE_S - 30, "between_tokens_s": 60},
            "health": {"interval_s": 1},
            "logging": {"requests": "all", "level": "debug"},
            "models": [{"name": "smol", "path": MODEL_FILES, "workers": [*workers], **settings}],
        }
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(config, indent=1))
        super().__init__(name, [sys.executable, "-m", "app", "serve", "--config", str(file)], port)
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def stop(self) -> None:
        super().stop()
        self.http.close()

    def wait_until_all_up(self) -> None:
        """Until it knows every worker to be up."""
        assert self.running, f"{self.name} has ended:\n{self.tail()}"

        def all_up() -> bool:
            told = httpx.get(f"{self.url}/health", timeout=5).json()["models"]["smol"]["workers"]
            return all(count["up"] == count["total"] for count in told.values())

        eventually(all_up, 60)

    def count(self, family: str, **labels: str) -> float:
        """The same of its own metrics."""
        return summed(self.http.get("/metrics").text, family, labels)


def summed(page: str, family: str, labels: Mapping[str, str]) -> float:
    """The sum, on a page of Prometheus metrics, of a family's series that have these labels."""
    series = re.findall(rf"^{re.escape(family)}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE)
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(float(value) for told, value in series if all(label in told for label in wanted))


def _group(leader: int) -> list[int]:
    """The processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == leader:
                found.append(int(folder.name))
    return found


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def status(url: str) -> int:
    """The status that `url` answers with; 0 when nobody answers."""
    try:
        return httpx.get(url, timeout=5).status_code
    except httpx.HTTPError:
        return 0


def eventually(true: Callable[[], Any], within_s: float, every_s: float = 0.2) -> float:
    """Asks until it is true; how long that took. Raises TimeoutError."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"not within {within_s} s")
        time.sleep(every_s)
    return time.monotonic() - began
