"""What no single value shows: see test_settings.py for the values themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.config_problems import ConfigError
from app.settings import Settings, load_settings

WORKER = '{url: "http://a:1", engine: vllm}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tandem.yaml"


def load(file: Path, text: str) -> Settings:
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ={})


def problems(file: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, text)
    return list(caught.value.lines)


def worker_problems(file: Path, *workers: str, model: str = "name: m, path: /m") -> list[str]:
    return problems(file, f"models:\n  - {{{model}, workers: [{', '.join(workers)}]}}\n")


def test_names_and_aliases_are_unique_across_models(file: Path) -> None:
    lines = problems(
        file,
        f"""models:
  - {{name: m, path: /m, aliases: [n], workers: [{WORKER}]}}
  - {{name: n, path: /m, aliases: [m, x, x], workers: [{{url: "http://b:1", engine: vllm}}]}}
""",
    )

    assert [re.sub(r" \(.*?\)", "", line) for line in lines] == [
        "models[1].name: 'n' is already given at models[0].aliases[0]; names and aliases are unique",
        "models[1].aliases[0]: 'm' is already given at models[0].name; names and aliases are unique",
        "models[1].aliases[2]: 'x' is already given at models[1].aliases[1]; names and aliases are unique",
    ]


def test_a_worker_given_twice_in_a_model_is_refused(file: Path) -> None:
    (line,) = worker_problems(file, WORKER, WORKER.replace("a:1", "a:1/"))

    assert "this worker is already given at models[0].workers[0]" in line


def test_a_worker_of_two_models_needs_a_second_id(file: Path) -> None:
    text = f"""models:
  - {{name: m, path: /m, workers: [{WORKER}]}}
  - {{name: n, path: /m, workers: [{WORKER}]}}
"""

    (line,) = problems(file, text)
    settings = load(file, text.replace("engine: vllm}]}\n  -", "engine: vllm, id: 1}]}\n  -"))

    assert "models[0].workers[0] serves another model; give this one an id of its own" in line
    assert len({settings.workers_of(model)[0].id for model in settings.models}) == 2


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_prefill_worker_needs_a_decode_worker(file: Path, engine: str) -> None:
    (line,) = worker_problems(file, f'{{url: "http://a:1", engine: {engine}, role: prefill}}')

    assert f"no decode worker of this model can take over from it ({engine}); add one" in line


def test_a_decode_worker_needs_a_prefill_worker_unless_it_may_prefill_itself(file: Path) -> None:
    decode = '{url: "http://a:1", engine: vllm, role: decode}'

    (line,) = worker_problems(file, decode, model="name: m, path: /m, prefill_policy: strict")
    settings = load(file, f"models: [{{name: m, path: /m, prefill_policy: local, workers: [{decode}]}}]")

    assert "no prefill worker of this model can hand over to it (vllm); add one, or set prefill_policy: local" in line
    assert settings.models[0].prefill_policy == "local"


def test_sglang_decode_workers_cannot_prefill_themselves(file: Path) -> None:
    (line,) = worker_problems(
        file, '{url: "http://a:1", engine: sglang, role: decode}', model="name: m, path: /m, prefill_policy: local"
    )

    assert line.startswith("models[0].prefill_policy (line 2, column ")
    assert "local is not possible: sglang decode workers serve no request without a prefill" in line


def test_only_one_engine_and_version_pair(file: Path) -> None:
    lines = worker_problems(
        file,
        '{url: "http://a:1", engine: vllm, role: prefill, version: "0.31"}',
        '{url: "http://b:1", engine: vllm, role: decode, version: "0.32"}',
        model="name: m, path: /m, prefill_policy: strict",
    )

    assert "no decode worker of this model can take over from it (vllm 0.31)" in lines[0]
    assert "no prefill worker of this model can hand over to it (vllm 0.32)" in lines[1]


def test_openai_workers_mix_with_no_other(file: Path) -> None:
    (line,) = worker_problems(file, WORKER, '{url: "http://b:1", engine: openai}')

    assert "openai workers do not mix with other engines in one model" in line


def test_openai_workers_need_no_path_and_take_whole_requests(file: Path) -> None:
    (line,) = worker_problems(file, '{url: "http://b:1", engine: openai, role: prefill}', model="name: m")

    assert "should be aggregated: an openai worker takes whole requests" in line


@pytest.mark.parametrize("worker", ["engine: vllm, role: aggregated", "engine: sglang", "engine: openai"])
def test_a_bootstrap_port_belongs_to_sglang_prefill_workers_only(file: Path, worker: str) -> None:
    (line,) = worker_problems(file, f'{{url: "http://a:1", {worker}, bootstrap_port: 8998}}')

    assert "models[0].workers[0].bootstrap_port" in line
    assert "is only for sglang prefill workers" in line


def test_embedding_models_are_made_of_whole_workers_that_can(file: Path) -> None:
    lines = worker_problems(
        file,
        '{url: "http://a:1", engine: trtllm}',
        '{url: "http://b:1", engine: vllm, role: decode}',
        '{url: "http://c:1", engine: vllm}',
        model="name: m, path: /m, kind: embed, prefill_policy: local",
    )

    assert [re.sub(r" \(.*?\)", "", line) for line in lines] == [
        "models[0].workers[0].engine: trtllm workers make no embeddings",
        "models[0].workers[1].role: should be aggregated: embeddings are not made in two halves",
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "native", "openai"])
def test_embedding_models_of_these_engines_are_in_order(file: Path, engine: str) -> None:
    text = f'models:\n  - {{name: m, path: /m, kind: embed, workers: [{{url: "http://a:1", engine: {engine}}}]}}\n'

    assert load(file, text).models[0].kind == "embed"


@pytest.mark.parametrize("key", ["tool_call_parser", "reasoning_parser"])
def test_parsers_are_not_for_openai_workers(file: Path, key: str) -> None:
    (line,) = worker_problems(file, '{url: "http://a:1", engine: openai}', model=f"name: m, {key}: none")

    assert line.startswith(f"models[0].{key} (")
    assert "is not for openai workers" in line
