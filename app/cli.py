"""The command line. What a user did wrong is said in a line or two, with what to do next; a traceback is our bug."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.config_problems import ConfigError, Place, Problem, UsageError, counted, rendered
from app.listening import require_free_port
from app.version import VERSION

if TYPE_CHECKING:
    from app.settings import Settings

_ABOUT = """\
Tandem is an OpenAI-compatible gateway in front of vLLM, SGLang and TensorRT-LLM workers, disaggregated (prefill and
decode on different workers) or not."""

_EXAMPLES = """\
examples:
  tandem demo                               a gateway with a simulated fleet, to try things out
  tandem check --config tandem.yaml         is this configuration right?
  tandem serve --config tandem.yaml         serve it
  tandem simulate --engine vllm --port 8100 one simulated worker

`tandem COMMAND --help` explains a command. All settings: docs/configuration.md."""

_SERVE = """\
Serves the models of a configuration until SIGTERM or Ctrl-C; requests in flight may then finish
(server.shutdown_timeout_s)."""

_SERVE_EXAMPLES = """\
a configuration:
  models:
    - name: llama
      path: /models/Llama-3.1-8B-Instruct     # tokenizer and chat template
      workers:
        - {url: "http://10.0.0.1:8000", engine: vllm, role: prefill}
        - {url: "http://10.0.0.2:8000", engine: vllm, role: decode}

Every setting can come from the environment: TANDEM_SERVER__PORT=9000, TANDEM_MODELS='[...]' (lists as JSON).
Options win over the environment, the environment over the file."""

_CHECK = """\
Reads a configuration as `serve` would, loads the models' tokenizers and chat templates, and reports every problem with
its place. Starts nothing and calls no worker. Exits 0 when all is right, else 1."""

_DEMO = """\
Starts a gateway and, for each of vLLM, SGLang and TensorRT-LLM, two simulated prefill and two simulated decode workers,
all on this machine and in this process. Prints what to call. Ctrl-C ends all of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code: 0, 1 for failures, 2 for a wrong command line."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ConfigError as error:
        print(error, file=sys.stderr)
    except UsageError as error:
        print(f"tandem: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    from app import simulate

    root = argparse.ArgumentParser("tandem", description=_ABOUT, epilog=_EXAMPLES, formatter_class=_Layout)
    root.add_argument("--version", action="version", version=VERSION)
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", "serve the models of a configuration", _SERVE, _SERVE_EXAMPLES)
    _add_config(serve)
    serve.add_argument("--host", help="address to listen on; wins over server.host")
    serve.add_argument("--port", type=int, help="port to listen on; wins over server.port")
    serve.add_argument("--processes", type=int, metavar="N", help="processes on that port; wins over server.processes")
    serve.set_defaults(run=_serve)

    check = _command(commands, "check", "say what is wrong with a configuration", _CHECK)
    _add_config(check)
    check.set_defaults(run=_check)

    simulated = _command(commands, "simulate", "run one simulated worker", simulate.ABOUT, simulate.examples())
    simulate.add_arguments(simulated)
    simulated.set_defaults(run=_simulate)

    demo = _command(commands, "demo", "run a gateway with a simulated fleet", _DEMO)
    demo.add_argument("--host", default="127.0.0.1", help="address of the gateway (default: %(default)s)")
    demo.add_argument("--port", type=int, default=8000, help="port of the gateway (default: %(default)s)")
    demo.add_argument("--speed", type=float, default=1.0, metavar="X", help="divides all waiting; 0: none at all")
    demo.set_defaults(run=_demo)

    said = _command(commands, "version", "print the version", "Prints the version.")
    said.set_defaults(run=_version)
    return root


def _serve(options: argparse.Namespace) -> int:
    from app.processes import run_processes
    from app.settings import load_settings

    settings = load_settings(options.config, _overrides(options))
    require_free_port(settings.server.host, settings.server.port)
    if settings.server.processes == 1:
        return _serve_here(settings)
    return run_processes(settings.server.processes, functools.partial(_serve_here, settings))


def _serve_here(settings: Settings) -> int:
    """Serves in this process. What only loading a model's files shows is still the user's to put right."""
    from app.gateway import serve
    from text.loading import ModelFilesError

    try:
        return serve(settings)
    except ModelFilesError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1


def _overrides(options: argparse.Namespace) -> dict[Place, tuple[object, str]]:
    given = {key: getattr(options, key) for key in ("host", "port", "processes")}
    return {("server", key): (value, f"--{key}") for key, value in given.items() if value is not None}


def _check(options: argparse.Namespace) -> int:
    from app.settings import load_settings

    settings = load_settings(options.config)
    _require_loadable_models(settings, options.config)
    workers = sum(len(model.workers) for model in settings.models)
    print(f"{options.config}: all is right: {counted(len(settings.models), 'model')}, {counted(workers, 'worker')}")
    return 0


def _require_loadable_models(settings: Settings, source: Path) -> None:
    from text.loading import ModelFilesError, load_model

    problems: list[Problem] = []
    for index, model in enumerate(settings.models):
        if model.path is None:
            continue
        try:
            load_model(model.path)
        except ModelFilesError as error:
            problems.append(Problem(("models", index, "path"), str(error)))
    if problems:
        raise ConfigError(str(source), rendered(problems, {}))


def _simulate(options: argparse.Namespace) -> int:
    from app import simulate

    return simulate.run(options)


def _demo(options: argparse.Namespace) -> int:
    require_free_port(options.host, options.port)
    from app.demo import run

    return run(options.host, options.port, options.speed)


def _version(options: argparse.Namespace) -> int:
    print(VERSION)
    return 0


class _Layout(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions and examples."""


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, short: str, about: str, examples: str = ""
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, help=short, description=about, epilog=examples or None, formatter_class=_Layout, allow_abbrev=False
    )


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the YAML file (see docs/configuration.md)"
    )
