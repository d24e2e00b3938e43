"""Thoughts, content and calls of one answer, as a request says they are to be read."""

from __future__ import annotations

import time

import pytest

from tests.text.readings import (
    AUTO,
    TOOLS,
    calls_of,
    content_of,
    joined,
    numbered_ids,
    reasoning_of,
    through_the_sdk,
    told,
)
from text.answer_parser import AnswerReading, ModelMarkup
from text.answer_pieces import ContentText
from text.tool_calls.rules import call_rules

QWEN = ModelMarkup("hermes", "qwen3")
A = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {A}}}\n</tool_call>'
REQUIRED = call_rules(TOOLS, "required")


def reading_of(markup: ModelMarkup, rules=AUTO, *arguments, **options) -> AnswerReading:
    reading = markup.reading(rules, *arguments, **options)
    assert reading is not None
    return reading


def test_a_call_after_thoughts() -> None:
    pieces = told(reading_of(QWEN).parser(), list(f"<think>\nLook it up.\n</think>\n\n{CALL}"))
    assert reasoning_of(pieces) == "Look it up."
    assert content_of(pieces) == ""
    assert calls_of(pieces) == [("get_weather", A)]


def test_between_thoughts_and_calls_white_space_is_no_content() -> None:
    message = through_the_sdk(told(reading_of(QWEN).parser(), [f"<think>Hm</think>\n\n{CALL}\n"]))
    assert not message.content
    assert message.reasoning_content == "Hm"
    assert message.tool_calls[0].function.arguments == A


def test_a_call_that_is_only_thought_of_is_none() -> None:
    pieces = told(reading_of(QWEN).parser(), list(f"<think>I might write {CALL} here.</think>No."))
    assert (calls_of(pieces), content_of(pieces)) == ([], "No.")


def test_a_call_that_ends_the_thoughts_is_one() -> None:
    pieces = told(reading_of(QWEN).parser(), list(f"<think>Look it up.\n{CALL}"))
    assert (reasoning_of(pieces), calls_of(pieces)) == ("Look it up.", [("get_weather", A)])


def test_thoughts_before_a_bound_list_of_calls() -> None:
    reading = reading_of(QWEN, REQUIRED, "<think>\n", structured=True)
    bound = f'[{{"name": "get_weather", "parameters": {A}}}]'
    for text, thought in ((bound, ""), (f"Hm.\n</think>\n\n{bound}", "Hm.")):
        pieces = told(reading.parser(), list(text))
        assert (reasoning_of(pieces), content_of(pieces), calls_of(pieces)) == (thought, "", [("get_weather", A)])


def test_harmony_reads_its_calls_and_thoughts_itself() -> None:
    markup = ModelMarkup.choose(None, None, "<|start|>assistant<|channel|>commentary to=functions.{{ tools }}")
    assert markup == ModelMarkup("harmony", "gpt_oss")
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{A}<|call|>"
    )
    for rules, calls, content in ((AUTO, [("get_weather", A)], ""), (None, [], A)):
        pieces = told(reading_of(markup, rules).parser(), list(text))
        assert (reasoning_of(pieces), calls_of(pieces), content_of(pieces)) == ("Hm.", calls, content)


def test_harmony_under_a_constraint_may_leave_its_channels() -> None:
    reading = reading_of(ModelMarkup("harmony", "gpt_oss"), REQUIRED, structured=True)
    pieces = told(reading.parser(), list(f'[{{"name": "get_weather", "parameters": {A}}}]'))
    assert (calls_of(pieces), content_of(pieces)) == ([("get_weather", A)], "")


# ---- whether there is anything to read


def test_without_tools_and_thoughts_nothing_is_read() -> None:
    assert ModelMarkup("hermes", None).reading(None) is None
    assert ModelMarkup(None, None).reading(AUTO) is None


