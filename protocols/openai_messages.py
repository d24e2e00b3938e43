"""Checks a chat's messages without making a class of each: they stay the JSON objects that came.

Reading a usual message costs under a microsecond this way. Members and part types that are not OpenAI's are kept: the
chat template may know them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from protocols.nesting import is_too_deep
from protocols.openai_errors import invalid, missing, too_deep, wrong_type, wrong_value

Message = dict[str, Any]

_PLAIN_ROLES = ("user", "system", "developer")
"""A tuple: whatever the role is, it can be looked for in one."""
_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_URL_PARTS = ("image_url", "video_url", "audio_url")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
"""What a function, a tool or a response schema may be called."""


def check_messages(messages: Any) -> list[Message]:
    """The messages as they came. Raises InvalidRequest, naming the place as in `messages[0].content`."""
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array of objects", messages)
    if not messages:
        raise invalid("messages", "expected at least 1 message, but got an empty array instead")
    for index, message in enumerate(messages):
        plain = type(message) is dict and message.get("role") in _PLAIN_ROLES and type(message.get("content")) is str
        if plain and len(message) == 2:
            continue
        if is_too_deep(message):
            raise too_deep()
        _check_message(message, f"messages[{index}]")
    return messages


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, dict):
        raise wrong_type(place, "an object", message)
    if "role" not in message:
        raise missing(f"{place}.role")
    role = message["role"]
    if not isinstance(role, str):
        raise wrong_type(f"{place}.role", "a string", role)
    if role not in _ROLES:
        raise wrong_value(f"{place}.role", role, _ROLES)
    _optional_text(message, "name", place)
    _BY_ROLE.get(role, _check_plain)(message, place)


def _check_plain(message: Message, place: str) -> None:
    if "content" not in message:
        raise missing(f"{place}.content")
    _check_content(message["content"], f"{place}.content")


def _check_tool(message: Message, place: str) -> None:
    _check_plain(message, place)
    _required_text(message, "tool_call_id", place)


def _check_function(message: Message, place: str) -> None:
    if "content" not in message or message["content"] is not None:
        _check_plain(message, place)
    _required_text(message, "name", place)


def _check_assistant(message: Message, place: str) -> None:
    """Content may be null or absent: agents send both, with tool calls and without."""
    if message.get("content") is not None:
        _check_content(message["content"], f"{place}.content")
    _optional_text(message, "refusal", place)
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise wrong_type(f"{place}.tool_calls", "an array of objects", calls)
        for index, call in enumerate(calls):
            _check_call(call, f"{place}.tool_calls[{index}]")
    if message.get("function_call") is not None:
        _check_named(message, "function_call", "arguments", place)


def _check_call(call: Any, place: str) -> None:
    if not isinstance(call, dict):
        raise wrong_type(place, "an object", call)
    _optional_text(call, "id", place)
    kind = call.get("type", "function")
    if kind not in ("function", "custom"):
        raise wrong_value(f"{place}.type", kind, ("function", "custom"))
    _check_named(call, kind, "arguments" if kind == "function" else "input", place)


def _check_named(holder: Message, member: str, argument: str, place: str) -> None:
    """`holder[member]` is an object with a name and its argument, both strings."""
    if member not in holder:
        raise missing(f"{place}.{member}")
    named = holder[member]
    if not isinstance(named, dict):
        raise wrong_type(f"{place}.{member}", "an object", named)
    _required_text(named, "name", f"{place}.{member}")
    _required_text(named, argument, f"{place}.{member}")


_BY_ROLE: Mapping[str, Callable[[Message, str], None]] = {
    "assistant": _check_assistant,
    "tool": _check_tool,
    "function": _check_function,
}


def _check_content(content: Any, place: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong_type(place, "a string or an array of content parts", content)
    for index, part in enumerate(content):
        check_part(part, f"{place}[{index}]")


def check_part(part: Any, place: str) -> None:
    """One content part."""
    if not isinstance(part, dict):
        raise wrong_type(place, "an object", part)
    _required_text(part, "type", place)
    kind = part["type"]
    if kind in ("text", "refusal"):
        _required_text(part, kind, place)
    elif kind in _URL_PARTS:
        _check_url(part, kind, place)
    elif kind in ("input_audio", "file"):
        if kind not in part:
            raise missing(f"{place}.{kind}")
        if not isinstance(part[kind], dict):
            raise wrong_type(f"{place}.{kind}", "an object", part[kind])
        if kind == "input_audio":
            _required_text(part[kind], "data", f"{place}.{kind}")


def _check_url(part: Message, kind: str, place: str) -> None:
    """vLLM also takes the URL itself in place of `{"url": …}`."""
    if kind not in part:
        raise missing(f"{place}.{kind}")
    holder = part[kind]
    if isinstance(holder, dict):
        _required_text(holder, "url", f"{place}.{kind}")
    elif not isinstance(holder, str):
        raise wrong_type(f"{place}.{kind}", "an object with a url", holder)


def _required_text(holder: Message, member: str, place: str) -> None:
    if member not in holder:
        raise missing(f"{place}.{member}")
    if not isinstance(holder[member], str):
        raise wrong_type(f"{place}.{member}", "a string", holder[member])


def _optional_text(holder: Message, member: str, place: str) -> None:
    value = holder.get(member)
    if value is not None and not isinstance(value, str):
        raise wrong_type(f"{place}.{member}", "a string", value)
