"""Conversations that make chat templates take all their branches, and tools for them; as OpenAI clients send them."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]


def call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """An assistant's call; the arguments as an object, as templates read them."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER_ARGUMENTS = {
    "city": "Zürich",
    "days": 3,
    "place": {"lat": 1.5},
    "tags": ["a", "<b>"],
    "metric": True,
    "unit": None,
}
WEATHER = call("abcdefgh1", "get_weather", WEATHER_ARGUMENTS)
TIME = call("abcdefgh2", "get_time", {})
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The "weather" of <a> place, é',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "a city"},
                    "days": {"type": "integer", "default": 3, "description": "how many"},
                    "unit": {"type": "string", "enum": ["c", "f"], "description": "degrees"},
                    "place": {
                        "type": "object",
                        "properties": {"lat": {"type": "number", "description": "north"}},
                        "required": ["lat"],
                        "description": "where",
                    },
                    "tags": {"type": "array", "items": {"type": "string"}, "description": "any"},
                    "metric": {"type": "boolean", "description": "units"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

CONVERSATIONS: dict[str, list[Message]] = {
    "plain": [{"role": "user", "content": "Hi <é> {{ 1 }}"}],
    "system": [{"role": "system", "content": " Be brief. \n"}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "A\n"},
        {"role": "assistant", "content": " B "},
        {"role": "user", "content": "C 😀"},
    ],
    "thoughts": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B", "reasoning_content": "R\nR"},
        {"role": "user", "content": "C"},
    ],
    "inline thoughts": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "<think>\nR\n</think>\n\nB"},
        {"role": "user", "content": "C"},
    ],
    "call": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": None, "tool_calls": [WEATHER]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "get_weather", "content": '{"t": 3}'},
    ],
    "call amid text": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "Let me look", "tool_calls": [WEATHER]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "get_weather", "content": "ok"},
        {"role": "assistant", "content": "Done"},
        {"role": "user", "content": "C"},
    ],
    "calls after thoughts": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": None, "reasoning_content": "R", "tool_calls": [WEATHER, TIME]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "get_weather", "content": "1"},
        {"role": "tool", "tool_call_id": "abcdefgh2", "name": "get_time", "content": "2"},
    ],
}


def as_sent(messages: list[Message]) -> list[Message]:
    """As clients send them: arguments as JSON text."""
    return [
        _with_arguments(message, lambda arguments: json.dumps(arguments, ensure_ascii=False)) for message in messages
    ]


def _with_arguments(message: Message, write: Any) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "tool_calls": [
            {**each, "function": {**each["function"], "arguments": write(each["function"]["arguments"])}}
            for each in calls
        ],
    }
