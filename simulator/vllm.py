"""A simulated vLLM 0.32 worker: its routes, and the NIXL hand-off between two of them.

What surprises: a decode call whose parameters came too late is answered 200 with wrong ids, as the real engine does;
only prefill's counters tell. Fewer block ids than the prompt needs end the whole worker.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from simulator import embeddings, vllm_metrics
from simulator import vllm_replies as replies
from simulator.http import Exchange, Handler
from simulator.jobs import Job
from simulator.options import SimulatorOptions
from simulator.peers import PeerLost, call_peer
from simulator.vllm_answer import VllmAnswer
from simulator.vllm_fields import Refused, read_body
from simulator.vllm_requests import VllmRequest, read_chat, read_completion, read_generate
from simulator.worker import Exit, SimulatedWorker

VERSION = "0.32.0"
_CRASH = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_SCALE_OUT = Refused(
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    kind="PermissionDeniedError",
    status=403,
)
_BUSY = Refused("The engine is currently busy: too many requests are queued.", kind="Service Unavailable", status=503)
_HEARTBEATS_PER_LEASE = 6
_EXTENSION = 2 / 3


class VllmWorker(SimulatedWorker):
    """Any role: which part it plays is said by each request's `kv_transfer_params`."""

    def __init__(self, options: SimulatorOptions, *, exit_process: Exit | None = None) -> None:
        super().__init__(options, exit_process=exit_process)
        self.counters = vllm_metrics.Counters()
        self.crashed = False
        self._by_id: dict[str, VllmAnswer] = {}
        self._by_job: dict[Job, VllmAnswer] = {}
        self._beats: dict[Job, asyncio.TimerHandle] = {}
        ping: dict[str, Handler] = {"GET": self._health, "POST": self._health}
        self.routes |= {
            "/health": {"GET": self._health},
            "/ping": ping,
            "/version": {"GET": lambda exchange: self._json(exchange, 200, {"version": options.version or VERSION})},
            "/load": {"GET": lambda exchange: self._json(exchange, 200, {"server_load": 0})},
            "/kv_event_sources": {"GET": lambda exchange: self._json(exchange, 200, {})},
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset},
            "/v1/completions": {"POST": lambda exchange: self._generation(exchange, read_completion)},
            "/v1/chat/completions": {"POST": lambda exchange: self._generation(exchange, read_chat)},
            "/inference/v1/generate": {"POST": self._generate},
            "/inference/v1/abort_requests": {"POST": self._abort},
        }
        if options.embedding_size:
            # A server of a model that generates has no such route at all.
            self.routes["/v1/embeddings"] = {"POST": self._embed}

    # ---- generation

    def _generate(self, exchange: Exchange) -> None:
        if not self.options.vllm.scale_out:
            self._refuse(exchange, _SCALE_OUT)
            return
        self._generation(exchange, lambda body, options, codec: read_generate(body, options))

    def _embed(self, exchange: Exchange) -> None:
        if self.crashed or self.draining:
            self._refuse(exchange, Refused(_CRASH, kind="InternalServerError", status=500))
        else:
            embeddings.vllm(self, exchange)

    def _generation(self, exchange: Exchange, read: Callable[..., VllmRequest]) -> None:
        if self.crashed:
            self._refuse(exchange, Refused(_CRASH, kind="InternalServerError", status=500))
            return
        body: Mapping[str, Any] = {}
        try:
            body = read_body(exchange.body, exchange.headers.get("content-type", ""))
            request = read(body, self.options, self.codec)
            rank = self._rank(exchange)
            limit = self.options.vllm.max_queued
            if limit is not None and self.waiting >= limit:
                raise _BUSY
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            self._refuse(exchange, Refused(f"1 validation error:\n  {error}", kind="Bad Request"))
            return
        except Refused as refused:
            self._refuse(exchange, refused)
            if not refused.unread:
                self.refused(body.get("kv_transfer_params"), tokens_only="token_ids" in body)
            return
        self._begin(VllmAnswer(self, exchange, request, exchange.headers.get("x-request-id")), rank)

    def _begin(self, answer: VllmAnswer, rank: int) -> None:
        if self.draining:
            answer.refuse_quietly()
            return
        answer.fault = self.faults.for_request()
        for name in answer.engine_ids:
            self._by_id[name] = answer
        self.counters.requests += 1
        answer.begin(rank)
        for job in answer.jobs.values():
            if isinstance(job.spec.peer, Mapping) and not job.done:
                self._by_job[job] = answer
                self._beat_later(job, job.spec.peer)

    def _rank(self, exchange: Exchange) -> int:
        text = exchange.headers.get("x-data-parallel-rank", "")
        try:
            rank = int(text)
        except ValueError:
            return self.least_loaded()
        if not 0 <= rank < self.options.dp_size:
            raise Refused(f"data_parallel_rank {rank} is out of range [0, {self.options.dp_size}).")
        return rank

    def forget(self, answer: VllmAnswer) -> None:
        """An answer is over: its ids are free, its tokens counted."""
        for name in answer.engine_ids:
            if self._by_id.get(name) is answer:
                del self._by_id[name]
        for job in answer.jobs.values():
            self._by_job.pop(job, None)
            self._stop_beating(job)
            self.counters.count(job)

    # ---- decode's side of NIXL

    def load(self, job: Job) -> None:
        peer = job.spec.peer
        assert isinstance(peer, Mapping)
        self.spawn(self._pull(job, peer))

    async def _pull(self, job: Job, peer: Mapping[str, Any]) -> None:
        """Reads the peer's blocks into the job's own, at the moment the transfer ends."""
        model = next((model for model in self.models if job in model.loading), None)
        if model is None:
            return
        needed = model.cache.blocks_for(job.prompt_tokens) - job.local_hits
        try:
            blocks = [int(block) for group in peer["remote_block_ids"] for block in _group(group)]
            host, port = str(peer["remote_host"]), int(peer["remote_port"])
        except (KeyError, TypeError, ValueError):
            self._load_failed(job)
            return
        answer = self._by_job.get(job)
        if len(blocks) < needed or (answer is not None and len(answer.request.prompts) > 1):
            self.crash()
            return
        await asyncio.sleep(self.options.pace.scaled(self.options.pace.transfer_s * needed))
        asked = {
            "engine_id": peer.get("remote_engine_id"),
            "name": peer.get("remote_request_id"),
            "blocks": blocks[len(blocks) - needed :],
            "tokens": job.prompt_tokens - job.local_hits * model.cache.block_size,
        }
        try:
            status, reply = await call_peer(host, port, "/_sim/kv/read", asked, self.options.vllm.lease_s)
        except PeerLost:
            status, reply = 0, None
        if status != 200 or reply["block_size"] != model.cache.block_size:
            self._load_failed(job)
            return
        self._stop_beating(job)
        self.counters.transferred(job.prompt_tokens - job.local_hits * model.cache.block_size, needed)
        model.loaded(job, reply["contents"])

    def _load_failed(self, job: Job) -> None:
        self._stop_beating(job)
        self.counters.failed_transfers += 1
        if self.options.vllm.recompute:
            for model in self.models:
                model.load_failed(job)
            return
        answer = self._by_job.get(job)
        if answer is not None:
            answer.fail(500, "Internal server error")

    def _beat_later(self, job: Job, peer: Mapping[str, Any]) -> None:
        """While decode has not read yet, it prolongs prefill's lease."""
        period = self.options.vllm.lease_s / _HEARTBEATS_PER_LEASE
        self._beats[job] = self.later(period, lambda: self._beat(job, peer))

    def _stop_beating(self, job: Job) -> None:
        timer = self._beats.pop(job, None)
        if timer is not None:
            self.never(timer)

    def _beat(self, job: Job, peer: Mapping[str, Any]) -> None:
        self.spawn(self._tell_peer(peer, "/_sim/kv/extend"))
        self._beat_later(job, peer)

    def refused(self, kv: object, *, tokens_only: bool) -> None:
        """A handler of decode's refused a call: those of the OpenAI routes have prefill told that nobody comes."""
        if isinstance(kv, Mapping) and kv.get("do_remote_prefill") and not tokens_only:
            self.release_at_peer(kv)

    def release_at_peer(self, peer: Mapping[str, Any]) -> None:
        """An empty read: decode will not come for these blocks, prefill may free them."""
        if not self.dead and not self.crashed:
            self.spawn(self._tell_peer(peer, "/_sim/kv/release"))

    async def _tell_peer(self, peer: Mapping[str, Any], path: str) -> None:
        try:
            host, port = str(peer["remote_host"]), int(peer["remote_port"])
            await call_peer(host, port, path, {"name": peer["remote_request_id"]}, self.options.vllm.lease_s)
        except (PeerLost, KeyError, TypeError, ValueError):
            self.counters.failed_notifications += 1

    # ---- prefill's side of NIXL

    def kv_was_read(self, name: str, known: bool) -> None:
        if not known:
            self.counters.late_notifications += 1

    def lease_extension_s(self) -> float:
        return self.options.vllm.lease_s * _EXTENSION

    # ---- ends

    def crash(self) -> None:
        """EngineDeadError: every request fails, and soon the whole process is gone."""
        if self.crashed:
            return
        self.crashed = True
        for answer in list(self.answers):
            answer.fail(500, _CRASH)
        self.later(self.options.vllm.crash_delay_s, self.die)

    async def shutdown(self) -> None:
        """SIGTERM. Without a timeout all answers end "abort" at once; with one, only new requests do meanwhile."""
        self.draining = True
        if self.options.vllm.shutdown_timeout_s > 0:
            await self.quiet(self.options.vllm.shutdown_timeout_s)
        for answer in list(self.answers):
            answer.abort()
        self.close()

    # ---- the other routes

    def headers_for(self, exchange: Exchange) -> dict[str, str]:
        headers = {"vary": "Origin"}
        if self.options.vllm.request_id_headers:
            headers["x-request-id"] = exchange.headers.get("x-request-id") or secrets.token_hex(16)
        return headers

    def unknown_route(self, exchange: Exchange) -> None:
        self._json(exchange, 404, {"detail": "Not Found"})

    def _json(self, exchange: Exchange, status: int, value: Any) -> None:
        exchange.json(status, value, self.headers_for(exchange))

    def _refuse(self, exchange: Exchange, refused: Refused) -> None:
        self._json(exchange, refused.status, refused.envelope())

    def _health(self, exchange: Exchange) -> None:
        exchange.reply(503 if self.crashed else 200, b"", "", self.headers_for(exchange))

    def _models(self, exchange: Exchange) -> None:
        options = self.options
        created = int(self.started_at)
        self._json(exchange, 200, replies.models(options.model, options.model_path, created, options.context_length))

    def _metrics(self, exchange: Exchange) -> None:
        text = vllm_metrics.render(self, self.counters)
        kind = "text/plain; version=1.0.0; charset=utf-8"
        exchange.reply(200, text.encode(), kind, self.headers_for(exchange))

    def _tokenize(self, exchange: Exchange) -> None:
        try:
            body = read_body(exchange.body, exchange.headers.get("content-type", ""))
        except Refused as refused:
            self._refuse(exchange, refused)
            return
        messages = body.get("messages")
        ids = self.codec.render(messages) if messages else list(self.codec.encode(str(body.get("prompt", ""))))
        names = [self.codec.decode([i]) for i in ids] if body.get("return_token_strs") else None
        value = {"count": len(ids), "max_model_len": self.options.context_length, "tokens": ids, "token_strs": names}
        self._json(exchange, 200, value)

    def _detokenize(self, exchange: Exchange) -> None:
        try:
            body = read_body(exchange.body, exchange.headers.get("content-type", ""))
        except Refused as refused:
            self._refuse(exchange, refused)
            return
        self._json(exchange, 200, {"prompt": self.codec.decode(body.get("tokens") or [])})

    def _reset(self, exchange: Exchange) -> None:
        done = [model.cache.clear() for model in self.models]
        self._json(exchange, 200, {"success": all(done)})

    def _abort(self, exchange: Exchange) -> None:
        """Answers 200 whatever the ids; only the engine's own, prefixed ids match."""
        if not self.options.vllm.scale_out:
            self._refuse(exchange, _SCALE_OUT)
            return
        try:
            ids = orjson.loads(exchange.body)["request_ids"]
        except (ValueError, KeyError, TypeError):
            self._refuse(exchange, Refused("Missing 'request_ids' in request body", kind="Bad Request"))
            return
        exchange.reply(200, b"", "", self.headers_for(exchange))
        for name in ids:
            answer = self._by_id.get(name)
            if answer is not None:
                answer.abort()


def _group(group: Any) -> list[Any]:
    """Block ids come as one list per KV group; older releases sent one flat list."""
    return group if isinstance(group, list) else [group]
