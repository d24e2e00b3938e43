"""`POST /v1/chat/completions` and `POST /v1/completions`: from a client's turn to the pipeline and back.

The request's own task runs the service; chunks are written from inside the worker connection's callback.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from app.api.asides import Asides
from app.api.call import ModelCall
from app.http_turn import Turn
from app.responses import EventStream, Headers, error_event, send_json
from engines.openai_reply import Chunk, Shape, tells_something
from pipeline.context import RequestContext
from pipeline.models import RelayedModel, TokenModel
from pipeline.preprocess import ChoiceOutputs, Prepared, merged_hints
from pipeline.relay import RelayRequest, RelayUsage
from protocols.errors import GatewayError
from protocols.openai import ChatCompletionRequest, CompletionRequest, parse_chat, parse_completion
from protocols.preprocessed import RoutingHints
from text.aggregate import Aggregate, ChatAggregate, CompletionAggregate
from text.deltas import DONE, StreamRenderer
from text.options import routing_hints
from text.usage import UsageCount

if TYPE_CHECKING:
    from app.gateway import Gateway

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Generation:
    """One of the two endpoints' way of asking and answering. `chat` says which."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._prefix = "chatcmpl-" if chat else "cmpl-"
        self.endpoint = "chat_completions" if chat else "completions"

    def call(self, gateway: Gateway, turn: Turn) -> GenerationCall:
        """One request, to be run."""
        return GenerationCall(self, gateway, turn)

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
        hints, body = merged_hints(routing_hints(request), hints), request.body()
        if hints is not None and hints.cache_namespace is not None:
            body["cache_salt"] = hints.cache_namespace
        return RelayRequest(
            path="/v1/chat/completions" if self._chat else "/v1/completions",
            body=body,
            shape=Shape(context.request_id, int(time.time()), request.model, kind),
            stream=bool(request.stream),
            include_usage=request.includes_usage(),
            choices=prompts * (request.n or 1),
            hints=hints,
        )

    def aggregate(self, prepared: Prepared, usage: UsageCount) -> Aggregate:
        gather = ChatAggregate if self._chat else CompletionAggregate
        return gather(prepared.form, usage)


class GenerationCall(ModelCall):
    """One request at one of the endpoints."""

    def __init__(self, kind: Generation, gateway: Gateway, turn: Turn) -> None:
        super().__init__(gateway, turn, endpoint=kind.endpoint)
        self._kind = kind
        self._events: EventStream | None = None
        self._dropped: Sequence[str] = ()
        self._asides: Asides | None = None

    async def _tell(self, error: GatewayError) -> None:
        """By its status while that is open; inside the stream, as its last event, once the 200 is out."""
        if self._events is not None and self._events.started:
            await self._events.end(error_event(error, self._request_id.decode()))
        else:
            await self.refuse(error)

    def _close(self) -> None:
        if self._events is not None:
            self._events.close()
            # The stream knows its call, for headers and for leaving: a cycle for the garbage collector otherwise.
            self._events = None

    def _answer_headers(self) -> Headers:
        own = super()._answer_headers()
        if self._dropped:
            own.append((b"x-tandem-warning", f"dropped, not supported: {', '.join(self._dropped)}".encode()))
        return own

    def _story(self) -> dict[str, Any] | None:
        story = super()._story()
        if self._asides is None:
            return story
        told = self._asides.closing(self.record.tracker)
        if story is None:
            return told
        (name,) = told
        return {**story, name: {**told[name], **story.get(name, {})}}

    # ---- the request's way

    async def _answer(self) -> None:
        gateway = self._gateway
        request = self._kind.parse(await self._body())
        model = gateway.models.generating(request.model)
        self.record.began(model.card.name, stream=bool(request.stream))
        hints = self._hints()
        context = self._open(self._kind.answer_id(), model.card)
        asides = self._asides = Asides.of(request)
        if asides is not None:
            asides.request_named(self._request_id.decode())
        if isinstance(model, RelayedModel):
            await self._relay(model, self._kind.relayed(request, context, hints), context)
            return
        prepared = await model.preprocessor.prepare(request, context, int(time.time()), hints)
        self._dropped = prepared.dropped
        self._check_ready(model.card.name)
        if asides is not None:
            asides.prompt_known(prepared, partial(model.tokenizer.decode, skip_special_tokens=False))
        usage = UsageCount(prepared.prompt_tokens(), prepared.form.candidates)
        self.record.prepared(usage)
        answer = self._stream if request.stream else self._unary
        await answer(model, prepared, context, usage)
        self.record.counted(differs=usage.differs())

    async def _unary(self, model: TokenModel, prepared: Prepared, context: RequestContext, usage: UsageCount) -> None:
        gathered = self._kind.aggregate(prepared, usage)

        def sink(batch: Sequence[ChoiceOutputs]) -> None:
            for choice in batch:
                self.record.observe(choice.outputs, choice.index)
                gathered.feed(choice.index, choice.outputs)

        await self._watched(model.service(prepared, context, self._noting(sink)))
        await send_json(self._turn, 200, gathered.body(self._story()), self._answer_headers())

    async def _stream(self, model: TokenModel, prepared: Prepared, context: RequestContext, usage: UsageCount) -> None:
        renderer = self._kind.stream(prepared, usage)
        announcement = self._asides and self._asides.announcement()
        if announcement:
            renderer.announce(announcement)
        events = self._open_stream(context)
        last: list[bytes] = []
        """The end of the answer, which leaves together with what follows it."""

        def sink(batch: Sequence[ChoiceOutputs]) -> None:
            for choice in batch:
                self.record.observe(choice.outputs, choice.index)
                data = renderer.feed(choice.index, choice.outputs)
                if choice.outputs[-1].finish_reason is not None and renderer.complete:
                    last.append(data)
                elif data:
                    events.write(data)

        await self._watched(model.service(prepared, context, self._noting(sink)))
        await events.end(b"".join(last) + renderer.end(self._story()))

    def _noting(self, sink: Callable[[Sequence[ChoiceOutputs]], None]) -> Callable[[Sequence[ChoiceOutputs]], None]:
        """The sink, watched where what it takes is to be told beside the answer."""
        return sink if self._asides is None else self._asides.watching(sink)

    async def _relay(self, model: RelayedModel, request: RelayRequest, context: RequestContext) -> None:
        """Through a model of OpenAI-compatible servers."""
        self._check_ready(model.card.name)
        usage = RelayUsage()
        self.record.prepared(usage)
        if request.stream:
            events = self._open_stream(context)

            def write(chunks: Sequence[Chunk]) -> None:
                if self.record.tracker.first_token_at is None and any(map(tells_something, chunks)):
                    self.record.answer_began()
                events.write(b"".join([b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]))

            await self._watched(model.relay(request, context, write, usage))
            story = self._story()
            if story is not None:
                write([request.shape.put_on({"choices": [], **story})])
            await events.end(DONE)
            return
        answers: list[Chunk] = []
        await self._watched(model.relay(request, context, answers.extend, usage))
        await send_json(self._turn, 200, orjson.dumps({**answers[0], **(self._story() or {})}), self._answer_headers())

    def _open_stream(self, context: RequestContext) -> EventStream:
        events = self._events = EventStream(
            self._turn,
            headers=lambda: [*SSE_HEADERS, *self._answer_headers()],
            flow=context.flow,
            ticker=self._gateway.ticker,
            limits=self._gateway.settings.server,
        )
        return events
