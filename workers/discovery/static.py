"""Workers named in the configuration: there from the start, and for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols.worker import Worker
from workers.registry import Registry


def register(registry: Registry, workers: Mapping[str, Sequence[Worker]]) -> None:
    """Adds every model's workers; a model without workers becomes known all the same.

    Raises ValueError when a worker id is given twice, before anything is added.
    """
    _check_ids(workers)
    for model, servers in workers.items():
        registry.declare(model)
        for worker in servers:
            registry.add(model, worker)


def _check_ids(workers: Mapping[str, Sequence[Worker]]) -> None:
    seen: dict[int, str] = {}
    for model, servers in workers.items():
        for worker in servers:
            place = f"{worker.url} ({model})"
            if worker.id in seen:
                raise ValueError(f"worker id {worker.id} is given to {seen[worker.id]} and to {place}")
            seen[worker.id] = place
