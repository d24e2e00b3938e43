"""The unary answer says what the stream says, in one body."""

import json
from dataclasses import replace

import httpx
import openai
import pytest

from protocols.errors import EngineAborted, EngineFailure, InternalError, InvalidRequest
from protocols.openai import parse_chat, parse_completion
from protocols.outputs import BackendOutput, FinishReason
from tests.text.answers import (
    CHAT,
    chat_chunks,
    check_completion,
    completion_chunks,
    contents,
    engine_usage,
    form,
    output,
    texts,
    top,
)
from text.aggregate import ChatAggregate, CompletionAggregate
from text.answer_form import PromptEcho, chat_form, completion_form
from text.deltas import StreamRenderer
from text.usage import UsageCount

EOS = BackendOutput(finish_reason=FinishReason.EOS)
LENGTH = BackendOutput(finish_reason=FinishReason.LENGTH)
PROMPT = PromptEcho(token_ids=(1, 50, 51), tokens=("<s>", "Why", " so?"), text="Why so?")
PROMPT_LOGPROBS = {
    "prompt_logprobs": [
        None,
        {"50": {"logprob": -4.0, "rank": 9, "decoded_token": "Why"}},
        {"51": {"logprob": -1.0, "rank": 1, "decoded_token": " so?"}},
    ]
}


def chat_body(shape, *fed, usage=None, members=None):
    """Feeds (choice, outputs) pairs and reads the body back, strictly."""
    aggregate = ChatAggregate(shape, usage or UsageCount([10], shape.candidates))
    for index, outputs in fed:
        aggregate.feed(index, outputs)
    body = json.loads(aggregate.body(members))
    CHAT.validate_python(body, strict=True)
    return body


def completion_body(shape, *fed):
    aggregate = CompletionAggregate(shape, UsageCount([10] * len(shape.prompts), shape.candidates))
    for index, outputs in fed:
        aggregate.feed(index, outputs)
    body = json.loads(aggregate.body())
    check_completion(body)
    return body


def test_a_chats_body_is_whole():
    body = chat_body(form(), (0, [output("The")]), (0, [output(" sky"), EOS]))

    assert body == {
        "id": "answer-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The sky", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }


def test_a_completions_body_is_whole():
    body = completion_body(form(), (0, [output("sky"), LENGTH]))

    assert (body["object"], body["choices"]) == (
        "text_completion",
        [{"index": 0, "text": "sky", "logprobs": None, "finish_reason": "length"}],
    )
    assert body["usage"]["completion_tokens"] == 1


def test_no_text_is_an_empty_string_and_not_null():
    body = chat_body(form(), (0, [EOS]))

    assert body["choices"][0]["message"]["content"] == ""


def test_choices_come_in_order_with_their_own_finish():
    shape = form(n=2, candidates=2)

    body = chat_body(shape, (1, [output("b", ids=[1, 2])]), (0, [output("a"), EOS]), (1, [LENGTH]))

    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


def test_a_stop_is_told_with_its_string_or_id():
    ending = BackendOutput(finish_reason=FinishReason.STOP, stop_reason=17)

    assert chat_body(form(), (0, [output("x"), ending]))["choices"][0]["stop_reason"] == 17


def test_nothing_follows_a_finish():
    body = chat_body(form(), (0, [output("x"), EOS]), (0, [output("late"), LENGTH]))

    assert body["choices"][0]["message"]["content"] == "x"
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("reason", "error"), [(FinishReason.error("broken"), EngineFailure), (FinishReason.CANCELLED, EngineAborted)]
)
def test_an_error_or_an_abort_is_never_a_finish(reason, error):
    aggregate = ChatAggregate(form(), UsageCount([10]))

    with pytest.raises(error):
        aggregate.feed(0, [BackendOutput(finish_reason=reason)])


def test_there_is_no_body_without_all_finishes():
    aggregate = ChatAggregate(form(n=2, candidates=2), UsageCount([10], 2))
    aggregate.feed(0, [EOS])

    with pytest.raises(InternalError, match="choice 1"):
        aggregate.body()


def test_what_else_is_told_stands_beside_the_answer():
    body = chat_body(form(), (0, [EOS]), members={"tandem": {"decode_worker": 7}})

    assert body["tandem"] == {"decode_worker": 7}


def test_cached_tokens_are_told_when_known_and_0_is_known():
    ending = BackendOutput(finish_reason=FinishReason.EOS, completion_usage=engine_usage(cached=0))

    assert chat_body(form(), (0, [ending]))["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert "prompt_tokens_details" not in chat_body(form(), (0, [EOS]))["usage"]


def test_an_echoed_prompt_has_its_logprobs_and_one_more():
    shape = form(prompts=(PROMPT,), echo=True, logprobs=1)
    one = output(" So", ids=[70], logprobs=[-0.1], engine_data=PROMPT_LOGPROBS)

    choice = completion_body(shape, (0, [one, LENGTH]))["choices"][0]

    assert choice["text"] == "Why so? So"
    assert choice["logprobs"]["tokens"] == ["<s>", "Why", " so?", " So"]
    assert choice["logprobs"]["token_logprobs"] == [None, -4.0, -1.0, -0.1]
    assert choice["logprobs"]["text_offset"] == [0, 0, 3, 7]


def test_the_prompts_report_stands_where_vllm_has_it():
    fields = {"prompts": (PROMPT,), "token_ids": True, "prompt_logprobs": True}
    fed = (0, [output("x", ids=[5], engine_data=PROMPT_LOGPROBS), EOS])

    chat = chat_body(form(**fields), fed)
    completion = completion_body(form(**fields), fed)["choices"][0]

    assert chat["prompt_token_ids"] == completion["prompt_token_ids"] == [1, 50, 51]
    assert chat["prompt_logprobs"] == completion["prompt_logprobs"]
    assert chat["prompt_logprobs"][2] == {"51": {"logprob": -1.0, "rank": 1, "decoded_token": " so?"}}
    assert chat["choices"][0]["token_ids"] == completion["token_ids"] == [5]


def test_the_likeliest_candidates_per_token_are_shown_and_all_are_counted():
    shape = form(prompts=(PromptEcho(), PromptEcho()), n=2, candidates=3)
    means = [-1.0, -0.2, -0.5, -0.1, -9.0, -3.0]

    fed = [
        (index, [output(f"c{index}", ids=[1, 2], tokens=["c", str(index)], logprobs=[mean - 0.05, mean + 0.05]), EOS])
        for index, mean in enumerate(means)
    ]
    body = completion_body(shape, *fed)

    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "c1"),
        (1, "c2"),
        (2, "c3"),
        (3, "c5"),
    ]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"] == {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}


