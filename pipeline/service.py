"""The one idea that composes the pipeline: a service answers one request by pushing outputs into a sink.

Requests go down by `await`; outputs come up by plain calls, all that one read of a worker's reply brought in one call.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from pipeline.context import RequestContext

T_contra = TypeVar("T_contra", contravariant=True)
Req_contra = TypeVar("Req_contra", contravariant=True)
Resp_co = TypeVar("Resp_co", covariant=True)
UpReq_contra = TypeVar("UpReq_contra", contravariant=True)
UpResp_co = TypeVar("UpResp_co", covariant=True)
DownReq_co = TypeVar("DownReq_co", covariant=True)
DownResp_contra = TypeVar("DownResp_contra", contravariant=True)

UpReq = TypeVar("UpReq")
UpResp = TypeVar("UpResp")
DownReq = TypeVar("DownReq")
DownResp = TypeVar("DownResp")


class Sink(Protocol[T_contra]):
    """Takes what arrived together, at once: no await, no blocking. Raising `Enough` from it ends the answer below."""

    def __call__(self, outputs: Sequence[T_contra], /) -> None: ...


def drop(outputs: Sequence[Any]) -> None:
    """A sink for outputs that nobody wants any more."""


class Service(Protocol[Req_contra, Resp_co]):
    """Answers one request.

    Outputs go to the sink as they arrive; the call returns when the answer is complete, raises when it failed, and
    cancelling the call cancels the work. Once it has returned or raised, the sink is never called again.
    """

    def __call__(
        self, request: Req_contra, context: RequestContext, sink: Sink[Resp_co], /
    ) -> Coroutine[Any, Any, None]: ...


class Operator(Protocol[UpReq_contra, UpResp_co, DownReq_co, DownResp_contra]):
    """A service around a service."""

    def __call__(
        self,
        request: UpReq_contra,
        context: RequestContext,
        sink: Sink[UpResp_co],
        downstream: Service[DownReq_co, DownResp_contra],
        /,
    ) -> Coroutine[Any, Any, None]: ...


def link(
    operator: Operator[UpReq, UpResp, DownReq, DownResp], downstream: Service[DownReq, DownResp]
) -> Service[UpReq, UpResp]:
    """The service that `operator` makes of `downstream`."""

    # Hands out the operator's own coroutine: a coroutine around it would be one more to wake for every output.
    def linked(request: UpReq, context: RequestContext, sink: Sink[UpResp], /) -> Coroutine[Any, Any, None]:
        return operator(request, context, sink, downstream)

    return linked
