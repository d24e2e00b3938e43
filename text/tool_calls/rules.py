"""What a request says of calls: which functions, whether one must be called, whether several may."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocols.openai import ChatCompletionRequest
from text.tool_calls.functions import ANY_OBJECT, Functions


class CallMode(enum.Enum):
    """`AUTO`: the model may call. `REQUIRED`: it must. `NAMED`: it must call the only function that is left."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class CallRules:
    """`functions`: those that may be called. `parallel=False`: at most one call. `legacy`: the client said `functions`,
    and is answered with a `function_call`."""

    functions: Functions
    mode: CallMode = CallMode.AUTO
    parallel: bool = True
    legacy: bool = False

    def finish_name(self, finish: str, calls: int) -> str:
        """OpenAI's word for the end of an answer with so many calls, from the word without them.

        Only a model that ended by itself ended with its calls: one that was cut off may have left the last one open.
        For a call that was named in advance OpenAI says `stop`.
        """
        if finish != "stop" or not calls or self.mode is CallMode.NAMED:
            return finish
        return "function_call" if self.legacy else "tool_calls"


def request_rules(request: ChatCompletionRequest) -> CallRules | None:
    """A chat's rules, its deprecated `functions` and `function_call` among them. None: its answer is not searched for
    calls, because it has no tools or forbids them."""
    if request.tools:
        return call_rules(request.tools, request.tool_choice, request.parallel_tool_calls)
    named = request.function_call
    choice = {"type": "function", "function": named} if isinstance(named, dict) else named
    rules = call_rules([{"type": "function", "function": each} for each in request.functions or ()], choice, False)
    return None if rules is None else replace(rules, legacy=True)


def call_rules(
    tools: Sequence[Mapping[str, Any]] | None, tool_choice: Any = None, parallel: bool | None = None
) -> CallRules | None:
    """Rules from checked OpenAI fields; None where nothing may be called."""
    if not tools or tool_choice == "none":
        return None
    functions = Functions.of(tools)
    several = parallel is not False
    if tool_choice in (None, "auto"):
        return CallRules(functions, CallMode.AUTO, several)
    if tool_choice == "required":
        return CallRules(functions, CallMode.REQUIRED, several)
    kind = tool_choice.get("type", "function")
    if kind != "allowed_tools":
        name = tool_choice[kind]["name"]
        return CallRules(functions.only([name]) or Functions({name: ANY_OBJECT}), CallMode.NAMED, False)
    allowed = tool_choice["allowed_tools"]
    functions = functions.only(_names(allowed.get("tools") or ()))
    mode = CallMode.REQUIRED if allowed["mode"] == "required" else CallMode.AUTO
    return CallRules(functions, mode, several) if len(functions) else None


def _names(tools: Sequence[Any]) -> list[str]:
    """The names in a list of allowed tools, whose entries name a tool directly or under its kind."""
    names = []
    for tool in tools:
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else ""
        inner = tool.get(kind) if isinstance(tool, Mapping) else None
        name = (inner if isinstance(inner, Mapping) else tool).get("name") if isinstance(tool, Mapping) else None
        if isinstance(name, str):
            names.append(name)
    return names