READS = [
    [output(None, ids=[5], tokens=["\ufffd"], logprobs=[-1.0], tops=[[top(1, 5, "\ufffd", -1.0, [240, 159])]])],
    [output("🙂 yes", ids=[6, 7], tokens=["\ufffd", " yes"], logprobs=[-2.0, -3.0])],
    [output(None, ids=[2], tokens=["<eos>"], logprobs=[-0.5])],
    [BackendOutput(finish_reason=FinishReason.EOS, completion_usage=engine_usage(cached=4))],
]


def test_a_chats_body_says_what_its_stream_says():
    shape = form(logprobs=1, token_ids=True, include_usage=True)
    renderer = StreamRenderer.chat(shape, UsageCount([10]))

    chunks = chat_chunks(b"".join(renderer.feed(0, read) for read in READS) + renderer.end())
    body = chat_body(shape, *((0, read) for read in READS))

    choice = body["choices"][0]
    assert choice["message"]["content"] == contents(chunks)
    assert choice["logprobs"]["content"] == _joined(chunks, lambda c: (c["logprobs"] or {"content": []})["content"])
    assert choice["token_ids"] == _joined(chunks, lambda c: c.get("token_ids", []))
    assert body["usage"] == chunks[-1]["usage"]


def test_a_completions_body_says_what_its_stream_says():
    shape = form(logprobs=1, prompts=(PROMPT,), echo=True)
    renderer = StreamRenderer.completion(shape, UsageCount([10]))

    reads = [[replace(READS[0][0], engine_data=PROMPT_LOGPROBS)], *READS[1:]]

    chunks = completion_chunks(b"".join(renderer.feed(0, read) for read in reads) + renderer.end())
    choice = completion_body(shape, *((0, read) for read in reads))["choices"][0]

    assert choice["text"] == texts(chunks)
    assert choice["logprobs"] == {
        member: _joined(chunks, lambda c, member=member: (c["logprobs"] or {}).get(member, []))
        for member in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }


@pytest.mark.parametrize(
    ("asked", "param"), [({"echo": True, "logprobs": 1}, "echo"), ({"prompt_logprobs": True}, "prompt_logprobs")]
)
def test_logprobs_of_the_prompt_that_nobody_told_are_refused_streamed_and_whole(asked, param):
    shape = form(prompts=(PROMPT,), **asked)
    renderer = StreamRenderer.completion(shape, UsageCount([10]))

    with pytest.raises(InvalidRequest, match=f"'{param}'.* told no log probabilities") as streamed:
        renderer.feed(0, READS[1])
    with pytest.raises(InvalidRequest, match=f"'{param}'.* told no log probabilities") as whole:
        completion_body(shape, *((0, read) for read in READS[1:]))

    assert (streamed.value.param, whole.value.param) == (param, param)


def _joined(chunks, part):
    return [item for chunk in chunks for choice in chunk["choices"] for item in part(choice)]


def test_a_requests_wishes_are_its_answers_form():
    chat = parse_chat(
        b'{"model": "m", "messages": [{"role": "user", "content": "?"}], "n": 3, "logprobs": true, "stream": true,'
        b' "stream_options": {"include_usage": true}, "return_token_ids": true}'
    )
    completion = parse_completion(
        b'{"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 4, "echo": true, "logprobs": 0}'
    )

    assert chat_form(chat, "i", 5, "m", PROMPT) == form(
        id="i", created=5, n=3, candidates=3, logprobs=0, include_usage=True, token_ids=True, prompts=(PROMPT,)
    )
    prompts = (PromptEcho(text="a"), PromptEcho(text="b"))
    shape = completion_form(completion, "i", 5, "m", prompts)
    assert shape == form(id="i", created=5, n=2, candidates=4, logprobs=0, echo=True, prompts=prompts)
    assert (shape.ranked, shape.total(), shape.prompt_of(5).text) == (True, 8, "b")


def test_the_sdk_reads_the_bodies():
    chat = ChatAggregate(form(), UsageCount([10]))
    chat.feed(0, [output("a"), EOS])
    completion = CompletionAggregate(form(), UsageCount([10]))
    completion.feed(0, [output("b"), EOS])
    bodies = {"/v1/chat/completions": chat.body(), "/v1/completions": completion.body()}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=bodies[request.url.path]))
    client = openai.OpenAI(base_url="http://gateway/v1", api_key="none", http_client=httpx.Client(transport=transport))

    assert client.chat.completions.create(model="m", messages=[]).choices[0].message.content == "a"
    assert client.completions.create(model="m", prompt="?").choices[0].text == "b"
