"""What is said to a worker, and how its reply is read: the two questions that a `Reading` does not answer itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from engines.base import Call
from protocols.errors import GatewayError
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import Leg

if TYPE_CHECKING:
    from pipeline.dispatch import Lease

T_co = TypeVar("T_co", covariant=True)


class Parser(Protocol[T_co]):
    """`engines.base.ReplyParser`, for outputs of any kind."""

    @property
    def error(self) -> GatewayError | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def finish_seen(self) -> bool: ...
    def feed(self, data: bytes, /) -> Sequence[T_co]: ...
    def end(self) -> Sequence[T_co]: ...


class Talk(Protocol[T_co]):
    """What is said to the worker, and how its reply or its refusal is read.

    `prompt_tokens` sets the first token's deadline. `reads_once`: the call reads what can be read only once, so it is
    never sent a second time, whatever became of the first.
    """

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def reads_once(self) -> bool: ...
    def call(self, lease: Lease, /) -> Call: ...
    def parser(self, lease: Lease, /) -> Parser[T_co]: ...
    def rejection(self, lease: Lease, status: int, body: bytes, /) -> GatewayError: ...


class TokenTalk:
    """A request of token ids: the prefill leg's call, or the one that brings the answer."""

    __slots__ = ("request",)

    def __init__(self, request: PreprocessedRequest) -> None:
        self.request = request

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.token_ids)

    @property
    def reads_once(self) -> bool:
        """A hand-off in turn; what two legs at once share is drawn by us."""
        return self.request.prefill_result is not None

    def call(self, lease: Lease) -> Call:
        speak = lease.adapter.prefill_call if lease.for_handoff else lease.adapter.generate_call
        return speak(self.request, lease.ids)

    def parser(self, lease: Lease) -> Parser[LLMEngineOutput]:
        return lease.adapter.parser(self.request, Leg.PREFILL if lease.for_handoff else Leg.DECODE)

    def rejection(self, lease: Lease, status: int, body: bytes) -> GatewayError:
        return lease.adapter.rejection(status, body)
