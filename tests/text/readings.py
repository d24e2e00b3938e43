"""What parsers tell, joined: by hand, and by the OpenAI SDK's own accumulator as a client would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import Any

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from text.answer_pieces import AnswerPiece, ArgumentsDelta, CallStarted, ContentText, ReasoningText
from text.tool_calls.rules import CallRules, call_rules
from text.tool_calls.table import tool_call_parser

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "place": {"type": "object"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
AUTO = call_rules(TOOLS)
assert AUTO is not None

Call = tuple[str, str]
"""A name, and arguments as they join."""


def numbered_ids():
    """Ids in order: call_0, call_1, …"""
    numbers = count()
    return lambda: f"call_{next(numbers)}"


def told(parser: Any, parts: Iterable[str], *, cut: bool = False) -> list[AnswerPiece]:
    """Every piece, in order; `cut`: the answer ended by its length."""
    pieces: list[AnswerPiece] = []
    for part in parts:
        pieces += parser.feed(part)
    return [*pieces, *parser.finish(cut=cut)]


def joined(pieces: Sequence[AnswerPiece]) -> list[list[Any]]:
    """The pieces with neighbours of one kind put together: what must not depend on the cut."""
    out: list[list[Any]] = []
    for piece in pieces:
        head = [type(piece).__name__, *([piece.index] if isinstance(piece, ArgumentsDelta) else [])]
        if isinstance(piece, CallStarted):
            out.append([*head, piece.index, piece.id, piece.name])
        elif out and out[-1][:-1] == head:
            out[-1][-1] += piece.text
        else:
            out.append([*head, piece.text])
    return out


def content_of(pieces: Sequence[AnswerPiece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, ContentText))


def reasoning_of(pieces: Sequence[AnswerPiece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, ReasoningText))


def calls_of(pieces: Sequence[AnswerPiece]) -> list[Call]:
    """The calls by index, which has to count from 0 without gaps."""
    names: list[str] = []
    arguments: list[str] = []
    for piece in pieces:
        if isinstance(piece, CallStarted):
            assert piece.index == len(names)
            names.append(piece.name)
            arguments.append("")
        elif isinstance(piece, ArgumentsDelta):
            arguments[piece.index] += piece.text
    return list(zip(names, arguments, strict=True))


def read(
    name: str, text: str | Iterable[str], rules: CallRules | None = AUTO, *, cut: bool = False
) -> tuple[str, list[Call]]:
    """Content and calls, by the parser of that name; a text comes in one piece, an iterable in several."""
    assert rules is not None
    pieces = told(tool_call_parser(name, rules), [text] if isinstance(text, str) else text, cut=cut)
    return content_of(pieces), calls_of(pieces)


def cuts(text: str, places: Iterable[int]) -> list[str]:
    """The text cut at those places."""
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def through_the_sdk(pieces: Sequence[AnswerPiece]) -> Any:
    """The message that the SDK's stream helper makes of the pieces, sent as OpenAI sends them."""
    state = ChatCompletionStreamState()
    deltas = [{"role": "assistant", "content": ""}, *map(_delta, pieces), {}]
    for place, delta in enumerate(deltas):
        finish = "stop" if place == len(deltas) - 1 else None
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_790_000_000,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.get_final_completion().choices[0].message


def _delta(piece: AnswerPiece) -> dict[str, Any]:
    match piece:
        case ContentText(text):
            return {"content": text}
        case ReasoningText(text):
            return {"reasoning_content": text}
        case CallStarted(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
