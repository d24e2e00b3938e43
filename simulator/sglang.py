"""A simulated SGLang 0.5.23 worker: alone, or one half of a prefill/decode pair over its bootstrap server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from simulator import embeddings, sglang_metrics
from simulator import sglang_replies as replies
from simulator.http import Exchange, Handler
from simulator.jobs import Job, Output, Spec
from simulator.options import SimulatorOptions
from simulator.peers import PeerLost, call_peer
from simulator.rooms import Bootstrap, Rooms
from simulator.sglang_answer import SglangAnswer
from simulator.sglang_rendering import DONE
from simulator.sglang_requests import (
    FlatRefused,
    OutOfVocabulary,
    Refused,
    SglangRequest,
    check_lengths,
    read_body,
    read_chat,
    read_completion,
    read_native,
)
from simulator.worker import Exit, SimulatedWorker

_HEADERS = {"vary": "Origin"}
_MISSES = 2
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
_QUEUE_FULL = "The request queue is full."


class SglangWorker(SimulatedWorker):
    """`role` is fixed at start, as in the real engine: a prefill or decode worker takes no plain requests."""

    def __init__(self, options: SimulatorOptions, *, exit_process: Exit | None = None) -> None:
        # Decode keeps no prefix cache unless --disaggregation-decode-enable-radix-cache (0.5.23).
        super().__init__(replace(options, reuse=options.reuse and options.role != "decode"), exit_process=exit_process)
        self.rooms = Rooms(self, options.sglang.bootstrap_timeout_s)
        self.counters = sglang_metrics.Counters()
        self._live: dict[str, SglangAnswer] = {}
        self._by_job: dict[Job, tuple[SglangAnswer, int]] = {}
        self._transfers: dict[Job, asyncio.Task[None]] = {}
        self._seed = secrets.randbits(30)
        flush: dict[str, Handler] = {"GET": self._flush, "POST": self._flush}
        self.routes |= {
            "/health": {"GET": self._health},
            "/health_generate": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/ping": {"GET": lambda exchange: self._empty(exchange, 200)},
            "/model_info": {"GET": self._model_info},
            "/get_model_info": {"GET": self._model_info},
            "/server_info": {"GET": self._server_info},
            "/get_server_info": {"GET": self._server_info},
            "/v1/models": {"GET": self._models},
            "/v1/loads": {"GET": self._loads},
            "/tokenize": {"POST": self._tokenize},
            "/v1/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/detokenize": {"POST": self._detokenize},
            "/flush_cache": flush,
            "/abort_request": {"POST": self._abort},
            "/generate": {"POST": self._generate, "PUT": self._generate},
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/embeddings": {"POST": lambda exchange: embeddings.sglang(self, exchange)},
            "/_sim/room": {"POST": self._room},
        }
        if options.sglang.enable_metrics:
            self.routes["/metrics"] = {"GET": self._metrics}

    async def start(self) -> None:
        await super().start()
        if self.options.role == "prefill":
            self.bootstrap_port = await self.server.listen(self.options.host, self.options.bootstrap_port)

    def gauges(self) -> dict[str, int]:
        return {"rooms": self.rooms.count}

    # ---- generation

    def _generate(self, exchange: Exchange) -> None:
        self._generation(exchange, lambda body: read_native(body, self.options, self.codec))

    def _completions(self, exchange: Exchange) -> None:
        self._generation(exchange, lambda body: read_completion(body, exchange.headers, self.options, self.codec))

    def _chat(self, exchange: Exchange) -> None:
        self._generation(exchange, lambda body: read_chat(body, exchange.headers, self.options, self.codec))

    def _generation(self, exchange: Exchange, read: Callable[[Any], SglangRequest]) -> None:
        native = exchange.path == "/generate"
        stream = False
        try:
            body = read_body(exchange.body, exchange.path)
            stream = bool(body.get("stream"))
            request = read(body)
            check_lengths(request, self.options)
            self._check_rids(request)
        except OutOfVocabulary:
            self.die()
            return
        except Refused as refused:
            self._refuse(exchange, refused, native, stream)
            return
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            self._json(exchange, 400, {"error": str(error)} if native else Refused(str(error)).flat())
            return
        answer = SglangAnswer(self, exchange, request)
        for rid in answer.rids:
            self._live[rid] = answer
        limit = self.options.sglang.max_queued
        if limit is not None and self.waiting >= limit:
            if native and stream:
                exchange.start(200, "text/event-stream; charset=utf-8", None, _HEADERS)
            answer.fail(503, _QUEUE_FULL)
            return
        answer.fault = self.faults.for_request()
        self.counters.requests += 1
        answer.begin()
        for place, job in answer.jobs.items():
            if isinstance(job.spec.peer, Bootstrap) and not job.done:
                self._by_job[job] = (answer, place)

    def _check_rids(self, request: SglangRequest) -> None:
        for item in request.items:
            if item.rid in self._live:
                raise Refused(f"Duplicate request ID detected: {item.rid}")

    def _refuse(self, exchange: Exchange, refused: Refused, native: bool, stream: bool) -> None:
        """On `/generate` a stream is 200 once the body was JSON; the error is its only event."""
        if not native or isinstance(refused, FlatRefused):
            self._json(exchange, refused.status, refused.flat())
        elif not stream:
            self._json(exchange, refused.status, {"error": {"message": refused.message}})
        else:
            error = {
                "message": refused.message,
                "type": "invalid_request_error",
                "code": refused.status,
                "retryable": False,
            }
            exchange.start(200, "text/event-stream; charset=utf-8", None, _HEADERS)
            exchange.write(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
            exchange.write(DONE)
            exchange.finish()

    def forget(self, answer: SglangAnswer) -> None:
        """An answer is over: its rids are free, its rooms left, its tokens counted."""
        for rid in answer.rids:
            if self._live.get(rid) is answer:
                del self._live[rid]
        for bootstrap in answer.bootstraps:
            self.rooms.leave_prefill(bootstrap, answer)
        for job in answer.jobs.values():
            self._by_job.pop(job, None)
            self.counters.count(job)

    def _abort(self, exchange: Exchange) -> None:
        """Matches by prefix: "r1" also aborts "r10". Always 200."""
        try:
            asked = orjson.loads(exchange.body)
        except ValueError:
            asked = {}
        rid = asked.get("rid") or ""
        self._empty(exchange, 200)
        for answer in list(self.answers):
            if not isinstance(answer, (SglangAnswer, embeddings.EmbeddingAnswer)):
                continue
            if asked.get("abort_all") or (rid and any(known.startswith(rid) for known in answer.rids)):
                answer.abort()

    # ---- the pair

    def _room(self, exchange: Exchange) -> None:
        self.rooms.join_decode(int(orjson.loads(exchange.body)["room"]), exchange)

    def load(self, job: Job) -> None:
        bootstrap = job.spec.peer
        assert isinstance(bootstrap, Bootstrap)
        if bootstrap.fake:
            # The fake peer transfers nothing: what comes out is garbage, by design.
            self.loop.call_soon(self._model_of(job).loaded, job, (), (self.vocabulary.words[0],))
        else:
            self._transfers[job] = task = self.spawn(self._receive(job, bootstrap))
            task.add_done_callback(lambda done: self._transfers.pop(job, None))

    def call_off(self, job: Job) -> None:
        """The job is over before its KV came: prefill sees the connection close."""
        transfer = self._transfers.get(job)
        if transfer is not None:
            transfer.cancel()

    async def _receive(self, job: Job, bootstrap: Bootstrap) -> None:
        """Shakes hands with prefill and waits for the KV; a peer that stays away is looked after by heartbeat."""
        limits = self.options.sglang
        model, misses = self._model_of(job), 0
        deadline = self.loop.time() + limits.waiting_timeout_s
        while not job.done:
            left = deadline - self.loop.time()
            try:
                payload = {"room": bootstrap.room}
                status, reply = await call_peer(bootstrap.host, bootstrap.port, "/_sim/room", payload, max(left, 0.0))
                if status == 200 and reply["block_size"] == model.cache.block_size:
                    self._arrived(job, reply)
                    return
                self._transfer_failed(job, bootstrap, "KV layouts differ")
                return
            except PeerLost as lost:
                misses += 1
                if left <= 0 or self.loop.time() >= deadline:
                    reason = f"timed out after {limits.waiting_timeout_s:g}s in KVPoll.WaitingForInput"
                    self._transfer_failed(job, bootstrap, reason)
                    return
                if misses >= _MISSES:
                    self._transfer_failed(job, bootstrap, f"Lost connection with prefill instance ({lost})")
                    return
            await asyncio.sleep(limits.heartbeat_s)

    def _arrived(self, job: Job, reply: dict[str, Any]) -> None:
        entry = self._by_job.get(job)
        if entry is not None:
            answer, place = entry
            answer.cached_by_peer(place, reply["cached_tokens"])
        self._model_of(job).loaded(job, reply["contents"], reply["first_ids"])

    def _transfer_failed(self, job: Job, bootstrap: Bootstrap, reason: str) -> None:
        self.counters.failed_transfers += 1
        entry = self._by_job.get(job)
        if entry is not None:
            entry[0].fail(500, f"Decode transfer failed for request with bootstrap_room={bootstrap.room}: {reason}")

    def _model_of(self, job: Job) -> Any:
        return next((model for model in self.models if job in model.loading), self.model)

    # ---- health

    def _health(self, exchange: Exchange) -> None:
        """Deep: a one-token request really runs, and the reply takes `health_s` at least."""
        if exchange.local_port == self.bootstrap_port:
            exchange.reply(200, b"OK", "text/plain; charset=utf-8")
            return
        if self.draining:
            self._empty(exchange, 503)
            return
        due = self.loop.time() + self.options.sglang.health_s

        def sink(job: Job, output: Output) -> None:
            self.later(max(due - self.loop.time(), 0.0), lambda: self._empty(exchange, 200))

        self.model.submit(Spec(prompt=(0,), limit=1), sink)

    def _ready(self, exchange: Exchange) -> None:
        self._empty(exchange, 503 if self.draining else 200)

    async def shutdown(self) -> None:
        """SIGTERM: unhealthy at once, but new requests are still taken; the end comes when there are none."""
        self.draining = True
        await self.quiet()
        self.close()

    # ---- the other routes

    def unknown_route(self, exchange: Exchange) -> None:
        self._json(exchange, 404, {"detail": "Not Found"})

    def _json(self, exchange: Exchange, status: int, value: Any) -> None:
        exchange.json(status, value, _HEADERS)

    def _empty(self, exchange: Exchange, status: int) -> None:
        exchange.reply(status, b"", "", _HEADERS)

    def _models(self, exchange: Exchange) -> None:
        self._json(exchange, 200, {"object": "list", "data": [replies.model_card(self.options, int(time.time()))]})

    def dynamic_route(self, path: str) -> dict[str, Handler] | None:
        prefix = "/v1/models/"
        return {"GET": lambda exchange: self._model(exchange, path[len(prefix) :])} if path.startswith(prefix) else None

    def _model(self, exchange: Exchange, name: str) -> None:
        if name == self.options.model:
            self._json(exchange, 200, replies.model_card(self.options, int(time.time())))
            return
        message = f"The model '{name}' does not exist"
        error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        self._json(exchange, 404, {"error": error})

    def _model_info(self, exchange: Exchange) -> None:
        self._json(exchange, 200, replies.model_info(self.options))

    def _server_info(self, exchange: Exchange) -> None:
        self._json(exchange, 200, replies.server_info(self.options, self.port, self.bootstrap_port, self._seed))

    def _loads(self, exchange: Exchange) -> None:
        self._json(exchange, 200, sglang_metrics.loads(self))

    def _metrics(self, exchange: Exchange) -> None:
        text = sglang_metrics.render(self, self.counters)
        exchange.reply(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8", _HEADERS)

    def _tokenize(self, exchange: Exchange) -> None:
        body = orjson.loads(exchange.body or b"{}")
        prompt = body.get("prompt")
        ids: Any
        if isinstance(prompt, list):
            ids = [list(self.codec.encode(part)) for part in prompt]
            count: Any = [len(part) for part in ids]
        else:
            ids = self.codec.render(body["messages"]) if body.get("messages") else list(self.codec.encode(prompt or ""))
            count = len(ids)
        self._json(exchange, 200, {"tokens": ids, "count": count, "max_model_len": self.options.context_length})

    def _detokenize(self, exchange: Exchange) -> None:
        ids = orjson.loads(exchange.body or b"{}").get("tokens") or []
        self._json(exchange, 200, {"text": self.codec.decode([i for i in ids if i not in self.vocabulary.special])})

    def _flush(self, exchange: Exchange) -> None:
        if self.answers or not all(model.cache.clear() for model in self.models):
            exchange.reply(400, _FLUSHED.encode(), "", _HEADERS)
            return
        exchange.reply(200, _FLUSHED.encode(), "", _HEADERS)
