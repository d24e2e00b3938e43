"""What every engine adapter offers, and nothing of what any engine is like.

An adapter is pure: it builds calls and reads replies. It is made for one worker (`engines.adapter_for`) and holds
everything in which engines differ, so that no other room asks which engine it talks to.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from engines.error_body import embeddings_refusal, error_body
from protocols.errors import GatewayError, InternalError, WorkerFailure
from protocols.outputs import EmbeddingsEngineOutput, LLMEngineOutput
from protocols.preprocessed import BootstrapInfo, PrefillResult, PreprocessedEmbeddingRequest, PreprocessedRequest
from protocols.quick_init import quick_init
from protocols.worker import Leg, Role, Worker, WorkerTraits

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_UNARY_BYTES = 64 * 1024 * 1024


@quick_init
@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request to a worker. `headers` beside content-type, content-length and host.

    `streams`: False where the reply comes as a whole, when all of it has been generated.
    """

    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"
    content_type: str = "application/json"
    streams: bool = True


@quick_init
@dataclass(frozen=True, slots=True)
class AttemptIds:
    """New for every attempt and leg, and never the client's (hard rule 6).

    `name`: 32 hex digits. `number`: an exact integer in [2^40, 2^63), good as room, transfer or disagg request id.
    """

    name: str
    number: int


class Release(enum.Enum):
    """When a decode call that only releases pinned KV may be closed."""

    HEADERS = "headers"
    FIRST_TOKEN = "first_token"  # noqa: S105
    NONE = "none"
    """Nothing to dispatch: closing and aborting both legs releases."""


class ReplyParser(Protocol):
    """Reads one reply, for any cut of its bytes.

    `feed` and `end` return the outputs that became complete, in order. When the engine reported a failure, the outputs
    before it are returned and `error` is set: the caller hands the outputs up, then raises. Exactly one output carries
    a finish reason; it is the last, has no token ids, and comes from the `feed` that saw the reply's end marker or from
    `end`; its `completion_usage` is the engine's, where it sent one. `finish_seen` tells that the engine has said its
    finish, though the ending is not out yet.
    """

    error: WorkerFailure | GatewayError | None
    finish_seen: bool
    done: bool
    """The end marker ([DONE], the closing brace) was read; whatever follows is ignored."""

    def feed(self, data: bytes) -> Sequence[LLMEngineOutput]: ...

    def end(self) -> Sequence[LLMEngineOutput]:
        """The reply is over, cleanly or not. Without a finish seen: sets `error` (IncompleteReply) unless it is set."""
        ...


class EmbeddingParser(Protocol):
    """Reads the reply to an embedding call, for any cut of its bytes.

    Its one output comes from `end`: as many vectors as were asked for. Where there is none, `error` says why.
    """

    error: GatewayError | None
    finish_seen: bool
    done: bool

    def feed(self, data: bytes) -> Sequence[EmbeddingsEngineOutput]: ...

    def end(self) -> Sequence[EmbeddingsEngineOutput]: ...


@dataclass(frozen=True, slots=True)
class Probe:
    """A control-plane request: asked at registration (`info_probes`) or again and again (`health_probe`).

    `interval_s`: not more often than this, since the probe costs the worker something; None: as often as one likes.
    """

    path: str
    method: str = "GET"
    body: bytes | None = None
    timeout_s: float = 5.0
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeReply:
    status: int
    body: bytes


