from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.config_problems import ConfigError, Place
from app.config_schema import ConfigSchema, expected
from app.settings import Settings, load_settings
from protocols.options import RequestTemplate
from protocols.worker import Engine, Role, Worker, worker_id_of

ROOT = Path(__file__).parents[2]

WORKER = '{url: "http://a:1", engine: vllm}'
MODEL = f"models: [{{name: m, path: /m, workers: [{WORKER}]}}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tandem.yaml"


def load(file: Path, text: str, environ: Mapping[str, str] = {}, **server: Any) -> Settings:
    file.write_text(text, encoding="utf-8")
    return load_settings(file, {("server", key): (value, f"--{key}") for key, value in server.items()}, environ)


def said_of_model(keys: str) -> str:
    return MODEL.replace("name: m,", f"name: m, {keys},")


def problems(file: Path, text: str, environ: Mapping[str, str] = {}) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, text, environ)
    return list(caught.value.lines)


def worker_problems(file: Path, *workers: str, model: str = "name: m, path: /m") -> list[str]:
    return problems(file, f"models:\n  - {{{model}, workers: [{', '.join(workers)}]}}\n")


def test_a_model_with_one_worker_is_enough(file: Path) -> None:
    settings = load(file, MODEL)

    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert [model.name for model in settings.models] == ["m"]
    assert settings.workers_of(settings.models[0]) == [
        Worker(id=worker_id_of("http://a:1"), url="http://a:1", engine=Engine.VLLM)
    ]


def test_every_key_of_a_worker_reaches_its_value(file: Path) -> None:
    settings = load(
        file,
        """
models:
  - name: m
    path: /m
    aliases: [n, o/p]
    context_length: 4096
    prefill_policy: strict
    router: {mode: least-loaded}
    defaults: {temperature: 0.5, max_completion_tokens: 7}
    workers:
      - {url: "http://d:2", engine: sglang, role: decode}
      - url: https://p:1/base/
        id: 5
        engine: sglang
        role: prefill
        served_name: there
        version: "0.5.23"
        bootstrap_host: 10.0.0.1
        bootstrap_port: 8999
        dp_size: 2
        lease_s: 12
        context_length: 2048
        taints: [gpu]
        api_key: sk-1
""",
    )
    model = settings.models[0]

    assert settings.workers_of(model)[1] == Worker(
        id=5,
        url="https://p:1/base",
        engine=Engine.SGLANG,
        role=Role.PREFILL,
        served_name="there",
        version="0.5.23",
        bootstrap_host="10.0.0.1",
        bootstrap_port=8999,
        dp_size=2,
        lease_s=12.0,
        context_length=2048,
        taints=frozenset({"gpu"}),
        api_key="sk-1",
    )
    assert (model.aliases, model.context_length, model.router.mode) == (["n", "o/p"], 4096, "least-loaded")
    assert model.template() == RequestTemplate(temperature=0.5, max_completion_tokens=7)


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ("{}", {"top_k": 20, "top_p": 0.8}),
        ("{top_p: 0.5, min_p: 0.1, temperature: 0.3}", {"top_k": 20, "top_p": 0.5, "min_p": 0.1}),
    ],
)
def test_the_operators_defaults_win_over_the_models(file: Path, said: str, used: dict[str, float]) -> None:
    model = load(file, said_of_model(f"defaults: {said}")).models[0]

    assert model.sampling_defaults({"top_k": 20, "top_p": 0.8}) == used


def test_a_models_own_defaults_can_be_ignored(file: Path) -> None:
    model = load(file, said_of_model("generation_config: ignore, defaults: {top_k: 5}")).models[0]

    assert model.sampling_defaults({"top_k": 20, "top_p": 0.8}) == {"top_k": 5}


def test_a_workers_key_is_shown_nowhere(file: Path) -> None:
    settings = load(file, "models: [{name: m, path: /m, workers: [{url: 'http://a:1', engine: vllm, api_key: sk-1}]}]")
    wrong = worker_problems(file, "{url: 'http://a:1', engine: vllm, api_key: 'sk 1'}")

    assert "sk-1" not in repr(settings) + repr(settings.workers_of(settings.models[0]))
    assert "sk 1" not in "".join(wrong)


def test_a_models_served_name_is_its_workers_default(file: Path) -> None:
    settings = load(
        file,
        """
models:
  - name: m
    path: /m
    served_name: there
    workers:
      - {url: "http://a:1", engine: vllm}
      - {url: "http://b:1", engine: vllm, served_name: elsewhere}
""",
    )

    assert [worker.served_name for worker in settings.workers_of(settings.models[0])] == ["there", "elsewhere"]


