"""The error envelopes of inference servers, read into one shape.

Seen: nested `{"error": {"message", "type", "param", "code"}}` (OpenAI, vLLM, llama.cpp), flat `{"object": "error",
"message", ...}` (SGLang, TensorRT-LLM), `{"error": "text"}` (TensorRT-LLM's validation, vLLM's 401), `{"detail": ...}`
(FastAPI), and plain text (a crashed server, a proxy).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from protocols.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    EngineFailure,
    GatewayError,
    InvalidRequest,
    ProtocolViolation,
    WorkerBusy,
    WorkerMisconfigured,
)

MAX_WORDS = 2000
_TOO_LONG_TYPES = frozenset({"exceed_context_size_error", "context_length_exceeded"})
_TOO_LONG_WORDS = (
    "maximum context length",
    "context size",
    "context length",
    "exceed the context",
    "max_model_len",
    "max_seq_len",
    "max_num_tokens",
    "max_input_len",
    "prompt length",
    "prompt is too long",
)
_BUSY = frozenset({429, 503, 529})
_OURS = frozenset({401, 402, 403, 404, 405, 407, 415})
_KEY_KINDS = frozenset(
    {"authentication_error", "permission_error", "invalid_api_key", "insufficient_quota", "account_deactivated"}
)
"""Types and codes that speak of the key that the gateway sent, not of the request."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error says. `message` is never empty; the rest is None where the envelope has none."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None

    def about_our_key(self) -> bool:
        """Whether it speaks of the gateway's own credentials or account, whatever its status."""
        return self.type in _KEY_KINDS or self.code in _KEY_KINDS

    def too_long(self) -> bool:
        """Whether it speaks of a prompt, or prompt and answer, that does not fit the context."""
        if self.type in _TOO_LONG_TYPES or self.code in _TOO_LONG_TYPES:
            return True
        words = self.message.lower()
        return any(word in words for word in _TOO_LONG_WORDS)


def error_body(body: bytes) -> ErrorBody:
    """Reads the body of a refusal, whatever its shape."""
    try:
        return error_value(orjson.loads(body))
    except orjson.JSONDecodeError:
        return ErrorBody(_words(body.decode(errors="replace").strip()))


def error_value(value: Any) -> ErrorBody:
    """The same for a value already parsed: a whole envelope, or what stands under `error`."""
    if not isinstance(value, Mapping):
        return ErrorBody(_words(value))
    inner = value.get("error")
    if isinstance(inner, Mapping):
        value = inner
    elif inner is not None:
        return ErrorBody(_words(inner), type=_text(value.get("type")), code=_code(value.get("code")))
    detail = value.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], Mapping):
        return _detailed(detail[0])
    return ErrorBody(
        message=_words(value.get("message") or detail or value.get("msg")),
        type=_text(value.get("type")),
        param=_text(value.get("param")),
        code=_code(value.get("code")),
    )


def http_error(status: int, error: ErrorBody) -> GatewayError:
    """What a refusal by `status` means where the engine has no peculiarity of its own.

    400 and its like are the client's fault; 401 to 405 ours (a key, an account, a route or a name that this worker does
    not know); 429, 503 and 529 nobody's; all else the worker's.
    """
    words = error.message
    if status in _BUSY:
        return WorkerBusy(words, worker_status=status)
    if status in _OURS or (status == 400 and error.about_our_key()):
        return WorkerMisconfigured(f"the worker answered {status}: {words}", worker_status=status)
    if status == 413:
        return BodyTooLarge(words, param=error.param)
    if 400 <= status < 500 and status not in (408, 499):
        kind = ContextLengthExceeded if error.too_long() else InvalidRequest
        return kind(words, param=error.param)
    if status < 400:
        return ProtocolViolation(f"the worker answered {status}", worker_status=status)
    return EngineFailure(words, worker_status=status)


def event_error(error: ErrorBody) -> GatewayError:
    """What an error inside a reply of status 200 means: its code, where it is a status, says whose fault it is."""
    status = _status(error.code)
    if status is not None and 400 <= status < 600:
        return http_error(status, error)
    if error.about_our_key():
        return WorkerMisconfigured(f"the worker refuses our key: {error.message}")
    if error.code == "context_length_exceeded":
        return ContextLengthExceeded(error.message, param=error.param)
    if error.type == "invalid_request_error":
        kind = ContextLengthExceeded if error.too_long() else InvalidRequest
        return kind(error.message, param=error.param)
    return EngineFailure(error.message)


def embeddings_refusal(status: int, error: ErrorBody) -> InvalidRequest | None:
    """What a refusal of an embedding call says of the model rather than of the worker; None: nothing of that kind.

    A server that generates has no such route (vLLM), or says so (llama.cpp: 501).
    """
    if status in (404, 405) and error.type is None and error.code is None:
        return InvalidRequest(f"This model makes no embeddings: its worker answered {status}.", param="model")
    return InvalidRequest(error.message, param="model") if status == 501 else None


def _detailed(first: Mapping[str, Any]) -> ErrorBody:
    """FastAPI's validation: where in the body, and what is wrong there."""
    place = first.get("loc")
    names = [str(part) for part in place if part != "body"] if isinstance(place, list) else []
    return ErrorBody(_words(first.get("msg")), type=_text(first.get("type")), param=".".join(names) or None)


def _status(code: str | int | None) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        return int(code)
    return code if isinstance(code, int) else None


def _words(value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return text[:MAX_WORDS] or "the worker gave no reason"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _code(value: Any) -> str | int | None:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "" else None
