"""Dockerfile, compose file and deployment files against the project they describe: no container engine is needed."""

from __future__ import annotations

import http.server
import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli import parser
from app.settings import ModelSettings, ServerSettings, WorkerSettings, load_settings
from app.version import VERSION

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SIMULATED = sorted(name for name, service in SERVICES.items() if service["command"][0] == "simulate")
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
GATEWAY = load_settings(ROOT / "deploy/tandem.yaml", environ={})


@dataclass(frozen=True)
class Instruction:
    name: str
    text: str

    @cached_property
    def words(self) -> list[str]:
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def dockerfile() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Instruction(*line.split(maxsplit=1)) for line in lines]


DOCKERFILE = dockerfile()


def instructions(name: str) -> list[Instruction]:
    return [instruction for instruction in DOCKERFILE if instruction.name == name]


def options_of(service: str) -> Any:
    """A service's command, read by the real command line."""
    return parser().parse_args(SERVICES[service]["command"])


# ---- Dockerfile


@pytest.mark.parametrize("base", [line.words[0] for line in instructions("FROM")])
def test_base_images_are_pinned_to_a_release_of_a_supported_python(base: str) -> None:
    image, _, tag = base.partition(":")
    release = re.match(r"(\d+)\.(\d+)\.\d+-", tag)

    assert image == "python"
    assert release, f"{base} should name a full release"
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"
    assert (int(release[1]), int(release[2])) >= (3, 11)


def test_both_stages_run_the_same_python() -> None:
    assert len({line.words[0] for line in instructions("FROM")}) == 1


