"""Workers named in the configuration."""

from __future__ import annotations

import pytest

from protocols.worker import Engine, Worker
from routers.load import Loads
from workers.discovery.static import register
from workers.registry import Registry


@pytest.fixture
def registry() -> Registry:
    return Registry(lambda worker, model: None, Loads())  # type: ignore[arg-type, return-value]


def worker(worker_id):
    return Worker(worker_id, f"http://w{worker_id}:8000", Engine.VLLM)


def test_every_models_workers_are_registered(registry):
    register(registry, {"a": [worker(1), worker(2)], "b": [worker(3)]})

    assert [w.id for w in registry.workers()] == [1, 2, 3]
    assert registry.models() == ("a", "b")


def test_a_model_without_workers_is_known(registry):
    register(registry, {"a": []})

    assert registry.servable("a").reason == "no workers"


def test_an_id_given_twice_is_refused_before_anything_is_added(registry):
    with pytest.raises(ValueError, match=r"worker id 1 is given to http://w1:8000 \(a\) and to http://w1:8000 \(b\)"):
        register(registry, {"a": [worker(1)], "b": [worker(1)]})

    assert registry.workers() == ()
