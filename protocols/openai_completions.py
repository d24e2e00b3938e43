"""`POST /v1/completions`: the request. A prompt has four shapes, and all of them become a list of prompts."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from protocols.openai_errors import invalid, missing, wrong_type
from protocols.openai_fields import MAX_CHOICES, MAX_LOGPROBS, GenerationRequest, check_token_ids

Prompt = str | list[int]
"""One prompt: a text, or its token ids."""


def check_prompt(prompt: Any) -> str | list[Any]:
    """A string, token ids, or an array of either; the prompt as it came. Emptiness is judged by `CompletionRequest`."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        raise wrong_type("prompt", "a string, an array of strings, token ids, or an array of token id arrays", prompt)
    first = prompt[0] if prompt else None
    if isinstance(first, str):
        for index, item in enumerate(prompt):
            if not isinstance(item, str):
                raise wrong_type(f"prompt[{index}]", "a string like the first prompt", item)
            _check_not_empty(item, f"prompt[{index}]")
    elif isinstance(first, list):
        for index, item in enumerate(prompt):
            check_token_ids(f"prompt[{index}]", item)
            _check_not_empty(item, f"prompt[{index}]")
    else:
        check_token_ids("prompt", prompt)
    return prompt


def check_prompt_embeds(embeds: Any) -> str:
    """Base64 of a tensor, opaque to us."""
    if not isinstance(embeds, str):
        raise wrong_type("prompt_embeds", "a base64 string", embeds)
    try:
        if not base64.b64decode(embeds, validate=True):
            raise invalid("prompt_embeds", "it is empty")
    except binascii.Error as error:
        raise invalid("prompt_embeds", f"not base64: {error}") from None
    return embeds


class CompletionRequest(GenerationRequest):
    """A text completion. With `prompt_embeds` the prompt itself may be absent or empty."""

    prompt: Annotated[str | list[Any], PlainValidator(check_prompt)] | None = None
    prompt_embeds: Annotated[str, PlainValidator(check_prompt_embeds)] | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """OpenAI allows 5, engines 20. 0 is a value: the chosen token's only."""

    @model_validator(mode="after")
    def _together(self) -> CompletionRequest:
        self.check_together()
        if self.prompt_embeds is None:
            self._require_prompt()
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "expected a value >= 1 (0 only with 'echo'), but got 0 instead")
        self._check_choices()
        extras = self.extras()
        if extras is not None and extras.token_data and len(self.prompts()) > 1:
            raise invalid("tandem.token_data", "it is for one prompt")
        return self

    def _require_prompt(self) -> None:
        if self.prompt is None:
            if "prompt" in self.model_fields_set:
                raise wrong_type("prompt", "a string or an array", None)
            raise missing("prompt")
        _check_not_empty(self.prompt, "prompt")

    def _check_choices(self) -> None:
        prompts, candidates = len(self.prompts()), self.candidates()
        if prompts * candidates > MAX_CHOICES:
            reason = f"{prompts} prompts with {candidates} choices each exceed the limit of {MAX_CHOICES} choices"
            raise invalid("prompt", reason)

    def prompts(self) -> list[Prompt]:
        """One or more prompts, whatever the shape; a prompt given as embeddings counts as one."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            return prompt
        return [prompt or ""]

    def wanted_tokens(self) -> int | None:
        """How many tokens the answer may have at most, where the request says."""
        return self.max_tokens


def _check_not_empty(prompt: str | list[Any], place: str) -> None:
    if not prompt:
        what = "string" if isinstance(prompt, str) else "array"
        raise invalid(place, f"a prompt must not be empty, but got an empty {what} instead")
