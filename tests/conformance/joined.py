"""A stream joined to the answer it tells, and both made comparable: what differs from call to call is cut."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.stories.wire import Events

JOINED = ("content", "reasoning_content", "reasoning", "text", "arguments")
"""Strings that come in pieces."""
CALL_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


def joined(events: Events) -> dict[str, Any]:
    """The whole answer that a stream tells, its choices in order."""
    choices: dict[int, dict[str, Any]] = {}
    root: dict[str, Any] = {}
    for chunk in events.chunks:
        for name in chunk.keys() - {"choices"}:
            if name != "usage" or chunk[name] is not None:
                root[name] = chunk[name]
        for choice in chunk["choices"]:
            part = {name: value for name, value in choice.items() if name != "delta"}
            if "delta" in choice:
                part["message"] = choice["delta"]
            _merge(choices.setdefault(choice["index"], {}), part)
    return {**root, "choices": [choices[index] for index in sorted(choices)]}


def _merge(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        known = whole.get(name)
        if name == "tool_calls":
            _merge_calls(whole.setdefault(name, []), value)
        elif known is None:
            # A copy: pieces are merged into it.
            whole[name] = {} if isinstance(value, dict) else value
            if isinstance(value, dict):
                _merge(whole[name], value)
        elif value is None:
            continue
        elif (name in JOINED and isinstance(value, str)) or isinstance(value, list):
            whole[name] = known + value
        elif isinstance(value, dict):
            _merge(known, value)
        else:
            assert name == "index", f"'{name}' was told twice: {known!r}, then {value!r}"


def _merge_calls(calls: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    for part in parts:
        place, news = part["index"], {name: value for name, value in part.items() if name != "index"}
        assert place <= len(calls), f"call {place} came before call {len(calls)}"
        if place == len(calls):
            calls.append({})
        _merge(calls[place], news)


def comparable(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without what is its own: its id and time, its calls' ids, and what an earlier one left cached."""
    told = {name: value for name, value in answer.items() if name not in ("id", "created", "object", "tandem")}
    ids: list[str] = []
    told["choices"] = [_comparable_choice(choice, ids) for choice in answer["choices"]]
    assert len(set(ids)) == len(ids), f"ids of calls come twice: {ids}"
    if told.get("usage"):
        told["usage"] = {k: v for k, v in told["usage"].items() if k != "prompt_tokens_details"}
    return told


def _comparable_choice(choice: Mapping[str, Any], ids: list[str]) -> dict[str, Any]:
    message = choice.get("message")
    if message is None:
        return dict(choice)
    # OpenAI's whole messages say `refusal: null`; its deltas say nothing.
    message = {name: value for name, value in message.items() if name != "refusal" or value is not None}
    calls = message.get("tool_calls")
    if calls is not None:
        assert calls, "no calls are no array of calls"
        assert all(CALL_ID.fullmatch(call["id"]) for call in calls), calls
        ids += [call["id"] for call in calls]
        message["tool_calls"] = [{name: value for name, value in call.items() if name != "id"} for call in calls]
    return {**choice, "message": message}
