"""The decoding and encoding of real vocabularies. Slow for their size: one to two seconds each to load."""

from __future__ import annotations

import random
from importlib.util import find_spec
from itertools import pairwise

import orjson
import pytest

from tests.text.real_tokenizers import ALL, folder_of, real_tokenizer
from text.chat_template import ChatTemplate
from text.fast_encoder import SAMPLES
from text.tokenizer import Tokenizer

every_tokenizer = pytest.mark.parametrize("name", ALL)
every_text = pytest.mark.parametrize("text", SAMPLES)

NORMALIZING = {"qwen-3"}
"""These bring text into a composed form first: what comes back is that form."""


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip: bool, rng: random.Random) -> str:
    """The text of ids, fed in random portions."""
    stream = tokenizer.decode_stream(skip_special_tokens=skip)
    cuts = sorted(rng.randrange(len(ids) + 1) for _ in range(rng.randrange(len(ids) + 1)))
    text = "".join(stream.feed(ids[start:end]) for start, end in pairwise([0, *cuts, len(ids)]))
    return text + stream.flush()


@every_tokenizer
@every_text
def test_text_comes_back_whole(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    ids = tokenizer.encode(text, add_special_tokens=False)
    back = tokenizer.decode(ids, skip_special_tokens=False)
    assert back == text or (name in NORMALIZING and back == tokenizer._hf.normalizer.normalize_str(text))


@every_tokenizer
@every_text
def test_streamed_text_equals_the_whole(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    ids = tokenizer.encode(text, add_special_tokens=False)
    for skip in (True, False):
        shown = streamed(tokenizer, ids, skip=skip, rng=random.Random(text))
        assert shown == tokenizer.decode(ids, skip_special_tokens=skip)


@every_tokenizer
def test_every_token_alone_reads_as_the_reference_says(name: str) -> None:
    tokenizer = real_tokenizer(name)
    ids = range(tokenizer.vocab_size)
    reference = tokenizer._hf.decode_batch([[token_id] for token_id in ids], skip_special_tokens=False)
    assert tokenizer.token_texts(ids) == reference


@every_tokenizer
def test_random_ids_stream_to_what_the_reference_makes_of_the_whole(name: str) -> None:
    # Half of the ids are parts of characters, so that most sequences hold broken, straddling and completed ones.
    tokenizer = real_tokenizer(name)
    rng = random.Random(name)
    texts = tokenizer.token_texts(range(tokenizer.vocab_size))
    partial = [token_id for token_id, text in enumerate(texts) if "\ufffd" in (text or "")]
    special = sorted(tokenizer.special_token_ids)
    for _ in range(400):
        ids = [
            rng.choice([rng.choice(partial), rng.choice(partial), rng.choice(special), rng.randrange(len(texts) + 3)])
            for _ in range(rng.randrange(1, 12))
        ]
        skip = rng.random() < 0.5
        assert streamed(tokenizer, ids, skip=skip, rng=rng) == tokenizer.decode(ids, skip_special_tokens=skip)


@every_tokenizer
def test_both_encoders_give_the_same_ids(name: str) -> None:
    tokenizer = real_tokenizer(name)
    assert tokenizer.fast or find_spec("fastokens") is None, "fastokens should serve this vocabulary"
    text = "\n".join(SAMPLES) * 3
    assert tokenizer.encode(text, add_special_tokens=True) == tokenizer._encode_by_hf(text, True)


@every_tokenizer
def test_a_special_token_in_a_text_is_one_id(name: str) -> None:
    tokenizer = real_tokenizer(name)
    special = min(tokenizer.special_token_ids)
    assert tokenizer.encode(tokenizer.token_text(special), add_special_tokens=False) == [special]


@pytest.mark.parametrize(
    ("name", "shown"), [("qwen-3", {"Weather?", '"city": "Köln"', "rain"}), ("llama-3.1", {"Weather?", "rain"})]
)
def test_a_real_chat_template_renders_a_conversation_with_tools(name: str, shown: set[str]) -> None:
    config = orjson.loads((folder_of(name) / "tokenizer_config.json").read_bytes())
    template = ChatTemplate(config["chat_template"], special_tokens={"bos_token": config["bos_token"] or ""})
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    text = template.render(
        [
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": {}}}],
    )
    assert {part for part in shown if part in text} == shown
    assert "None" not in text
