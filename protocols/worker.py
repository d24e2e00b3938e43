"""A worker as the gateway knows it: where it is, what it runs, which part it plays."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from urllib.parse import urlsplit


class Engine(enum.Enum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    OPENAI = "openai"
    NATIVE = "native"


class Role(enum.Enum):
    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


class Leg(enum.Enum):
    """Which part of a request a call serves; an aggregated worker serves decode calls."""

    PREFILL = "prefill"
    DECODE = "decode"


def worker_id_of(url: str) -> int:
    """A stable 63-bit id from a worker's URL."""
    return int.from_bytes(hashlib.blake2b(url.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class WorkerTraits:
    """What a worker told of itself when probed; unknown until then.

    `served_name`: the model's name there. `generate`: vLLM's `/inference/v1/generate` is open (None: not yet known).
    `incremental`: SGLang streams deltas, not cumulative text. `packed_ids`: a native worker reads packed token ids.
    `incarnation`: changes when the process behind the URL was restarted, where the engine tells.
    `role`, `dp_size`, `bootstrap_port`: what the server was started as (SGLang). `ready_route`: it has `/ready`.
    `priority_sign`: 1 where a higher priority goes first, -1 where a lower one does, 0 where it takes none.
    `stop_strings`: False for a vLLM server without a tokenizer (`--tokens-only`), which refuses them.
    `generates`: False for a server that only makes embeddings (SGLang).
    """

    served_name: str | None = None
    version: str | None = None
    context_length: int | None = None
    generate: bool | None = None
    incremental: bool | None = None
    packed_ids: bool = False
    msgpack: bool = False
    page_size: int | None = None
    kv_dtype: str | None = None
    incarnation: str | None = None
    role: Role | None = None
    dp_size: int | None = None
    bootstrap_port: int | None = None
    ready_route: bool | None = None
    priority_sign: int | None = None
    stop_strings: bool | None = None
    generates: bool | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """One server process. `url` has no trailing slash. Config wins over what the worker tells.

    `lease_s`: how long prefill keeps pinned blocks for decode, in seconds (None: the engine's default).
    `taints`: labels that a request's routing constraints may require. `api_key`: what it asks of whoever calls it.
    """

    id: int
    url: str
    engine: Engine
    role: Role = Role.AGGREGATED
    served_name: str | None = None
    connector: str = "nixl"
    version: str | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    dp_size: int = 1
    lease_s: float | None = None
    context_length: int | None = None
    taints: frozenset[str] = frozenset()
    api_key: str | None = field(default=None, repr=False)
    traits: WorkerTraits = WorkerTraits()

    @property
    def host(self) -> str:
        """The host part of the URL, IPv6 in brackets."""
        host = urlsplit(self.url).hostname or ""
        return f"[{host}]" if ":" in host else host

    @property
    def ranks(self) -> int:
        """How many data-parallel ranks it has: as configured, else as it tells."""
        return self.dp_size if self.dp_size > 1 else self.traits.dp_size or 1

    def name_for_model(self, fallback: str) -> str:
        """The model name this worker answers to."""
        return self.served_name or self.traits.served_name or fallback

    def pair_key(self) -> tuple[object, ...]:
        """Only workers with equal keys can hand KV over to each other."""
        return (
            self.engine,
            self.connector,
            self.version or self.traits.version,
            self.traits.page_size,
            self.traits.kv_dtype,
        )