def test_a_trailing_slash_changes_no_id(file: Path) -> None:
    settings = load(file, MODEL.replace("http://a:1", "http://a:1/"))

    assert settings.workers_of(settings.models[0])[0].id == worker_id_of("http://a:1")


def test_every_problem_is_reported_at_once_with_its_place_and_line(file: Path) -> None:
    lines = problems(
        file,
        """server:
  prot: 9000
  max_requests: many
models:
  - name: m
    path: /m
    router: {mode: robin}
    workers:
      - {url: "localhost:8100", engine: vlm}
      - {url: "http://b:1", engine: vllm, version: 0.32}
  - name: m
    workers: []
""",
    )

    assert [line.partition(": ")[0] for line in lines] == [
        "server.prot (line 2, column 9)",
        "server.max_requests (line 3, column 17)",
        "models[0].router.mode (line 7, column 20)",
        "models[0].workers[0].url (line 9, column 15)",
        "models[0].workers[0].engine (line 9, column 41)",
        "models[0].workers[1].version (line 10, column 52)",
        "models[1].name (line 11, column 11)",
        "models[1].workers (line 12, column 14)",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {prot: 1}\n" + MODEL, "server.prot (line 1, column 16): unknown key; did you mean port?"),
        ("servers: {}\n" + MODEL, "servers (line 1, column 10): unknown key; did you mean server?"),
        ("server: {port: 70000}\n" + MODEL, "should be a whole number from 0 to 65535, but is 70000"),
        ("server: {processes: true}\n" + MODEL, "should be a whole number from 1 to 256, but is true"),
        ("server: {write_timeout_s: 0}\n" + MODEL, "should be a number above 0, at most 86400, but is 0"),
        ("server: {write_timeout_s: .nan}\n" + MODEL, "should be a number above 0"),
        ("server: [1]\n" + MODEL, "should be a mapping with the keys host, port"),
        ("logging: {level: warn}\n" + MODEL, 'debug, info, warning, error, but is "warn"; did you mean warning?'),
        ("server: {port: 0, processes: 2}\n" + MODEL, "server.port (line 1, column 16): should be a port above 0"),
        ("models: []\n", "models (line 1, column 9): should be a list with at least one item, but is an empty list"),
        ("server: {}\n", "models: is missing. The models to serve, at least one."),
        ("models: [x]\n", "models[0] (line 1, column 10): should be a mapping with the keys name, path"),
        (MODEL.replace("name: m", "name: 7"), "should be text that is not empty, but is 7; put it in quotes"),
        (MODEL.replace("path: /m, ", ""), "models[0].path (line 1, column 10): is missing."),
    ],
)
def test_a_wrong_value_is_answered_with_what_would_be_right(file: Path, text: str, said: str) -> None:
    (line,) = problems(file, text)

    assert said in line


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8100", "should begin with http:// or https://, as in http://localhost:8100"),
        ("ftp://h:1", "should begin with http:// or https://, as in http://h:1"),
        ("http://:80", "should name a host and a port"),
        ("http://h:99999", "is not a URL (Port out of range 0-65535)"),
        ("http://h:1?x=1", "leave out what follows ? or #"),
        ("http://u:p@h:1", "should hold no user name or password"),
    ],
)
def test_a_url_that_is_none_is_refused(file: Path, url: str, said: str) -> None:
    (line,) = worker_problems(file, f'{{url: "{url}", engine: vllm}}')

    assert line.startswith("models[0].workers[0].url (line 2, column ")
    assert said in line


@pytest.mark.parametrize(("key", "names"), [("tool_call_parser", "default, "), ("reasoning_parser", "deepseek_r1, ")])
def test_a_parser_that_nobody_knows_is_refused_with_those_that_are(file: Path, key: str, names: str) -> None:
    (line,) = worker_problems(file, WORKER, model=f"name: m, path: /m, {key}: hermess")

    assert line.startswith(f"models[0].{key} (")
    assert "'hermess'; there are " in line
    assert names in line


@pytest.mark.parametrize(("key", "name"), [("tool_call_parser", "llama3-json"), ("reasoning_parser", "none")])
def test_parsers_go_by_any_of_their_names(file: Path, key: str, name: str) -> None:
    settings = load(file, f"models: [{{name: m, path: /m, {key}: {name}, workers: [{WORKER}]}}]\n")

    assert getattr(settings.models[0], key) == name


def test_a_key_without_a_value_counts_as_absent(file: Path) -> None:
    settings = load(file, "server:\nlogging: {level: null}\n" + MODEL)

    assert settings.server.port == 8000
    assert settings.logging.level == "info"


def test_a_key_written_twice_is_refused(file: Path) -> None:
    lines = problems(file, "server: {port: 1, port: 2}\n" + MODEL)

    assert lines == [
        "server.port (line 1, column 25): the key is written twice, first at line 1, column 10; keep one",
    ]


