"""The assemblies by name, each with a fake engine: full, preprocessed, in-process tokens, in-process text."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.processors import TemplateProcessing

from pipeline.build import (
    build_in_process_text,
    build_in_process_tokens,
    build_pipeline,
    build_preprocessed_pipeline,
)
from pipeline.context import RequestContext
from pipeline.preprocess import ChoiceOutputs, Prepared, Preprocessor
from protocols.errors import DeadlineExceeded, EngineAborted, EngineFailure, Enough, IncompleteReply, InvalidRequest
from protocols.model_card import ModelCard
from protocols.openai import GenerationRequest, parse_chat, parse_completion
from protocols.outputs import BackendOutput, CompletionUsage, FinishReason, LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from tests.pipeline.engines_in_process import ScriptedService, SteadyEngine, context_of, tokens
from tests.pipeline.rig import Rig, Taken, request_of
from tests.text.small_tokenizers import CALL, byte_level
from text.aggregate import ChatAggregate
from text.answer_parser import ModelMarkup
from text.chat_reader import ChatReader
from text.chat_template import ChatTemplate
from text.tokenizer import Tokenizer
from text.usage import UsageCount

EOS_ID = 2
CARD = ModelCard("m", context_length=1000, vocab_size=300, eos_token_ids=(EOS_ID,))
PROMPT_TEXT = b"Why"
TIME = {"type": "function", "function": {"name": "get_time"}}


def preprocessor() -> Preprocessor:
    return Preprocessor(CARD, byte_level(), None)


async def prepared(context: RequestContext, body: bytes) -> Prepared:
    return await preprocessor().prepare(parse_completion(body), context, created=0)


def steady(answer: bytes, **more: Any) -> SteadyEngine:
    return SteadyEngine(answer, EOS_ID, prompt_length=len(PROMPT_TEXT), **more)


def texts_of(taken: Taken) -> dict[int, str]:
    """Each choice's text."""
    found: dict[int, str] = {}
    for choice in taken.outputs:
        found[choice.index] = found.get(choice.index, "") + "".join(output.text or "" for output in choice.outputs)
    return found


def finishes_of(taken: Taken) -> dict[int, FinishReason]:
    return {
        choice.index: output.finish_reason
        for choice in taken.outputs
        for output in choice.outputs
        if output.finish_reason is not None
    }


# ---- full


async def test_full_from_an_openai_request_to_text_across_a_failure(rig: Rig) -> None:
    engine = steady("Because of 😀.".encode(), read=4, breaks=[6])
    service = build_pipeline(preprocessor(), byte_level(), rig.prefill, engine, rig.resilience)
    context = rig.context()
    request = await prepared(context, b'{"model":"m","prompt":"Why","stop":["."],"max_tokens":40}')

    asked = rig.ask(request, service=service, context=context)
    await asked.ends()

    assert texts_of(asked.sink) == {0: "Because of 😀"}
    assert finishes_of(asked.sink) == {0: FinishReason.STOP}
    assert engine.attempts[0].token_ids == tuple(PROMPT_TEXT)
    assert engine.attempts[1].token_ids == (*PROMPT_TEXT, *b"Becaus")
    assert rig.seen.migrations == ["ongoing_request"]


async def test_full_a_call_goes_on_across_a_failure(rig: Rig) -> None:
    call = b'<tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call>'
    engine = steady(call, read=4, breaks=[41])
    tokenizer, template = byte_level(), ChatTemplate("{{ messages[0].content }}")
    calling = Preprocessor(CARD, tokenizer, template, reader=ChatReader(ModelMarkup("hermes", None), tokenizer))
    service = build_pipeline(calling, tokenizer, rig.prefill, engine, rig.resilience)
    context = rig.context()
    body = {"model": "m", "messages": [{"role": "user", "content": "Why"}], "tools": [TIME]}
    request = await calling.prepare(parse_chat(orjson.dumps(body)), context, created=0)

    asked = rig.ask(request, service=service, context=context)
    await asked.ends()

    answer = ChatAggregate(request.form, UsageCount(request.prompt_tokens()))
    for choice in asked.sink.outputs:
        answer.feed(choice.index, choice.outputs)
    (told,) = orjson.loads(answer.body())["choices"]
    assert [each["function"] for each in told["message"]["tool_calls"]] == [
        {"name": "get_time", "arguments": '{"zone": "UTC"}'}
    ]
    assert (told["message"]["content"], told["finish_reason"]) == (None, "tool_calls")
    assert rig.seen.migrations == ["ongoing_request"]


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", CALL + "{{ messages[0].content }}"])
async def test_a_first_token_that_the_template_writes_is_not_added_once_more(template: str) -> None:
    base = byte_level()
    bos = base.token_id(CALL)
    adding = HfTokenizer.from_str(base._hf.to_str())
    adding.post_processor = TemplateProcessing(single=f"{CALL} $A", special_tokens=[(CALL, bos)])
    tokenizer = Tokenizer(adding.to_str().encode())
    preparing = Preprocessor(replace(CARD, bos_token_id=bos), tokenizer, ChatTemplate(template))
    chat = {"model": "m", "messages": [{"role": "user", "content": "Why"}], "add_special_tokens": True}

    assert await preparing.chat_ids(parse_chat(orjson.dumps(chat))) == [bos, *PROMPT_TEXT]


