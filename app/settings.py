"""What an operator can set, with its meaning, default and limits. The only module that reads the environment.

A file and the environment make one document; whatever is wrong with it is found in one go. The keys' meanings below are
the ones that error messages quote and that docs/configuration.md explains.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.config_document import ConfigDocument, overlay_environment, read_document, refuse_broken
from app.config_problems import Place, Problem
from app.config_schema import ConfigSchema
from app.consistency import inconsistencies
from protocols.options import RequestTemplate
from protocols.worker import Engine, Role, Worker, worker_id_of
from text.answer_parser import NONE, ModelMarkup

Seconds = Annotated[float, Field(gt=0, le=86_400)]
SecondsOrNone = Annotated[float, Field(ge=0, le=86_400)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


def checked_url(url: str) -> str:
    """A worker's URL, if it is one. Raises ValueError with what would be right."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL ({error}); write http://host:port") from error
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"should begin with http:// or https://, as in http://{url.rpartition('//')[2]}")
    if not parts.hostname or port == 0:
        raise ValueError(f"should name a host and a port, as in http://127.0.0.1:8100, but is {url}")
    if parts.query or parts.fragment:
        raise ValueError("should end after host, port and path prefix; leave out what follows ? or #")
    if parts.username is not None:
        raise ValueError("should hold no user name or password")
    return url


def checked_key(key: str) -> str:
    """A key that can stand in a header. Raises ValueError for another, without repeating it."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("should be of visible ASCII characters")
    return key


def checked_tool_call_parser(name: str) -> str:
    """The name of a parser of tool calls, or `none`. Raises ValueError with all names for an unknown one."""
    ModelMarkup.choose(name, NONE, None)
    return name


def checked_reasoning_parser(name: str) -> str:
    """The name of a parser of thoughts, or `none`. Raises ValueError with all names for an unknown one."""
    ModelMarkup.choose(NONE, name, None)
    return name


class _Section(BaseModel):
    """Strict, closed and frozen: no key that nobody reads, no value that had to be guessed."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ServerSettings(_Section):
    """The HTTP side that clients see."""

    host: Text = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of IPv4, :: for all."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """Port to listen on; 0 takes a free one."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that share the port, each with its own view of the workers' loads."""
    api_keys: Annotated[list[Annotated[Text, AfterValidator(checked_key)]], Field(repr=False)] = []
    """Keys of which clients must send one as a bearer token, else 401; /live, /health and /metrics need none."""
    max_requests: Count = 8192
    """Requests in flight per process; beyond them 503 with Retry-After."""
    max_body_bytes: Count = 64 * 1024 * 1024
    """Longest request body; beyond it 413."""
    max_body_bytes_in_flight: Count = 512 * 1024 * 1024
    """Bytes of all request bodies being read per process; beyond them 503 with Retry-After."""
    max_request_line_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024
    """Longest target (path and query) of a request; beyond it 414."""
    max_header_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024
    """Most bytes of a request's headers, names and values of all of them together; beyond them 431."""
    request_timeout_s: Seconds = 600.0
    """Longest time for one request, retries included; beyond it 504."""
    first_byte_hold_s: Seconds = 15.0
    """How long a stream's status is held back for the first output, so that a refusal keeps its own status."""
    ping_interval_s: Seconds = 15.0
    """How often a silent stream gets a keep-alive comment once its status is out."""
    write_timeout_s: Seconds = 60.0
    """A client that takes no byte of its answer for so long is dropped, and its workers are freed."""
    keep_alive_s: Annotated[float, Field(ge=75, le=86_400)] = 75.0
    """How long an idle client connection is kept."""
    shutdown_timeout_s: SecondsOrNone = 30.0
    """How long requests in flight may go on after SIGTERM."""
    overload_status: Literal[503, 429, 529] = 503
    """Status when every worker that could take a request is overloaded."""


class DeadlineSettings(_Section):
    """How long a worker may keep a request waiting before the next one is tried."""

    connect_s: Seconds = 2.0
    """To accept a connection."""
    first_token_s: Seconds = 30.0
    """To the first token, whatever the prompt's length."""
    first_token_per_1000_s: SecondsOrNone = 1.0
    """Added to first_token_s for every 1000 prompt tokens."""
    between_tokens_s: Seconds = 60.0
    """Between two outputs. Time in which the client takes nothing does not count."""
    prefill_tail_s: SecondsOrNone = 10.0
    """How long a finished answer waits for a prefill that runs beside decode to end well."""
    lease_margin_s: SecondsOrNone = 10.0
    """A hand-off is given up this long before the prefill worker lets its blocks go."""


