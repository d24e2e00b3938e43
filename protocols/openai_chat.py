"""`POST /v1/chat/completions`: the request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from protocols.openai_errors import invalid, wrong_type, wrong_value
from protocols.openai_fields import MAX_LOGPROBS, GenerationRequest, Text
from protocols.openai_messages import Message, check_messages
from protocols.openai_tools import (
    allowed_names,
    check_choice_against,
    check_function_call,
    check_functions,
    check_tool_choice,
    check_tools,
    tool_name,
)

MAX_METADATA = 16
_THINKING = ("enabled", "disabled", "adaptive")
_NO_TEMPLATE = "a chat template is not taken from a request"


def check_thinking(thinking: Any) -> dict[str, Any]:
    """Whether the model thinks, and for how many tokens at most."""
    if not isinstance(thinking, dict):
        raise wrong_type("thinking", "an object", thinking)
    if thinking.get("type") not in _THINKING:
        raise wrong_value("thinking.type", thinking.get("type"), _THINKING)
    budget = thinking.get("budget_tokens")
    if budget is not None and type(budget) is not int:
        raise wrong_type("thinking.budget_tokens", "an integer", budget)
    if budget is not None and budget < 0:
        raise invalid("thinking.budget_tokens", f"expected a value >= 0, but got {budget} instead")
    return thinking


class ChatCompletionRequest(GenerationRequest):
    """A chat. `messages` are checked JSON objects, as they came.

    Some of OpenAI's own fields say nothing to a text model (`store`, `service_tier`, `verbosity`, ...). They are named
    here so that they do not travel to an engine as unknown ones. `alike`: a chat of the very same parameters that many
    share, where there is one.
    """

    __slots__ = ("alike",)

    messages: Annotated[list[Message], PlainValidator(check_messages)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """Wins over `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    tools: Annotated[list[dict[str, Any]], PlainValidator(check_tools)] | None = None
    tool_choice: Annotated[Any, PlainValidator(check_tool_choice)] | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[dict[str, Any]], PlainValidator(check_functions)] | None = None
    function_call: Annotated[Any, PlainValidator(check_function_call)] | None = None

    reasoning_effort: Text | None = None
    """Any word: the list has grown over time, and the template knows its model."""
    thinking: Annotated[dict[str, Any], PlainValidator(check_thinking)] | None = None
    """`{"type": "enabled" | "disabled", "budget_tokens"?}`, as DeepSeek, GLM and Anthropic say it."""
    include_reasoning: bool | None = None
    """False: what the model thinks is not told (vLLM's name)."""
    separate_reasoning: bool | None = None
    """False: what the model thinks stays in the content, marks included (SGLang's name)."""
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None
    """Dynamo's name for `chat_template_kwargs`."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None

    modalities: list[Literal["text", "audio"]] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: str | None = None

    @model_validator(mode="after")
    def _together(self) -> ChatCompletionRequest:
        self.check_together()
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "it is only allowed when 'logprobs' is true")
        if self.add_generation_prompt and self.continue_final_message:
            raise invalid("continue_final_message", "it excludes 'add_generation_prompt'")
        if self.tool_choice is not None:
            check_choice_against(self.tool_choice, self.tools or ())
        if self.metadata is not None:
            _check_metadata(self.metadata)
        self._refuse_templates()
        return self

    def _refuse_templates(self) -> None:
        """A template is code; it is the operator's to choose, never a client's."""
        if self.model_extra and self.model_extra.get("chat_template") is not None:
            raise invalid("chat_template", _NO_TEMPLATE)
        arguments = self.template_arguments()
        if arguments and arguments.get("chat_template") is not None:
            raise invalid("chat_template_kwargs.chat_template", _NO_TEMPLATE)

    def with_messages(self, messages: list[Message]) -> ChatCompletionRequest:
        """The same parameters with other messages, which have been checked."""
        chat = ChatCompletionRequest.__new__(ChatCompletionRequest)
        # The steps of `model_copy`, which would copy what is shared.
        set_on = object.__setattr__
        set_on(chat, "__dict__", {**self.__dict__, "messages": messages})
        set_on(chat, "__pydantic_fields_set__", self.__pydantic_fields_set__)
        set_on(chat, "__pydantic_extra__", self.__pydantic_extra__)
        set_on(chat, "__pydantic_private__", None)
        set_on(chat, "alike", self)
        return chat

    def wanted_tokens(self) -> int | None:
        """How many tokens the answer may have at most, where the request says."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def template_arguments(self) -> dict[str, Any]:
        """What the request hands to the chat template, both names together."""
        if self.chat_template_args is None:
            return self.chat_template_kwargs or {}
        return {**self.chat_template_args, **(self.chat_template_kwargs or {})}

    def thinks(self) -> bool | None:
        """Is the model to think? None: that is left to it.

        `thinking` goes before `reasoning_effort`, whose `none` is no thinking and whose other words are.
        """
        if self.thinking is not None:
            return {"enabled": True, "disabled": False}.get(self.thinking["type"])
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"

    def tells_thoughts(self) -> bool:
        """Is what the model thinks told at all?"""
        return self.include_reasoning is not False

    def template_tools(self) -> list[dict[str, Any]] | None:
        """The tools a template sees: the deprecated functions among them; None, never empty, when there are none.

        Tools that may not be called (`tool_choice: none` and `allowed_tools`) are not shown.
        """
        forbidden = self.tool_choice == "none" if self.tools else self.function_call == "none"
        if forbidden:
            return None
        allowed = allowed_names(self.tool_choice)
        if allowed is not None and self.tools:
            return [tool for tool in self.tools if tool_name(tool) in allowed] or None
        return self.tools or [{"type": "function", "function": item} for item in self.functions or ()] or None


def _check_metadata(metadata: dict[str, Any]) -> None:
    """At most 16 strings of at most 512 characters, named by at most 64."""
    if len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"expected at most {MAX_METADATA} items, but got {len(metadata)} instead")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise wrong_type(f"metadata.{key}", "a string", value)
        if len(key) > 64 or len(value) > 512:
            raise invalid(f"metadata.{key[:64]}", "expected at most 64 characters in the key and 512 in the value")
