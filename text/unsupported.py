"""A request without a parameter that no worker of the model can honour, for operators who would rather have it dropped.

Some are never dropped: what is isolated by a salt would no longer be, and a prompt without its embeddings is another.
"""

from __future__ import annotations

from typing import Any, TypeVar

from protocols.openai import CompletionRequest, GenerationRequest

R = TypeVar("R", bound=GenerationRequest)

_KEPT = frozenset({"cache_salt", "prompt_embeds", "multi_modal_data", "lora_name"})
_TOGETHER = {"logprobs": ("logprobs", "top_logprobs", "best_of"), "best_of": ("best_of",)}
"""A parameter's name, and the fields that ask for it. `best_of` ranks by logprobs."""


def without(request: R, parameter: str) -> R | None:
    """The request as if the client had not said `parameter`; None for one that is not to be dropped."""
    if parameter in _KEPT:
        return None
    if parameter in (request.model_extra or {}):
        bare = request.model_copy()
        assert bare.model_extra is not None
        del bare.model_extra[parameter]
        return bare
    changes: dict[str, Any] = dict.fromkeys(
        name for name in _TOGETHER.get(parameter, (parameter,)) if hasattr(request, name)
    )
    if parameter == "prompt_logprobs" and isinstance(request, CompletionRequest) and request.echo:
        changes["logprobs"] = None
    elif parameter == "guided_whitespace_pattern" and request.structured_outputs is not None:
        changes["structured_outputs"] = {**request.structured_outputs, "whitespace_pattern": None}
    elif parameter == "thinking_token_budget":
        unbound = {"max_thinking_tokens": None}
        changes["tandem"] = request.tandem and request.tandem.model_copy(update=unbound)
        changes["nvext"] = request.nvext and request.nvext.model_copy(update=unbound)
    return request.model_copy(update=changes)
