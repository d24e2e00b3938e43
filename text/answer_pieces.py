"""What a model's text turns out to be: thoughts, content, and calls of tools.

Joined in order, the pieces are the same however the text was cut. A call's name comes first, whole; its arguments
follow as text that joins to what the model meant as one JSON object.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReasoningText:
    """Part of what the model thought."""

    text: str


@dataclass(slots=True)
class ContentText:
    """Part of what the model said; never markup."""

    text: str


@dataclass(slots=True)
class CallStarted:
    """A call begins. `index` counts the answer's calls from 0, without gaps; `id` is told only here.

    `custom`: of a custom tool, whose call has an input in place of arguments.
    """

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(slots=True)
class ArgumentsDelta:
    """Part of the arguments of call `index`."""

    index: int
    text: str


@dataclass(slots=True)
class InputDelta:
    """Part of the input of call `index`, which is of a custom tool."""

    index: int
    text: str


ToolPiece = ContentText | CallStarted | ArgumentsDelta | InputDelta
AnswerPiece = ReasoningText | ContentText | CallStarted | ArgumentsDelta | InputDelta
