"""What parameters come to for a model, and that it is the same for chats that are alike."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from protocols.errors import InvalidRequest
from protocols.model_card import ModelCard
from protocols.openai import ChatCompletionRequest, parse_chat, parse_completion
from text import asked
from text.asked import Asked, Remembered

CARD = ModelCard("m", vocab_size=100, eos_token_ids=(2,))


def chat(content: str = "x", **more: Any) -> ChatCompletionRequest:
    return parse_chat(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **more}))


def test_chats_that_are_alike_share_what_was_made_of_them() -> None:
    remembered = Remembered(CARD)

    one, other = (remembered.asked(chat(content, temperature=0.25)) for content in ("one", "other"))

    assert one is other
    assert one == Asked.of(chat(temperature=0.25), CARD)


def test_chats_that_differ_share_nothing() -> None:
    remembered = Remembered(CARD)

    assert remembered.asked(chat(seed=1)).sampling.seed == 1
    assert remembered.asked(chat(seed=2)).sampling.seed == 2


def test_each_model_makes_its_own_of_a_chat() -> None:
    other = ModelCard("m", vocab_size=100, eos_token_ids=(3,))

    stops = [Remembered(card).asked(chat()).stop.stop_token_ids_hidden for card in (CARD, other)]

    assert stops == [(2,), (3,)]


def test_what_a_model_cannot_do_is_refused_each_time() -> None:
    remembered = Remembered(CARD)

    for _ in range(2):
        with pytest.raises(InvalidRequest):
            remembered.asked(chat(logit_bias={"100": 1}))


def test_completions_are_read_each_time() -> None:
    request = parse_completion(b'{"model": "m", "prompt": "x", "max_tokens": 3}')

    assert Remembered(CARD).asked(request) == Asked.of(request, CARD)


def test_no_more_is_remembered_than_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "REMEMBERED", 2)
    remembered = Remembered(CARD)

    seeds = [remembered.asked(chat(seed=seed)).sampling.seed for seed in (0, 1, 2, 0, 1, 2)]

    assert seeds == [0, 1, 2, 0, 1, 2]
    assert len(remembered._known) <= 2
