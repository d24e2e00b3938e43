"""What the gateway tells of itself: models, health, liveness, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from protocols.errors import ModelNotFound
from protocols.model_card import ModelCard
from telemetry.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from app.gateway import Gateway


def status_routes(gateway: Gateway) -> APIRouter:
    """The routes that only look."""
    router = APIRouter()

    @router.get("/v1/models", summary="The models served, by all their names")
    @router.get("/v1/models/", include_in_schema=False)
    async def models() -> Response:
        cards = [model.card for model in gateway.models.all()]
        listed = [_model(card, name) for card in cards for name in card.names()]
        return _json({"object": "list", "data": listed})

    @router.get("/v1/models/{name:path}", summary="One model; its name may hold slashes, encoded or not")
    async def model(name: str) -> Response:
        wanted = unquote(name).rstrip("/")
        found = next((m.card for m in gateway.models.all() if wanted in m.card.names()), None)
        if found is None:
            raise ModelNotFound(f"The model '{wanted[:256]}' does not exist.", param="model")
        return _json(_model(found, wanted))

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


def _model(card: ModelCard, name: str) -> dict[str, Any]:
    model: dict[str, Any] = {"id": name, "object": "model", "created": card.created, "owned_by": "tandem"}
    if name != card.name:
        model |= {"root": card.name, "parent": card.name}
    if card.context_length is not None:
        model["max_model_len"] = card.context_length
    return model


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
