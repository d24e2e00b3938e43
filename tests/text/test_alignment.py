"""Tokens are told with their text, at its place, however the decoder withholds and breaks it."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text.alignment import Alignment, TokenLogprob


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


E_ACUTE_AND_SMILE = [b"\xc3", b"\xa9\xf0", b"\x9f\x99\x82", b"!"]


def broken(*pieces):
    return [TokenLogprob(piece.decode(errors="replace"), place, -1.0) for place, piece in enumerate(pieces)]


def test_a_token_that_ends_one_character_and_begins_another_waits_for_both():
    alignment = Alignment(bytes_of=E_ACUTE_AND_SMILE.__getitem__)
    alignment.add(broken(*E_ACUTE_AND_SMILE))

    assert told(alignment.take("é")) == []
    assert [offset for _, offset in told(alignment.take("🙂"))] == [0, 0, 1]
    assert told(alignment.take("!")) == [("!", 2)]


def test_bytes_tell_where_a_stop_cuts_broken_characters():
    alignment = Alignment(bytes_of=E_ACUTE_AND_SMILE.__getitem__)
    alignment.add(broken(*E_ACUTE_AND_SMILE))

    assert len(alignment.close("é", keep_rest=False)) == 2


def test_bytes_that_never_become_a_character_show_as_one_at_the_end():
    alignment = Alignment(bytes_of=[b"a", b"\xf0\x9f"].__getitem__)
    alignment.add(broken(b"a", b"\xf0\x9f"))

    assert told(alignment.take("a")) == [("a", 0)]
    assert told(alignment.close("\ufffd", keep_rest=False)) == [("\ufffd", 1)]


def test_bytes_that_contradict_the_text_are_not_believed():
    alignment = Alignment(bytes_of=[b"\xc3\xa9"].__getitem__)
    alignment.add([TokenLogprob("\ufffd", 0, -1.0)])

    assert told(alignment.take("x")) == [("\ufffd", 0)]


@pytest.mark.parametrize(("keep_rest", "rest"), [(True, [("x", 1)]), (False, [])])
def test_what_never_had_a_text_is_told_only_when_asked(keep_rest, rest):
    alignment = Alignment()
    alignment.add(tokens("a", "x"))

    assert told(alignment.close("a", keep_rest=keep_rest)) == [("a", 0), *rest]
    assert told(alignment.close("", keep_rest=True)) == []


CHUNKS = ["a", " b", "日本", "🙂", "é", " the", "\n"]


@given(st.booleans(), st.data())
@settings(max_examples=60, deadline=None)  # about 80 ms
def test_any_cut_of_the_bytes_tells_every_token_once_in_order_and_never_ahead(known, data):
    raw = "".join(data.draw(st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=8))).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw)), max_size=10)) | {len(raw)})
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces = [raw[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    alignment = Alignment(bytes_of=pieces.__getitem__ if known else None)
    released, sent, exact = [], 0, {}
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
