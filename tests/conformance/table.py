"""The table: requests that every engine is asked, streamed and not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

USER = {"role": "user", "content": "Of the sea?"}
PROMPT = "Tell me of the sea and of the ships."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@dataclass(frozen=True)
class Row:
    """One request. `route`: `chat` or `completions`. `unable`: by engine, the parameter that a 400 names there.

    `unstreamed`: the parameter for which it is refused as a stream.
    """

    name: str
    route: str
    fields: Mapping[str, Any]
    unable: Mapping[str, str] = field(default_factory=dict)
    unstreamed: str | None = None

    def __str__(self) -> str:
        return f"{self.route}-{self.name}"


def chat(name: str, unable: Mapping[str, str] | None = None, **fields: Any) -> Row:
    return Row(name, "chat", {"messages": [USER], "max_tokens": 8, "temperature": 0, **fields}, unable or {})


def text(name: str, unable: Mapping[str, str] | None = None, unstreamed: str | None = None, **fields: Any) -> Row:
    asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    return Row(name, "completions", asked, unable or {}, unstreamed)


def _untold(param: str) -> dict[str, str]:
    """What asks for the prompt's logprobs, which these engines do not tell."""
    return {"trtllm": param, "native": param}


SAMPLED = {"temperature": 1, "seed": 7}
BOTH = [
    chat("plain"),
    chat("system", messages=[{"role": "system", "content": "Be brief."}, USER]),
    chat("developer", messages=[{"role": "developer", "content": "Be brief."}, USER]),
    chat(
        "parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Of"}, {"type": "text", "text": "?"}]}]
    ),
    chat("turns", messages=[USER, {"role": "assistant", "content": "It is deep."}, {**USER, "name": "Ann"}]),
    chat("one token", max_tokens=1),
    chat("max_completion_tokens", max_completion_tokens=3),
    chat("two choices", n=2, **SAMPLED),
    chat("two choices, usage", n=2, **SAMPLED, stream_options={"include_usage": True}),
    chat("usage", stream_options={"include_usage": True}),
    chat("stop", stop="e"),
    chat("stops", stop=["never said", "e s", "a"]),
    chat("logprobs", logprobs=True),
    chat("top logprobs", logprobs=True, top_logprobs=3),
    chat("top logprobs of two choices", logprobs=True, top_logprobs=2, n=2, **SAMPLED),
    chat("seed", **SAMPLED),
    chat("sampling", top_p=0.9, frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={"700": 2}, **SAMPLED),
    chat("nulls", stop=None, n=None, seed=None, tools=None, logprobs=None, user=None, response_format=None),
    chat("openai's own", user="u", store=False, metadata={"a": "b"}, service_tier="auto", verbosity="low"),
    chat("plain format", response_format={"type": "text"}),
    text("plain"),
    text("ids", prompt=[700, 701, 702]),
    text("batch", prompt=["One and", "Two or three"]),
    text("batch of ids", prompt=[[700, 701], [702, 703, 704]]),
    text("two choices", n=2, **SAMPLED),
    text("batch with two choices", prompt=["One and", "Two or"], n=2, **SAMPLED),
    text("batch, usage", prompt=["One and", "Two or"], n=2, **SAMPLED, stream_options={"include_usage": True}),
    text("one token", max_tokens=1),
    text("stop", stop="e"),
    text("stops", stop=["never said", "e s", "a"]),
    text("seed", **SAMPLED),
    text("sampling", top_p=0.9, frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={"700": 2}, **SAMPLED),
    text("usage", stream_options={"include_usage": True}),
    text("logprobs 0", logprobs=0),
    text("logprobs 3", logprobs=3),
]
"""Requests that all engines and servers of OpenAI's kind take."""

IDS = [
    chat("stop id", stop_token_ids=[700, 701]),
    chat("stop shown", stop=["e"], include_stop_str_in_output=True),
    chat("stop and logprobs", stop="e", logprobs=True, top_logprobs=1),
    chat("token ids", return_token_ids=True),
    chat("token ids of two choices", return_token_ids=True, n=2, **SAMPLED),
    chat("usage all along", stream_options={"include_usage": True, "continuous_usage_stats": True}),
    chat("engines' own", top_k=5, min_p=0.1, repetition_penalty=1.1, min_tokens=2, ignore_eos=True, **SAMPLED),
    chat(
        "goes on",
        messages=[USER, {"role": "assistant", "content": "It"}],
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    chat("json object", response_format={"type": "json_object"}),
    chat("json schema", response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}),
    chat("regex", regex="[a-z]+"),
    chat("guided_regex", guided_regex="[a-z]+"),
    chat("guided_choice", guided_choice=["sea", "ship"]),
    chat("structured_outputs", structured_outputs={"choice": ["sea", "ship"]}),
    chat("prompt logprobs", _untold("prompt_logprobs"), prompt_logprobs=1),
    text("stop and logprobs", stop="e", logprobs=1),
    text("stop shown", stop=["e"], include_stop_str_in_output=True),
    text("echo", echo=True),
    text("echo of a batch", echo=True, prompt=["One and", "Two or three"]),
    text("echo and logprobs", _untold("echo"), echo=True, logprobs=1),
    text("scored", _untold("echo"), echo=True, logprobs=1, max_tokens=0),
    text("best of", unstreamed="best_of", best_of=3, n=2, **SAMPLED),
    text("token ids", return_token_ids=True),
    text("token ids of a batch", return_token_ids=True, prompt=["One and", "Two or three"], n=2, **SAMPLED),
    text("logprobs of a batch", logprobs=2, prompt=["One and", "Two or three"], n=2, **SAMPLED),
    text("usage all along", stream_options={"include_usage": True, "continuous_usage_stats": True}),
]
"""Requests that workers take who are given token ids."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Tells it.",
            "parameters": {**SCHEMA, "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
    for name in ("get_weather", "get_time")
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def call(name: str, unable: Mapping[str, str] | None = None, **fields: Any) -> Row:
    return chat(name, unable, **{"tools": TOOLS, "max_tokens": 200, **fields})


CALLS = [
    call("tools"),
    call("auto", tool_choice="auto"),
    call("none", tool_choice="none"),
    call("required", tool_choice="required"),
    call("named", tool_choice=NAMED),
    call("allowed, auto", tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}),
    call(
        "allowed, required",
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
    ),
    call("one at most", parallel_tool_calls=False),
    call("usage", stream_options={"include_usage": True}),
    call("two choices, usage", n=2, **SAMPLED, stream_options={"include_usage": True}),
    call("logprobs", logprobs=True, top_logprobs=1),
    call("token ids", return_token_ids=True),
    call("usage all along", stream_options={"include_usage": True, "continuous_usage_stats": True}),
    call("functions", tools=None, functions=[tool["function"] for tool in TOOLS]),
    call("function by name", tools=None, functions=[TOOLS[0]["function"]], function_call={"name": "get_weather"}),
    call("without tools", tools=None),
    call("empty tools", tools=[]),
    call("effort", reasoning_effort="low"),
    call("stop", stop="Paris"),
    call("stop in thoughts", stop="asks"),
    *(call(f"cut at {tokens}", max_tokens=tokens) for tokens in (1, 4, 8, 16, 24, 32, 40)),
]
"""Requests to a model that thinks, says something, and calls two tools."""
