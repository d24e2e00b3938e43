"""OpenAI's own types as strict ones: what is not in them is refused, and so is a null that OpenAI never sends.

The SDK's models take anything. Here each is made anew from the same fields: no coercion, no unknown member, required
members required. The SDK says `Optional` both of what may be absent and of what may be null; `NULLABLE` tells the two
apart. `ADDITIONS` are the members that Tandem's answers have beyond OpenAI's, which docs/api.md lists.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import orjson
from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import chat_completion_chunk as chunks
from openai.types.shared import ErrorObject
from pydantic import BaseModel, ConfigDict, create_model

NULLABLE = {
    "ChatCompletionMessage": {"content", "refusal"},
    "ChoiceDelta": {"content"},
    "Choice": {"logprobs", "finish_reason"},
    "ChoiceLogprobs": {"refusal"},
    "ChatCompletionTokenLogprob": {"bytes"},
    "TopLogprob": {"bytes"},
    "ChatCompletionChunk": {"usage"},
    "CompletionChoice": {"logprobs"},
    "ErrorObject": {"code", "param"},
}
"""By type: the members that may be null."""

REQUIRED = {
    "ChatCompletion": {"usage"},
    "Completion": {"usage"},
    "ChatCompletionMessage": {"content", "refusal"},
    "Choice": {"logprobs"},
    "CompletionChoice": {"logprobs"},
    "Logprobs": {"text_offset", "token_logprobs", "tokens", "top_logprobs"},
    "ErrorObject": {"code", "param"},
}
"""By type: members that the SDK calls optional, and that OpenAI always sends."""

PromptLogprobs = list[dict[str, dict[str, Any]] | None]
ADDITIONS: dict[str, dict[str, Any]] = {
    "ChatCompletion": {"prompt_token_ids": list[int], "prompt_logprobs": PromptLogprobs, "tandem": dict[str, Any]},
    "ChatCompletionChunk": {"prompt_token_ids": list[int], "prompt_logprobs": PromptLogprobs, "tandem": dict[str, Any]},
    "Completion": {"tandem": dict[str, Any]},
    "Choice": {"stop_reason": str | int, "token_ids": list[int]},
    "CompletionChoice": {
        "stop_reason": str | int,
        "token_ids": list[int],
        "prompt_token_ids": list[int],
        "prompt_logprobs": PromptLogprobs,
    },
    "ChatCompletionMessage": {"reasoning_content": str, "reasoning": str},
    "ChoiceDelta": {"reasoning_content": str, "reasoning": str},
    "CreateEmbeddingResponse": {"tandem": dict[str, Any]},
    "Model": {"root": str, "parent": str, "max_model_len": int},
}
"""By type: the members that are ours, and what they hold."""

_WIDER = {
    ("Logprobs", "token_logprobs"): list[float | None],
    ("Logprobs", "top_logprobs"): list[dict[str, float] | None],
    ("Embedding", "embedding"): list[float] | str,
}
"""What OpenAI's documentation allows beyond the SDK's annotation: nulls of an echoed prompt's first token, base64."""

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


@functools.cache
def strict(model: type[BaseModel], variant: str = "") -> type[BaseModel]:
    """The strict twin of one of the SDK's models. `variant` "stream": as its chunks are."""
    kind = model.__name__
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        wanted = _twin(_WIDER.get((kind, name), field.annotation), variant)
        required = field.is_required() or name in REQUIRED.get(kind, ())
        nullable = name in NULLABLE.get(kind, ())
        fields[name] = (wanted if nullable else _never_null(wanted), ... if required else None)
    fields |= {name: (wanted, None) for name, wanted in ADDITIONS.get(kind, {}).items()}
    if variant == "stream" and kind in _STREAMED:
        fields |= _STREAMED[kind]
    return create_model(kind, __config__=_STRICT, **fields)


def _twin(annotation: Any, variant: str) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return strict(annotation, variant)
    if origin is Annotated:
        return _twin(arguments[0], variant)
    if origin in (Union, types.UnionType):
        return Union[tuple(_twin(each, variant) for each in arguments)]  # noqa: UP007
    if origin in (list, dict):
        return origin[tuple(_twin(each, variant) for each in arguments)]
    return annotation


def _never_null(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    return Union[tuple(each for each in get_args(annotation) if each is not types.NoneType)]  # noqa: UP007


_STREAMED: Mapping[str, dict[str, Any]] = {
    "Completion": {"usage": (strict(Completion).model_fields["usage"].annotation | None, None)},
    "CompletionChoice": {
        "finish_reason": (_twin(CompletionChoice.model_fields["finish_reason"].annotation, "") | None, ...)
    },
    "Choice": {
        "finish_reason": (_twin(chunks.Choice.model_fields["finish_reason"].annotation, ""), ...),
        "logprobs": (_twin(chunks.Choice.model_fields["logprobs"].annotation, ""), None),
    },
}
"""How chunks differ: finish and usage are null until they are known, logprobs may be absent.

The SDK gives a streamed completion the unstreamed one's type.
"""


class Envelope(BaseModel):
    """An error's whole body."""

    model_config = _STRICT

    error: strict(ErrorObject)  # type: ignore[valid-type]


class ModelList(BaseModel):
    """`GET /v1/models`."""

    model_config = _STRICT

    object: Literal["list"]
    data: list[strict(Model)]  # type: ignore[valid-type]


WHOLE = {"chat": strict(ChatCompletion), "completions": strict(Completion)}
CHUNK = {"chat": strict(ChatCompletionChunk, "stream"), "completions": strict(Completion, "stream")}
EMBEDDINGS = strict(CreateEmbeddingResponse)
MODEL = strict(Model)


def check(kind: type[BaseModel], body: bytes) -> Any:
    """The JSON value. Raises pydantic's ValidationError when it is not exactly of this kind."""
    kind.model_validate_json(body)
    return orjson.loads(body)