def test_broken_yaml_names_line_and_column(file: Path) -> None:
    assert problems(file, "models: [\n  {name: m,\n") == [
        "line 3, column 1: this is not YAML: expected the node content, but found '<stream end>'"
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: 1 problem\n  there is no such file"):
        load_settings(tmp_path / "nowhere.yaml", environ={})


def test_a_file_that_is_no_mapping_is_refused(file: Path) -> None:
    assert problems(file, "- a\n- b\n") == ["the file should be a mapping with the keys server and models"]


# ---- environment and options


def test_the_environment_wins_over_the_file_and_an_option_over_both(file: Path) -> None:
    environ = {"TANDEM_SERVER__PORT": "9000", "TANDEM_SERVER__HOST": "0.0.0.0", "TANDEM_LOGGING__FORMAT": "json"}

    settings = load(file, "server: {port: 7000, host: h}\n" + MODEL, environ, port=9999)

    assert (settings.server.host, settings.server.port, settings.logging.format) == ("0.0.0.0", 9999, "json")


def test_lists_come_from_the_environment_as_json(file: Path) -> None:
    models = '[{"name": "e", "path": "/e", "workers": [{"url": "http://e:1", "engine": "trtllm"}]}]'

    settings = load(file, MODEL, {"TANDEM_MODELS": models})

    assert [model.name for model in settings.models] == ["e"]


def test_text_in_the_environment_stays_text(file: Path) -> None:
    assert load(file, MODEL, {"TANDEM_SERVER__HOST": "127"}).server.host == "127"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "TANDEM_SERVER__PORT",
            "x",
            'server.port (TANDEM_SERVER__PORT): should be a whole number from 0 to 65535, but is "x"',
        ),
        ("TANDEM_SERVER__PROT", "1", "server.prot (TANDEM_SERVER__PROT): unknown key; did you mean port?"),
        ("TANDEM_SERVR", "1", "servr (TANDEM_SERVR): unknown key; did you mean server?"),
        ("TANDEM_MODELS__0__NAME", "x", "TANDEM_MODELS__0__NAME: cannot set one item of a list"),
        ("TANDEM_MODELS", "[1", "models (TANDEM_MODELS): should be a list with at least one item"),
    ],
)
def test_a_wrong_variable_is_named(file: Path, name: str, value: str, said: str) -> None:
    lines = problems(file, MODEL, {name: value})

    assert lines[0].startswith(said)
    assert len(lines) == 1


@pytest.mark.parametrize(
    "name",
    [
        "TANDEM_PORT",
        "TANDEM_PORT_8000_TCP",
        "TANDEM_PORT_8000_TCP_ADDR",
        "TANDEM_SERVICE_HOST",
        "TANDEM_SERVICE_PORT",
        "TANDEM_SERVICE_PORT_HTTP",
        "TANDEM_PROMETHEUS_SERVICE_HOST",
    ],
)
def test_variables_that_kubernetes_sets_for_a_service_are_passed_over(file: Path, name: str) -> None:
    assert load(file, MODEL, {name: "tcp://10.0.0.1:8000"}) == load(file, MODEL)


# ---- documentation


def documented() -> dict[str, list[str]]:
    """docs/configuration.md's rows: key, then value, default and meaning."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [
        line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `") and line.count(" | ") == 3
    ]
    return {row[0].strip(" `"): [cell.strip(" `") for cell in row[1:]] for row in rows}


def test_every_setting_is_documented_with_its_default_and_meaning() -> None:
    assert documented() == dict(described(Settings.model_json_schema()))


def described(schema: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Every setting as its row should be: key, then value, default and meaning."""
    settings = ConfigSchema(schema)

    def walk(place: Place, key: str) -> Iterator[tuple[str, list[str]]]:
        for name in settings.at(place)["properties"]:
            inner, path = (*place, name), f"{key}.{name}".lstrip(".")
            node = settings.at(inner)
            if node["type"] == "object":
                yield from walk(inner, path)
                continue
            yield (
                path,
                [expected(node), default_of(node, name in settings.at(place).get("required", ())), node["description"]],
            )
            if node["type"] == "array" and settings.at((*inner, 0))["type"] == "object":
                yield from walk((*inner, 0), f"{path}[]")

    return walk((), "")


def default_of(node: Mapping[str, Any], required: bool) -> str:
    return "required" if required else "" if node.get("default") in (None, []) else str(node["default"])


def test_every_setting_is_read_by_the_application() -> None:
    settings = {path.rpartition(".")[2] for path in documented() if not path.startswith("models[].workers[]")}
    trees = [ast.parse(path.read_text()) for path in (ROOT / "app").rglob("*.py")]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}

    assert settings - read == set()
