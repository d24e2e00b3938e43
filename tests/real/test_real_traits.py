"""What the adapters read out of real workers' probes."""

from __future__ import annotations

import httpx

from engines import adapter_for
from engines.base import EngineAdapter, Probe, ProbeReply
from protocols.worker import Engine, Role, Worker, WorkerTraits
from tests.real.fleets import PAIRS, SETUPS, Fleet, on
from tests.real.processes import ENGINE_MODEL, EngineServer, GatewayServer
from tests.real.prompts import CONTEXT

VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}


def adapter_of(server: EngineServer) -> EngineAdapter:
    return adapter_for(Worker(1, server.url, Engine(server.engine), Role(server.role)), "smol")


def asked(server: EngineServer, probe: Probe) -> ProbeReply:
    headers = {"content-type": "application/json"} if probe.body is not None else {}
    reply = httpx.request(
        probe.method, server.url + probe.path, content=probe.body, headers=headers, timeout=probe.timeout_s
    )
    return ProbeReply(reply.status_code, reply.content)


def traits_of(server: EngineServer) -> WorkerTraits:
    adapter = adapter_of(server)
    return adapter.traits({probe.path: asked(server, probe) for probe in adapter.info_probes()})


@on(*SETUPS)
def test_a_worker_tells_who_it_is(fleet: Fleet, gateway: GatewayServer) -> None:
    told = [traits_of(server) for server in fleet.servers]

    assert {traits.served_name for traits in told} == {ENGINE_MODEL}
    assert {traits.context_length for traits in told} == {CONTEXT, fleet.setup.context}
    assert told[-1].context_length == fleet.setup.context
    assert all((traits.version or "").startswith(VERSIONS[fleet.engine]) for traits in told)
    assert all(traits.incarnation for traits in told)


@on(*SETUPS)
def test_what_makes_a_pair_is_known_of_every_worker(fleet: Fleet, gateway: GatewayServer) -> None:
    told = [traits_of(server) for server in fleet.servers]

    pages = {"vllm": 32, "sglang": 1}
    assert {(traits.page_size, traits.kv_dtype) for traits in told} == {(pages[fleet.engine], "auto")}


@on("vllm", "vllm-completions", "vllm-pair", "vllm-pair-completions")
def test_vllm_tells_whether_its_generate_route_is_open(fleet: Fleet, gateway: GatewayServer) -> None:
    opened = "--enable-scale-out" in fleet.setup.options

    assert {traits_of(server).generate for server in fleet.servers} == {opened}


@on("sglang", "sglang-pair")
def test_sglang_tells_how_it_was_started(fleet: Fleet, gateway: GatewayServer) -> None:
    told = [traits_of(server) for server in fleet.servers]

    assert [traits.role for traits in told] == [Role(server.role) for server in fleet.servers]
    assert {(traits.incremental, traits.dp_size, traits.ready_route) for traits in told} == {(False, 1, True)}
    assert {traits.priority_sign for traits in told} == {0}


@on("sglang-pair")
def test_sglang_tells_its_bootstrap_port(fleet: Fleet, gateway: GatewayServer) -> None:
    server = fleet.role("prefill")

    assert traits_of(server).bootstrap_port == server.side_port


@on(*PAIRS)
def test_both_workers_of_a_pair_have_the_same_key(fleet: Fleet, gateway: GatewayServer) -> None:
    keys = {
        Worker(1, server.url, Engine(server.engine), Role(server.role), traits=traits_of(server)).pair_key()
        for server in fleet.servers
    }

    assert len(keys) == 1


@on(*SETUPS)
def test_a_healthy_worker_is_found_healthy(fleet: Fleet, gateway: GatewayServer) -> None:
    adapters = [(server, adapter_of(server)) for server in fleet.servers]

    assert all(adapter.healthy(asked(server, adapter.health_probe())) for server, adapter in adapters)


@on(*SETUPS)
def test_a_traits_probe_costs_a_worker_little(fleet: Fleet, gateway: GatewayServer) -> None:
    for server in fleet.servers:
        for probe in adapter_of(server).info_probes():
            reply = httpx.request(
                probe.method,
                server.url + probe.path,
                content=probe.body,
                headers={"content-type": "application/json"} if probe.body is not None else {},
                timeout=10,
            )
            assert reply.elapsed.total_seconds() < probe.timeout_s / 2
