"""What goes into a simulated engine and comes out: a sequence's spec, its state inside, and the outputs of steps."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.generation import Alternative, Context
from simulator.kv_cache import Block


class Finish(enum.Enum):
    """Why a job ended: end-of-text, a stop id, its length, or an abort."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Phase(enum.Enum):
    WAITING = "waiting"
    LOADING = "loading"
    """Its blocks are allocated and a peer's KV is on its way into them."""
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Spec:
    """What one job is asked for.

    `limit`: most ids to generate. `salt`: isolates prefix reuse. `pin`: name to keep the blocks under when the sequence
    ends by EOS, STOP or LENGTH, for `pin_s` seconds (None: until released). `peer`: where the prompt's KV comes from;
    only whoever loads it looks inside. `recompute_last`: the last prompt token is computed here even so (vLLM);
    otherwise the peer also gives the first ids. `script`: ids that the answer must be, and then end.
    """

    prompt: Sequence[int]
    limit: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    temperature: float = 0.0
    seed: int | None = None
    salt: str = ""
    logprobs: int | None = None
    pin: str | None = None
    pin_s: float | None = None
    peer: object = None
    recompute_last: bool = True
    script: tuple[int, ...] = ()


@dataclass(slots=True)
class Output:
    """What one step brought for one job. `logprobs[i]` belongs to `ids[i]`."""

    ids: list[int]
    logprobs: list[list[Alternative]] | None = None
    finish: Finish | None = None


Sink = Callable[["Job", Output], None]


@dataclass(eq=False)
class Job:
    """One job inside the engine."""

    spec: Spec
    context: Context
    sink: Sink
    arrived_at: float
    limit: int
    """Most ids to generate: the spec's limit, or what the whole cache can hold."""
    phase: Phase = Phase.WAITING
    blocks: list[Block] = field(default_factory=list)
    computed: int = 0
    """Ids whose KV is in the blocks."""
    generated: int = 0
    cached_tokens: int = 0
    peer_answered: bool = False
    local_hits: int = 0
    """Leading blocks that came from this worker's own prefix cache."""
    finish: Finish | None = None
    started_at: float | None = None
    first_token_at: float | None = None
    pinned_blocks: tuple[int, ...] = ()
    first_step: bool = True

    @property
    def prompt_tokens(self) -> int:
        return len(self.spec.prompt)

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE
