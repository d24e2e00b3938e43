"""What a stream tells beside its text: log probabilities, token ids, the prompt's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ProtocolViolation
from protocols.options import StopConditions
from protocols.outputs import BackendOutput, FinishReason, LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from tests.text import small_tokenizers
from tests.text.answers import chat_chunks, completion_chunks, contents, form, output, texts, top
from text.answer_form import PromptEcho
from text.decoder import Decoder
from text.deltas import StreamRenderer
from text.usage import UsageCount

EOS = BackendOutput(finish_reason=FinishReason.EOS)
LENGTH = BackendOutput(finish_reason=FinishReason.LENGTH)


def chat(**fields):
    return StreamRenderer.chat(form(**fields), UsageCount([10]))


def completion(**fields):
    return StreamRenderer.completion(form(**fields), UsageCount([10]))


def answer(renderer, *reads):
    return b"".join(renderer.feed(0, read) for read in reads) + renderer.end()


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


@pytest.mark.parametrize(
    ("token_bytes", "second"), [(None, None), ({5: b"\xf0\x9f", 6: b"\x99\x82"}.__getitem__, [0x99, 0x82])]
)
def test_bytes_of_a_broken_character_are_the_engines_or_the_vocabularys(token_bytes, second):
    tops = [[top(1, 5, "\ufffd", -0.1, [240, 159])], []]
    reads = [[output("🙂", ids=[5, 6], tokens=["\ufffd", "\ufffd"], logprobs=[-0.1, -0.2], tops=tops)], [EOS]]

    chunks = chat_chunks(answer(chat(logprobs=1, token_bytes=token_bytes), *reads))

    assert [entry["bytes"] for entry in chunks[1]["choices"][0]["logprobs"]["content"]] == [[240, 159], second]


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
    renderer = completion(prompts=(PROMPT,), echo=True, logprobs=1)
    first = output(" So", ids=[70], logprobs=[-0.1], engine_data=PROMPT_LOGPROBS)
    chunks = completion_chunks(answer(renderer, [first], [output(" it", ids=[71], logprobs=[-0.2])], [EOS]))

    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert texts(chunks) == "Why so? So it"
    assert logprobs[0]["tokens"] == ["<s>", "Why", " so?", " So"]
    assert logprobs[0]["token_logprobs"] == [None, -4.0, -1.0, -0.1]
    assert logprobs[0]["top_logprobs"][:2] == [None, {"Why": -4.0, "How": -0.5}]
    assert logprobs[0]["text_offset"] + logprobs[1]["text_offset"] == [0, 0, 3, 7, 10]


def test_an_echo_of_nothing_but_the_prompt_is_a_text_and_a_finish():
    renderer = completion(prompts=(PROMPT,), echo=True, logprobs=0)
    ending = BackendOutput(finish_reason=FinishReason.LENGTH, engine_data=PROMPT_LOGPROBS)

    chunks = completion_chunks(answer(renderer, [ending]))

    assert texts(chunks) == "Why so?"
    assert chunks[0]["choices"][0]["logprobs"]["token_logprobs"] == [None, -4.0, -1.0]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]


def test_malformed_prompt_logprobs_are_the_workers_fault():
    renderer = completion(prompts=(PROMPT,), echo=True, logprobs=0)

    with pytest.raises(ProtocolViolation, match="prompt_logprobs"):
        renderer.feed(0, [output("x", engine_data={"prompt_logprobs": [5]})])


def test_token_ids_are_told_with_the_text_and_the_rest_with_the_finish():
    renderer = completion(prompts=(PROMPT,), token_ids=True)
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


TOKENIZER = small_tokenizers.byte_level()
TEXTS = st.lists(
    st.sampled_from(["the", " stop", "ST", "OP", "🙂", "é", "€", "नि", " a", "\n"]), min_size=1, max_size=8
)


@given(TEXTS, st.booleans(), st.sampled_from([None, ("STOP",), ("🙂", "p a")]), st.data())
@settings(max_examples=60, deadline=None)  # about 150 ms: the real decoder and a whole stream in each example
def test_the_told_tokens_make_the_told_text_behind_the_real_decoder(parts, bytewise, stop, data):
    text = "".join(parts)
    ids = list(text.encode()) if bytewise else TOKENIZER.encode(text, add_special_tokens=False)
    request = PreprocessedRequest(model="m", token_ids=(1,), stop_conditions=StopConditions(stop=stop))
    decoder = Decoder(TOKENIZER, request)
    renderer = chat(logprobs=0, token_bytes=TOKENIZER.token_bytes)
    stream, place = b"", 0
    while place < len(ids) and not decoder.stopped:
        end = data.draw(st.integers(place + 1, len(ids)))
        figures = [-float(number) for number in range(place, end)]
        stream += renderer.feed(0, [decoder.feed(LLMEngineOutput(token_ids=ids[place:end], log_probs=figures))])
        place = end
    stream += renderer.feed(0, [decoder.ending(LLMEngineOutput.length())]) + renderer.end()

    chunks = chat_chunks(stream)
    content = contents(chunks).encode()
    told = [
        entry for chunk in chunks for c in chunk["choices"] for entry in (c["logprobs"] or {"content": []})["content"]
    ]
    pieces = [bytes(entry["bytes"]) for entry in told]
    assert [entry["logprob"] for entry in told] == [-float(number) for number in range(len(told))]
    assert b"".join(pieces).startswith(content)
    assert len(b"".join(pieces[:-1])) < len(content) or not content
    assert content == text.encode() or decoder.stopped
