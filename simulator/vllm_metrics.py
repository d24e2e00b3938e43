"""vLLM 0.32: `/metrics`, the lines that routers and operators read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.jobs import Finish, Job

if TYPE_CHECKING:
    from simulator.vllm import VllmWorker

_REASONS = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length"}
_TOKEN_BYTES = 47_104
"""KV bytes per token that the transfer counters pretend."""


@dataclass
class Counters:
    """What only ever grows."""

    requests: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
    )
    transfers: int = 0
    transferred_tokens: int = 0
    failed_transfers: int = 0
    failed_notifications: int = 0
    late_notifications: int = 0

    def count(self, job: Job) -> None:
        """A job is over. Aborts are not counted by reason: the real engine does not either (0.32)."""
        self.prompt_tokens += job.prompt_tokens
        self.generated += job.generated
        reason = _REASONS.get(job.finish) if job.finish is not None else None
        if reason is not None:
            self.finished[reason] += 1

    def transferred(self, tokens: int, blocks: int) -> None:
        """One read of a peer's KV."""
        self.transfers += 1
        self.transferred_tokens += tokens


def render(worker: VllmWorker, counters: Counters) -> str:
    """The exposition text."""
    name = worker.options.model
    lines = [f"process_start_time_seconds {worker.started_at}"]
    for rank, model in enumerate(worker.models):
        labels = f'engine="{rank}",model_name="{name}"'
        cache = model.cache
        gauges = {
            "num_requests_running": len(model.running),
            "num_requests_waiting": len(model.waiting) + len(model.loading),
            "kv_cache_usage_perc": cache.used / cache.total,
        }
        lines += [f"vllm:{key}{{{labels}}} {float(value)}" for key, value in gauges.items()]
        reasons = {"capacity": len(model.waiting), "deferred": len(model.loading)}
        lines += [
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {float(value)}'
            for reason, value in reasons.items()
        ]
        totals = {
            "prefix_cache_queries": cache.queries,
            "prefix_cache_hits": cache.hits,
            "num_preemptions": model.preemptions,
            "nixl_num_kv_expired_reqs": cache.expired_pins,
        }
        lines += [f"vllm:{key}_total{{{labels}}} {float(value)}" for key, value in totals.items()]
        config = f'block_size="{cache.block_size}",cache_dtype="auto",num_gpu_blocks="{cache.total}"'
        lines.append(f'vllm:cache_config_info{{{config},engine="{rank}"}} 1.0')
    return "\n".join([*lines, *_shared(counters, f'engine="0",model_name="{name}"')]) + "\n"


def _shared(counters: Counters, labels: str) -> list[str]:
    totals = {
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generated,
        "external_prefix_cache_hits": counters.transferred_tokens,
        "external_prefix_cache_queries": counters.transferred_tokens,
        "nixl_num_failed_transfers": counters.failed_transfers,
        "nixl_num_failed_notifications": counters.failed_notifications,
        "nixl_num_notifications_after_expiry": counters.late_notifications,
    }
    lines = [f"vllm:{key}_total{{{labels}}} {float(value)}" for key, value in totals.items()]
    lines += [
        f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(value)}'
        for reason, value in counters.finished.items()
    ]
    lines.append(f"vllm:nixl_bytes_transferred_sum{{{labels}}} {float(counters.transferred_tokens * _TOKEN_BYTES)}")
    lines.append(f"vllm:nixl_bytes_transferred_count{{{labels}}} {float(counters.transfers)}")
    return lines
