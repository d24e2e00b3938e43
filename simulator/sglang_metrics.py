"""SGLang 0.5.23: `/metrics` and `/v1/loads`, what routers and operators read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from simulator.jobs import Finish, Job
from simulator.model import EngineModel

if TYPE_CHECKING:
    from simulator.sglang import SglangWorker


@dataclass
class Counters:
    """What only ever grows."""

    requests: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    cached: int = 0
    aborted: int = 0
    failed_transfers: int = 0

    def count(self, job: Job) -> None:
        """A job is over."""
        self.prompt_tokens += job.prompt_tokens
        self.generated += job.generated
        self.cached += job.cached_tokens
        self.aborted += job.finish is Finish.ABORT


def render(worker: SglangWorker, counters: Counters) -> str:
    """The exposition text. The gauges exist per tensor-parallel rank; the simulator has one."""
    engine = {"aggregated": "unified"}.get(worker.options.role, worker.options.role)
    base = f'engine_type="{engine}",model_name="{worker.options.model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    lines: list[str] = []
    for rank, model in enumerate(worker.models):
        labels = base if len(worker.models) == 1 else f'{base},dp_rank="{rank}"'
        lines += [f"sglang:{name}{{{labels}}} {float(value)}" for name, value in _gauges(worker, model).items()]
    totals = {
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generated,
        "cached_tokens": counters.cached,
        "num_requests": counters.requests,
        "num_aborted_requests": counters.aborted,
        "num_transfer_failed_reqs": counters.failed_transfers,
    }
    lines += [f"sglang:{name}_total{{{base}}} {float(value)}" for name, value in totals.items()]
    return "\n".join(lines) + "\n"


def _gauges(worker: SglangWorker, model: EngineModel) -> dict[str, float]:
    cache = model.cache
    size = cache.block_size
    prefill = worker.options.role == "prefill"
    return {
        "num_running_reqs": len(model.running),
        "num_queue_reqs": len(model.waiting),
        "token_usage": cache.used / cache.total,
        "cache_hit_rate": cache.hits / cache.queries if cache.queries else 0.0,
        "num_used_tokens": cache.used * size,
        "max_total_num_tokens": cache.total * size,
        "page_size": size,
        "context_len": worker.options.context_length,
        "num_prefill_bootstrap_queue_reqs": worker.rooms.count if prefill else 0,
        "num_prefill_inflight_queue_reqs": cache.pins if prefill else 0,
        "num_decode_transfer_queue_reqs": len(model.loading),
    }


def loads(worker: SglangWorker) -> dict[str, Any]:
    """`GET /v1/loads`, the core, disaggregation and queue parts."""
    ranks = [_load(worker, rank, model) for rank, model in enumerate(worker.models)]
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = worker.options.version or "0.5.23"
    return {"timestamp": stamp, "version": version, "accelerator": "CPU", "num_accelerators": 1, "loads": ranks}


def _load(worker: SglangWorker, rank: int, model: EngineModel) -> dict[str, Any]:
    cache = model.cache
    used, total = cache.used * cache.block_size, cache.total * cache.block_size
    role = worker.options.role
    return {
        "timestamp": time.time(),
        "dp_rank": rank,
        "num_running_reqs": len(model.running),
        "num_waiting_reqs": len(model.waiting),
        "num_waiting_uncached_tokens": sum(job.prompt_tokens for job in model.waiting),
        "num_used_tokens": used,
        "num_total_tokens": used + sum(job.prompt_tokens for job in model.waiting),
        "num_active_tokens": used,
        "max_total_num_tokens": total,
        "max_running_requests": worker.options.pace.slots,
        "token_usage": used / total,
        "gen_throughput": 0.0,
        "cache_hit_rate": cache.hits / cache.queries if cache.queries else 0.0,
        "utilization": len(model.running) / worker.options.pace.slots,
        "disaggregation": {
            "mode": "null" if role == "aggregated" else role,
            "prefill_bootstrap_queue_reqs": worker.rooms.count if role == "prefill" else 0,
            "prefill_inflight_queue_reqs": cache.pins,
            "decode_prealloc_queue_reqs": len(model.waiting) if role == "decode" else 0,
            "decode_transfer_queue_reqs": len(model.loading),
            "decode_retracted_queue_reqs": 0,
        },
        "queues": {"waiting": len(model.waiting), "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }
