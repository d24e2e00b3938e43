"""`POST /tokenize` and `POST /detokenize`, in vLLM's (0.32) shape, by the model's own tokenizer and template.

No worker is asked. The ids of a chat are those that the same chat would be sent with.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from app.api.call import Call
from app.http_turn import Turn
from app.responses import send_json
from pipeline.models import Model, TokenModel
from pipeline.preprocess import LONG_TEXT
from protocols.errors import GatewayError, InvalidRequest
from protocols.openai import TokenizeChatRequest, TokenizeRequest, parse_detokenize, parse_tokenize
from text.options import check_vocabulary

if TYPE_CHECKING:
    from app.gateway import Gateway

LONG_IDS = 16_384
"""Token ids from which on decoding leaves the event loop."""


class _Unrecorded:
    """No worker's work, so no request of a model's in metrics and logs."""

    def succeeded(self) -> None: ...
    def failed(self, error: GatewayError, /) -> None: ...
    def cancelled(self) -> None: ...
    def ended(self) -> None: ...


class _TokenizerCall(Call):
    """One request to a model's tokenizer."""

    def __init__(self, gateway: Gateway, turn: Turn) -> None:
        super().__init__(gateway, turn)
        self.record = _Unrecorded()

    def _only_model(self) -> str | None:
        """The model of a request that names none."""
        models = self._gateway.models.all()
        return models[0].card.name if len(models) == 1 else None

    def _model(self, name: str) -> TokenModel:
        return _with_tokenizer(self._gateway.models.get(name), name)

    async def _tell_all(self, value: dict[str, Any]) -> None:
        await send_json(self._turn, 200, orjson.dumps(value), self._answer_headers())


class TokenizeCall(_TokenizerCall):
    """`{prompt}` or `{messages}` to `{count, max_model_len, tokens, token_strs}`."""

    async def _answer(self) -> None:
        request = parse_tokenize(await self._body(), self._only_model())
        model = self._model(request.model)
        ids = await self._watched(_ids_of(request, model))
        names = model.tokenizer.token_names(ids) if request.return_token_strs else None
        longest = model.preprocessor.context_length()
        await self._tell_all({"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": names})


class DetokenizeCall(_TokenizerCall):
    """`{tokens}` to `{prompt}`, special tokens included."""

    async def _answer(self) -> None:
        request = parse_detokenize(await self._body(), self._only_model())
        model = self._model(request.model)
        check_vocabulary(request.tokens, model.card.vocab_size, "tokens")
        text = await self._watched(_text_of(request.tokens, model))
        await self._tell_all({"prompt": text})


def _with_tokenizer(model: Model, name: str) -> TokenModel:
    if not isinstance(model, TokenModel):
        raise InvalidRequest(
            f"The model '{name}' is served by OpenAI-compatible servers: its tokenizer is not known here.",
            param="model",
        )
    return model


async def _ids_of(request: TokenizeRequest | TokenizeChatRequest, model: TokenModel) -> list[int]:
    if isinstance(request, TokenizeChatRequest):
        return await model.preprocessor.chat_ids(request)
    special, encode = request.add_special_tokens is not False, model.tokenizer.encode
    if len(request.prompt) < LONG_TEXT:
        return encode(request.prompt, add_special_tokens=special)
    return await asyncio.to_thread(encode, request.prompt, add_special_tokens=special)


async def _text_of(token_ids: list[int], model: TokenModel) -> str:
    decode = model.tokenizer.decode
    if len(token_ids) < LONG_IDS:
        return decode(token_ids, skip_special_tokens=False)
    return await asyncio.to_thread(decode, token_ids, skip_special_tokens=False)
