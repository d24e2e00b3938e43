"""Chat templates against transformers, byte for byte.

Slow for their size: importing transformers takes a second, and each template is rendered some dozens of times.
Templates of our own writing, and those that packages of the registries ship, where `make tokenizers` has fetched them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from app.demo_model.make import HERE as DEMO
from protocols.errors import InvalidRequest
from tests.text import small_tokenizers
from tests.text.conversations import CONVERSATIONS, TOOLS, Message, as_sent
from tests.text.real_templates import REAL
from text.chat_messages import NoContent
from text.chat_template import ChatTemplate

TRIMMING = """
{%- set loop_messages = messages %}
{% for message in loop_messages %}
  {# trimmed, with the first token in front #}
    {% set content = '<|' + message['role'] + '|>\n\n' + (message['content'] or '') | trim + eos_token %}
    {% if loop.index0 == 0 %}
{% set content = bos_token + content %}
    {% endif %}
{{ content }}
{% endfor %}
{% if add_generation_prompt %}

{{ '<|assistant|>\n\n' }}
{% endif %}
"""
IDIOMS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).with_name("templates").glob("*.jinja"))
}
"""By family, what the chat templates of today's models are built of."""
OWN = {
    "demo": (Path(DEMO) / "chat_template.jinja").read_text(encoding="utf-8"),
    "trimming": TRIMMING,
    **IDIOMS,
}
TOKENS = {"bos_token": "<|call|>", "eos_token": "<|end|>"}
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"enable_thinking": False, "documents": [{"title": "a", "text": "é"}]},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
)


def reference(source: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=small_tokenizers.byte_level()._hf, chat_template=source, **TOKENS)


def differences(source: str) -> list[str]:
    """What our template does otherwise than transformers, over all conversations and settings."""
    hugging, ours = reference(source), ChatTemplate(source, special_tokens=TOKENS)
    found = []
    for name, tools, prompted, settings in product(CONVERSATIONS, (None, TOOLS), (True, False), SETTINGS):
        messages, how = CONVERSATIONS[name], {"add_generation_prompt": prompted, **settings}
        expected = list(_expected(hugging, messages, ours, {"tools": tools, **how}))
        rendered = _rendered(ours, as_sent(messages), {"tools": tools, **how})
        if rendered not in expected[:1] and (expected[:1] != [None] or rendered not in expected):
            found.append(f"{name}, {'tools' if tools else 'no tools'}, {how}: {rendered!r}, not {expected[0]!r}")
    return found


def _expected(
    hugging: PreTrainedTokenizerFast, messages: list[Message], ours: ChatTemplate, how: dict[str, Any]
) -> Iterator[str | None]:
    """First what transformers makes of the messages as its documentation has them: arguments as objects, nothing where
    there is no content. Then the same of the form that our template has found; None for a failure.

    The second goes past `apply_chat_template`, which takes out every null, though templates ask for them.
    """
    try:
        yield hugging.apply_chat_template(messages, tokenize=False, **how)
    except Exception:
        # What a template raises is its own affair; that ours refuses as well is what is compared.
        yield None
    traits = ours.traits()
    content = {NoContent.NULL: {"content": None}, NoContent.EMPTY: {"content": ""}}.get(traits.no_content, {})
    shaped = [
        {**content, **{key: value for key, value in message.items() if value is not None}}
        for message in (as_sent(messages) if traits.arguments_as_text else messages)
    ]
    try:
        prompts, _ = render_jinja_template(conversations=[shaped], chat_template=hugging.chat_template, **TOKENS, **how)
        yield prompts[0]
    except Exception:
        yield None


def _rendered(ours: ChatTemplate, messages: list[Message], how: dict[str, Any]) -> str | None:
    try:
        return ours.render(messages, **how)
    except InvalidRequest:
        return None


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_a_prompt_is_the_one_that_transformers_makes(source: str) -> None:
    assert differences(source) == []


@pytest.mark.parametrize("source", REAL.values(), ids=REAL)
def test_a_real_models_prompt_is_the_one_that_transformers_makes(source: str) -> None:
    assert differences(source) == []


INSTRUCTED: dict[str, list[Message]] = {
    "in front": [{"role": "system", "content": text} for text in ("First.", "Other.")]
    + [{"role": "user", "content": "A"}],
    "in the midst": [
        {"role": "system", "content": "First."},
        *CONVERSATIONS["plain"],
        {"role": "assistant", "content": "B"},
        {"role": "system", "content": "Other."},
        {"role": "user", "content": "C"},
    ],
}


@pytest.mark.parametrize("messages", INSTRUCTED.values(), ids=INSTRUCTED)
@pytest.mark.parametrize("source", {**OWN, **REAL}.values(), ids={**OWN, **REAL})
def test_several_system_messages_are_shown_as_transformers_shows_them_or_as_one(
    source: str, messages: list[Message]
) -> None:
    hugging, ours = reference(source), ChatTemplate(source, special_tokens=TOKENS)
    assert _shown(hugging, ours, messages) in ("as transformers does", "as one", "none is taken")


def _shown(hugging: PreTrainedTokenizerFast, ours: ChatTemplate, messages: list[Message]) -> str:
    expected = next(_expected(hugging, messages, ours, {"add_generation_prompt": True})) or ""
    rendered = _rendered(ours, messages, {}) or ""
    if "First." in expected and "Other." in expected:
        return "as transformers does" if rendered == expected else "otherwise"
    if _rendered(ours, INSTRUCTED["in front"][1:], {}) is None:
        return "none is taken"
    return "as one" if "First.\n\nOther." in rendered else "lost"


@pytest.mark.parametrize("source", IDIOMS.values(), ids=IDIOMS)
def test_no_idiom_fails_where_it_should_not(source: str) -> None:
    """Slow: makes a template. Otherwise agreeing on failures would pass for agreement."""
    ours = ChatTemplate(source, special_tokens=TOKENS)
    assert None not in [_rendered(ours, as_sent(CONVERSATIONS[name]), {"tools": TOOLS}) for name in CONVERSATIONS]


@pytest.mark.parametrize("source", [OWN["demo"], OWN["trimming"], OWN["qwen"], OWN["llama"]], ids=range(4))
@pytest.mark.parametrize("text", ["So I ", "So"])
def test_an_open_last_message_is_left_open_as_transformers_does(source: str, text: str) -> None:
    messages = [*CONVERSATIONS["plain"], {"role": "assistant", "content": text}]
    expected = reference(source).apply_chat_template(messages, tokenize=False, continue_final_message=True)
    template = ChatTemplate(source, special_tokens=TOKENS)
    assert template.render(messages, add_generation_prompt=False, continue_final_message=True) == expected
    assert re.search(r"So( I ?)?$", expected)