class AttemptSettings(_Section):
    """How often a request may be tried again."""

    retries: CountOrNone = 2
    """Further attempts while the client has seen nothing yet."""
    migration_limit: CountOrNone = 3
    """Further attempts once the client has seen a part of the answer."""
    migration_max_tokens: Count | None = None
    """No migration once prompt and answer together are longer than this; by default there is no such limit."""
    long_prefill_tokens: Count = 16_384
    """A prompt of more tokens than this is tried again at most once."""


class HealthSettings(_Section):
    """How workers are watched."""

    interval_s: Seconds = 5.0
    """Between two looks at a worker; an engine whose health route costs something is looked at less often."""


class LoggingSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""
    requests: Literal["failed", "all"] = "failed"
    """Which finished requests get a line of their own; the metrics count all of them."""


class RouterSettings(_Section):
    mode: Text = "round-robin"
    """How a worker is chosen among those that can take the request."""


class DefaultsSettings(_Section):
    """What a request gets that does not say. It wins over the model's own generation_config.json."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the likeliest tokens to draw from."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """How many of the likeliest tokens to draw from; -1 or 0 for all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Least likelihood of a token to be drawn, as a share of the likeliest one's."""
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    """How much tokens that were there before are disfavoured; 1 for not at all."""
    max_completion_tokens: Count | None = None
    """Longest answer, in tokens."""


class WorkerSettings(_Section):
    """One worker process."""

    url: Annotated[Text, AfterValidator(checked_url)]
    """Where it listens, http://host:port; a path is kept as prefix."""
    id: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Its number in headers, logs and metrics; by default a stable hash of its url."""
    engine: Literal["vllm", "sglang", "trtllm", "openai", "native"]
    """What it runs."""
    role: Literal["aggregated", "prefill", "decode"] = "aggregated"
    """Its part: a whole request (aggregated), or one half of it."""
    served_name: Text | None = None
    """The model's name there; asked from the worker when absent."""
    connector: Literal["nixl"] = "nixl"
    """vLLM's KV connector."""
    version: Text | None = None
    """The engine's release; asked from the worker when absent."""
    bootstrap_host: Text | None = None
    """SGLang prefill: the host at which decode workers reach it; by default the host of its url."""
    bootstrap_port: Port | None = None
    """SGLang prefill: its --disaggregation-bootstrap-port; by default 8998."""
    dp_size: Annotated[int, Field(ge=1, le=4096)] = 1
    """Data-parallel ranks behind this url."""
    lease_s: Seconds | None = None
    """How long it keeps prefilled blocks for decode; by default the engine's own time."""
    context_length: Count | None = None
    """Tokens it can hold per request, prompt and answer together; asked from the worker when absent."""
    api_key: Annotated[Text, AfterValidator(checked_key)] | None = Field(default=None, repr=False)
    """The key that it was started with (--api-key); sent as a bearer token."""
    taints: list[Text] = []
    """Labels that a request's routing constraints may ask for."""


