"""What one simulated worker is: engine, role, model, pace, memory, and how faithfully it misbehaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.faults import Fault
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.vocabulary import Codec, Vocabulary

ENGINES = ("vllm", "sglang", "trtllm", "openai", "native")
ROLES = ("aggregated", "prefill", "decode")


@dataclass(frozen=True)
class VllmOptions:
    """vLLM 0.32.

    `scale_out`: `/inference/v1/generate` and the abort route are open (`--enable-scale-out`). `lease_s`: the
    connector's `kv_lease_duration`. `recompute`: `kv_load_failure_policy`. `shutdown_timeout_s`: 0 aborts on SIGTERM,
    more drains. `max_queued`: `--max-num-queued-reqs`. `token_details`: `--enable-prompt-tokens-details`.
    `crash_delay_s`: between an engine's death and its process's.
    """

    scale_out: bool = True
    nixl: bool = True
    lease_s: float = 30.0
    recompute: bool = False
    shutdown_timeout_s: float = 0.0
    max_queued: int | None = None
    token_details: bool = True
    request_id_headers: bool = False
    crash_delay_s: float = 0.05


@dataclass(frozen=True)
class SglangOptions:
    """SGLang 0.5.23.

    `incremental`: `--incremental-streaming-output`. Timeouts of the PD handshake in seconds; `heartbeat_s` is how often
    decode looks after its prefill peer, and two misses fail the request. `stream_leave_s` and `unary_leave_s`: how late
    a client's leaving is noticed. `health_s`: how long the deep `/health` takes at least.
    """

    incremental: bool = False
    bootstrap_timeout_s: float = 300.0
    waiting_timeout_s: float = 300.0
    heartbeat_s: float = 5.0
    stream_leave_s: float = 2.0
    unary_leave_s: float = 4.0
    health_s: float = 1.0
    max_queued: int | None = None
    cache_report: bool = False
    enable_metrics: bool = True


@dataclass(frozen=True)
class TrtllmOptions:
    """TensorRT-LLM. `band`: "1.1", "1.2" or "1.3".

    `transfer_timeout_s`: `kv_transfer_timeout_ms` (None: for ever, as 1.0 to 1.2 did unless configured). `two_tokens`:
    decode emits two tokens at max_tokens 1. `cut_streams`: an error in a stream cuts the connection, without an event.
    `leave_s`: the period of the disconnect poll. `done_twice`: some builds say [DONE] two times. `guided`: it was
    started with a `guided_decoding_backend`, without which constraints are refused.
    """

    band: str = "1.3"
    transfer_timeout_s: float | None = 60.0
    two_tokens: bool = False
    cut_streams: bool | None = None
    leave_s: float = 1.0
    stats: bool = True
    done_twice: bool = False
    guided: bool = False

    @property
    def cuts_streams(self) -> bool:
        return self.band < "1.3" if self.cut_streams is None else self.cut_streams


@dataclass(frozen=True)
class NativeOptions:
    """An engine of one's own, behind docs/native_protocol.md.

    `msgpack`, `packed_ids`: what its info says of its codec. `bootstrap`: a prefill worker has a bootstrap port, so
    both legs run at once, and each waits `handshake_s` for the other. `pin_s`: how long prefill keeps blocks for decode
    where it has none.
    """

    msgpack: bool = False
    packed_ids: bool = False
    bootstrap: bool = False
    pin_s: float = 60.0
    handshake_s: float = 60.0


@dataclass(frozen=True)
class SimulatorOptions:
    """One simulated worker.

    `model` is the served name, `model_path` what it calls its root. `port` and `bootstrap_port` 0: a free one.
    `advertised_host`: what it tells peers (default: `host`). `reply`: one fixed text for all answers; it wins over
    `rule`, and over what the request asks for. `calls_tools`: tools that the prompt shows are called. `seed` stands for
    the weights: workers of one model must share it. `blocks` times `block_size` is the KV cache's size in tokens.
    `embedding_size`: the numbers of a vector; 0: it makes no embeddings. `version` None: the version the dialect was
    recorded from. `segment_bytes`: replies are written in pieces of so many bytes (0: as they come).
    """

    engine: str = "vllm"
    role: str = "aggregated"
    host: str = "127.0.0.1"
    port: int = 0
    bootstrap_port: int = 0
    advertised_host: str | None = None
    model: str = "sim-model"
    model_path: str = ""
    vocabulary: Vocabulary = field(default_factory=Vocabulary.synthetic)
    codec: Codec | None = None
    rule: ReplyRule = ReplyRule()
    reply: str | None = None
    calls_tools: bool = False
    seed: int = 0
    pace: Pace = Pace()
    blocks: int = 4096
    block_size: int = 16
    reuse: bool = True
    context_length: int = 8192
    dp_size: int = 1
    embedding_size: int = 64
    version: str | None = None
    faults: tuple[Fault, ...] = ()
    segment_bytes: int = 0
    vllm: VllmOptions = VllmOptions()
    sglang: SglangOptions = SglangOptions()
    trtllm: TrtllmOptions = TrtllmOptions()
    native: NativeOptions = NativeOptions()

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {self.engine!r}")
        if self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, not {self.role!r}")
        if self.context_length > self.blocks * self.block_size:
            raise ValueError(
                f"{self.blocks} blocks of {self.block_size} tokens cannot hold {self.context_length} tokens"
            )
