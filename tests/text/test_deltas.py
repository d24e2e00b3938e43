"""Outputs become the chunks that OpenAI clients expect: nothing empty, nothing twice, one finish per choice."""

import httpx
import openai
import pytest

from protocols.errors import EngineAborted, EngineFailure, InternalError
from protocols.outputs import BackendOutput, FinishReason
from tests.text.answers import (
    chat_chunks,
    completion_chunks,
    contents,
    data_of,
    engine_usage,
    form,
    output,
    texts,
)
from text.answer_form import PromptEcho
from text.deltas import DONE, StreamRenderer
from text.usage import UsageCount

EOS = BackendOutput(finish_reason=FinishReason.EOS)
LENGTH = BackendOutput(finish_reason=FinishReason.LENGTH)


def chat(n=1, usage=None, **fields):
    return StreamRenderer.chat(form(n=n, candidates=n, **fields), usage or UsageCount([10], n))


NO_PROMPT = PromptEcho()


def completion(n=1, prompts=(NO_PROMPT,), **fields):
    shape = form(n=n, candidates=n, prompts=tuple(prompts), **fields)
    return StreamRenderer.completion(shape, UsageCount([10] * len(prompts), n))


def answer(renderer, *reads, members=None):
    """The whole stream of choice 0."""
    return b"".join(renderer.feed(0, read) for read in reads) + renderer.end(members)


# ---- order and shape


def test_a_chat_is_a_role_then_contents_then_a_finish_then_done():
    stream = answer(chat(), [output("The")], [output(" sky")], [EOS])

    chunks = chat_chunks(stream)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "The"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": " sky"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
    ]
    assert {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        ("answer-1", 1_790_000_000, "m", "chat.completion.chunk")
    }
    assert stream.endswith(b"\n\n" + DONE)
    assert data_of(stream).count("[DONE]") == 1


def test_a_completion_is_texts_then_a_finish_then_done():
    chunks = completion_chunks(answer(completion(), [output("The")], [LENGTH]))

    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "The", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}],
    ]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_each_output_of_a_read_is_a_chunk_and_they_leave_together():
    renderer = chat()
    renderer.start()

    events = renderer.feed(0, [output("a"), output("b"), output("c")])

    assert [contents([chunk]) for chunk in chat_chunks(events)] == ["a", "b", "c"]


@pytest.mark.parametrize("read", [[], [output(None, ids=[5])], [output("", ids=[5])], [BackendOutput()]])
@pytest.mark.parametrize("make", [chat, completion])
def test_nothing_to_show_is_nothing_sent(make, read):
    renderer = make()

    assert renderer.feed(0, read) == b""
    assert renderer.feed(0, [output("x")]) != b""
    assert renderer.feed(0, read) == b""


def test_a_text_with_its_finish_is_shown_before_the_finish():
    chunks = chat_chunks(answer(chat(), [output("x"), output("y", finish_reason=FinishReason.STOP, stop_reason="END")]))

    assert contents(chunks) == "xy"
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": "END",
    }


def test_an_answer_without_text_has_a_role_and_a_finish():
    chunks = chat_chunks(answer(chat(), [EOS]))

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (FinishReason.EOS, "stop"),
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTENT_FILTER, "content_filter"),
    ],
)
def test_engines_finishes_have_openais_names(reason, name):
    chunks = chat_chunks(answer(chat(), [BackendOutput(finish_reason=reason)]))

    assert chunks[-1]["choices"][0]["finish_reason"] == name


@pytest.mark.parametrize(
    ("reason", "error"), [(FinishReason.error("out of memory"), EngineFailure), (FinishReason.CANCELLED, EngineAborted)]
)
@pytest.mark.parametrize("make", [chat, completion])
def test_an_error_or_an_abort_is_never_a_finish(make, reason, error):
    renderer = make()

    with pytest.raises(error):
        renderer.feed(0, [output("x", finish_reason=reason)])
    with pytest.raises(InternalError):
        renderer.end()


def test_a_choice_finishes_once():
    renderer = chat()
    events = renderer.feed(0, [output("x"), EOS]) + renderer.feed(0, [output("late")]) + renderer.feed(0, [LENGTH])

    assert [chunk["choices"][0]["finish_reason"] for chunk in chat_chunks(events)] == [None, None, "stop"]


def test_a_stream_does_not_end_before_all_its_choices():
    renderer = chat(n=2)
    renderer.feed(0, [output("x"), EOS])

    with pytest.raises(InternalError, match="choice 1"):
        renderer.end()


def test_texts_need_no_escaping_by_hand():
    text = 'data: [DONE]\n\n"\\ \x7f\x00 🙂 \u2028'

    chunks = chat_chunks(answer(chat(), [output(text)], [EOS]))

    assert contents(chunks) == text


def test_a_model_may_be_named_like_the_hole_in_the_frame():
    chunks = chat_chunks(answer(chat(model='"\x7f"'), [output("x")], [EOS]))

    assert (contents(chunks), chunks[1]["model"]) == ("x", '"\x7f"')


