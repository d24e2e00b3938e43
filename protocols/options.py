"""How to generate: when to stop, how to sample, what to report.

Names are the seeds' (dynamo-llm 1.6 `StopConditions`, `SamplingOptions`, `OutputOptions`). None means "not said":
whoever speaks to an engine sends an explicit value instead of the engine's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocols.quick_init import quick_init
from protocols.wire import wire


@quick_init
@dataclass(frozen=True, slots=True)
class StopConditions:
    """When an answer ends.

    `stop`: strings, matched in the decoded text; the earliest match in the text wins.
    `stop_token_ids`: the client's own. `stop_token_ids_hidden`: their text is not shown (eos among them);
    `stop_token_ids_visible`: their text is shown, then the answer ends.
    `min_tokens`: no check of any of them before that many generated tokens.
    `ignore_eos`: eos ids do not end the answer; the client's own stops still do.
    `max_thinking_tokens`: 0 is a value (no thinking), not absence.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_token_ids_visible: tuple[int, ...] | None = None
    stop_token_ids_hidden: tuple[int, ...] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    max_thinking_tokens: int | None = None


SWITCHES = ("disable_any_whitespace", "disable_additional_properties")
"""How GuidedDecoding may be told to read its schema."""


@dataclass(frozen=True, slots=True)
class GuidedDecoding:
    """A constraint on the text; at most one of json, regex, choice, grammar, structural_tag is set.

    The switches are vLLM's (Tandem's addition to the seeds): white space in JSON only where it must be, and objects
    without members that their schema does not name.
    """

    json: Any = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    backend: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None

    def switches(self) -> dict[str, bool]:
        """Those that are set, by name."""
        named = {name: getattr(self, name) for name in SWITCHES}
        return {name: True for name, value in named.items() if value}


@quick_init
@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is drawn. `logit_bias` maps token ids to -100..100 (Tandem's addition to the seeds)."""

    n: int | None = None
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    seed: int | None = None
    include_stop_str_in_output: bool | None = None
    guided_decoding: GuidedDecoding | None = None
    logit_bias: Mapping[int, float] | None = None


@quick_init
@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is reported beside the text.

    `logprobs`: alternatives per generated token; 0 = the chosen token's only; None = none.
    `prompt_logprobs`: the same for prompt tokens. `skip_special_tokens`: None means True.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    formatted_prompt: bool | None = None
    return_tokens_as_token_ids: bool | None = None


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A model's own defaults for what a request leaves out (the seeds' RequestTemplate)."""

    temperature: float | None = wire(default=None)
    max_completion_tokens: int | None = wire(default=None)
