"""`POST /tokenize` and `POST /detokenize`, in vLLM's (0.32) shape: the requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainValidator

from protocols.openai_chat import ChatCompletionRequest
from protocols.openai_fields import check_token_ids


class TokenizeRequest(BaseModel):
    """A text. `return_token_strs`: with the tokens' names in the vocabulary."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatCompletionRequest):
    """A chat, with everything that its template sees: the ids are those that this chat would be sent with."""

    return_token_strs: bool | None = None


def _check_tokens(tokens: object) -> list[int]:
    check_token_ids("tokens", tokens)
    return tokens  # type: ignore[return-value]


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str
    tokens: Annotated[list[int], PlainValidator(_check_tokens)]