class ModelSettings(_Section):
    """One model and the workers that serve it."""

    name: Text
    """What clients call it."""
    path: Text | None = None
    """Directory with tokenizer.json, tokenizer_config.json and config.json; only openai workers do without."""
    served_name: Text | None = None
    """The name of the model at its workers, for those that have none of their own."""
    aliases: list[Text] = []
    """Further names that clients may use."""
    kind: Literal["generate", "embed"] | None = None
    """The one thing it does: generate text, or make embeddings; by default whatever its workers answer."""
    context_length: Count | None = None
    """Most tokens per request, prompt and answer together; by default the model's own."""
    tool_call_parser: Annotated[Text, AfterValidator(checked_tool_call_parser)] | None = None
    """How it marks calls of tools, by the parser's name; none for not at all; by default its chat template tells."""
    reasoning_parser: Annotated[Text, AfterValidator(checked_reasoning_parser)] | None = None
    """How it marks what it thinks, by the parser's name; none for not at all; by default its chat template tells."""
    router: RouterSettings = RouterSettings()
    defaults: DefaultsSettings = DefaultsSettings()
    generation_config: Literal["use", "ignore"] = "use"
    """Does what generation_config.json says of sampling and length count where a request says nothing?"""
    context_overflow: Literal["clamp", "refuse"] = "clamp"
    """An answer that is asked to be longer than the context has room for: shortened (clamp), or 400 (refuse)."""
    prefill_policy: Literal["strict", "local"] | None = None
    """When no prefill worker is usable: refuse (strict) or prefill at decode (local); by default the engine decides."""
    unsupported: Literal["refuse", "drop"] = "refuse"
    """A parameter that changes the answer and that no worker can honour: 400 (refuse), or a warning header (drop)."""
    workers: Annotated[list[WorkerSettings], Field(min_length=1)]
    """The processes that serve it, at least one."""

    def template(self) -> RequestTemplate:
        """The defaults as the value that preprocessing takes."""
        return RequestTemplate(self.defaults.temperature, self.defaults.max_completion_tokens)

    def sampling_defaults(self, of_the_model: Mapping[str, Any]) -> dict[str, Any]:
        """What requests get that do not say: the operator's word over the model's own (generation_config.json)."""
        said = {
            "top_p": self.defaults.top_p,
            "top_k": self.defaults.top_k,
            "min_p": self.defaults.min_p,
            "repetition_penalty": self.defaults.repetition_penalty,
        }
        known = of_the_model if self.generation_config == "use" else {}
        return {**known, **{name: value for name, value in said.items() if value is not None}}


class Settings(_Section):
    """Everything, valid."""

    server: ServerSettings = ServerSettings()
    deadlines: DeadlineSettings = DeadlineSettings()
    attempts: AttemptSettings = AttemptSettings()
    health: HealthSettings = HealthSettings()
    logging: LoggingSettings = LoggingSettings()
    models: Annotated[list[ModelSettings], Field(min_length=1)]
    """The models to serve, at least one."""

    def workers_of(self, model: ModelSettings) -> list[Worker]:
        """The model's workers as values, in the order of the file."""
        return [worker_of(worker, model.served_name) for worker in model.workers]


def worker_of(settings: WorkerSettings, served_name: str | None = None) -> Worker:
    """A worker as the value that all other rooms know. `served_name` is the model's, for a worker without one."""
    url = settings.url.rstrip("/")
    return Worker(
        id=worker_id_of(url) if settings.id is None else settings.id,
        url=url,
        engine=Engine(settings.engine),
        role=Role(settings.role),
        served_name=settings.served_name or served_name,
        connector=settings.connector,
        version=settings.version,
        bootstrap_host=settings.bootstrap_host,
        bootstrap_port=settings.bootstrap_port,
        dp_size=settings.dp_size,
        lease_s=settings.lease_s,
        context_length=settings.context_length,
        taints=frozenset(settings.taints),
        api_key=settings.api_key,
    )


def load_settings(
    path: Path, overrides: Mapping[Place, tuple[object, str]] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from a YAML file, the environment over it, and `overrides` over both.

    `overrides`: by place, a value and where it was said (`--port`). `environ` defaults to the process's own.
    Raises ConfigError with every problem found, each with its place and what would be right.
    """
    document = read_document(path)
    overlay_environment(document, os.environ if environ is None else environ, _SCHEMA.is_text)
    for place, (value, origin) in (overrides or {}).items():
        document.override(place, value, origin)
    return settings_of(document)


def settings_of(document: ConfigDocument) -> Settings:
    """The document as settings. A key whose value is null counts as absent. Raises ConfigError with every problem."""
    values = _without_nulls(document.values)
    settings: Settings | None = None
    problems: list[Problem] = []
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems = [
            _SCHEMA.problem(found["loc"], found["type"], found["input"], found["msg"])
            for found in error.errors(include_url=False)
        ]
    refuse_broken(document, problems + inconsistencies(values, _read_worker))
    assert settings is not None, "a document without problems has settings"
    return settings


def _read_worker(values: object, served_name: str | None) -> Worker | None:
    try:
        return worker_of(WorkerSettings.model_validate(values), served_name)
    except ValidationError:
        return None


def _without_nulls(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_nulls(value) for key, value in values.items() if value is not None}
    if isinstance(values, list):
        return [_without_nulls(value) for value in values]
    return values


_SCHEMA = ConfigSchema(Settings.model_json_schema())