class EngineAdapter(ABC):
    """How to speak to one worker. See ARCHITECTURE: "Speaking to an engine"."""

    release_at: ClassVar[Release]
    default_lease_s: ClassVar[float | None]
    """How long the engine keeps pinned KV when nobody configured it; None: no such lease."""
    default_prefill_policy: ClassVar[str]
    """"local": a decode worker may prefill itself when the prefill pool is gone; "strict": it may not."""
    late_reads_fail: ClassVar[bool] = True
    """A read of blocks that prefill no longer keeps fails, instead of bringing whatever is there now."""
    structural_tags: ClassVar[bool] = False
    """Does the engine take xgrammar's structural tags (the form with `format`) as a constraint?"""

    def __init__(self, worker: Worker, model: str) -> None:
        """`model`: the gateway's name for the model, sent where the worker told no name of its own."""
        self.worker = worker
        self.model = worker.name_for_model(model)

    @property
    def lease_s(self) -> float | None:
        return self.worker.lease_s if self.worker.lease_s is not None else self.default_lease_s

    # ---- prefill leg

    def bootstrap(self, ids: AttemptIds, dp_rank: int | None) -> BootstrapInfo | None:
        """Asked of the *prefill* worker's adapter before either leg starts: what both must share.

        An answer means that both legs run at once; None means prefill first. `room % dp_size` equals the prefill rank.
        """
        return None

    @abstractmethod
    def prefill_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        """The prefill leg's call for the *original* request; the adapter makes it one-token, unstreamed, and so on."""

    @abstractmethod
    def handoff(self, outputs: Sequence[LLMEngineOutput]) -> PrefillResult | LLMEngineOutput | None:
        """What a complete prefill reply gives decode.

        A PrefillResult goes into the decode request. An output means that prefill *is* the answer (token ids, text,
        finish and usage in it). None means that nothing was pinned: decode prefills locally.
        Raises WorkerFailure when the reply is unusable (hard rules 4 and 5).
        """

    # ---- decode leg, and plain requests

    @abstractmethod
    def generate_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        """The call that brings the answer: plain, or decode when `prefill_result` or `bootstrap_info` is set."""

    @abstractmethod
    def parser(self, request: PreprocessedRequest, leg: Leg) -> ReplyParser:
        """A fresh parser for the reply to this leg's call."""

    # ---- embeddings

    embed_room: ClassVar[int] = 0
    """Tokens of the context that an input to embed must leave free."""

    def embeds(self, *, parts: bool) -> bool:
        """Is there a call for vectors? `parts`: of content parts, which no tokenizer reads."""
        return False

    def embed_call(
        self, request: PreprocessedEmbeddingRequest, ids: AttemptIds, parts: Sequence[Mapping[str, Any]] = ()
    ) -> Call:
        """The call for one vector per list of ids, or for those of content parts where there are some.

        Raises InvalidRequest for a part that the engine has no word for.
        """
        raise InternalError(f"worker {self.worker.url} makes no embeddings")

    def embed_parser(
        self, request: PreprocessedEmbeddingRequest, parts: Sequence[Mapping[str, Any]] = ()
    ) -> EmbeddingParser:
        """A fresh parser for the reply to that call."""
        raise InternalError(f"worker {self.worker.url} makes no embeddings")

    def embed_rejection(self, status: int, body: bytes) -> GatewayError:
        """What its refusal means: that the model makes none is not the worker's fault."""
        return embeddings_refusal(status, error_body(body)) or self.rejection(status, body)

    # ---- failures

    @abstractmethod
    def rejection(self, status: int, body: bytes) -> GatewayError:
        """What a reply with a non-200 status means: InvalidRequest with the engine's words, or a WorkerFailure."""

    def refusal_frees(self, request: PreprocessedRequest, body: bytes) -> bool:
        """Asked of the *decode* worker's adapter: has a decode call that it refused made prefill free its blocks?

        Then the hand-off is void, and no other worker may read them. `body`: of the refusal.
        """
        return False

    def learn(self, call: Call, status: int, body: bytes) -> Worker | None:
        """The worker as this refusal shows it to be; the caller then repeats the call. None: nothing learnt."""
        return None

    def abort_calls(self, ids: AttemptIds) -> Sequence[Call]:
        """Calls that end a request on the worker beside closing its connection.

        A prefill that is ended so, and whose connection stays, still tells what it has pinned.
        """
        return ()

    # ---- what it can do

    @abstractmethod
    def plain(self, role: Role) -> bool:
        """May a worker in this role serve a request alone, without a peer?"""

    @abstractmethod
    def unsupported(self, request: PreprocessedRequest) -> str | None:
        """The parameter of the request that this worker cannot honour and that changes the answer, or None."""

    # ---- control plane

    @abstractmethod
    def health_probe(self) -> Probe: ...

    def healthy(self, reply: ProbeReply) -> bool:
        return reply.status == 200

    @abstractmethod
    def info_probes(self) -> Sequence[Probe]:
        """What to ask a worker at registration."""

    @abstractmethod
    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        """What the replies to `info_probes` (by path; missing where none came) tell of the worker."""
