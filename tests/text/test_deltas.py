"""Outputs become the chunks that OpenAI clients expect: nothing empty, nothing twice, one finish per choice."""

import json

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import Disconnected, EngineAborted, EngineFailure, InternalError, ProtocolViolation
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
    top,
)
from text.answer_form import PromptEcho
from text.deltas import DONE, StreamRenderer, error_event
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


def test_what_one_read_brought_is_one_chunk():
    renderer = chat()
    renderer.start()

    events = renderer.feed(0, [output("a"), output("b"), output("c")])

    assert [contents([chunk]) for chunk in chat_chunks(events)] == ["abc"]


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


# ---- log probabilities and ids


def test_chat_logprobs_stand_beside_their_text():
    tops = [[top(1, 5, "Hi", -0.25), top(2, 6, "Yo", -1.5), top(3, 7, "Oh", -2.0)]]
    stream = answer(chat(logprobs=2), [output("Hi", ids=[5], logprobs=[-0.25], tops=tops)], [EOS])

    choices = [chunk["choices"][0] for chunk in chat_chunks(stream)]
    assert choices[1]["logprobs"] == {
        "content": [
            {
                "token": "Hi",
                "logprob": -0.25,
                "bytes": [72, 105],
                "top_logprobs": [
                    {"token": "Hi", "logprob": -0.25, "bytes": [72, 105]},
                    {"token": "Yo", "logprob": -1.5, "bytes": [89, 111]},
                ],
            }
        ],
        "refusal": None,
    }
    assert choices[0]["logprobs"] is choices[2]["logprobs"] is None


def test_logprobs_wait_for_their_text():
    renderer = chat(logprobs=0)
    renderer.start()

    held = renderer.feed(0, [output(None, tokens=["St"], logprobs=[-1.0])])
    shown = renderer.feed(0, [output("Star", tokens=["ar"], logprobs=[-2.0])])

    assert held == b""
    assert _told(chat_chunks(shown)) == [("St", -1.0), ("ar", -2.0)]


def test_tokens_cut_away_by_a_stop_string_are_not_told():
    reads = [
        [output("The sky", tokens=["The", " sky"], logprobs=[-1.0, -2.0])],
        [output(None, tokens=["A"], logprobs=[-3.0]), output(None, tokens=["BC"], logprobs=[-4.0])],
        [BackendOutput(finish_reason=FinishReason.STOP, stop_reason="ABC")],
    ]

    for make, chunks_of, text_of in ((chat, chat_chunks, contents), (completion, completion_chunks, texts)):
        chunks = chunks_of(answer(make(logprobs=0), *reads))
        assert text_of(chunks) == "The sky"
        assert [token for token, _ in _told(chunks)] == ["The", " sky"]


def test_a_hidden_eos_is_told_in_completions_and_left_out_in_chats():
    reads = [[output("Hi", ids=[5], logprobs=[-1.0])], [output(None, ids=[2], tokens=[""], logprobs=[-0.5])], [EOS]]

    assert _told(chat_chunks(answer(chat(logprobs=0), *reads))) == [("Hi", -1.0)]
    assert _told(completion_chunks(answer(completion(logprobs=0), *reads))) == [("Hi", -1.0), ("", -0.5)]


def test_a_token_without_text_is_told_when_the_length_ends_the_answer():
    reads = [[output(None, ids=[9], tokens=["<tool>"], logprobs=[-0.5])], [LENGTH]]

    assert _told(chat_chunks(answer(chat(logprobs=0), *reads))) == [("<tool>", -0.5)]


def test_a_missing_figure_shifts_no_other():
    reads = [[output("ab", tokens=["a", "b"], logprobs=[float("nan"), float("-inf")])], [EOS]]

    assert _told(completion_chunks(answer(completion(logprobs=0), *reads))) == [("a", None), ("b", -9999.0)]
    assert _told(chat_chunks(answer(chat(logprobs=0), *reads))) == [("a", -9999.0), ("b", -9999.0)]


def test_bytes_of_a_broken_character_are_the_engines_or_null():
    tops = [[top(1, 5, "\ufffd", -0.1, [240, 159])], []]
    reads = [[output("🙂", ids=[5, 6], tokens=["\ufffd", "\ufffd"], logprobs=[-0.1, -0.2], tops=tops)], [EOS]]

    told = [c["logprobs"] for chunk in chat_chunks(answer(chat(logprobs=1), *reads)) for c in chunk["choices"]]
    assert [entry["bytes"] for entry in told[1]["content"]] == [[240, 159], None]


def test_completion_logprobs_are_four_lists_with_the_chosen_token_in_every_map():
    tops = [[top(4, 5, "Hi", -3.0), top(1, 6, "Yo", -0.5), top(2, 7, "Oh", -1.0)], [top(1, 8, "!", -0.1)]]
    reads = [[output("Hi!", ids=[5, 8], tokens=["Hi", "!"], logprobs=[-3.0, -0.1], tops=tops)], [EOS]]

    chunks = completion_chunks(answer(completion(logprobs=2), *reads))

    assert chunks[0]["choices"][0]["logprobs"] == {
        "tokens": ["Hi", "!"],
        "token_logprobs": [-3.0, -0.1],
        "top_logprobs": [{"Hi": -3.0, "Yo": -0.5, "Oh": -1.0}, {"!": -0.1}],
        "text_offset": [0, 2],
    }
    assert chunks[1]["choices"][0]["logprobs"] is None


PROMPT = PromptEcho(token_ids=(1, 50, 51), tokens=("<s>", "Why", " so?"), text="Why so?")
PROMPT_LOGPROBS = {
    "prompt_logprobs": [
        None,
        {"50": {"logprob": -4.0, "rank": 9, "decoded_token": "Why"}, "60": {"logprob": -0.5, "decoded_token": "How"}},
        {"51": {"logprob": -1.0, "rank": 1, "decoded_token": " so?"}},
    ]
}


