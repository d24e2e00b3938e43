"""Pieces of an answer in the words of OpenAI's chat: as deltas of a stream, and as a whole message.

Thoughts go by both names that clients look for: `reasoning_content` (DeepSeek, SGLang, vLLM until 0.11) and `reasoning`
(OpenRouter, vLLM since).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from text.answer_pieces import AnswerPiece, CallStarted, ContentText, InputDelta, ReasoningText


def delta_of(piece: AnswerPiece, *, legacy: bool) -> dict[str, Any]:
    """The delta that tells one piece. A call's id, type and name are said once; what follows has its index only.

    `legacy`: calls are told as the deprecated `function_call`.
    """
    if isinstance(piece, ContentText):
        return {"content": piece.text}
    if isinstance(piece, ReasoningText):
        return {"reasoning_content": piece.text, "reasoning": piece.text}
    if isinstance(piece, InputDelta):
        return {"tool_calls": [{"index": piece.index, "custom": {"input": piece.text}}]}
    if isinstance(piece, CallStarted):
        if piece.custom:
            custom = {"name": piece.name, "input": ""}
            return {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "custom", "custom": custom}]}
        function = {"name": piece.name, "arguments": ""}
        if legacy:
            return {"function_call": function}
        return {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "function", "function": function}]}
    function = {"arguments": piece.text}
    return {"function_call": function} if legacy else {"tool_calls": [{"index": piece.index, "function": function}]}


def message_of(pieces: Iterable[AnswerPiece], *, legacy: bool) -> dict[str, Any]:
    """The message that the pieces make. Members that have nothing to say are absent; content is null beside calls."""
    content: list[str] = []
    thoughts: list[str] = []
    calls: list[tuple[CallStarted, list[str]]] = []
    for piece in pieces:
        if isinstance(piece, ContentText):
            content.append(piece.text)
        elif isinstance(piece, ReasoningText):
            thoughts.append(piece.text)
        elif isinstance(piece, CallStarted):
            calls.append((piece, []))
        else:
            calls[piece.index][1].append(piece.text)
    said = "".join(content)
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not said else said, "refusal": None}
    if thoughts:
        message["reasoning_content"] = message["reasoning"] = "".join(thoughts)
    told = [_call(call, "".join(written)) for call, written in calls]
    if told and legacy:
        message["function_call"] = told[0]["function"]
    elif told:
        message["tool_calls"] = told
    return message


def _call(call: CallStarted, written: str) -> dict[str, Any]:
    """`written`: its arguments, or its input."""
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": written}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": written}}
