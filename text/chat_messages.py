"""Messages of the OpenAI API in the shape that a model's chat template reads.

Templates differ in what they take: content as a string or as a list of parts, tool-call arguments as an object or as
JSON text, a message without content with the key missing, null or empty. `TemplateTraits` says what one takes.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.errors import InvalidRequest
from protocols.nesting import MAX_DEPTH, is_too_deep

Message = dict[str, Any]

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Part types that are text, and the member that holds it."""
_UNSEEN_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
"""What clients send back of a model's thinking; a template gets it by `reasoning_content` or not at all."""
_MEDIA_PARTS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
MEDIA = ("image", "audio", "video")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""A message's reasoning by its names. The first is the one that templates read; gpt-oss reads the second."""
_REASONING_NAMES = frozenset(_REASONING)
INSTRUCTIONS = frozenset({"system", "developer"})
"""Roles of messages that tell the model what it is to do."""
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class NoContent(enum.Enum):
    """How a message without content is handed to a template."""

    ABSENT = "absent"
    EMPTY = "empty"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template takes.

    `media`: the kinds of parts beside text that leave a trace in the prompt. `short_ids`: it refuses ids of calls that
    are not nine letters and digits. `lone`: the roles of which it shows one message, and passes over the others.
    """

    strings: bool = True
    parts: bool = False
    developer: bool = False
    media: frozenset[str] = frozenset()
    arguments_as_text: bool = False
    no_content: NoContent = NoContent.ABSENT
    short_ids: bool = False
    lone: frozenset[str] = frozenset()


def template_messages(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[Message]:
    """The messages as a template with these traits reads them; the given ones are not changed.

    Raises InvalidRequest (param `messages`) for parts the template has no place for and malformed tool calls.
    """
    out = [_message(message, f"messages[{place}]", traits) for place, message in enumerate(messages)]
    return joined_instructions(out, traits.lone) if traits.lone else out


def joined_instructions(messages: list[Message], roles: frozenset[str] = INSTRUCTIONS) -> list[Message]:
    """All that messages of these roles say in one, the first, at the front; the same list where there are no two."""
    joined = [message for message in messages if message.get("role") in roles]
    if len(joined) < 2:
        return messages
    contents = [content for message in joined if (content := message.get("content"))]
    if all(isinstance(content, str) for content in contents):
        said: Any = "\n\n".join(contents)
    else:
        wrapped = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents]
        said = [part for parts in wrapped for part in parts]
    return [{**joined[0], "content": said}, *(message for message in messages if message.get("role") not in roles)]


def raw_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """The first message's text, for chats that want no template. Raises InvalidRequest where it has none."""
    content = messages[0].get("content")
    text = content if isinstance(content, str) else _content(content, "messages[0].content", "tool", TemplateTraits())
    if not isinstance(text, str) or not text:
        raise _invalid("messages[0].content: without the template it must be a text")
    return text


