"""The front door's parsing: bytes of a body to a valid request, or InvalidRequest with the field named.

Where an object names a member twice the last one counts, as in Python's json; no worker ever reads the client's bytes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from protocols.errors import InvalidRequest
from protocols.openai_chat import ChatCompletionRequest
from protocols.openai_completions import CompletionRequest
from protocols.openai_errors import kind_of, refusal
from protocols.openai_fields import GenerationRequest

__all__ = ["ChatCompletionRequest", "CompletionRequest", "GenerationRequest", "parse_chat", "parse_completion"]

R = TypeVar("R", bound=GenerationRequest)


def parse_chat(body: bytes) -> ChatCompletionRequest:
    """Reads the body of `POST /v1/chat/completions`. Raises InvalidRequest."""
    return _validated(ChatCompletionRequest, _object(body))


def parse_completion(body: bytes) -> CompletionRequest:
    """Reads the body of `POST /v1/completions`. Raises InvalidRequest."""
    return _validated(CompletionRequest, _object(body))


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _unreadable(body, error) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"The request body must be a JSON object, but is {kind_of(value)}.")
    return value


def _unreadable(body: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return InvalidRequest(f"The request body is not valid UTF-8: {wrong.reason} at byte {wrong.start}.")
    place = f"line {error.lineno}, column {error.colno}"
    return InvalidRequest(f"The request body is not valid JSON: {error.msg} ({place}).")


def _validated(model: type[R], value: dict[str, Any]) -> R:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise refusal(error) from None
