"""Models that call tools and think, asked by the OpenAI client: streamed and not, by every way of marking calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage

from tests.stories.house import Hosted, House, pair
from tests.text.call_samples import SAMPLES, TIME, WEATHER
from tests.text.readings import TOOLS

CHAT: Any = [{"role": "user", "content": "What is the weather in Paris, and what time is it?"}]
BOTH = [WEATHER, TIME]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
WRITTEN = '\n\n{"name": "get_weather", '
SHELL_CALL = json.dumps({"name": "shell", "arguments": {"input": 'ls -l "$HOME"'}})
THOUGHTS = "<think>\nThe user asks for Paris.\n</think>\n\n"
FORCED = '[{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}]'
CHANNELS = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city": "Paris", "days": 3}<|call|>'
)
ENGINES = ("vllm", "sglang", "trtllm")
OTHERS = ["thinks-and-calls", "thinks", "says", "bound", "channels", "unread"]
WISHES: list[dict[str, Any]] = [
    {},
    {"max_tokens": 12},
    {"tool_choice": "required"},
    {"parallel_tool_calls": False},
    {"tool_choice": "none"},
]
MARKUPS = {sample.parser: sample for sample in SAMPLES if sample.parser in ("hermes", "llama3_json", "pythonic")}
"""A few of the markups, of all kinds: every model takes its time to load."""
FUNCTIONS = [tool["function"] for tool in TOOLS]


def saying(name: str, reply: str, **settings: Any) -> Hosted:
    """A model that always says the same."""
    return Hosted(name, "vllm", options={"reply": reply}, settings=settings)


@pytest.fixture(scope="module")
def callers() -> Iterator[House]:
    models = [
        *(saying(name, sample.two, tool_call_parser=sample.parser) for name, sample in MARKUPS.items()),
        *(pair(engine, f"calls-{engine}", prefill=1, decode=1, reply=f"Let me see.\n{CALL}") for engine in ENGINES),
        saying("thinks-and-calls", THOUGHTS + CALL),
        saying("shells", f"<tool_call>\n{SHELL_CALL}\n</tool_call>"),
        saying("shells-bound", '{"input": "ls -l \\"$HOME\\""}'),
        saying("thinks", f"{THOUGHTS}It rains."),
        saying("says", "It rains."),
        saying("bound", FORCED),
        saying("channels", CHANNELS, reasoning_parser="gpt_oss"),
        saying("unread", THOUGHTS + CALL, tool_call_parser="none", reasoning_parser="none"),
    ]
    with House(models, logging={"level": "warning"}) as house:
        yield house


@pytest.fixture
def house(callers: House) -> Iterator[House]:
    yield callers
    callers.rest()


def whole(house: House, model: str, **fields: Any) -> ChatCompletion:
    request = {"messages": CHAT, "tools": TOOLS, "temperature": 0, **fields}
    return house.sdk.chat.completions.create(model=model, **request)  # type: ignore[no-any-return]


def chunks_of(house: House, model: str, **fields: Any) -> list[ChatCompletionChunk]:
    return list(whole(house, model, stream=True, **fields))  # type: ignore[arg-type]


def streamed(house: House, model: str, **fields: Any) -> ChatCompletion:
    """The same in chunks, joined by the client's own accumulator (which refuses to end an answer that was cut off)."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks_of(house, model, stream_options={"include_usage": True}, **fields):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


ASKED = pytest.mark.parametrize("ask", [whole, streamed])


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, Any]]:
    calls = message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def told(completion: ChatCompletion) -> dict[str, Any]:
    """All that an answer says, but for what is random in it."""
    choice = completion.choices[0]
    message = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
    for call in message.get("tool_calls", ()):
        call.pop("id")
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return {**message, "finish_reason": choice.finish_reason}


# ---- every markup


@ASKED
@pytest.mark.parametrize("model", MARKUPS)
def test_the_calls_of_each_markup_are_calls_to_the_client(house: House, model: str, ask: Any) -> None:
    completion = ask(house, model)

    (choice,) = completion.choices
    assert calls_of(choice.message)[-1:] == [TIME]
    assert [name for name, _ in calls_of(choice.message)] == ["get_weather", "get_time"]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    ids = [call.id for call in choice.message.tool_calls]
    assert all(ids)
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        *((model, fields) for model in MARKUPS for fields in ({}, {"max_tokens": 12})),
        *((model, fields) for model in OTHERS for fields in WISHES),
    ],
    ids=str,
)
def test_a_streamed_answer_says_what_the_whole_one_says(house: House, model: str, fields: dict[str, Any]) -> None:
    assert told(streamed(house, model, **fields)) == told(whole(house, model, **fields))


