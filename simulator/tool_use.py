"""A model that uses the tools it is shown, in the ChatML prompts of Hermes and Qwen.

Like any model it knows the tools by its prompt alone. It calls one of them, and speaks once it has the result.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

from simulator.schemas import Example, Words

_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_TURN = "<|im_start|>assistant\n"
_NO_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_RESULT = "</tool_response><|im_end|>"


@dataclass(frozen=True, slots=True)
class Occasion:
    """A prompt whose answer is to be a call.

    `asked`: the prompt up to the answer. `said`: what of the answer stands there already.
    """

    tools: tuple[dict[str, Any], ...]
    asked: str
    said: str


def occasion_in(prompt: str) -> Occasion | None:
    """None where no tools are shown, or where the last of the conversation is a tool's result."""
    shown = _TOOLS.search(prompt)
    at = prompt.rfind(_TURN)
    if shown is None or at < shown.end():
        return None
    asked, said = prompt[: at + len(_TURN)], prompt[at + len(_TURN) :]
    thoughts = _NO_THOUGHTS.match(said)
    if thoughts is not None:
        asked, said = asked + thoughts.group(), said[thoughts.end() :]
    if "".join(prompt[:at].split()).endswith(_RESULT):
        return None
    try:
        tools = [json.loads(line) for line in shown[1].splitlines() if line.strip()]
    except ValueError:
        return None
    functions = tuple(tool.get("function", tool) for tool in tools if isinstance(tool, dict))
    return Occasion(functions, asked, said) if functions else None


def call_for(occasion: Occasion, rng: random.Random, words: Words) -> str:
    """The call in Hermes' markup. Raises Unfollowed where its arguments cannot be made up."""
    tool = rng.choice(occasion.tools)
    arguments = Example({"type": "object", **(tool.get("parameters") or {})}, rng, words).value()
    call = json.dumps({"name": tool.get("name"), "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
