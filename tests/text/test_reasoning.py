"""Thoughts apart from content, in every style."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.readings import cuts
from text.reasoning.count import ReasoningCount
from text.reasoning.splitter import ReasoningSplitter
from text.reasoning.styles import (
    ALIASES,
    STYLES,
    reasoning_for_template,
    style_name,
    thinking_style,
)
from text.reasoning.table import reasoning_splitter

THINK = STYLES["qwen3"]


def split(style: str, parts, **options) -> tuple[str, str]:
    """All thoughts, and all content."""
    splitter = reasoning_splitter(thinking_style(style), **options)
    told = [*(splitter.feed(part) for part in parts), splitter.finish()]
    return "".join(thought for thought, _ in told), "".join(said for _, said in told)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        *((style, "<think>\nHm.\n</think>\n\nYes.") for style in ("basic", "qwen3", "glm45", "deepseek_v3", "kimi_k2")),
        *((style, "Hm.\n</think>\n\nYes.") for style in ("deepseek_r1", "step3", "nemotron", "kimi_k25", "minimax_m2")),
        *((style, "<think>Hm.</think>Yes.") for style in ("deepseek_r1", "step3", "nemotron_nano", "nemotron_deci")),
        ("glm45", "\n<think>Hm.</think>\nYes."),
        ("kimi", "◁think▷Hm.◁/think▷Yes."),
        ("mistral", "[THINK]Hm.[/THINK]Yes."),
        ("cohere", "<|START_THINKING|>Hm.<|END_THINKING|>Yes."),
        ("seed_oss", "<seed:think>\nHm.\n</seed:think>Yes."),
        ("granite", "Here is my thought process: Hm. Here is my response: Yes."),
        ("granite", "Here's my thought process:\nHm.\nHere's my response:\nYes."),
        ("gemma", "<|channel>thought\nHm.\n<channel|>Yes."),
        (
            "gpt_oss",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        ),
    ],
)
def test_each_style_splits(style: str, text: str) -> None:
    assert split(style, [text]) == ("Hm.", "Yes.")
    assert split(style, text) == ("Hm.", "Yes.")


@given(st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_marks_cut_anywhere_are_found(places: list[int], inside: bool) -> None:
    text = "thought\n </think>\n\nanswer <x> \n<think> more</think> end"
    text = text if inside else "<think>" + text
    whole = split("qwen3", [text], thinking=inside)
    assert whole == ("thought\nmore", "answer <x> \nend")
    assert split("qwen3", cuts(text, places), thinking=inside) == whole


def test_without_thoughts_all_is_content_as_it_stands() -> None:
    assert split("qwen3", list("\n\n a <b> \n")) == ("", "\n\n a <b> \n")


def test_thoughts_without_an_end_are_thoughts_only() -> None:
    assert split("qwen3", list("<think>\nHm, ")) == ("Hm,", "")
    assert split("deepseek_r1", list("Hm</thi")) == ("Hm</thi", "")


def test_a_lone_closing_mark_is_no_content() -> None:
    assert split("qwen3", list("Well</think>\n\nYes.")) == ("", "Well\n\nYes.")


def test_where_thinking_begins_inside_a_lone_closing_mark_ends_it() -> None:
    assert split("deepseek_r1", list("Well</think>\n\nYes.")) == ("Well", "Yes.")


def test_granites_sentences_are_content_where_nothing_was_thought() -> None:
    assert split("granite", ["So here: Here is my response: yes"]) == ("", "So here: Here is my response: yes")


def test_tags_around_all_content_are_none() -> None:
    text = "<think>\nHm.\n</think>\n<response>Yes, a <b>.</response>\n"
    assert split("granite", list(text)) == ("Hm.", "Yes, a <b>.\n")
    assert split("granite", [text]) == ("Hm.", "Yes, a <b>.\n")
    assert split("granite", list("A <response> is </response> an answer")) == (
        "",
        "A <response> is </response> an answer",
    )


def test_a_tag_spoken_of_is_content() -> None:
    assert split("qwen3", list("Use the <think> tag.")) == ("", "Use the <think> tag.")


def test_empty_thoughts_are_none() -> None:
    assert split("qwen3", list("<think>\n\n</think>\n\nYes.")) == ("", "Yes.")


def test_the_first_lines_indentation_is_content() -> None:
    assert split("qwen3", list("<think>Hm</think>\n\n    x = 1")) == ("Hm", "    x = 1")


def test_no_more_is_withheld_than_may_be_a_mark() -> None:
    splitter = ReasoningSplitter(THINK, thinking=True)
    assert splitter.feed("Hm, a ") == ("Hm, a", "")
    assert splitter.feed("< b </th") == (" < b", "")
    assert splitter.feed("ing") == (" </thing", "")
    assert splitter.feed(" x</think>Yes") == (" x", "Yes")
    assert splitter.feed(" a<b") == ("", " a<b")
    assert splitter.feed(" <th") == ("", " ")


def test_a_call_ends_the_thoughts_of_models_that_call_within_them() -> None:
    call = "<tool_call>{}</tool_call>"
    marks = ["<tool_call>"]
    assert split("qwen3", list(f"<think>I call.\n{call}"), interrupts=marks) == ("I call.", call)
    assert split("qwen3", list(f"<think>Say {call}</think>x"), interrupts=marks) == (f"Say {call}", "x")
    assert split("deepseek_r1", list(f"I call.\n{call}"), interrupts=marks) == (f"I call.\n{call}", "")
    section = "<|tool_calls_section_begin|>"
    assert split("kimi_k2", list(f"<think>I call.{section}"), interrupts=[section]) == ("I call.", section)


@pytest.mark.parametrize("text", ['[{"a": 1}]', ' {"a": 1}', "\n[]"])
def test_a_bound_answer_that_begins_with_json_was_not_thought_about(text: str) -> None:
    assert split("deepseek_r1", list(text), structured=True) == ("", text)


@pytest.mark.parametrize("text", ['Hm</think>[{"a": 1}]', '<think>Hm</think>\n[{"a": 1}]'])
def test_a_bound_answer_may_follow_thoughts(text: str) -> None:
    assert split("deepseek_r1", list(text), structured=True) == ("Hm", '[{"a": 1}]')


def test_appended_thoughts_stay_in_the_content_with_their_opening() -> None:
    assert split("minimax_append_think", list("Hm</think>Yes")) == ("", "<think>Hm</think>Yes")
    assert split("minimax_append_think", []) == ("", "")


def test_channels_without_marks_are_content() -> None:
    assert split("gpt_oss", list("to be or not")) == ("", "to be or not")
    assert split("gpt_oss", ["to=be or not"]) == ("", "to=be or not")


def test_thoughts_in_several_messages_are_on_lines_of_their_own() -> None:
    text = "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
    assert split("gpt_oss", list(text)) == ("A\nB", "")


# ---- where thoughts begin


@pytest.mark.parametrize(
    ("style", "prompt", "arguments", "begins"),
    [
        ("qwen3", "<|im_start|>assistant\n", {}, False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", {}, True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", {"enable_thinking": False}, False),
        ("qwen3", "what is <think>?<|im_end|>\n<|im_start|>assistant\n", {}, False),
        ("deepseek_r1", "<｜Assistant｜>", {}, True),
        ("deepseek_r1", "<｜Assistant｜>", {"enable_thinking": False}, False),
        ("deepseek_r1", None, None, True),
        ("deepseek_v3", "<｜Assistant｜></think>", {}, False),
        ("deepseek_v3", "<｜Assistant｜><think>", {"thinking": True}, True),
        ("kimi_k25", "<|im_assistant|>assistant<|im_middle|><think></think>", {"thinking": False}, False),
        ("mistral", "[/INST]", {}, False),
        ("mistral", "[/INST][THINK]", {}, True),
        ("gemma", "<|turn>model\n<|channel>thought\n", {}, True),
        ("gpt_oss", "<|start|>assistant", {}, False),
    ],
)
def test_the_prompts_end_tells_where_an_answer_begins(style, prompt, arguments, begins: bool) -> None:
    assert thinking_style(style).starts_thinking(prompt, arguments) is begins


@pytest.mark.parametrize(("message", "inside"), [("<think>So far", True), ("<think>Hm</think>So far", False)])
def test_a_continued_message_goes_on_where_it_stood(message: str, inside: bool) -> None:
    prompt = f"<|im_start|>assistant\n{message}"
    assert thinking_style("qwen3").starts_thinking(prompt, continued=True) is inside


# ---- counting


def test_tokens_inside_the_marks_are_counted() -> None:
    count = ReasoningCount(ReasoningSplitter(THINK))
    count.feed(["<think>", "\n", "Hm", ".", "\n"])
    count.feed(["</think>", "\n\n", "Yes", None, "."])
    assert count.tokens == 4


def test_thoughts_that_the_prompt_began_are_counted_from_the_first_token() -> None:
    count = ReasoningCount(ReasoningSplitter(STYLES["deepseek_r1"]))
    count.feed(["Hm", ".", "</think>", "Yes"])
    assert count.tokens == 2


def test_a_character_in_pieces_is_counted_as_its_tokens() -> None:
    count = ReasoningCount(ReasoningSplitter(STYLES["deepseek_r1"]))
    count.feed(["\ufffd", "\ufffd", "\ufffd", "</think>"])
    assert count.tokens == 3


def test_the_thoughts_of_channels_are_counted() -> None:
    count = ReasoningCount(reasoning_splitter(STYLES["gpt_oss"]))
    count.feed(["<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>", "<|start|>", "assistant"])
    count.feed(["<|channel|>", "final", "<|message|>", "Yes", "<|return|>"])
    assert count.tokens == 2


# ---- names


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("deepseek-r1", "deepseek_r1"),
        ("deepseek_v3_1", "deepseek_v3"),
        ("glm47", "glm45"),
        ("gpt-oss", "gpt_oss"),
        ("nemotron_v3", "nemotron"),
        ("gemma4", "gemma"),
    ],
)
def test_a_style_goes_by_every_name_that_engines_give_it(written: str, name: str) -> None:
    assert style_name(written) == name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no reasoning parser 'qwne3'; there are .*qwen3"):
        style_name("qwne3")
    assert set(ALIASES.values()) <= set(STYLES)


TEMPLATES = {
    "gpt_oss": "<|channel|>analysis<|message|>",
    "gemma": "<|channel>thought",
    "kimi": "◁think▷",
    "mistral": "[THINK]",
    "granite": "Write your thoughts after 'Here is my thought process:'",
    "kimi_k2": "<think></think><|tool_calls_section_begin|>",
    "minimax_m2": "<minimax:tool_call> <think>",
    "deepseek_v3": "{{'<｜Assistant｜><think>'}}",
    "glm45": "[gMASK]<sop> <think></think>",
    "nemotron": "{% if truncate_history_thinking %}</think>",
    "nemotron_deci": "<TOOLCALL> <think>\n\n</think>",
    "qwen3": "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}",
    "basic": "{{ content.split('</think>')[-1] }}",
    None: "{{ message.content }}",
}


@pytest.mark.parametrize(("name", "source"), TEMPLATES.items())
def test_a_template_tells_the_style(name: str | None, source: str) -> None:
    assert reasoning_for_template(source) == name