@ASKED
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_s_workers_may_call(house: House, engine: str, ask: Any) -> None:
    completion = ask(house, f"calls-{engine}")

    message = completion.choices[0].message
    assert (message.content, calls_of(message)) == ("Let me see.", [WEATHER])
    assert completion.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("model", ["hermes", "thinks-and-calls"])
def test_the_clients_stream_helper_gathers_the_calls(house: House, model: str) -> None:
    with house.sdk.chat.completions.stream(model=model, messages=CHAT, tools=TOOLS, temperature=0) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message

    assert calls_of(message)[0] == WEATHER
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == [name for name, _ in calls_of(message)]


# ---- custom tools

SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}


@pytest.mark.parametrize("model", ["shells", "shells-bound"])
def test_a_custom_tool_is_called_with_an_input(house: House, model: str) -> None:
    choice = {"type": "custom", "custom": {"name": "shell"}} if model == "shells-bound" else "auto"
    asked = {"messages": CHAT, "tools": [SHELL], "tool_choice": choice, "temperature": 0}

    answered = house.sdk.chat.completions.create(model=model, **asked).choices[0]
    chunks = [chunk.choices[0] for chunk in house.sdk.chat.completions.create(model=model, stream=True, **asked)]

    (call,) = answered.message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "shell", 'ls -l "$HOME"')
    assert call.id
    told = [call.model_dump(exclude_unset=True) for each in chunks for call in each.delta.tool_calls or ()]
    assert (told[0]["type"], told[0]["custom"]) == ("custom", {"name": "shell", "input": ""})
    assert all(call.keys() == {"index", "custom"} for call in told[1:])
    assert "".join(call["custom"]["input"] for call in told) == call.custom.input
    assert chunks[-1].finish_reason == answered.finish_reason


# ---- the stream's shape


def test_a_call_is_told_by_its_name_and_then_by_its_arguments(house: House) -> None:
    deltas = [choice.delta for chunk in chunks_of(house, "hermes") for choice in chunk.choices]

    assert deltas[0].model_dump(exclude_unset=True) == {"role": "assistant", "content": None}
    said = [delta.model_dump(exclude_unset=True) for delta in deltas[1:-1]]
    assert all(list(delta) == ["tool_calls"] and len(delta["tool_calls"]) == 1 for delta in said)
    calls = [delta["tool_calls"][0] for delta in said]
    heads = [call for call in calls if "id" in call]
    assert [(head["index"], head["type"], head["function"]) for head in heads] == [
        (0, "function", {"name": "get_weather", "arguments": ""}),
        (1, "function", {"name": "get_time", "arguments": ""}),
    ]
    assert all(call.keys() == {"index", "function"} for call in calls if call not in heads)
    assert len(calls) > 6
    assert deltas[-1].model_dump(exclude_unset=True) == {}


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_calls_of_its_own(house: House, stream: bool) -> None:
    if stream:
        heads = {
            (choice.index, call.index, call.id)
            for chunk in chunks_of(house, "hermes", n=3)
            for choice in chunk.choices
            for call in choice.delta.tool_calls or ()
            if call.id
        }
    else:
        completion = whole(house, "hermes", n=3)
        heads = {
            (choice.index, place, call.id)
            for choice in completion.choices
            for place, call in enumerate(choice.message.tool_calls or ())
        }
        assert "index" not in (completion.choices[0].message.tool_calls or ())[0].model_dump()

    assert {(choice, call) for choice, call, _ in heads} == {(choice, call) for choice in range(3) for call in range(2)}
    assert len({call_id for _, _, call_id in heads}) == 6


# ---- what the client wants


@ASKED
def test_without_tools_or_with_none_wanted_a_call_is_text(house: House, ask: Any) -> None:
    reply = MARKUPS["hermes"].two
    answers = [ask(house, "hermes", tool_choice="none"), ask(house, "hermes", tools=openai.NOT_GIVEN)]

    assert [(each.choices[0].message.content, each.choices[0].finish_reason) for each in answers] == [
        (reply, "stop")
    ] * 2


@ASKED
@pytest.mark.parametrize("model", ["bound", "hermes"])
def test_a_call_that_is_required_may_come_as_json_or_in_the_models_own_way(house: House, model: str, ask: Any) -> None:
    completion = ask(house, model, tool_choice="required")

    assert calls_of(completion.choices[0].message)[0][0] == "get_weather"
    assert completion.choices[0].finish_reason == "tool_calls"


@ASKED
def test_a_named_call_ends_as_openai_says(house: House, ask: Any) -> None:
    completion = ask(house, "bound", tool_choice={"type": "function", "function": {"name": "get_weather"}})

    assert calls_of(completion.choices[0].message) == [WEATHER]
    assert completion.choices[0].finish_reason == "stop"