def test_without_tools_markup_stays_content() -> None:
    pieces = told(reading_of(QWEN, None).parser(), list(f"<think>Hm</think>{CALL}"))
    assert (reasoning_of(pieces), content_of(pieces), calls_of(pieces)) == ("Hm", CALL, [])


def test_forced_calls_are_read_without_a_parser_for_the_model() -> None:
    pieces = told(reading_of(ModelMarkup(None, None), REQUIRED).parser(), ['[{"name": "get_time", "parameters": {}}]'])
    assert calls_of(pieces) == [("get_time", "{}")]


def test_choices_of_one_request_are_read_apart() -> None:
    reading = reading_of(QWEN)
    one, other = reading.parser(), reading.parser()
    one.feed("<think>")
    assert content_of(other.feed("Yes")) == "Yes"
    assert reasoning_of(one.feed("Hm")) == "Hm"


def test_calls_are_counted_while_they_come() -> None:
    parser = reading_of(QWEN).parser()
    parser.feed(f"{CALL}<tool_call>")
    assert parser.calls == 1


# ---- what a request needs of the decoder


def test_marks_that_may_be_special_tokens_are_named() -> None:
    assert reading_of(QWEN).tokens() == {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    assert reading_of(QWEN, None).tokens() == {"<think>", "</think>"}
    assert "<|message|>" in reading_of(ModelMarkup("harmony", "gpt_oss"), None).tokens()
    assert '<|"|>' in reading_of(ModelMarkup("gemma", None)).tokens()


def test_thoughts_are_counted_by_tokens() -> None:
    count = reading_of(QWEN, AUTO, "<think>\n").count()
    assert count is not None
    count.feed(["Hm", ".", "\n", "</think>", "\n\n", "<tool_call>"])
    assert count.tokens == 3


def test_without_thoughts_there_is_nothing_to_count() -> None:
    assert reading_of(ModelMarkup("hermes", None)).count() is None


# ---- the model's markup


def test_the_operators_word_goes_before_the_templates() -> None:
    template = "<tool_call> {% if enable_thinking %}<think>{% endif %} {{ tools }}"
    assert ModelMarkup.choose(None, None, template) == ModelMarkup("hermes", "qwen3")
    assert ModelMarkup.choose("mistral", "deepseek-r1", template) == ModelMarkup("mistral", "deepseek_r1")
    assert ModelMarkup.choose("none", "none", template) == ModelMarkup(None, None)
    assert ModelMarkup.choose(None, None, None) == ModelMarkup(None, None)


def test_a_parser_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no tool-call parser"):
        ModelMarkup.choose("nothing", None, None)


# ---- costs


def test_ordinary_text_is_handed_on_whole() -> None:
    parser = reading_of(QWEN).parser()
    parser.feed("The")
    assert parser.feed(" sky") == (ContentText(" sky"),)


def test_text_in_tokens_is_what_it_is_at_once() -> None:
    text = f"<think>\nHm, so.\n</think>\n\nI look.\n\n{CALL}\n{CALL}"
    tokens = [text[start : start + 4] for start in range(0, len(text), 4)]
    assert joined(told(reading_of(QWEN).parser(numbered_ids()), tokens)) == joined(
        told(reading_of(QWEN).parser(numbered_ids()), [text])
    )


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_long_arguments_take_time_in_proportion(name: str) -> None:
    """Slow: reads up to 400,000 characters, to see that time does not grow with what was read before."""
    opening = {
        "hermes": '<tool_call>{"name": "get_weather", "arguments": {"city": "',
        "qwen3_coder": "<tool_call><function=get_weather><parameter=city>\n",
    }[name]

    def seconds(pieces: int) -> float:
        parser = reading_of(ModelMarkup(name, None)).parser()
        parser.feed(opening)
        start = time.process_time()
        for _ in range(pieces):
            parser.feed("some text ")
        return time.process_time() - start

    seconds(1000)
    assert seconds(20_000) < 40 * seconds(2_000)