# ---- choices


def test_every_choice_has_its_own_index_role_and_finish():
    renderer = chat(n=3)
    stream = renderer.feed(2, [output("c")]) + renderer.feed(0, [output("a"), EOS])
    stream += renderer.feed(2, [LENGTH]) + renderer.feed(1, [output("b"), EOS]) + renderer.end()

    chunks = chat_chunks(stream)
    opened = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    finished = [(c["index"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert opened == [0, 1, 2]
    assert finished == [(0, "stop"), (2, "length"), (1, "stop")]
    assert [contents(chunks, index) for index in range(3)] == ["a", "b", "c"]


def test_the_openings_may_be_sent_earlier_and_only_once():
    renderer = chat(n=2)
    opening = renderer.start()

    assert len(chat_chunks(opening)) == 2
    assert renderer.start() == b""
    assert len(chat_chunks(renderer.feed(1, [output("x")]))) == 1


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt():
    renderer = completion(n=2, prompts=[PromptEcho(text="P0 "), PromptEcho(text="P1 ")], echo=True)
    stream = b"".join(renderer.feed(index, [output(f"a{index}"), EOS]) for index in (3, 1, 0, 2)) + renderer.end()

    chunks = completion_chunks(stream)
    assert [texts(chunks, index) for index in range(4)] == ["P0 a0", "P0 a1", "P1 a2", "P1 a3"]


def test_ranked_candidates_cannot_be_streamed():
    with pytest.raises(ValueError, match="ranked"):
        StreamRenderer.completion(form(n=1, candidates=2), UsageCount([1], 2))


# ---- usage


def test_usage_is_null_on_all_chunks_and_told_once_without_choices():
    usage = UsageCount([10])
    stream = answer(chat(usage=usage, include_usage=True), [output("ab", ids=[1, 2])], [output("c")], [EOS])

    chunks = chat_chunks(stream)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


def test_usage_is_absent_where_nobody_asked():
    assert b"usage" not in answer(chat(), [output("x")], [EOS])


def test_completions_tell_usage_by_the_same_rules():
    chunks = completion_chunks(answer(completion(include_usage=True), [output("x")], [EOS]))

    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 1)


def test_continuous_usage_counts_what_is_out_so_far():
    renderer = chat(include_usage=True, continuous_usage=True)
    stream = answer(renderer, [output("ab", ids=[1, 2])], [output(None, ids=[3])], [output("c")], [EOS])

    counts = [chunk["usage"]["completion_tokens"] for chunk in chat_chunks(stream)]
    assert counts == [2, 2, 4, 4, 4]


def test_every_choice_counts_and_the_prompt_once():
    renderer = chat(n=2, include_usage=True)
    stream = renderer.feed(0, [output("a", ids=[1, 2]), EOS]) + renderer.feed(1, [output("b", ids=[3]), EOS])

    usage = chat_chunks(stream + renderer.end())[-1]["usage"]
    assert usage == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


@pytest.mark.parametrize(("cached", "details"), [(None, None), (0, {"cached_tokens": 0}), (8, {"cached_tokens": 8})])
def test_cached_tokens_are_told_when_known_and_0_is_known(cached, details):
    ending = BackendOutput(finish_reason=FinishReason.EOS, completion_usage=engine_usage(cached))

    usage = chat_chunks(answer(chat(include_usage=True), [output("x")], [ending]))[-1]["usage"]

    assert usage.get("prompt_tokens_details") == details


def test_what_else_is_told_at_the_end_stands_beside_usage():
    told = chat_chunks(answer(chat(include_usage=True), [EOS], members={"tandem": {"decode_worker": 7}}))[-1]
    alone = chat_chunks(answer(chat(), [EOS], members={"tandem": {}}))[-1]

    assert (told["choices"], told["tandem"], told["usage"]["prompt_tokens"]) == ([], {"decode_worker": 7}, 10)
    assert (alone["choices"], alone["tandem"]) == ([], {})


# ---- the real client


def test_the_sdk_reads_the_stream_to_the_same_answer():
    usage = UsageCount([10], 2)
    renderer = chat(n=2, usage=usage, include_usage=True, logprobs=0)
    stream = renderer.feed(1, [output("b", logprobs=[-1.0])]) + renderer.feed(0, [output("a", logprobs=[-2.0])])
    stream += renderer.feed(0, [output("a2", logprobs=[-3.0]), EOS]) + renderer.feed(1, [EOS]) + renderer.end()

    with _client(stream).chat.completions.stream(model="m", messages=[], n=2) as events:
        completion_ = events.get_final_completion()

    assert [choice.message.content for choice in completion_.choices] == ["aa2", "b"]
    assert [len(choice.logprobs.content) for choice in completion_.choices] == [2, 1]
    assert completion_.usage.total_tokens == 13


def _client(stream):
    def reply(_request):
        return httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})

    http = httpx.Client(transport=httpx.MockTransport(reply))
    return openai.OpenAI(base_url="http://gateway/v1", api_key="none", http_client=http)
