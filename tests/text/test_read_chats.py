"""Chats whose text is read: what the stream and the body say of thoughts, content and calls, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from protocols.outputs import BackendOutput, FinishReason
from tests.text.answers import CHAT, chat_chunks, form, output
from tests.text.call_samples import SAMPLES, Sample
from tests.text.readings import AUTO, TOOLS
from text.aggregate import ChatAggregate
from text.answer_parser import AnswerReading, ModelMarkup
from text.deltas import StreamRenderer
from text.tool_calls.rules import call_rules, request_rules
from text.usage import UsageCount

QWEN = ModelMarkup("hermes", "qwen3")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
EOS = BackendOutput(finish_reason=FinishReason.EOS)
LENGTH = BackendOutput(finish_reason=FinishReason.LENGTH)


class Legacy:
    """A request in the deprecated form."""

    tools = None
    functions = [tool["function"] for tool in TOOLS]  # noqa: RUF012
    function_call = None


def reading(markup: ModelMarkup = QWEN, rules: Any = AUTO, **options: Any) -> AnswerReading:
    found = markup.reading(rules, **options)
    assert found is not None
    return found


def outputs_of(parts: Sequence[str], ending: BackendOutput = EOS, **more: Any) -> list[BackendOutput]:
    return [*(output(part, **{name: [value] for name, value in more.items()}) for part in parts), ending]


def streamed(shape: Any, outputs: Sequence[BackendOutput], usage: UsageCount | None = None) -> list[dict[str, Any]]:
    """Every chunk, one read for each output."""
    renderer = StreamRenderer.chat(shape, usage or UsageCount([10], shape.candidates))
    return chat_chunks(b"".join(renderer.feed(0, [each]) for each in outputs) + renderer.end())


def deltas_of(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def body_of(shape: Any, outputs: Sequence[BackendOutput]) -> dict[str, Any]:
    aggregate = ChatAggregate(shape, UsageCount([10], shape.candidates))
    for each in outputs:
        aggregate.feed(0, [each])
    body: dict[str, Any] = json.loads(aggregate.body())
    CHAT.validate_python(body, strict=True)
    return body


def message_of(shape: Any, outputs: Sequence[BackendOutput]) -> dict[str, Any]:
    message: dict[str, Any] = body_of(shape, outputs)["choices"][0]["message"]
    return message


def accumulated(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The choice that the SDK's accumulator makes of a stream, without what is random or its own."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return plain(state.current_completion_snapshot.choices[0].model_dump(exclude={"logprobs"}))


def plain(choice: dict[str, Any]) -> dict[str, Any]:
    message = {name: value for name, value in choice["message"].items() if value is not None and name != "parsed"}
    message["tool_calls"] = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls") or ()
    ]
    return {"message": message, "finish_reason": choice["finish_reason"]}


# ---- the stream


def test_each_piece_is_a_chunk_of_its_own() -> None:
    chunks = streamed(form(reading=reading()), outputs_of(["<think>Hm.</think>Well, ", CALL]))

    deltas = deltas_of(chunks)
    head = next(call for delta in deltas for call in delta.get("tool_calls", ()))
    assert head["id"].startswith("call_")
    assert deltas == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "Hm.", "reasoning": "Hm."},
        {"content": "Well,"},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": head["id"],
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Paris"}'}}]},
        {},
    ]
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [None] * 5 + ["tool_calls"]


def test_a_chat_that_cannot_call_opens_with_a_text() -> None:
    deltas = deltas_of(streamed(form(reading=reading(rules=None)), outputs_of(["It", " rains."])))

    assert deltas == [{"role": "assistant", "content": ""}, {"content": "It"}, {"content": " rains."}, {}]


def test_text_that_may_be_markup_waits() -> None:
    renderer = StreamRenderer.chat(form(reading=reading()), UsageCount([10]))
    renderer.start()

    assert renderer.feed(0, [output("<tool_")]) == b""
    assert deltas_of(chat_chunks(renderer.feed(0, [output("ling>")]))) == [{"content": "<tool_ling>"}]


def test_an_answer_that_is_nothing_is_an_empty_text() -> None:
    shape = form(reading=reading())

    assert deltas_of(streamed(shape, [EOS])) == [{"role": "assistant", "content": None}, {"content": ""}, {}]
    assert message_of(shape, [EOS]) == {"role": "assistant", "content": "", "refusal": None}


def test_a_stop_reason_is_told_with_the_finish_of_a_call() -> None:
    ending = BackendOutput(finish_reason=FinishReason.STOP, stop_reason=7)

    last = streamed(form(reading=reading()), outputs_of([CALL], ending))[-1]["choices"][0]

    assert (last["finish_reason"], last["stop_reason"]) == ("tool_calls", 7)


def test_every_choice_has_a_parser_of_its_own() -> None:
    renderer = StreamRenderer.chat(form(reading=reading(), n=2, candidates=2), UsageCount([10], 2))
    stream = renderer.feed(0, [output("<tool_")]) + renderer.feed(1, [output("It rains.")])
    stream += renderer.feed(0, [output(CALL.removeprefix("<tool_")), EOS]) + renderer.feed(1, [EOS]) + renderer.end()

    choices = [choice for chunk in chat_chunks(stream) for choice in chunk["choices"]]
    assert [(each["index"], each["finish_reason"]) for each in choices if each["finish_reason"]] == [
        (0, "tool_calls"),
        (1, "stop"),
    ]
    assert [each["delta"].get("content") for each in choices if each["index"] == 1] == [None, "It rains.", None]


# ---- the body


def test_a_body_holds_thoughts_text_and_calls() -> None:
    choice = body_of(form(reading=reading()), outputs_of(["<think>Hm.</think>Well, ", CALL]))["choices"][0]

    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {
        "role": "assistant",
        "content": "Well,",
        "refusal": None,
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
    }
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    assert choice["finish_reason"] == "tool_calls"


def test_content_is_null_beside_calls() -> None:
    assert message_of(form(reading=reading()), outputs_of([CALL]))["content"] is None


@pytest.mark.parametrize("ending", [EOS, LENGTH])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.parser)
def test_the_stream_joins_to_the_body_wherever_the_answer_ends(sample: Sample, ending: BackendOutput) -> None:
    shape = form(reading=reading(ModelMarkup(sample.parser, None)))

    for end in (*range(1, len(sample.two), 7), len(sample.two)):
        outputs = outputs_of(list(sample.two[:end]), ending)
        assert accumulated(streamed(shape, outputs)) == plain(body_of(shape, outputs)["choices"][0])


@pytest.mark.parametrize(
    ("ending", "finish", "arguments"),
    [(EOS, "tool_calls", '{"city": "Paris"}'), (LENGTH, "length", '{"city": "Paris"')],
)
def test_arguments_that_length_cuts_off_stay_open(ending: BackendOutput, finish: str, arguments: str) -> None:
    shape = form(reading=reading(ModelMarkup("qwen3_coder", None)))
    outputs = outputs_of(["<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"], ending)

    for choice in (accumulated(streamed(shape, outputs)), plain(body_of(shape, outputs)["choices"][0])):
        assert choice["finish_reason"] == finish
        assert choice["message"]["tool_calls"] == [{"name": "get_weather", "arguments": arguments}]


def test_a_named_call_ends_with_stop() -> None:
    rules = call_rules(TOOLS, {"type": "function", "function": {"name": "get_weather"}})
    shape, outputs = form(reading=reading(rules=rules)), outputs_of(['{"city": "Paris"}'])

    for choice in (accumulated(streamed(shape, outputs)), plain(body_of(shape, outputs)["choices"][0])):
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["tool_calls"] == [{"name": "get_weather", "arguments": '{"city": "Paris"}'}]


def test_deprecated_functions_are_answered_in_their_form() -> None:
    shape = form(reading=reading(rules=request_rules(Legacy())))  # type: ignore[arg-type]
    outputs = outputs_of([CALL])

    choice = body_of(shape, outputs)["choices"][0]
    chunks = streamed(shape, outputs)
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    assert deltas_of(chunks)[1:] == [
        {"function_call": {"name": "get_weather", "arguments": ""}},
        {"function_call": {"arguments": '{"city": "Paris"}'}},
        {},
    ]
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "function_call"


# ---- beside the text


def test_thoughts_are_counted_by_their_tokens() -> None:
    outputs = outputs_of(["<think>", "One", " two", "</think>", "Three", "."])
    shape = form(reading=reading(), include_usage=True)

    expected = {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert streamed(shape, outputs)[-1]["usage"] == expected
    assert body_of(shape, outputs)["usage"] == expected


def test_a_model_without_thoughts_tells_no_count_of_them() -> None:
    shape = form(reading=reading(ModelMarkup("hermes", None)))

    assert "completion_tokens_details" not in body_of(shape, outputs_of([CALL]))["usage"]


def test_logprobs_and_ids_are_those_of_the_raw_text_and_leave_with_the_next_chunk() -> None:
    parts = ["<think>", "Hm", "</think>", "Well"]
    outputs = outputs_of(parts, logprobs=-0.5)
    shape = form(reading=reading(), logprobs=0, token_ids=True)

    body = body_of(shape, outputs)["choices"][0]
    choices = [choice for chunk in streamed(shape, outputs) for choice in chunk["choices"]]
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {}).get("content", ())]
    assert [entry["token"] for entry in body["logprobs"]["content"]] == parts
    assert entries == body["logprobs"]["content"]
    assert [token_id for choice in choices for token_id in choice.get("token_ids", ())] == body["token_ids"]
    assert [entry["token"] for entry in choices[1]["logprobs"]["content"]] == ["<think>", "Hm"]


def test_continuous_usage_is_told_with_every_piece() -> None:
    shape = form(reading=reading(), include_usage=True, continuous_usage=True)

    chunks = streamed(shape, outputs_of(["<think>", "One", "</think>", "Two"]))

    told = [(chunk["usage"]["completion_tokens"], _thoughts(chunk)) for chunk in chunks]
    assert told == [(2, 1), (2, 1), (4, 1), (4, 1), (4, 1)]


def _thoughts(chunk: dict[str, Any]) -> int:
    count: int = chunk["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return count


# ---- what the client wants of it


def test_thoughts_that_are_not_to_be_told_are_left_out_and_counted() -> None:
    shape = form(reading=replace(reading(), told=False))
    outputs = outputs_of(["<think>Hm", ".</think>", "Well."])
    usage = UsageCount([10], 1)

    deltas = deltas_of(streamed(shape, outputs, usage))

    assert deltas == [{"role": "assistant", "content": None}, {"content": "Well."}, {}]
    assert message_of(shape, outputs) == {"role": "assistant", "content": "Well.", "refusal": None}
    assert usage.usage()["completion_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize("read", [None, reading(), reading(rules=None)])
def test_a_chat_may_begin_with_what_was_said_before(read: AnswerReading | None) -> None:
    shape = form(reading=read, lead="So ")

    chunks = streamed(shape, outputs_of(["it", " rains."]))

    assert deltas_of(chunks) == [
        {"role": "assistant", "content": ""},
        {"content": "So "},
        {"content": "it"},
        {"content": " rains."},
        {},
    ]
    assert message_of(shape, outputs_of(["it", " rains."]))["content"] == "So it rains."


def test_a_chats_best_candidate_is_shown() -> None:
    aggregate = ChatAggregate(form(candidates=3), UsageCount([10], 3))
    for index, (text, logprob) in enumerate([("bad", -3.0), ("good", -1.0), ("fair", -2.0)]):
        for each in outputs_of([text], logprobs=logprob):
            aggregate.feed(index, [each])

    body = json.loads(aggregate.body())

    assert [choice["message"]["content"] for choice in body["choices"]] == ["good"]
    assert (body["choices"][0]["logprobs"], body["usage"]["completion_tokens"]) == (None, 3)
