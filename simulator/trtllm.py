"""A simulated TensorRT-LLM worker (`trtllm-serve`), of the 1.1, 1.2 or 1.3 kind.

Which part it plays is said by each request's `disaggregated_params`. There is no abort call, and once prefill has
answered nothing frees its blocks but decode's fetching them, or a timeout.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson

from simulator import trtllm_replies as replies
from simulator.http import Exchange
from simulator.jobs import Job, Output, Spec
from simulator.model import EngineModel
from simulator.options import SimulatorOptions
from simulator.peers import PeerLost, call_peer
from simulator.trtllm_answer import TrtllmAnswer
from simulator.trtllm_requests import CHAT, COMPLETION, Refused, read_request
from simulator.worker import Exit, SimulatedWorker

_VERSIONS = {"1.1": "1.1.0", "1.2": "1.2.0", "1.3": "1.3.0"}
_DEAD = b"LLM is unavailable. Please check the server logs for more details."


class TrtllmWorker(SimulatedWorker):
    """See the module."""

    def __init__(self, options: SimulatorOptions, *, exit_process: Exit | None = None) -> None:
        super().__init__(options, exit_process=exit_process)
        self._context_ids = itertools.count(17)
        self._by_job: dict[Job, TrtllmAnswer] = {}
        self._transfers: dict[Job, asyncio.Task[None]] = {}
        self._awaited: dict[int, Exchange] = {}
        self._ready: dict[int, Mapping[str, Any]] = {}
        self._seen_steps = 0
        self.routes |= {
            "/health": {"GET": self._health},
            "/health_generate": {"GET": self._health_generate},
            "/version": {"GET": self._version},
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._metrics},
            "/server_info": {"GET": self._server_info},
            "/kv_cache_events": {"POST": lambda exchange: exchange.json(200, [])},
            "/perf_metrics": {"GET": lambda exchange: exchange.json(200, [])},
            "/steady_clock_offset": {"GET": self._clock, "POST": self._clock},
            "/v1/completions": {"POST": lambda exchange: self._generation(exchange, COMPLETION)},
            "/v1/chat/completions": {"POST": lambda exchange: self._generation(exchange, CHAT)},
            "/_sim/context": {"POST": self._context_route},
        }

    # ---- generation

    def _generation(self, exchange: Exchange, kind: str) -> None:
        try:
            request = read_request(kind, exchange.body, self.options, self.codec)
        except Refused as refused:
            exchange.json(400, refused.body())
            return
        except (TypeError, ValueError, AttributeError) as error:
            exchange.json(400, {"error": str(error)})
            return
        answer = TrtllmAnswer(self, exchange, request)
        answer.fault = self.faults.for_request()
        answer.begin()
        for job in answer.jobs.values():
            if job.spec.peer is not None and not job.done:
                self._by_job[job] = answer

    def forget(self, answer: TrtllmAnswer) -> None:
        """An answer is over."""
        for job in answer.jobs.values():
            self._by_job.pop(job, None)

    # ---- context's side

    def next_context_id(self) -> int:
        """Before 1.2 the id of a context request is the worker's own, and small."""
        return next(self._context_ids)

    @property
    def endpoint(self) -> str:
        return f"tcp://{self.advertised_host}:{self.port}"

    def opaque_state(self, job: Job) -> dict[str, Any]:
        """Where decode fetches the KV; opaque to everybody else."""
        return {
            "host": self.advertised_host,
            "port": self.port,
            "engine_id": self.engine_ids[self.models.index(self._model_with(job.spec.pin))],
            "name": job.spec.pin,
            "blocks": list(job.pinned_blocks),
        }

    def release(self, name: str | None) -> None:
        """The first token was the last: nobody will fetch."""
        for model in self.models:
            if name is not None and model.cache.unpin(name):
                model.wake()

    def context_ready(self, context_id: int, params: Mapping[str, Any]) -> None:
        """For decode that came first (`schedule_style` 1): what it waits for is there."""
        if params.get("schedule_style") != 1:
            return
        waiting = self._awaited.pop(context_id, None)
        if waiting is None:
            self._ready[context_id] = params
            if self.options.trtllm.transfer_timeout_s is not None:
                self.later(self.options.trtllm.transfer_timeout_s, lambda: self._forget_context(context_id))
        else:
            waiting.on_close = None
            waiting.json(200, params)

    def _forget_context(self, context_id: int) -> None:
        self._ready.pop(context_id, None)

    def _context_route(self, exchange: Exchange) -> None:
        context_id = int(orjson.loads(exchange.body)["id"])
        params = self._ready.pop(context_id, None)
        if params is not None:
            exchange.json(200, params)
            return
        self._awaited[context_id] = exchange

        def left() -> None:
            self._awaited.pop(context_id, None)

        exchange.on_close = left

    def gauges(self) -> dict[str, int]:
        return {"rooms": len(self._awaited) + len(self._ready)}

    # ---- generation's side

    def load(self, job: Job) -> None:
        params = job.spec.peer
        assert isinstance(params, Mapping)
        self._transfers[job] = task = self.spawn(self._fetch(job, params))
        task.add_done_callback(lambda done: self._transfers.pop(job, None))

    def call_off(self, job: Job) -> None:
        """Decode was closed before its KV came: prefill hears nothing of it."""
        transfer = self._transfers.get(job)
        if transfer is not None:
            transfer.cancel()

    async def _fetch(self, job: Job, params: Mapping[str, Any]) -> None:
        request_id = params.get("disagg_request_id") or params.get("ctx_request_id")
        limit = self.options.trtllm.transfer_timeout_s
        try:
            async with asyncio.timeout(limit):
                contents, first = await self._read(job, params)
        except TimeoutError:
            self._fail(job, f"Timeout while waiting for the KV cache of request {request_id}")
            return
        except (PeerLost, KeyError, TypeError, ValueError):
            self._fail(job, f"KV cache transfer failed for request {request_id}")
            return
        self._model_loading(job).loaded(job, contents, first)

    async def _read(self, job: Job, params: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """Digests and first tokens. Raises PeerLost or ValueError when the transfer fails."""
        if params.get("schedule_style") == 1:
            peer = urlsplit(str(params["ctx_info_endpoint"]))
            wanted = {"id": params["disagg_request_id"]}
            status, reply = await call_peer(peer.hostname or "", peer.port or 0, "/_sim/context", wanted)
            if status != 200:
                raise ValueError("no such context request")
            params = reply
        state = replies.read_state(params.get("encoded_opaque_state"))
        if state is None:
            raise ValueError("not a transceiver state")
        model = self._model_loading(job)
        needed = model.cache.blocks_for(job.prompt_tokens) - job.local_hits
        await asyncio.sleep(self.options.pace.scaled(self.options.pace.transfer_s * needed))
        blocks = state["blocks"][job.local_hits :]
        asked = {
            "engine_id": state["engine_id"],
            "name": state["name"],
            "blocks": blocks,
            "tokens": job.prompt_tokens - job.local_hits * model.cache.block_size,
        }
        status, reply = await call_peer(state["host"], int(state["port"]), "/_sim/kv/read", asked)
        if status != 200 or not reply["known"] or reply["block_size"] != model.cache.block_size:
            raise ValueError("the context request is gone")
        return reply["contents"], list(params.get("first_gen_tokens") or ())

    def _fail(self, job: Job, message: str) -> None:
        answer = self._by_job.get(job)
        if answer is not None:
            answer.fail(400, message)

    def _model_loading(self, job: Job) -> EngineModel:
        return next((model for model in self.models if job in model.loading), self.model)

    def _model_with(self, pin: str | None) -> EngineModel:
        return next(model for model in self.models if model.cache.has_pin(pin or ""))

    # ---- the other routes

    def _health(self, exchange: Exchange) -> None:
        if self.dead:
            exchange.reply(503, _DEAD, "text/plain; charset=utf-8")
        else:
            exchange.reply(200, b"", "")

    def _health_generate(self, exchange: Exchange) -> None:
        def sink(job: Job, output: Output) -> None:
            exchange.reply(200, b"Generation health check OK", "text/plain; charset=utf-8")

        self.model.submit(Spec(prompt=(0,), limit=1), sink)

    def _version(self, exchange: Exchange) -> None:
        exchange.json(200, {"version": self.options.version or _VERSIONS[self.options.trtllm.band]})

    def _models(self, exchange: Exchange) -> None:
        card = {"id": self.options.model, "object": "model", "created": int(time.time()), "owned_by": "tensorrt_llm"}
        exchange.json(200, {"object": "list", "data": [card]})

    def _server_info(self, exchange: Exchange) -> None:
        info: dict[str, Any] = {"disaggregated_params": {"ctx_dp_rank": 0, "ctx_info_endpoint": [self.endpoint]}}
        if self.options.trtllm.band >= "1.3":
            info |= {"kv_cache_hash_algo": "v1_block_key", "tokens_per_block": self.options.block_size}
        exchange.json(200, info)

    def _clock(self, exchange: Exchange) -> None:
        exchange.json(200, {"receive_ts": self.loop.time(), "transmit_ts": self.loop.time()})

    def _metrics(self, exchange: Exchange) -> None:
        """Drained on read: `[]` when no iteration was run since the last one."""
        steps = sum(model.steps for model in self.models)
        if not self.options.trtllm.stats or steps == self._seen_steps:
            exchange.json(200, [])
            return
        self._seen_steps = steps
        exchange.json(200, [_iteration(self, model) for model in self.models])


def _iteration(worker: TrtllmWorker, model: EngineModel) -> dict[str, Any]:
    cache, pace = model.cache, worker.options.pace
    return {
        "iter": model.steps,
        "iterLatencyMS": pace.scaled(pace.decode_s) * 1000,
        "numActiveRequests": len(model.running),
        "numQueuedRequests": len(model.waiting) + len(model.loading),
        "numCompletedRequests": 0,
        "maxNumActiveRequests": pace.slots,
        "gpuMemUsage": 71_000_000_000,
        "cpuMemUsage": 5_000_000_000,
        "pinnedMemUsage": 200_000_000,
        "kvCacheStats": {
            "maxNumBlocks": cache.total,
            "freeNumBlocks": cache.free,
            "usedNumBlocks": cache.used,
            "tokensPerBlock": cache.block_size,
            "allocTotalBlocks": cache.queries // cache.block_size,
            "allocNewBlocks": (cache.queries - cache.hits) // cache.block_size,
            "reusedBlocks": cache.hits // cache.block_size,
            "missedBlocks": (cache.queries - cache.hits) // cache.block_size,
            "cacheHitRate": cache.hits / cache.queries if cache.queries else 0.0,
        },
        "inflightBatchingStats": {
            "numScheduledRequests": len(model.running),
            "numContextRequests": sum(job.generated == 0 for job in model.running),
            "numGenRequests": sum(job.generated > 0 for job in model.running),
            "numPausedRequests": model.preemptions,
            "numCtxTokens": 0,
            "microBatchId": 0,
            "avgNumDecodedTokensPerIter": float(pace.tokens_per_step),
        },
        "timestamp": datetime.now(UTC).strftime("%m-%d-%Y %H:%M:%S.%f"),
    }
