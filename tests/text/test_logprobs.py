"""Tokens are told with their text, at its place, however the decoder withholds and breaks it."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.outputs import PromptLogprobEntry
from text.answer_form import PromptEcho
from text.logprobs import Alignment, TokenLogprob, chat_logprobs, prompt_logprobs_json, prompt_tokens_of


def tokens(*texts):
    return [TokenLogprob(text, place, -1.0) for place, text in enumerate(texts)]


def told(released):
    return [(token.token, token.offset) for token in released]


def test_a_token_is_told_when_all_its_text_is_out():
    alignment = Alignment()
    alignment.add(tokens("Stop", " now"))

    assert told(alignment.take("St")) == []
    assert told(alignment.take("op no")) == [("Stop", 0)]
    assert told(alignment.take("w")) == [(" now", 4)]


def test_a_token_cut_in_its_middle_is_told_at_the_end():
    alignment = Alignment()
    alignment.add(tokens("abc", "def"))

    assert told(alignment.close("ab", keep_rest=False)) == [("abc", 0)]


def test_a_special_token_takes_no_place():
    alignment = Alignment()
    alignment.add(tokens("<think>", "a", "<eot>", "b"))

    assert told(alignment.take("ab")) == [("<think>", 0), ("a", 0), ("<eot>", 1), ("b", 1)]


def test_a_leading_space_that_is_not_shown_shifts_nothing():
    alignment = Alignment()
    alignment.add(tokens(" Hello", " world"))

    assert told(alignment.take("Hello world")) == [(" Hello", 0), (" world", 5)]


def test_text_that_belongs_to_no_token_is_stepped_over():
    alignment = Alignment(7)
    alignment.add(tokens("b"))

    assert told(alignment.take("aab")) == [("b", 9)]
    assert told(alignment.take("xy")) == []
    alignment.add(tokens("c"))
    assert told(alignment.take("c")) == [("c", 12)]


def test_a_broken_characters_tokens_share_it():
    alignment = Alignment()
    alignment.add(tokens("\ufffd", "\ufffd", "\ufffd", " !"))

    assert told(alignment.take("🙂 ")) == [("\ufffd", 0)] * 3
    assert told(alignment.take("!")) == [(" !", 1)]


@pytest.mark.parametrize(("keep_rest", "rest"), [(True, [("x", 1)]), (False, [])])
def test_what_never_had_a_text_is_told_only_when_asked(keep_rest, rest):
    alignment = Alignment()
    alignment.add(tokens("a", "x"))

    assert told(alignment.close("a", keep_rest=keep_rest)) == [("a", 0), *rest]
    assert told(alignment.close("", keep_rest=True)) == []


CHUNKS = ["a", " b", "日本", "🙂", "é", " the", "\n"]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_cut_of_the_bytes_tells_every_token_once_in_order_and_never_ahead(data):
    raw = "".join(data.draw(st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=8))).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw)), max_size=10)) | {len(raw)})
    decoder = codecs.getincrementaldecoder("utf-8")()
    alignment, released, sent, exact = Alignment(), [], 0, {}
    for place, (start, end) in enumerate(zip([0, *cuts], cuts, strict=False)):
        own = raw[start:end].decode(errors="replace")
        if "\ufffd" not in own:
            exact[place] = len(raw[:start].decode())
        alignment.add([TokenLogprob(own, place, -1.0)])
        text = decoder.decode(raw[start:end])
        sent += len(text)
        new = alignment.take(text)
        assert all(token.offset <= sent for token in new)
        released += new
    released += alignment.close("", keep_rest=True)

    assert [token.token_id for token in released] == list(range(len(cuts)))
    assert [token.offset for token in released] == sorted(token.offset for token in released)
    assert {token.token_id: token.offset for token in released if token.token_id in exact} == exact


def test_an_echoed_prompt_without_figures_is_told_without_figures():
    prompt = PromptEcho(token_ids=(1, 5), tokens=("<s>", "Why"), text="Why")

    assert [(t.token, t.offset, t.logprob) for t in prompt_tokens_of(prompt, None)] == [
        ("<s>", 0, None),
        ("Why", 0, None),
    ]


def test_prompt_logprobs_have_vllms_shape():
    position = {5: PromptLogprobEntry(float("-inf"), 3, "x")}

    assert prompt_logprobs_json([None, position]) == [
        None,
        {"5": {"logprob": -9999.0, "rank": 3, "decoded_token": "x"}},
    ]
    assert prompt_logprobs_json(None) is None


def test_a_name_by_id_keeps_the_tokens_bytes():
    entry = chat_logprobs([TokenLogprob("é", 5, -1.0)], 0, as_ids=True)["content"][0]

    assert (entry["token"], entry["bytes"]) == ("token_id:5", [0xC3, 0xA9])