def refuse_media(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequest where a picture, a sound or a film would be lost on its way: workers are sent token ids."""
    for place, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            kind = _MEDIA_PARTS.get(part.get("type", "")) if isinstance(part, Mapping) else None
            if kind is not None:
                raise _invalid(
                    f"messages[{place}].content[{index}]: {kind} input cannot be sent to this model's workers"
                )


def _message(message: Mapping[str, Any], where: str, traits: TemplateTraits) -> Message:
    if not isinstance(message, (dict, Mapping)):
        raise _invalid(f"{where} must be an object")
    # transformers 5.24 leaves null members out too: many templates would print "None".
    out = {name: value for name, value in message.items() if value is not None}
    if out.get("role") == "developer" and not traits.developer:
        out["role"] = "system"
    if not _REASONING_NAMES.isdisjoint(out):
        reasoning = next(out[name] for name in _REASONING if name in out)
        out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
    if "content" in out:
        out["content"] = _content(out["content"], f"{where}.content", out.get("role"), traits)
    elif traits.no_content is not NoContent.ABSENT:
        out["content"] = "" if traits.no_content is NoContent.EMPTY else None
    if "function_call" in out or out.get("role") == "function":
        _modernize(out)
    if traits.short_ids and isinstance(out.get("tool_call_id"), str):
        out["tool_call_id"] = _short(out["tool_call_id"])
    if calls := out.get("tool_calls"):
        if not isinstance(calls, list | tuple):
            raise _invalid(f"{where}.tool_calls must be a list")
        out["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{place}]", traits) for place, call in enumerate(calls)
        ]
    elif "tool_calls" in out:
        # An empty list sends templates down their tool-call branch.
        del out["tool_calls"]
    return out


def _content(content: Any, where: str, role: Any, traits: TemplateTraits) -> Any:
    if isinstance(content, str):
        wrap = traits.parts and not traits.strings and role != "tool"
        return [{"type": "text", "text": content}] if wrap else content
    if not isinstance(content, list | tuple):
        raise _invalid(f"{where} must be a string or a list of parts")
    parts = list(_parts(content, where, traits))
    only_text = all(part["type"] == "text" for part in parts)
    if only_text and (role == "tool" or not traits.parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _parts(content: Sequence[Any], where: str, traits: TemplateTraits) -> Iterator[dict[str, Any]]:
    for place, part in enumerate(content):
        if isinstance(part, str):
            yield {"type": "text", "text": part}
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _UNSEEN_PARTS:
            continue
        if kind in _TEXT_PARTS:
            text = part.get(_TEXT_PARTS[kind])
            if not isinstance(text, str):
                raise _invalid(f"{where}[{place}].{_TEXT_PARTS[kind]} must be a string")
            yield {"type": "text", "text": text}
        elif kind in _MEDIA_PARTS:
            if _MEDIA_PARTS[kind] not in traits.media:
                raise _invalid(f"{where}[{place}]: this model takes no {_MEDIA_PARTS[kind]} input")
            yield {"type": _MEDIA_PARTS[kind]}
        else:
            raise _invalid(f"{where}[{place}]: unknown part type {kind!r:.60}")


def _modernize(message: Message) -> None:
    """The deprecated `function_call` and its answer as a call of a tool and the tool's; templates know no others."""
    function = message.pop("function_call", None)
    if isinstance(function, Mapping) and not message.get("tool_calls"):
        message["tool_calls"] = [{"id": f"call_{function.get('name')}", "type": "function", "function": function}]
    if message.get("role") == "function":
        message["role"] = "tool"
        message.setdefault("tool_call_id", f"call_{message.get('name')}")


def _short(call_id: str) -> str:
    """Nine letters or digits that stand for an id, always the same."""
    return call_id if _SHORT_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _tool_call(call: Any, where: str, traits: TemplateTraits) -> dict[str, Any]:
    if isinstance(call, Mapping):
        call = _custom_as_function(call) if call.get("type") == "custom" else call
        if traits.short_ids and isinstance(call.get("id"), str):
            call = {**call, "id": _short(call["id"])}
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _invalid(f"{where} must be an object with a function")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    written = json.dumps(arguments, ensure_ascii=False) if traits.arguments_as_text else arguments
    return {**call, "function": {**function, "arguments": written}}


def _custom_as_function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    custom = call.get("custom")
    if not isinstance(custom, Mapping):
        return call
    rest = {name: value for name, value in call.items() if name != "custom"}
    function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    return {**rest, "type": "function", "function": function}


def _arguments(arguments: Any, where: str) -> Mapping[str, Any]:
    """Clients send "" or null for a call without arguments."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"{where} is not JSON: {error}") from error
        if is_too_deep(arguments):
            raise _invalid(f"{where} is nested too deeply: expected at most {MAX_DEPTH} levels")
    if not isinstance(arguments, Mapping):
        raise _invalid(f"{where} must be a JSON object")
    return arguments


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="messages")
