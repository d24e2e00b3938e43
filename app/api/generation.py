"""`POST /v1/chat/completions` and `POST /v1/completions`: from ASGI to the pipeline and back.

A plain ASGI endpoint: no framework stands between a token and its socket. The request's own task runs the service;
chunks are written from inside the worker connection's callback.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from app.api.identity import request_id_of
from app.responses import ClientWatch, EventStream, Headers, Receive, Send, error_event, send_error, send_json
from engines.openai_reply import Chunk, Shape
from pipeline.context import RequestContext
from pipeline.models import RelayedModel, TokenModel
from pipeline.preprocess import ChoiceOutputs, Prepared
from pipeline.relay import RelayRequest, RelayUsage
from protocols.errors import (
    ClientGone,
    GatewayError,
    InternalError,
    NoAvailableWorkers,
    Overloaded,
    SinkFailed,
    Unavailable,
)
from protocols.openai import ChatCompletionRequest, CompletionRequest, parse_chat, parse_completion
from protocols.preprocessed import RoutingHints
from routers.explain import explanation, explanation_headers, explanation_wanted
from routers.hints import read_hints
from telemetry.record import RequestRecord
from text.aggregate import Aggregate, ChatAggregate, CompletionAggregate
from text.deltas import DONE, StreamRenderer
from text.usage import UsageCount

if TYPE_CHECKING:
    from app.gateway import Gateway

log = logging.getLogger(__name__)

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Generation:
    """One of the two endpoints. `chat` says which."""

    def __init__(self, gateway: Gateway, *, chat: bool) -> None:
        self.gateway = gateway
        self._chat = chat
        self._prefix = "chatcmpl-" if chat else "cmpl-"
        self.endpoint = "chat_completions" if chat else "completions"

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        gateway = self.gateway
        call = _Call(self, scope, receive, send)
        try:
            gateway.bodies.enter()
        except Overloaded as error:
            await call.refuse(error)
            return
        try:
            await call.run()
        finally:
            gateway.bodies.leave()

    def parse(self, body: bytes) -> ChatCompletionRequest | CompletionRequest:
        return parse_chat(body) if self._chat else parse_completion(body)

    def answer_id(self) -> str:
        return self._prefix + f"{random.getrandbits(128):032x}"

    def stream(self, prepared: Prepared, usage: UsageCount) -> StreamRenderer:
        render = StreamRenderer.chat if self._chat else StreamRenderer.completion
        return render(prepared.form, usage)

    def relayed(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        context: RequestContext,
        hints: RoutingHints | None,
    ) -> RelayRequest:
        """The request as an OpenAI-compatible server is to get it, and our part of its answer."""
        kind = "chat.completion" if self._chat else "text_completion"
        if request.stream and self._chat:
            kind += ".chunk"
        prompts = 1 if isinstance(request, ChatCompletionRequest) else len(request.prompts())
        return RelayRequest(
            path="/v1/chat/completions" if self._chat else "/v1/completions",
            body=request.body(),
            shape=Shape(context.request_id, int(time.time()), request.model, kind),
            stream=bool(request.stream),
            include_usage=request.includes_usage(),
            choices=prompts * (request.n or 1),
            hints=hints,
        )

    def aggregate(self, prepared: Prepared, usage: UsageCount) -> Aggregate:
        gather = ChatAggregate if self._chat else CompletionAggregate
        return gather(prepared.form, usage)


class _Call:
    """One request at one of the endpoints."""

    def __init__(self, endpoint: Generation, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self._endpoint = endpoint
        self._gateway = endpoint.gateway
        self._headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._request_id = request_id_of(self._headers)
        self._task = asyncio.current_task()
        self._client_gone = False
        self._context: RequestContext | None = None
        self._events: EventStream | None = None
        self._explain = False

    async def run(self) -> None:
        """Answers the request, whatever happens; returns when nothing of it is left."""
        record = self._gateway.telemetry.request(self._endpoint.endpoint, self._request_id.decode())
        try:
            failure = await self._outcome(record)
            if failure is not None:
                record.failed(failure)
                await self._tell(failure)
        except ClientGone:
            record.cancelled()
        except asyncio.CancelledError:
            if not self._client_gone:
                raise
            _forgive_cancel()
            record.cancelled()
        finally:
            if self._events is not None:
                self._events.close()
            record.ended()

    async def _outcome(self, record: RequestRecord) -> GatewayError | None:
        """Runs the request. The failure to tell the client of, or None when it was answered."""
        try:
            await self._answer(record)
        except GatewayError as error:
            return error
        except ClientGone:
            raise
        except SinkFailed as failed:
            cause = failed.__cause__
            return cause if isinstance(cause, GatewayError) else self._own_fault(cause or failed)
        except asyncio.CancelledError:
            if self._client_gone:
                raise
            # Only a shutdown that has waited long enough cancels requests.
            _forgive_cancel()
            return Unavailable("The gateway is shutting down.")
        except Exception as error:
            return self._own_fault(error)
        record.succeeded()
        return None

    def _own_fault(self, error: BaseException) -> InternalError:
        log.error("request %s failed by our own fault", self._request_id.decode(), exc_info=error)
        return InternalError("The gateway failed to answer; see its log for this request id.")

    async def _tell(self, error: GatewayError) -> None:
        """By its status while that is open; inside the stream, as its last event, once the 200 is out."""
        if self._events is not None and self._events.started:
            await self._events.end(error_event(error))
        else:
            await self.refuse(error)

    async def refuse(self, error: GatewayError) -> None:
        await send_error(self._send, error, self._answer_headers(), status=self._gateway.status_of(error))

    # ---- the request's way

    async def _answer(self, record: RequestRecord) -> None:
        gateway = self._gateway
        body = await gateway.bodies.read(self._headers, self._receive)
        request = self._endpoint.parse(body)
        model = gateway.models.get(request.model)
        record.began(model.card.name, stream=bool(request.stream))
        self._explain = explanation_wanted(self._headers)
        hints = read_hints(self._headers)
        context = self._context = gateway.context(self._endpoint.answer_id(), model.card.name, record.tracker)
        if isinstance(model, RelayedModel):
            await self._relay(model, self._endpoint.relayed(request, context, hints), context, record)
            return
        prepared = await model.preprocessor.prepare(request, context, int(time.time()), hints)
        self._check_ready(model.card.name)
        usage = UsageCount(prepared.prompt_tokens(), prepared.form.candidates)
        record.prepared(usage)
        if request.stream:
            await self._stream(model, prepared, context, usage, record)
        else:
            await self._unary(model, prepared, context, usage, record)

    def _check_ready(self, model: str) -> None:
        """A model that is known but cannot be served now is a 503, before anything is tried."""
        servable = self._gateway.registry.servable(model)
        if not servable.ok:
            raise NoAvailableWorkers(f"The model '{model}' cannot be served now: {servable.reason}.")

    async def _unary(
        self, model: TokenModel, prepared: Prepared, context: RequestContext, usage: UsageCount, record: RequestRecord
    ) -> None:
        gathered = self._endpoint.aggregate(prepared, usage)

        def sink(batch: Sequence[ChoiceOutputs]) -> None:
            for choice in batch:
                record.observe(choice.outputs, choice.index)
                gathered.feed(choice.index, choice.outputs)

        await self._watched(model.service(prepared, context, sink))
        await send_json(self._send, 200, gathered.body(self._story()), self._answer_headers())

    async def _stream(
        self, model: TokenModel, prepared: Prepared, context: RequestContext, usage: UsageCount, record: RequestRecord
    ) -> None:
        renderer = self._endpoint.stream(prepared, usage)
        events = self._open_stream(context)
        last: list[bytes] = []
        """The end of the answer, which leaves together with what follows it."""

        def sink(batch: Sequence[ChoiceOutputs]) -> None:
            for choice in batch:
                record.observe(choice.outputs, choice.index)
                data = renderer.feed(choice.index, choice.outputs)
                if choice.outputs[-1].finish_reason is not None and renderer.complete:
                    last.append(data)
                elif data:
                    events.write(data)

        await self._watched(model.service(prepared, context, sink))
        await events.end(b"".join(last) + renderer.end(self._story()))

    async def _relay(
        self, model: RelayedModel, request: RelayRequest, context: RequestContext, record: RequestRecord
    ) -> None:
        """Through a model of OpenAI-compatible servers."""
        self._check_ready(model.card.name)
        usage = RelayUsage()
        record.prepared(usage)
        if request.stream:
            events = self._open_stream(context)

            def write(chunks: Sequence[Chunk]) -> None:
                events.write(b"".join([b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]))

            await self._watched(model.relay(request, context, write, usage))
            await events.end(DONE)
            return
        answers: list[Chunk] = []
        await self._watched(model.relay(request, context, answers.extend, usage))
        await send_json(self._send, 200, orjson.dumps(answers[0]), self._answer_headers())

    # ---- the client's side

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the service; the client's leaving cancels it."""
        watch = ClientWatch(self._receive, self._leave)
        try:
            await work
        finally:
            watch.stop()

    def _leave(self) -> None:
        """The client is gone: the request's task ends where it stands."""
        self._client_gone = True
        if self._task is not None:
            self._task.cancel()

    def _open_stream(self, context: RequestContext) -> EventStream:
        events = self._events = EventStream(
            self._send,
            headers=lambda: [*SSE_HEADERS, *self._answer_headers()],
            flow=context.flow,
            ticker=self._gateway.ticker,
            limits=self._gateway.settings.server,
            drop=self._leave,
        )
        return events

    def _answer_headers(self) -> Headers:
        own = [(b"x-request-id", self._request_id)]
        if not self._explain or self._context is None:
            return own
        return own + explanation_headers([choice for _, choice in self._context.choices])

    def _story(self) -> dict[str, Any] | None:
        """The answer's `tandem` member, for those who ask: every choice of a worker, retries and migrations included.

        Headers leave before the answer is complete and name what was known then.
        """
        if not self._explain or self._context is None:
            return None
        return {"tandem": {"routing": [explanation(choice) for _, choice in self._context.choices]}}


def _forgive_cancel() -> None:
    """The cancel was our own: the task goes on to its end."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
