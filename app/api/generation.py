"""`POST /v1/chat/completions` and `POST /v1/completions`: from ASGI to the pipeline and back.

A plain ASGI endpoint: no framework stands between a token and its socket. The request's own task runs the service;
chunks are written from inside the worker connection's callback.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
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
    Disconnected,
    GatewayError,
    InternalError,
    NoAvailableWorkers,
    Overloaded,
    SinkFailed,
)
from protocols.openai import ChatCompletionRequest, CompletionRequest, parse_chat, parse_completion
from protocols.preprocessed import RoutingHints
from routers.explain import explanation_headers, explanation_wanted
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
        self._gateway = gateway
        self._chat = chat
        self._prefix = "chatcmpl-" if chat else "cmpl-"
        self.endpoint = "chat_completions" if chat else "completions"

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        gateway = self._gateway
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
        self._gateway = endpoint._gateway
        self._headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._request_id = request_id_of(self._headers)
        self._own_headers: Headers = [(b"x-request-id", self._request_id)]
        self._task = asyncio.current_task()
        self._client_gone = False
        self._context: RequestContext | None = None
        self._explain = False

    async def refuse(self, error: GatewayError) -> None:
        status = self._gateway.status_of(error)
        await send_error(self._send, error, [*self._own_headers, *self._explanation()], status=status)

    async def run(self) -> None:
        gateway = self._gateway
        record = gateway.telemetry.request(self._endpoint.endpoint, self._request_id.decode())
        try:
            body = await gateway.bodies.read(self._headers, self._receive)
            request = self._endpoint.parse(body)
            model = gateway.models.get(request.model)
            record.began(model.card.name, stream=bool(request.stream))
            self._explain = explanation_wanted(self._headers)
            if isinstance(model, RelayedModel):
                await self._relay(model, request, record)
            else:
                await self._generate(model, request, record)
            record.succeeded()
        except Disconnected as error:
            if not self._client_gone and error.worker_id is not None:
                raise
            record.cancelled()
        except asyncio.CancelledError:
            record.cancelled()
            if not self._client_gone:
                raise
            _forgive_cancel()
        except GatewayError as error:
            record.failed(error)
            await self.refuse(error)
        except _Told as told:
            record.failed(told.error)
        except Exception as error:
            log.exception("request %s failed by our own fault", self._request_id.decode())
            failure = InternalError("The gateway failed to answer; see its log for this request id.")
            record.failed(failure)
            del error
            await self.refuse(failure)
        finally:
            record.ended()

    # ---- models that take token ids

    async def _generate(
        self, model: TokenModel, request: ChatCompletionRequest | CompletionRequest, record: RequestRecord
    ) -> None:
        gateway = self._gateway
        hints = read_hints(self._headers)
        context = self._context = gateway.context(self._endpoint.answer_id(), model.card.name, record.tracker)
        prepared = await model.preprocessor.prepare(request, context, int(time.time()), hints)
        self._check_ready(model.card.name)
        usage = UsageCount(prepared.prompt_tokens(), prepared.form.candidates)
        record.prepared(usage)
        if request.stream:
            await self._stream(model, prepared, context, usage, record)
        else:
            await self._answer(model, prepared, context, usage, record)

    def _check_ready(self, model: str) -> None:
        """A model that is known but cannot be served now is a 503, before anything is tried."""
        servable = self._gateway.registry.servable(model)
        if not servable.ok:
            raise NoAvailableWorkers(f"The model '{model}' cannot be served now: {servable.reason}.")

    async def _answer(
        self, model: TokenModel, prepared: Prepared, context: RequestContext, usage: UsageCount, record: RequestRecord
    ) -> None:
        gathered = self._endpoint.aggregate(prepared, usage)

        def sink(batch: Sequence[ChoiceOutputs]) -> None:
            for choice in batch:
                record.observe(choice.outputs, choice.index)
                gathered.feed(choice.index, choice.outputs)

        with self._watched():
            await _unwrapped(model.service(prepared, context, sink))
        body = gathered.body()
        await send_json(self._send, 200, body, [*self._own_headers, *self._explanation()])

    async def _stream(
        self, model: TokenModel, prepared: Prepared, context: RequestContext, usage: UsageCount, record: RequestRecord
    ) -> None:
        renderer = self._endpoint.stream(prepared, usage)
        events = self._event_stream(context)
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

        def tail() -> bytes:
            return b"".join(last) + renderer.end()

        await self._streamed(events, model.service(prepared, context, sink), tail)

    # ---- models of OpenAI-compatible servers

    async def _relay(
        self, model: RelayedModel, request: ChatCompletionRequest | CompletionRequest, record: RequestRecord
    ) -> None:
        context = self._context = self._gateway.context(self._endpoint.answer_id(), model.card.name, record.tracker)
        relayed = self._endpoint.relayed(request, context, read_hints(self._headers))
        self._check_ready(model.card.name)
        usage = RelayUsage()
        record.prepared(usage)
        if request.stream:
            events = self._event_stream(context)

            def write(chunks: Sequence[Chunk]) -> None:
                events.write(b"".join([b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]))

            await self._streamed(events, model.relay(relayed, context, write, usage), lambda: DONE)
            return
        answers: list[Chunk] = []
        with self._watched():
            await _unwrapped(model.relay(relayed, context, answers.extend, usage))
        await send_json(self._send, 200, orjson.dumps(answers[0]), [*self._own_headers, *self._explanation()])

    # ---- the client's side

    def _event_stream(self, context: RequestContext) -> EventStream:
        return EventStream(
            self._send,
            headers=lambda: [*SSE_HEADERS, *self._own_headers, *self._explanation()],
            flow=context.flow,
            ticker=self._gateway.ticker,
            limits=self._gateway.settings.server,
            drop=self._leave,
        )

    async def _streamed(self, events: EventStream, work: Any, tail: Callable[[], bytes]) -> None:
        """Runs the service into the stream; a failure after the head is out becomes the last event."""
        try:
            with self._watched():
                await _unwrapped(work)
                await events.end(tail())
        except GatewayError as error:
            if not events.started:
                raise
            await events.end(error_event(error))
            raise _Told(error) from error
        finally:
            events.close()

    def _watched(self) -> _Watched:
        return _Watched(self._receive, self._leave)

    def _leave(self) -> None:
        """The client is gone: the request's task ends where it stands."""
        self._client_gone = True
        if self._task is not None:
            self._task.cancel()

    def _explanation(self) -> Headers:
        if not self._explain or self._context is None:
            return []
        return explanation_headers([choice for _, choice in self._context.choices])


class _Watched:
    """While inside, the client's leaving cancels the request's task."""

    def __init__(self, receive: Receive, leave: Callable[[], None]) -> None:
        self._receive = receive
        self._leave = leave

    def __enter__(self) -> None:
        self._watch = ClientWatch(self._receive, self._leave)

    def __exit__(self, *_: object) -> None:
        self._watch.stop()


class _Told(Exception):
    """The client has been told of `error` inside its stream."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(str(error))
        self.error = error


async def _unwrapped(work: Any) -> Any:
    """Runs the service; what our own sink raised comes out as itself."""
    try:
        return await work
    except SinkFailed as failed:
        raise failed.__cause__ or failed from None


def _forgive_cancel() -> None:
    """The cancel was our own: the task goes on to its end."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
