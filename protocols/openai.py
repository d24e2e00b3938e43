"""The front door's parsing: bytes of a body to a valid request, or InvalidRequest with the field named.

Where an object names a member twice the last one counts, as in Python's json; no worker ever reads the client's bytes.
Clients send the same parameters again and again, with other messages: what was checked of them is remembered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from protocols.errors import InvalidRequest
from protocols.nesting import is_too_deep, may_be_too_deep
from protocols.openai_chat import ChatCompletionRequest
from protocols.openai_completions import CompletionRequest
from protocols.openai_embeddings import EmbeddingRequest
from protocols.openai_errors import invalid, kind_of, missing, refusal, too_deep
from protocols.openai_fields import GenerationRequest
from protocols.openai_messages import check_messages
from protocols.openai_tokenization import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest

__all__ = [
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "TokenizeChatRequest",
    "TokenizeRequest",
    "parse_chat",
    "parse_completion",
    "parse_detokenize",
    "parse_embedding",
    "parse_tokenize",
]

R = TypeVar("R", bound=BaseModel)


REMEMBERED_BYTES = 64 * 1024
"""Parameters beyond this size are checked every time."""
REMEMBERED = 128
"""Sets of parameters that are remembered. The largest, taken apart, are some hundred kilobytes each."""


def parse_chat(body: bytes) -> ChatCompletionRequest:
    """Reads the body of `POST /v1/chat/completions`. Raises InvalidRequest."""
    value = _loaded(body)
    messages = value.pop("messages", None)
    parameters = _written(value)
    if messages is None:
        return _validated(ChatCompletionRequest, _object(body))
    if len(parameters) > REMEMBERED_BYTES:
        if is_too_deep(value):
            raise too_deep()
        return _validated(ChatCompletionRequest, {**value, "messages": messages})
    chat = _chat_of(parameters)
    return chat.with_messages(check_messages(messages))


@lru_cache(maxsize=REMEMBERED)
def _chat_of(parameters: bytes) -> ChatCompletionRequest:
    """A chat of these parameters. Its one message stands for any; nobody changes what all chats like it share."""
    value = {**_object(parameters), "messages": [{"role": "user", "content": ""}]}
    return _validated(ChatCompletionRequest, value)


def parse_completion(body: bytes) -> CompletionRequest:
    """Reads the body of `POST /v1/completions`. Raises InvalidRequest."""
    return _validated(CompletionRequest, _object(body))


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """Reads the body of `POST /v1/embeddings`. Raises InvalidRequest."""
    return _validated(EmbeddingRequest, _object(body))


def parse_tokenize(body: bytes, only_model: str | None) -> TokenizeRequest | TokenizeChatRequest:
    """Reads the body of `POST /tokenize`: a prompt, or a chat. Raises InvalidRequest.

    `only_model`: the model of a request that names none.
    """
    value = _with_model(_object(body), only_model)
    if value.get("messages") is None:
        return _validated(TokenizeRequest, value)
    if value.get("prompt") is not None:
        raise invalid("messages", "it excludes 'prompt'")
    return _validated(TokenizeChatRequest, value)


def parse_detokenize(body: bytes, only_model: str | None) -> DetokenizeRequest:
    """Reads the body of `POST /detokenize`. Raises InvalidRequest. `only_model`: as for `parse_tokenize`."""
    return _validated(DetokenizeRequest, _with_model(_object(body), only_model))


def _with_model(value: dict[str, Any], only_model: str | None) -> dict[str, Any]:
    if value.get("model") is not None:
        return value
    if only_model is None:
        raise missing("model")
    return {**value, "model": only_model}


def _object(body: bytes) -> dict[str, Any]:
    value = _loaded(body)
    if may_be_too_deep(body) and is_too_deep(value):
        raise too_deep()
    return value


def _loaded(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _unreadable(body, error) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"The request body must be a JSON object, but is {kind_of(value)}.")
    return value


def _written(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise too_deep() from error


def _unreadable(body: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return InvalidRequest(f"The request body is not valid UTF-8: {wrong.reason} at byte {wrong.start}.")
    place = f"line {error.lineno}, column {error.colno}"
    return InvalidRequest(f"The request body is not valid JSON: {error.msg} ({place}).")


def _validated(model: type[R], value: dict[str, Any]) -> R:
    try:
        # What `model_validate` calls, without its many arguments.
        valid: R = model.__pydantic_validator__.validate_python(value)
    except ValidationError as error:
        raise refusal(error) from None
    return valid