async def test_what_the_reader_says_goes_down_with_the_request() -> None:
    tokenizer = byte_level()
    chat = {"model": "m", "messages": [{"role": "user", "content": "Why"}], "tools": [TIME], "tool_choice": "required"}

    async def sent(markup: ModelMarkup, template: str) -> PreprocessedRequest:
        reader = ChatReader(markup, tokenizer)
        preparing = Preprocessor(CARD, tokenizer, ChatTemplate(template), reader=reader)
        prepared = await preparing.prepare(parse_chat(orjson.dumps(chat)), context_of(), created=0)
        return prepared.prompts[0]

    shown = await sent(ModelMarkup("harmony", "gpt_oss"), "{{ messages[0].content }}")
    thinking = await sent(ModelMarkup("hermes", "qwen3"), "{{ messages[0].content }}<think>")

    assert tokenizer.token_id(CALL) in shown.shown_token_ids
    assert (shown.require_reasoning, thinking.require_reasoning) == (False, True)
    guided = thinking.sampling_options.guided_decoding
    assert guided is not None
    assert guided.json["type"] == "array"


async def test_full_every_choice_is_a_request_of_its_own(rig: Rig) -> None:
    engine = steady(b"Yes")
    service = build_pipeline(preprocessor(), byte_level(), rig.prefill, engine, rig.resilience)
    context = rig.context()
    request = await prepared(context, b'{"model":"m","prompt":"Why","n":3,"seed":7,"max_tokens":9}')

    asked = rig.ask(request, service=service, context=context)
    await asked.ends()

    assert texts_of(asked.sink) == {0: "Yes", 1: "Yes", 2: "Yes"}
    assert [attempt.sampling_options.seed for attempt in engine.attempts] == [7, 8, 9]


# ---- preprocessed


async def test_preprocessed_from_token_ids_to_engine_outputs_across_a_failure(rig: Rig) -> None:
    engine = SteadyEngine(b"Because", EOS_ID, read=3, breaks=[3])
    service = build_preprocessed_pipeline(rig.prefill, engine, rig.resilience)

    asked = rig.ask(request_of(), service=service)
    await asked.ends()

    assert asked.sink.ids == [*b"Because", EOS_ID]
    assert all(isinstance(output, LLMEngineOutput) for output in asked.sink.outputs)
    assert asked.sink.finish == FinishReason.EOS


# ---- in-process tokens


async def test_in_process_tokens_an_engine_of_ids_answers_in_text(rig: Rig) -> None:
    engine = steady("Because of 😀".encode(), read=2)
    service = build_in_process_tokens(preprocessor(), byte_level(), engine)
    context = rig.context()
    request = await prepared(context, b'{"model":"m","prompt":"Why","max_tokens":40}')

    asked = rig.ask(request, service=service, context=context)
    await asked.ends()

    assert texts_of(asked.sink) == {0: "Because of 😀"}
    assert finishes_of(asked.sink) == {0: FinishReason.STOP}


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ([LLMEngineOutput.failed("it failed")], EngineFailure),
        ([LLMEngineOutput.cancelled()], EngineAborted),
        ([], IncompleteReply),
    ],
)
async def test_in_process_tokens_an_ending_that_is_a_failure_is_raised(
    rig: Rig, ending: list[Any], kind: type[Exception]
) -> None:
    service = build_in_process_tokens(preprocessor(), byte_level(), ScriptedService([[tokens(*b"Be"), *ending]]))
    context = rig.context()
    request = await prepared(context, b'{"model":"m","prompt":"Why"}')

    asked = rig.ask(request, service=service, context=context)

    assert type(await asked.fails()) is kind
    assert texts_of(asked.sink) == {0: "Be"}


async def test_in_process_an_engine_is_cancelled_at_the_requests_deadline(rig: Rig) -> None:
    cancelled = asyncio.Event()

    async def endless(request: Any, context: RequestContext, sink: Any, /) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    context = rig.context(deadline=rig.clock() + 10)
    request = await prepared(context, b'{"model":"m","prompt":"Why"}')
    asked = rig.ask(request, service=build_in_process_tokens(preprocessor(), byte_level(), endless), context=context)
    await asyncio.sleep(0)

    rig.clock.forward(11)

    assert isinstance(await asked.fails(), DeadlineExceeded)
    assert cancelled.is_set()