@pytest.mark.parametrize(
    "source", [word for line in instructions("COPY") if "--from" not in line.text for word in line.words[:-1]]
)
def test_what_is_copied_exists_and_is_not_ignored(source: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()

    assert (ROOT / source).exists()
    assert ignored[0] == "*"
    assert f"!{source}" in ignored


def test_every_package_of_the_project_is_copied() -> None:
    copied = {word for line in instructions("COPY") for word in line.words[:-1]}
    patterns = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {
        path.parent.name for path in ROOT.glob("*/__init__.py") if any(fnmatch(path.parent.name, p) for p in patterns)
    }

    assert packages
    assert packages <= copied


def test_dependencies_are_installed_from_the_constraints_with_known_extras() -> None:
    (install,) = [line.words for line in instructions("RUN") if "pip" in line.text]
    extras = install[-1].removeprefix(".[").removesuffix("]").split(",")

    assert install[install.index("--constraint") + 1] == "constraints.txt"
    assert set(extras) <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_the_entry_point_is_the_projects_and_exists() -> None:
    (entry,) = instructions("ENTRYPOINT")
    module, _, function = PYPROJECT["project"]["scripts"][entry.words[0]].partition(":")

    assert callable(getattr(import_module(module), function))


def test_the_default_command_is_one_of_ours_and_reads_the_path_that_compose_mounts() -> None:
    (command,) = instructions("CMD")
    options = parser().parse_args(command.words)

    assert str(options.config) in mounts("gateway")


def test_it_runs_as_a_numbered_user_that_was_made() -> None:
    user = instructions("USER")[-1].text

    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    assert any(f"useradd --uid {user.partition(':')[0]} " in line.text for line in instructions("RUN"))
    assert DOCKERFILE.index(instructions("USER")[-1]) > DOCKERFILE.index(instructions("RUN")[-1])


def test_it_exposes_the_default_port() -> None:
    assert [line.text for line in instructions("EXPOSE")] == [str(ServerSettings().port)]


def test_the_environment_of_the_image_is_no_setting_gone_wrong() -> None:
    names = {assignment.partition("=")[0] for line in instructions("ENV") for assignment in line.words}

    assert not [name for name in names if name.startswith("TANDEM_")]


# ---- health checks: real processes against a real socket, 0.1 s each, since only that shows that the line works


def health_command() -> list[str]:
    (check,) = instructions("HEALTHCHECK")
    return json.loads(check.text[check.text.index("CMD [") + 4 :])


class _Handler(http.server.BaseHTTPRequestHandler):
    statuses: dict[str, int]

    def do_GET(self) -> None:
        self.send_response(self.statuses.get(self.path, 404))
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that answers by `request.param`, a map of path to status."""
    handler = type("Handler", (_Handler,), {"statuses": request.param})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def exit_code(command: list[str], **environment: str) -> int:
    command = [sys.executable, *command[1:]] if command[0] == "python" else command
    return subprocess.run(command, env=environment, capture_output=True, timeout=10, check=False).returncode


@pytest.mark.parametrize(("port", "code"), [({"/live": 200}, 0), ({"/live": 503}, 1), ({}, 1)], indirect=["port"])
def test_the_images_health_check_follows_the_live_route(port: int, code: int) -> None:
    assert exit_code(health_command(), TANDEM_SERVER__PORT=str(port)) == code


@pytest.mark.parametrize(("port", "code"), [({"/health": 200}, 0), ({"/health": 503}, 1)], indirect=["port"])
def test_a_simulated_workers_health_check_follows_its_health_route(port: int, code: int) -> None:
    kind, *command = SERVICES[SIMULATED[0]]["healthcheck"]["test"]

    assert kind == "CMD"
    assert exit_code([word.replace(":8000/", f":{port}/") for word in command]) == code


@pytest.mark.parametrize("service", SIMULATED)
def test_a_simulated_workers_health_check_calls_the_port_it_listens_on(service: str) -> None:
    assert f"http://127.0.0.1:{options_of(service).port}/" in SERVICES[service]["healthcheck"]["test"][-1]


# ---- docker-compose.yml


def mounts(service: str) -> dict[str, str]:
    """Mounted path: path in the project."""
    volumes = [volume.split(":") for volume in SERVICES[service].get("volumes", ())]
    return {target: source for source, target, *_ in volumes}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_images_are_built_here_or_pinned(service: str) -> None:
    image, _, tag = SERVICES[service]["image"].partition(":")

    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
    assert SERVICES[service].get("build") == "." if image == "tandem" else "build" not in SERVICES[service]
    assert image != "tandem" or tag == VERSION


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_mounted_files_exist_and_are_read_only(service: str) -> None:
    for volume in SERVICES[service].get("volumes", ()):
        source, _, mode = volume.split(":")
        assert (ROOT / source).exists(), volume
        assert mode == "ro", volume


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_ports_are_published_to_this_machine_only(service: str) -> None:
    assert [port for port in SERVICES[service].get("ports", ()) if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("service", ["gateway", *SIMULATED])
def test_our_services_may_do_no_more_than_they_need(service: str) -> None:
    given = SERVICES[service]

    assert (given["read_only"], given["cap_drop"], given["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])


def test_the_gateway_reads_the_mounted_configuration_and_publishes_its_port() -> None:
    config = str(options_of("gateway").config)

    assert (ROOT / mounts("gateway")[config]).samefile(ROOT / "deploy/tandem.yaml")
    assert SERVICES["gateway"]["ports"] == [f"127.0.0.1:{GATEWAY.server.port}:{GATEWAY.server.port}"]
    assert GATEWAY.server.host == "0.0.0.0"


def test_the_gateway_has_time_to_finish_its_requests() -> None:
    assert float(SERVICES["gateway"]["stop_grace_period"].removesuffix("s")) > GATEWAY.server.shutdown_timeout_s


@pytest.mark.parametrize("model", GATEWAY.models, ids=lambda model: model.name)
def test_models_are_mounted_where_the_configuration_says(model: ModelSettings) -> None:
    assert model.path in mounts("gateway")


WORKERS = [(model.name, worker) for model in GATEWAY.models for worker in model.workers]


@pytest.mark.parametrize(("model", "worker"), WORKERS, ids=lambda value: getattr(value, "url", value))
def test_each_configured_worker_is_a_service_of_that_kind(model: str, worker: WorkerSettings) -> None:
    host, _, port = worker.url.removeprefix("http://").partition(":")
    service = options_of(host)

    assert (service.engine, service.role, service.model) == (worker.engine, worker.role, model)
    assert (service.port, service.host) == (int(port), "0.0.0.0")
    assert service.advertised_host == host
    assert service.bootstrap_port == (worker.bootstrap_port or 8998)
    assert str(service.model_path) in mounts(host)


def test_every_simulated_worker_is_configured() -> None:
    assert sorted(worker.url.removeprefix("http://").partition(":")[0] for _, worker in WORKERS) == SIMULATED


def test_prometheus_reads_the_mounted_file_and_scrapes_services_that_exist() -> None:
    options = dict(word.removeprefix("--").split("=") for word in SERVICES["prometheus"]["command"])
    jobs = PROMETHEUS["scrape_configs"]
    targets = [target for job in jobs for static in job["static_configs"] for target in static["targets"]]
    ports = {f"{name}:{options_of(name).port}" for name in SIMULATED} | {f"gateway:{GATEWAY.server.port}"}

    assert (ROOT / mounts("prometheus")[options["config.file"]]).samefile(ROOT / "deploy/prometheus.yml")
    assert set(targets) <= ports
    assert f"gateway:{GATEWAY.server.port}" in targets
