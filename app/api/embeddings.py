"""`POST /v1/embeddings`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from app.api.call import ModelCall
from app.http_turn import Turn
from app.responses import send_json
from protocols.openai import parse_embedding

if TYPE_CHECKING:
    from app.gateway import Gateway


class EmbeddingsCall(ModelCall):
    """One request for vectors."""

    def __init__(self, gateway: Gateway, turn: Turn) -> None:
        super().__init__(gateway, turn, endpoint="embeddings")

    async def _answer(self) -> None:
        request = parse_embedding(await self._body())
        model = self._gateway.models.embedding(request.model)
        self.record.began(model.card.name, stream=False, generates=False)
        context = self._open(f"embd-{random.getrandbits(128):032x}", model.card)
        job = await model.embeddings.prepare(request, self._hints())
        self._check_ready(model.card.name)
        self.record.prepared(job.usage)
        body = await self._watched(job.run(context, self._story))
        await send_json(self._turn, 200, body, self._answer_headers())