@ASKED
def test_one_call_at_most(house: House, ask: Any) -> None:
    completion = ask(house, "hermes", parallel_tool_calls=False)

    assert [name for name, _ in calls_of(completion.choices[0].message)] == ["get_weather"]


@pytest.mark.parametrize("stream", [False, True])
def test_deprecated_functions_are_answered_with_a_function_call(house: House, stream: bool) -> None:
    fields: Any = {"tools": openai.NOT_GIVEN, "functions": FUNCTIONS}

    if stream:
        choices = [choice for chunk in chunks_of(house, "hermes", **fields) for choice in chunk.choices]
        parts = [choice.delta.function_call for choice in choices if choice.delta.function_call]
        finish = choices[-1].finish_reason
        name, arguments = parts[0].name, "".join(part.arguments or "" for part in parts)
        assert [part.name for part in parts[1:]] == [None] * (len(parts) - 1)
    else:
        choice = whole(house, "hermes", **fields).choices[0]
        assert (choice.message.function_call is not None, choice.message.tool_calls) == (True, None)
        name, arguments, finish = (
            choice.message.function_call.name,  # type: ignore[union-attr]
            choice.message.function_call.arguments,  # type: ignore[union-attr]
            choice.finish_reason,
        )

    assert ((name, json.loads(arguments)), finish) == (WEATHER, "function_call")


def test_a_conversation_with_calls_and_their_results_goes_on(house: House) -> None:
    call = whole(house, "hermes").choices[0].message
    results = [
        {"role": "tool", "tool_call_id": each.id, "content": "Rain."} for each in call.tool_calls or () if each.id
    ]

    answer = whole(house, "says", messages=[*CHAT, call.model_dump(exclude_none=True), *results])

    assert answer.choices[0].message.content == "It rains."


# ---- cut off


@ASKED
@pytest.mark.parametrize("tokens", range(1, 30, 4))
def test_an_answer_that_is_cut_off_ends_by_its_length_and_loses_nothing(house: House, ask: Any, tokens: int) -> None:
    completion = ask(house, "calls-vllm", max_tokens=tokens)

    choice = completion.choices[0]
    message = choice.message
    assert choice.finish_reason == "length"
    calls = message.tool_calls or []
    assert completion.usage.completion_tokens == tokens
    assert [call.function.name for call in calls] in ([], ["get_weather"])
    # A call that is not named yet is no call: what the model wrote of it is shown.
    assert f"Let me see.{'' if calls else WRITTEN}".startswith(message.content)
    assert all('{"city": "Paris", "days": 3}'.startswith(call.function.arguments) for call in calls)


# ---- thoughts


@ASKED
def test_thoughts_are_told_apart_and_counted(house: House, ask: Any) -> None:
    completion = ask(house, "thinks", tools=openai.NOT_GIVEN)

    message = completion.choices[0].message
    assert (message.content, message.reasoning_content) == ("It rains.", "The user asks for Paris.")
    assert message.reasoning == message.reasoning_content
    assert completion.choices[0].finish_reason == "stop"
    details = completion.usage.completion_tokens_details
    assert 4 < details.reasoning_tokens < completion.usage.completion_tokens - 3


@ASKED
def test_a_call_after_thoughts(house: House, ask: Any) -> None:
    completion = ask(house, "thinks-and-calls")

    message = completion.choices[0].message
    assert (message.content, message.reasoning_content) == (None, "The user asks for Paris.")
    assert calls_of(message) == [WEATHER]
    assert completion.choices[0].finish_reason == "tool_calls"


@ASKED
def test_channels_are_thoughts_and_calls(house: House, ask: Any) -> None:
    message = ask(house, "channels").choices[0].message

    assert (message.content, message.reasoning_content, len(calls_of(message))) == (None, "Hm.", 1)


@ASKED
def test_a_model_that_does_not_think_has_no_such_member(house: House, ask: Any) -> None:
    message = ask(house, "says").choices[0].message

    assert not {"reasoning", "reasoning_content"} & message.model_dump(exclude_unset=True).keys()
    assert message.content == "It rains."


@ASKED
def test_without_parsers_all_is_text(house: House, ask: Any) -> None:
    completion = ask(house, "unread")

    assert completion.choices[0].message.content == THOUGHTS + CALL
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.completion_tokens_details is None


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_text_as_it_was_generated(house: House, stream: bool) -> None:
    if stream:
        choices = [choice for chunk in chunks_of(house, "thinks-and-calls", logprobs=True) for choice in chunk.choices]
        tokens = [entry.token for choice in choices if choice.logprobs for entry in choice.logprobs.content or ()]
    else:
        logprobs = whole(house, "thinks-and-calls", logprobs=True).choices[0].logprobs
        assert logprobs is not None
        tokens = [entry.token for entry in logprobs.content or ()]

    assert "".join(tokens) == THOUGHTS + CALL
