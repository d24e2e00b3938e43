"""The composition root: settings in, a running gateway out.

Everything that lives as long as the process is made here and handed down; no other module holds state of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import random
import signal
import socket
import sys
import time

import uvicorn
import uvloop

from app.api.bodies import BodyBudget
from app.api.trace import Trace
from app.http_protocol import HttpProtocol
from app.main import Front
from app.server import Server
from app.settings import ModelSettings, Settings
from engines import adapter_for
from engines.base import EngineAdapter
from engines.openai_text import OpenAIAdapter
from pipeline.attempts import Attempts
from pipeline.background import Background
from pipeline.build import Resilience, build_pipeline
from pipeline.context import RequestContext
from pipeline.deadlines import Deadlines
from pipeline.dispatch import WorkerRouter
from pipeline.embedding_relay import RelayedEmbeddingService
from pipeline.embeddings import TokenEmbeddings
from pipeline.migration import MigrationLimits
from pipeline.models import Model, Models, RelayedModel, TokenModel
from pipeline.prefill import PrefillRouter
from pipeline.preprocess import Preprocessor
from pipeline.relay import Relay
from pipeline.ticker import Ticker
from protocols.errors import GatewayError, Overloaded
from protocols.model_card import ModelCard, ModelKind
from protocols.worker import Engine, Leg, Worker
from routers.load import Loads
from routers.modes import RouterMode, build_profile
from telemetry.exposition import Exposition
from telemetry.logging import configure_logging
from telemetry.metrics import Metrics, ModelMetrics
from telemetry.record import REQUESTS, Telemetry
from telemetry.tracker import RequestTracker
from text.answer_parser import ModelMarkup
from text.chat_reader import ChatReader
from text.loading import ModelFiles, load_model
from workers.client import WorkerClient
from workers.health import HealthMonitor
from workers.registry import Registry

log = logging.getLogger(__name__)


class Gateway:
    """One process's gateway. As an async context manager it serves from entry to exit.

    `address` is where it listens, known as soon as it is entered. Raises OSError when the port cannot be had, and
    `text.loading.ModelFilesError` for a model whose files do not load.
    """

    def __init__(self, settings: Settings) -> None:
        server = settings.server
        self.settings = settings
        self.ticker = Ticker()
        self.background = Background()
        self.loads = Loads()
        self.registry = Registry(_adapter, self.loads)
        self.client = WorkerClient(connect_timeout_s=settings.deadlines.connect_s)
        self.bodies = BodyBudget(
            max_body=server.max_body_bytes,
            max_in_flight=server.max_body_bytes_in_flight,
            max_requests=server.max_requests,
        )
        self.draining = False
        self._exposition = Exposition()
        self.telemetry = Telemetry(Metrics(self._exposition.registry, [model.name for model in settings.models]))
        self.telemetry.metrics.watch(self.registry.states, self._ready_models)
        self.models = Models(_model(self, model) for model in settings.models)
        self.address = (server.host, server.port)
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._health: HealthMonitor | None = None

    # ---- its life

    async def __aenter__(self) -> Gateway:
        server = self.settings.server
        listener = _listen(server.host, server.port, shared=server.processes > 1)
        self.address = listener.getsockname()[:2]
        self._health = HealthMonitor(self.registry, interval_s=self.settings.health.interval_s)
        for model in self.settings.models:
            for worker in self.settings.workers_of(model):
                if worker.api_key is not None:
                    self.client.authorize(worker.url, worker.api_key)
                self.registry.add(model.name, worker)
        self._health.start()
        self._server = Server(_server_config(self))
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="http-server")
        log.info("listening on http://%s:%s", *self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._serving is not None:
            await self._serving
        await self.background.drain(self.settings.deadlines.first_token_s)
        if self._health is not None:
            await self._health.close()
        self.ticker.close()
        self.client.close()

    def stop(self) -> None:
        """No new connections; requests in flight go on, for `shutdown_timeout_s` at most."""
        self.draining = True
        if self._server is not None:
            self._server.should_exit = True

    async def wait(self) -> None:
        """Until the server has ended: by `stop`, SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, self.stop)
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def ready(self, timeout_s: float | None = 60.0) -> None:
        """Until every model can be served. Raises TimeoutError, naming what is missing."""
        for model in self.models.all():
            await self.registry.wait_until_servable(model.card.name, timeout_s=timeout_s)

    # ---- what requests ask for

    def context(self, answer_id: str, model: str, tracker: RequestTracker, trace: Trace = ()) -> RequestContext:
        """A fresh request's context."""
        return RequestContext(
            answer_id,
            model,
            clock=time.monotonic,
            background=self.background,
            tracker=tracker,
            deadline=time.monotonic() + self.settings.server.request_timeout_s,
            trace=trace,
        )

    def status_of(self, error: GatewayError) -> int:
        """The HTTP status of an error, as the operator wants it."""
        return self.settings.server.overload_status if isinstance(error, Overloaded) else error.status

    def metrics_text(self) -> bytes:
        return self._exposition.text()

    def _ready_models(self) -> dict[str, bool]:
        return {model.card.name: self.registry.servable(model.card.name).ok for model in self.models.all()}


def serve(settings: Settings) -> int:
    """Runs a gateway in this process until SIGTERM or SIGINT. Returns the exit code."""
    configure_logging(sys.stderr, style=settings.logging.format, level=settings.logging.level.upper())
    if settings.logging.requests == "failed":
        logging.getLogger(REQUESTS).setLevel(logging.WARNING)
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    async with Gateway(settings) as gateway:
        settle_memory()
        await gateway.wait()
    return 0


