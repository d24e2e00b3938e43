"""The set-ups: which engines run together, with which options. One runs at a time: a CPU has no room for two."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.processes import EngineServer, GatewayServer, free_port

AGGREGATED, PAIR = ("aggregated",), ("prefill", "decode")
DECODE_CONTEXT, DECODE_LOGPROBS = 2016, 4
"""What vLLM's decode servers here take: less than prefill's, which take 2048 tokens and 20 alternatives."""


@dataclass(frozen=True)
class Setup:
    engine: str
    roles: Sequence[str]
    options: Sequence[str] = ()
    decode_options: Sequence[str] = ()
    context: int = 2048
    """Tokens that its last server takes."""


TAKES_LESS = ("--max-model-len", str(DECODE_CONTEXT), "--max-logprobs", str(DECODE_LOGPROBS))
"""So there are requests that vLLM refuses at decode, after prefill has done its part."""

SETUPS = {
    "vllm": Setup("vllm", AGGREGATED, ("--enable-scale-out",)),
    "vllm-completions": Setup("vllm", AGGREGATED),
    "vllm-pair": Setup("vllm", PAIR, ("--enable-scale-out",), TAKES_LESS, DECODE_CONTEXT),
    "vllm-pair-completions": Setup("vllm", PAIR, (), TAKES_LESS, DECODE_CONTEXT),
    "sglang": Setup("sglang", AGGREGATED),
    "sglang-pair": Setup("sglang", PAIR),
}
"""vLLM's generate route is open only with `--enable-scale-out`; the set-ups without it go by /v1/completions."""

ALONE = [name for name, setup in SETUPS.items() if setup.roles == AGGREGATED]
PAIRS = [name for name, setup in SETUPS.items() if setup.roles == PAIR]


def chosen() -> list[str]:
    """The set-ups that are to run: those that TANDEM_REAL_SETUPS names, else all."""
    named = os.environ.get("TANDEM_REAL_SETUPS", "").split()
    return named or [*SETUPS]


def on(*names: str) -> pytest.MarkDecorator:
    """The test runs on these set-ups, as far as they were chosen."""
    wanted = [name for name in names if name in chosen()]
    return pytest.mark.parametrize("fleet", wanted, indirect=True, scope="session")


class Fleet:
    """A set-up's engines, running from entry to exit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.setup = SETUPS[name]
        self.engine = self.setup.engine
        shared = free_port()
        self.servers = [
            EngineServer(
                self.engine,
                role,
                f"{name}-{role}",
                [*self.setup.options, *(self.setup.decode_options if role == "decode" else ())],
                shared if self.engine == "sglang" else free_port(),
            )
            for role in self.setup.roles
        ]

    def __enter__(self) -> Fleet:
        try:
            self.mend()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.stop()

    def mend(self) -> None:
        """Starts what does not run, and waits until all of it is up."""
        dead = [server for server in self.servers if not server.running]
        for server in dead:
            server.start()
        for server in dead:
            server.wait_until_up()

    def role(self, role: str) -> EngineServer:
        return next(server for server in self.servers if server.role == role)

    @property
    def last(self) -> EngineServer:
        """The one that answers: the decode server, or the only one."""
        return self.servers[-1]

    @property
    def is_pair(self) -> bool:
        return self.setup.roles == PAIR

    def gateway(self, name: str, folder: Path, **settings: Any) -> GatewayServer:
        """A gateway in front of it, not yet started."""
        workers: list[dict[str, Any]] = [
            {"url": server.url, "engine": self.engine, "role": server.role} for server in self.servers
        ]
        return GatewayServer(f"{self.name}-{name}", workers, folder, **settings)

    def busy(self) -> float:
        """What all of them still have to do or to keep; 0 at rest."""
        return sum(server.busy() for server in self.servers)

    def expired(self) -> float:
        """Hand-offs that nobody fetched, so that vLLM let go of their blocks only when the lease was over."""
        return sum(server.metric("vllm:nixl_num_kv_expired_reqs_total") for server in self.servers)
