"""What the gateway tells of itself: models, health, liveness, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from pipeline.models import Model, TokenModel
from protocols.errors import ModelNotFound
from telemetry.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from app.gateway import Gateway


def status_routes(gateway: Gateway) -> APIRouter:
    """The routes that only look."""
    router = APIRouter()

    @router.get("/v1/models", summary="The models served, by all their names")
    @router.get("/v1/models/", include_in_schema=False)
    async def models() -> Response:
        listed = [_model(gateway, model, name) for model in gateway.models.all() for name in model.card.names()]
        return _json({"object": "list", "data": listed})

    @router.get("/v1/models/{name:path}", summary="One model; its name may hold slashes, encoded or not")
    async def model(name: str) -> Response:
        wanted = unquote(name).rstrip("/")
        found = next((model for model in gateway.models.all() if wanted in model.card.names()), None)
        if found is None:
            raise ModelNotFound(f"The model '{wanted[:256]}' does not exist.", param="model")
        return _json(_model(gateway, found, wanted))

    @router.get("/health", summary="Which models can be served, and why not; 503 when none can")
    async def health() -> Response:
        return _json(*_health(gateway))

    @router.get("/live", summary="The process runs")
    async def live() -> Response:
        return _json({"status": "live"})

    @router.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics_text(), media_type=CONTENT_TYPE)

    return router


def _model(gateway: Gateway, model: Model, name: str) -> dict[str, Any]:
    """`max_model_len`: what requests are held to now, by the configuration, the model's files and its workers."""
    card = model.card
    told: dict[str, Any] = {"id": name, "object": "model", "created": card.created, "owned_by": "tandem"}
    if name != card.name:
        told |= {"root": card.name, "parent": card.name}
    known = model.preprocessor.context_length() if isinstance(model, TokenModel) else None
    longest = known or gateway.registry.context_length(card.name)
    if longest is not None:
        told["max_model_len"] = longest
    return told


def _health(gateway: Gateway) -> tuple[dict[str, Any], int]:
    """The honest answer, and its status: 200 while any model can be served and the gateway is not draining."""
    models = {}
    any_ok = False
    for model in gateway.models.all():
        servable = gateway.registry.servable(model.card.name)
        any_ok |= servable.ok
        models[model.card.name] = {
            "servable": servable.ok,
            **({"reason": servable.reason} if servable.reason else {}),
            "workers": {role.value: {"up": n.up, "total": n.total} for role, n in servable.roles.items()},
        }
    status = "draining" if gateway.draining else "healthy" if any_ok else "unhealthy"
    return {"status": status, "models": models}, 200 if any_ok and not gateway.draining else 503


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