async def test_in_process_an_engines_own_timeout_is_not_the_requests_deadline(rig: Rig) -> None:
    async def late(request: Any, context: RequestContext, sink: Any, /) -> None:
        raise TimeoutError("its own")

    context = rig.context(deadline=rig.clock() + 10)
    request = await prepared(context, b'{"model":"m","prompt":"Why"}')
    asked = rig.ask(request, service=build_in_process_tokens(preprocessor(), byte_level(), late), context=context)

    error = await asked.fails()
    assert isinstance(error, TimeoutError)
    assert str(error) == "its own"


# ---- in-process text


def text(index: int, said: str | None = None, finish: FinishReason | None = None) -> ChoiceOutputs:
    usage = CompletionUsage(5, 2, 7) if finish is not None else None
    return ChoiceOutputs(index, [BackendOutput(text=said, finish_reason=finish, completion_usage=usage)])


class TextEngine:
    """Answers an OpenAI request by what it was told to say."""

    def __init__(self, *batches: list[ChoiceOutputs]) -> None:
        self._batches = batches
        self.requests: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest, context: RequestContext, sink: Any, /) -> None:
        self.requests.append(request)
        for batch in self._batches:
            sink(batch)


CHAT = parse_chat(b'{"model":"m","messages":[{"role":"user","content":"Why?"}]}')


async def test_in_process_text_the_engine_gets_the_openai_request_itself(rig: Rig) -> None:
    engine = TextEngine([text(0, "Be")], [text(0, "cause"), text(0, finish=FinishReason.STOP)])

    asked = rig.ask(CHAT, service=build_in_process_text(engine))
    await asked.ends()

    assert engine.requests == [CHAT]
    assert texts_of(asked.sink) == {0: "Because"}
    assert finishes_of(asked.sink) == {0: FinishReason.STOP}


async def test_in_process_text_endings_go_up_when_the_engine_has_come_back(rig: Rig) -> None:
    may_return = asyncio.Event()

    async def engine(request: GenerationRequest, context: RequestContext, sink: Any, /) -> None:
        sink([text(1, "no", FinishReason.LENGTH), text(0, "yes"), text(0, "!", FinishReason.STOP)])
        await may_return.wait()

    asked = rig.ask(CHAT, service=build_in_process_text(engine))
    await asyncio.sleep(0)
    assert texts_of(asked.sink) == {0: "yes"}
    assert finishes_of(asked.sink) == {}

    may_return.set()
    await asked.ends()
    assert texts_of(asked.sink) == {0: "yes!", 1: "no"}
    assert finishes_of(asked.sink) == {0: FinishReason.STOP, 1: FinishReason.LENGTH}


async def test_in_process_text_nothing_follows_a_choices_ending(rig: Rig) -> None:
    engine = TextEngine([text(0, "a", FinishReason.STOP)], [text(0, "b"), text(0, "c", FinishReason.LENGTH)])

    asked = rig.ask(CHAT, service=build_in_process_text(engine))
    await asked.ends()

    assert texts_of(asked.sink) == {0: "a"}
    assert finishes_of(asked.sink) == {0: FinishReason.STOP}


@pytest.mark.parametrize(
    ("batches", "kind"),
    [
        ([], IncompleteReply),
        ([[text(0, "a")]], IncompleteReply),
        ([[text(0, "a", FinishReason.STOP), text(1, "b")]], IncompleteReply),
        ([[text(0, "a", FinishReason.error("it failed"))]], EngineFailure),
        ([[text(0, "a", FinishReason.CANCELLED)]], EngineAborted),
    ],
)
async def test_in_process_text_an_ending_that_is_missing_or_a_failure_is_raised(
    rig: Rig, batches: list[list[ChoiceOutputs]], kind: type[Exception]
) -> None:
    asked = rig.ask(CHAT, service=build_in_process_text(TextEngine(*batches)))

    assert type(await asked.fails()) is kind
    assert finishes_of(asked.sink) == {}


async def test_in_process_text_enough_reaches_its_owner(rig: Rig) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    engine = TextEngine([text(0, "a")], [text(0, "b", FinishReason.STOP)])
    asked = rig.ask(CHAT, service=build_in_process_text(engine), sink=Taken(enough))

    error = await asked.fails()
    assert isinstance(error, Enough)
    assert error.owner is asked.sink
    assert asked.sink.batches == 1


async def test_in_process_text_a_refusal_is_the_clients(rig: Rig) -> None:
    async def engine(request: GenerationRequest, context: RequestContext, sink: Any, /) -> None:
        raise InvalidRequest("no such voice", param="voice")

    asked = rig.ask(CHAT, service=build_in_process_text(engine))

    error = await asked.fails()
    assert isinstance(error, InvalidRequest)
    assert error.param == "voice"
