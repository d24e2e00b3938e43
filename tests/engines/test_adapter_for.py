"""Which adapter a worker gets."""

from __future__ import annotations

import pytest

from engines import adapter_for
from protocols.worker import Engine, WorkerTraits
from tests.engine_calls import worker


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        (Engine.VLLM, "VllmAdapter"),
        (Engine.SGLANG, "SglangAdapter"),
        (Engine.TRTLLM, "TrtllmAdapter"),
        (Engine.NATIVE, "NativeAdapter"),
        (Engine.OPENAI, "OpenAIAdapter"),
    ],
)
def test_each_engine_has_its_adapter(engine, kind):
    assert type(adapter_for(worker(engine), "m")).__name__ == kind


def test_a_connector_that_is_not_spoken_is_refused():
    with pytest.raises(ValueError, match="connector 'mooncake' is not supported"):
        adapter_for(worker(Engine.VLLM, connector="mooncake"), "m")


def test_the_connector_is_no_matter_of_the_wire_elsewhere():
    assert adapter_for(worker(Engine.SGLANG, connector="mooncake"), "m").worker.connector == "mooncake"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"served_name": "configured"}, "configured"),
        ({"traits": WorkerTraits(served_name="told")}, "told"),
        ({"traits": WorkerTraits()}, "m"),
    ],
)
def test_the_model_is_named_as_the_worker_knows_it(told, name):
    assert adapter_for(worker(Engine.VLLM, **told), "m").model == name
