"""Ids of a text cut to a length: the tokenizer's own tokens stay where they were."""

from __future__ import annotations

import pytest

from text.truncation import cut, encode_at_most

CLS, SEP = 101, 102


class Characters:
    """One id a character, between [CLS] and [SEP]."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = [ord(character) for character in text]
        return [CLS, *ids, SEP] if add_special_tokens else ids


class Reversing:
    """A tokenizer that does more to a text than putting tokens around it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = [ord(character) for character in text]
        return [CLS, *reversed(ids), SEP] if add_special_tokens else ids


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.mark.parametrize("from_left", [False, True])
@pytest.mark.parametrize("limit", [None, 5, 6, 100])
def test_what_fits_is_not_cut(limit, from_left):
    told = encode_at_most(Characters(), "abc", limit, add_special_tokens=True, from_left=from_left)

    assert told == [CLS, *ids("abc"), SEP]


@pytest.mark.parametrize(
    ("limit", "from_left", "kept"),
    [(4, False, "ab"), (4, True, "ef"), (3, False, "a"), (3, True, "f"), (2, False, ""), (2, True, "")],
)
def test_what_is_cut_keeps_its_ends(limit, from_left, kept):
    told = encode_at_most(Characters(), "abcdef", limit, add_special_tokens=True, from_left=from_left)

    assert told == [CLS, *ids(kept), SEP]


@pytest.mark.parametrize(("from_left", "kept"), [(False, "ab"), (True, "ef")])
def test_without_special_tokens_there_are_no_ends_to_keep(from_left, kept):
    assert encode_at_most(Characters(), "abcdef", 2, add_special_tokens=False, from_left=from_left) == ids(kept)


@pytest.mark.parametrize(("from_left", "told"), [(False, [CLS]), (True, [SEP])])
def test_no_room_for_both_ends_is_a_plain_cut(from_left, told):
    assert encode_at_most(Characters(), "abc", 1, add_special_tokens=True, from_left=from_left) == told


def test_an_unusual_tokenizer_is_cut_plainly():
    told = encode_at_most(Reversing(), "abcdef", 3, add_special_tokens=True, from_left=False)

    assert told == [CLS, *ids("fe")]


@pytest.mark.parametrize(("from_left", "kept"), [(False, [1, 2]), (True, [3, 4])])
def test_ids_are_cut_at_either_end(from_left, kept):
    assert cut([1, 2, 3, 4], 2, from_left=from_left) == kept
    assert cut([1], 2, from_left=from_left) == [1]
