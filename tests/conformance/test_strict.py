"""The strict types refuse what OpenAI never sends, and the additions to them are those that the documentation lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from tests.conformance.strict import ADDITIONS, CHUNK, WHOLE, Envelope, check

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def message(**members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Hi", "refusal": None, **members}


def answer(choice: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    usual = {"index": 0, "message": message(), "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    frame = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return {**frame, "choices": [{**usual, **(choice or {})}], "usage": usage, **members}


def test_openais_answer_is_accepted() -> None:
    assert check(WHOLE["chat"], orjson.dumps(answer())) == answer()


@pytest.mark.parametrize(
    "wrong",
    [
        answer(detail="x"),
        answer(created=1.0),
        answer(created="1"),
        answer(object="text_completion"),
        answer(usage=None),
        answer(system_fingerprint=None),
        answer({"index": True}),
        answer({"finish_reason": None}),
        answer({"finish_reason": "abort"}),
        answer({"stop_reason": None}),
        answer({"message": {"role": "assistant", "content": "Hi"}}),
        answer({"message": message(tool_calls=None)}),
        answer({"message": message(function_call=None)}),
        answer({"message": message(reasoning_content=None)}),
        answer({"message": message(tool_calls=[{"id": "x", "type": "function", "function": {"name": "f"}}])}),
        answer({"logprobs": {"content": [{"token": "a", "logprob": None, "bytes": None, "top_logprobs": []}]}}),
    ],
    ids=str,
)
def test_what_openai_never_sends_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check(WHOLE["chat"], orjson.dumps(wrong))


@pytest.mark.parametrize(
    "choice",
    [
        {"index": 0, "delta": {}},
        {"index": 0, "delta": {"role": None}, "finish_reason": None},
        {"index": 0, "delta": {"tool_calls": [{"id": "x"}]}, "finish_reason": None},
        {"index": 0, "delta": {"tool_calls": None}, "finish_reason": None},
    ],
    ids=str,
)
def test_a_chunk_that_openai_never_sends_is_refused(choice: dict[str, Any]) -> None:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    with pytest.raises(ValidationError):
        check(CHUNK["chat"], orjson.dumps(chunk))


@pytest.mark.parametrize("error", ["words", {"message": "m", "type": "t"}, {"message": 5, "type": "t", "param": None}])
def test_an_error_that_openai_never_sends_is_refused(error: Any) -> None:
    with pytest.raises(ValidationError):
        check(Envelope, orjson.dumps({"error": error}))


@pytest.mark.parametrize("member", sorted({name for members in ADDITIONS.values() for name in members}))
def test_what_answers_have_beyond_openais_is_documented(member: str) -> None:
    _, _, listed = API.partition("## Beyond OpenAI's answers")

    assert f"`{member}`" in listed.partition("\n## ")[0]