def test_offsets_count_the_echoed_prompt_over_all_chunks():
    renderer = completion(prompts=[PROMPT], echo=True, logprobs=1)
    first = output(" So", ids=[70], logprobs=[-0.1], engine_data=PROMPT_LOGPROBS)
    chunks = completion_chunks(answer(renderer, [first], [output(" it", ids=[71], logprobs=[-0.2])], [EOS]))

    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert texts(chunks) == "Why so? So it"
    assert logprobs[0]["tokens"] == ["<s>", "Why", " so?", " So"]
    assert logprobs[0]["token_logprobs"] == [None, -4.0, -1.0, -0.1]
    assert logprobs[0]["top_logprobs"][:2] == [None, {"Why": -4.0, "How": -0.5}]
    assert logprobs[0]["text_offset"] + logprobs[1]["text_offset"] == [0, 0, 3, 7, 10]


def test_an_echo_of_nothing_but_the_prompt_is_a_text_and_a_finish():
    renderer = completion(prompts=[PROMPT], echo=True, logprobs=0)
    ending = BackendOutput(finish_reason=FinishReason.LENGTH, engine_data=PROMPT_LOGPROBS)

    chunks = completion_chunks(answer(renderer, [ending]))

    assert texts(chunks) == "Why so?"
    assert chunks[0]["choices"][0]["logprobs"]["token_logprobs"] == [None, -4.0, -1.0]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]


def test_malformed_prompt_logprobs_are_the_workers_fault():
    renderer = completion(prompts=[PROMPT], echo=True, logprobs=0)

    with pytest.raises(ProtocolViolation, match="prompt_logprobs"):
        renderer.feed(0, [output("x", engine_data={"prompt_logprobs": [5]})])


def test_token_ids_are_told_with_the_text_and_the_rest_with_the_finish():
    renderer = completion(prompts=[PROMPT], token_ids=True)
    reads = [[output(None, ids=[5])], [output("ab", ids=[6])], [output(None, ids=[2])], [EOS]]

    choices = [chunk["choices"][0] for chunk in completion_chunks(answer(renderer, *reads))]

    assert [choice["token_ids"] for choice in choices] == [[5, 6], [2]]
    assert choices[0]["prompt_token_ids"] == [1, 50, 51]
    assert "prompt_token_ids" not in choices[1]


def test_a_chat_tells_its_prompts_report_on_the_chunk():
    renderer = chat(prompts=(PROMPT,), token_ids=True, prompt_logprobs=True)

    chunks = chat_chunks(answer(renderer, [output("x", ids=[5], engine_data=PROMPT_LOGPROBS)], [EOS]))

    assert chunks[1]["prompt_token_ids"] == [1, 50, 51]
    assert chunks[1]["prompt_logprobs"][2] == {"51": {"logprob": -1.0, "rank": 1, "decoded_token": " so?"}}
    assert chunks[1]["choices"][0]["token_ids"] == [5]


def test_tokens_may_be_named_by_their_ids():
    reads = [[output("a", ids=[5], logprobs=[-1.0], tops=[[top(1, 5, "a", -1.0)]])], [EOS]]

    chunks = completion_chunks(answer(completion(logprobs=1, tokens_as_ids=True), *reads))

    logprobs = chunks[0]["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["top_logprobs"]) == (["token_id:5"], [{"token_id:5": -1.0}])


def _told(chunks):
    """(token, logprob) of everything told, in either shape."""
    told = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            logprobs = choice["logprobs"] or {"content": []}
            told += [(entry["token"], entry["logprob"]) for entry in logprobs.get("content", ())]
            told += zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True)
    return told


# ---- any cut


@given(st.data())
@settings(max_examples=50, deadline=None)  # about 100 ms: each example is a whole stream
def test_any_cut_and_any_delay_of_the_text_tell_the_same_tokens_at_the_same_places(data):
    tokens = data.draw(st.lists(st.sampled_from(["a", " b", "the", "日本", "!\n", " ", "no"]), min_size=1, max_size=12))
    renderer = completion(logprobs=0)
    stream, text, sent = b"", "", 0
    for place, token in enumerate(tokens):
        text += token
        ready = data.draw(st.integers(sent, len(text)))
        read = output(text[sent:ready] or None, ids=[place], tokens=[token], logprobs=[-float(place)])
        stream += renderer.feed(0, [read])
        sent = ready
    stream += renderer.feed(0, [BackendOutput(text=text[sent:], finish_reason=FinishReason.LENGTH)]) + renderer.end()

    chunks = completion_chunks(stream)
    offsets = [o for chunk in chunks for o in (chunk["choices"][0]["logprobs"] or {}).get("text_offset", ())]
    assert texts(chunks) == text
    assert _told(chunks) == [(token, -float(place)) for place, token in enumerate(tokens)]
    assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]


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


def test_a_failure_in_a_stream_is_raised_by_the_sdk():
    words = 'connection "reset"\nby peer'
    stream = chat().start() + error_event(Disconnected(words)) + DONE

    with pytest.raises(openai.APIError) as caught:
        list(_client(stream).chat.completions.create(model="m", messages=[], stream=True))

    assert caught.value.message == words
    assert json.loads(json.dumps(caught.value.body))["code"] == "worker_failed"


def _client(stream):
    def reply(_request):
        return httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})

    http = httpx.Client(transport=httpx.MockTransport(reply))
    return openai.OpenAI(base_url="http://gateway/v1", api_key="none", http_client=http)
