"""`tandem simulate`: one simulated worker from command-line options.

The simulator knows no tokenizer; the one of the model's directory is handed to it here.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import textwrap
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.config_problems import UsageError, suggestion
from app.listening import require_free_port
from protocols.errors import InvalidRequest
from simulator import fleet
from simulator.faults import KINDS, MOMENTS, Fault
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.options import ENGINES, ROLES, SglangOptions, SimulatorOptions, TrtllmOptions, VllmOptions
from simulator.vocabulary import Codec, Vocabulary, load_vocabulary
from text.loading import ModelFilesError, load_model

ABOUT = """\
Runs one simulated worker until SIGTERM or Ctrl-C: the real engine's HTTP dialect and hand-off, a pretended GPU. Its
answers are made-up words, the same for the same prompt on every worker with the same --seed."""

DEMO_MODEL = Path(__file__).parent / "demo_model"
"""A small tokenizer with a chat template, made for demonstrations."""

_ENGINE_OPTIONS: Mapping[str, type[Any]] = {"vllm": VllmOptions, "sglang": SglangOptions, "trtllm": TrtllmOptions}
_DEFAULTS = SimulatorOptions()


def examples() -> str:
    """What `tandem simulate --help` ends with."""
    return f"""\
a disaggregated pair (see `tandem serve --help` for the gateway's side):
  tandem simulate --engine vllm --role prefill --port 8101 --model llama
  tandem simulate --engine vllm --role decode  --port 8102 --model llama

a worker that cuts its connection after the fifth token of its next request:
  tandem simulate --engine sglang --port 8100 --fault reset@token:5

faults are written KIND[=VALUE][@MOMENT[:TOKENS]][*COUNT]; COUNT 0 means every time
  kinds    {", ".join(sorted(KINDS))}
  moments  {", ".join(sorted(MOMENTS))}
a running worker takes them by POST /_sim/faults, and DELETE /_sim/faults clears them

options of one engine, with their defaults
{_options_lines()}"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of `tandem simulate`."""
    command.add_argument("--engine", choices=ENGINES, required=True, help="whose dialect it speaks")
    command.add_argument("--role", choices=ROLES, default="aggregated", help="its part (default: %(default)s)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    command.add_argument("--port", type=int, required=True, metavar="N", help="port to listen on; 0 takes a free one")
    command.add_argument(
        "--advertised-host", metavar="HOST", help="host at which its peers reach it (default: that of --host)"
    )
    command.add_argument(
        "--bootstrap-port", type=int, default=8998, metavar="N", help="SGLang prefill (default: %(default)s)"
    )
    command.add_argument(
        "--model-path",
        type=Path,
        default=DEMO_MODEL,
        metavar="DIR",
        help="directory with the tokenizer (default: a small one that ships with Tandem)",
    )
    command.add_argument("--model", metavar="NAME", help="the model's name there (default: the directory's name)")
    command.add_argument("--version", metavar="X.Y", help="the engine's release it claims to be")
    _add_memory(command.add_argument_group("memory"))
    _add_pace(command.add_argument_group("pace"))
    _add_replies(command.add_argument_group("replies"))
    _add_misbehaviour(command.add_argument_group("faults and engine options"))


def _add_memory(group: argparse._ArgumentGroup) -> None:
    _number(group, "--blocks", _DEFAULTS.blocks, "KV blocks")
    _number(group, "--block-size", _DEFAULTS.block_size, "tokens per KV block")
    _number(group, "--context-length", _DEFAULTS.context_length, "tokens per request")
    _number(group, "--dp-size", _DEFAULTS.dp_size, "data-parallel ranks")


def _add_pace(group: argparse._ArgumentGroup) -> None:
    pace = _DEFAULTS.pace
    _number(group, "--ttft-ms", pace.ttft_s * 1e3, "before a first token")
    _number(group, "--token-ms", pace.decode_s * 1e3, "per decode step")
    _number(group, "--prefill-us", pace.prefill_s * 1e6, "per prompt token that is not cached")
    _number(group, "--jitter", pace.jitter, "varies steps by this fraction")
    _number(group, "--speed", pace.speed, "divides all of it; 0: no waiting")
    _number(group, "--slots", pace.slots, "largest batch")


def _add_replies(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--reply", metavar="TEXT", help="the one answer it gives")
    group.add_argument("--call-tools", action="store_true", help="call the tools that a prompt shows")
    _number(group, "--mean-length", 64.0, "tokens per answer")
    _number(group, "--echo", 0, "repeat the token so many places back instead; 0: do not")
    _number(group, "--seed", 0, "stands for the weights")
    _number(group, "--embedding-size", _DEFAULTS.embedding_size, "numbers of an embedding; 0: it makes none")


def _number(group: argparse._ArgumentGroup, flag: str, default: float, meaning: str) -> None:
    """An option of its default's type, whole or not."""
    metavar = "N" if isinstance(default, int) else "X"
    group.add_argument(
        flag, type=type(default), default=default, metavar=metavar, help=f"{meaning} (default: {default:g})"
    )


def _add_misbehaviour(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fault", action="append", default=[], metavar="FAULT", help="commit this fault; may be repeated"
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option that only this engine has; may be repeated",
    )


def run(given: argparse.Namespace) -> int:
    """Runs the worker of a command line until it is told to stop. Raises UsageError."""
    require_free_port(given.host, given.port)
    fleet.run(worker_options(given))
    return 0


def tokenizer_of(directory: Path) -> tuple[Codec, Vocabulary]:
    """What the simulator needs of a model's tokenizer. Raises UsageError when the directory does not load."""
    try:
        files = load_model(str(directory))
        vocabulary = load_vocabulary(directory)
    except (ModelFilesError, OSError, ValueError) as error:
        raise UsageError(f"--model-path {directory}: {error}") from error
    tokenizer, template = files.tokenizer, files.chat_template

    def chat(messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        assert template is not None
        try:
            prompt = template.render(messages)
        except InvalidRequest as error:
            raise ValueError(error.message) from error
        return tokenizer.encode(prompt, add_special_tokens=False)

    codec = Codec(
        encode=functools.partial(tokenizer.encode, add_special_tokens=False),
        decode=functools.partial(tokenizer.decode, skip_special_tokens=False),
        chat=chat if template is not None else None,
    )
    return codec, vocabulary


def worker_options(given: argparse.Namespace) -> SimulatorOptions:
    """The simulator's options for a command line. Raises UsageError with what would be right."""
    codec, vocabulary = tokenizer_of(given.model_path)
    try:
        return SimulatorOptions(
            engine=given.engine,
            role=given.role,
            host=given.host,
            port=given.port,
            bootstrap_port=given.bootstrap_port,
            advertised_host=given.advertised_host,
            model=given.model or given.model_path.resolve().name,
            model_path=str(given.model_path),
            vocabulary=vocabulary,
            codec=codec,
            rule=ReplyRule(echo=given.echo, mean_length=given.mean_length),
            reply=given.reply,
            calls_tools=given.call_tools,
            seed=given.seed,
            pace=_pace(given),
            blocks=given.blocks,
            block_size=given.block_size,
            context_length=given.context_length,
            dp_size=given.dp_size,
            embedding_size=given.embedding_size,
            version=given.version,
            faults=tuple(Fault.parse(text) for text in given.fault),
            **_engine_options(given.engine, given.option),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _pace(given: argparse.Namespace) -> Pace:
    return Pace(
        ttft_s=given.ttft_ms / 1e3,
        prefill_s=given.prefill_us / 1e6,
        decode_s=given.token_ms / 1e3,
        jitter=given.jitter,
        speed=given.speed,
        slots=given.slots,
    )


def _engine_options(engine: str, given: Sequence[str]) -> dict[str, Any]:
    """`["lease_s=5"]` as `{"vllm": VllmOptions(lease_s=5.0)}`. Raises ValueError."""
    if not given:
        return {}
    kind = _ENGINE_OPTIONS.get(engine)
    if kind is None:
        raise ValueError(f"--option: {engine} workers have no options of their own")
    types = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in types:
            raise ValueError(
                f"--option {text}: {engine} has no {name!r}{suggestion(name, types)} (it has: {', '.join(types)})"
            )
        values[name] = _typed(text, value, types[name])
    return {engine: kind(**values)}


def _typed(text: str, value: str, kind: Any) -> Any:
    """A value as its option's type; `none` where the option may be absent."""
    kinds = typing.get_args(kind) or (kind,)
    if value.lower() == "none" and type(None) in kinds:
        return None
    if bool in kinds:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"--option {text}: should be true or false")
        return value.lower() == "true"
    number = int if int in kinds else float if float in kinds else None
    if number is None:
        return value
    try:
        return number(value)
    except ValueError:
        wanted = "a whole number" if number is int else "a number"
        raise ValueError(f"--option {text}: should be {wanted}") from None


def _options_of(engine: str) -> list[str]:
    return [f"{field.name}={field.default}" for field in dataclasses.fields(_ENGINE_OPTIONS[engine])]


def _options_lines() -> str:
    """Each engine's options, wrapped."""
    lines: list[str] = []
    for engine in _ENGINE_OPTIONS:
        lines += textwrap.wrap(
            " ".join(_options_of(engine)), 112, initial_indent=f"  {engine:<8} ", subsequent_indent=" " * 11
        )
    return "\n".join(lines)