def settle_memory() -> None:
    """Keeps the garbage collector off what lives as long as the process: vocabularies are millions of objects.

    Requests leave no cycles on their usual way, so collections may be rare: each would stall every stream.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


# ---- parts


def _adapter(worker: Worker, model: str) -> EngineAdapter:
    return OpenAIAdapter(worker, model) if worker.engine is Engine.OPENAI else adapter_for(worker, model)


def _model(gateway: Gateway, settings: ModelSettings) -> Model:
    """One model's chain."""
    gateway.registry.declare(settings.name, prefill_policy=settings.prefill_policy)
    observer = gateway.telemetry.model(settings.name)
    router = _worker_router(gateway, settings, observer)
    attempts = gateway.settings.attempts
    if all(worker.engine == "openai" for worker in settings.workers):
        aliases, kind = tuple(settings.aliases), _kind(settings)
        card = ModelCard(settings.name, aliases=aliases, created=int(time.time()), kind=kind)
        embeddings = RelayedEmbeddingService(Attempts(router, retries=attempts.retries, observer=observer))
        return RelayedModel(card, Relay(router, retries=attempts.retries, observer=observer), embeddings)
    assert settings.path is not None, "checked with the settings"
    return _token_model(gateway, settings, load_model(settings.path), router, observer)


def _token_model(
    gateway: Gateway, settings: ModelSettings, files: ModelFiles, router: WorkerRouter, observer: ModelMetrics
) -> TokenModel:
    """A model whose workers take token ids."""
    attempts, card = gateway.settings.attempts, _card(settings, files)
    limits = MigrationLimits(
        retries=attempts.retries,
        migrations=attempts.migration_limit,
        max_sequence=attempts.migration_max_tokens,
        long_prefill=attempts.long_prefill_tokens,
    )

    def longest() -> int | None:
        return settings.context_length or gateway.registry.context_length(settings.name) or files.context_length

    preprocessor = Preprocessor(
        card,
        files.tokenizer,
        files.chat_template,
        longest,
        _chat_reader(gateway.settings, settings, files),
        router.unsupported if settings.unsupported == "drop" else None,
    )
    prefill = PrefillRouter(router, policy=settings.prefill_policy, observer=observer)
    service = build_pipeline(preprocessor, files.tokenizer, prefill, router, Resilience(limits, observer))
    embeddings = TokenEmbeddings(
        card, files.tokenizer, longest, Attempts(router, retries=attempts.retries, observer=observer)
    )
    return TokenModel(card, files.tokenizer, preprocessor, service, embeddings)


def _chat_reader(settings: Settings, model: ModelSettings, files: ModelFiles) -> ChatReader:
    template = None if files.chat_template is None else files.chat_template.markup
    return ChatReader(
        ModelMarkup.choose(model.tool_call_parser, model.reasoning_parser, template),
        files.tokenizer,
        structural_tags=all(_adapter(worker, model.name).structural_tags for worker in settings.workers_of(model)),
    )


def _card(settings: ModelSettings, files: ModelFiles) -> ModelCard:
    assert settings.path is not None
    return ModelCard(
        name=settings.name,
        path=settings.path,
        aliases=tuple(settings.aliases),
        context_length=settings.context_length or files.context_length,
        vocab_size=files.vocab_size,
        eos_token_ids=files.eos_token_ids,
        bos_token_id=files.bos_token_id,
        sampling_defaults=settings.sampling_defaults(files.sampling_defaults),
        template=settings.template(),
        created=int(time.time()),
        checksum=files.checksum,
        kind=_kind(settings),
        clamps=settings.context_overflow == "clamp",
    )


def _kind(settings: ModelSettings) -> ModelKind | None:
    return None if settings.kind is None else ModelKind(settings.kind)


def _worker_router(gateway: Gateway, settings: ModelSettings, observer: ModelMetrics) -> WorkerRouter:
    mode, rng = RouterMode(settings.router.mode), random.Random()
    limits = gateway.settings.deadlines
    return WorkerRouter(
        settings.name,
        registry=gateway.registry,
        client=gateway.client,
        loads=gateway.loads,
        profiles={leg: build_profile(mode, settings.name, leg, rng) for leg in Leg},
        deadlines=Deadlines(
            first_token_s=limits.first_token_s,
            first_token_per_1000_s=limits.first_token_per_1000_s,
            between_tokens_s=limits.between_tokens_s,
            prefill_tail_s=limits.prefill_tail_s,
            lease_margin_s=limits.lease_margin_s,
        ),
        ticker=gateway.ticker,
        clock=time.monotonic,
        observer=observer.workers,
    )


def _listen(host: str, port: int, *, shared: bool) -> socket.socket:
    """A listening socket. `shared`: other processes of this gateway listen on the same port."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _server_config(gateway: Gateway) -> uvicorn.Config:
    server, front = gateway.settings.server, Front(gateway)
    protocol = functools.partial(HttpProtocol, answer=front, limits=server)
    return uvicorn.Config(
        front.app,
        http=protocol,  # type: ignore[arg-type]  # it is only called
        interface="asgi3",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=server.shutdown_timeout_s,  # type: ignore[arg-type]  # fractions work as well
    )
