"""What models do wrong, and what an answer's length cuts off: no mark is shown, no text lost, nothing told twice."""

from __future__ import annotations

import json

import pytest

from tests.text.readings import AUTO, calls_of, content_of, joined, numbered_ids, read, told
from text.answer_pieces import ArgumentsDelta, CallStarted
from text.tool_calls.table import PARSERS, tool_call_parser

A = '{"city": "Paris"}'
W = f'{{"name": "get_weather", "arguments": {A}}}'
CALL = [("get_weather", {"city": "Paris"})]

MISSING_CLOSE = {
    "hermes": f"<tool_call>{W}",
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n",
    "mistral": f"[TOOL_CALLS][{W}",
    "deepseek_v3": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{A}\n```",
    "deepseek_v3_1": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{A}",
    "deepseek_v3_2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n',
    "kimi_k2": f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{A}",
    "glm45": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n',
    "phi4": f"functools[{W}",
    "jamba": f"<tool_calls>[{W}",
    "nemotron_deci": f"<TOOLCALL>[{W}]",
    "pythonic": '[get_weather(city="Paris"',
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>',
    "harmony": f"<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>{A}",
    "default": f"<tool_calls>[{W}",
}
MISSING_OPEN = {
    "qwen3_coder": "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    "deepseek_v3": f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{A}\n```<｜tool▁call▁end｜>",
    "deepseek_v3_1": f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{A}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v3_2": '<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls>",
    "kimi_k2": f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{A}<|tool_call_end|>",
    "minimax_m2": '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
    "</minimax:tool_call>",
    "default": f"{W}</tool_call>",
}
NO_CALL = {
    "hermes": "<tool_call>sorry</tool_call>",
    "qwen3_coder": "<tool_call>sorry</tool_call>",
    "llama3_json": "<|python_tag|>sorry",
    "pythonic": "<|python_start|>sorry<|python_end|>",
    "mistral": "[TOOL_CALLS]sorry",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sorry<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v3_1": "<｜tool▁calls▁begin｜>sorry<｜tool▁calls▁end｜>",
    "deepseek_v3_2": "<｜DSML｜function_calls>sorry</｜DSML｜function_calls>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>sorry<|tool_call_end|><|tool_calls_section_end|>",
    "glm45": "<tool_call>sorry, sorry",
    "glm47": "<tool_call>{}</tool_call>sorry",
    "minimax_m2": "<minimax:tool_call>sorry</minimax:tool_call>",
    "phi4": "<|tool_call|>sorry<|/tool_call|>",
    "jamba": "<tool_calls>[]sorry</tool_calls>",
    "nemotron_deci": "<TOOLCALL>[sorry]</TOOLCALL>",
    "granite": "<|tool_call|>sorry",
    "step3": "<｜tool_calls_begin｜>sorry<｜tool_calls_end｜>",
    "gemma": "<|tool_call>sorry<tool_call|>",
    "harmony": "sorry<|call|>",
    "default": "<TOOLCALL>sorry</TOOLCALL>",
}


def of(table: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("parser", "text"), table.items(), ids=table)


def parsed(calls: list[tuple[str, str]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def shows_no_mark(parser: str, content: str) -> bool:
    kind = PARSERS[parser]
    return kind.silent.find(content) is None


@of(MISSING_CLOSE)
def test_a_call_that_the_model_did_not_close_is_told_whole(parser: str, text: str) -> None:
    content, calls = read(parser, text)
    assert (content, parsed(calls)) == ("", CALL)


@of(MISSING_CLOSE)
def test_so_it_is_character_by_character(parser: str, text: str) -> None:
    assert read(parser, list(text)) == read(parser, text)


@of(MISSING_OPEN)
def test_a_call_whose_wrapper_did_not_open_is_told(parser: str, text: str) -> None:
    content, calls = read(parser, text)
    assert (content, parsed(calls)) == ("", CALL)


@of(NO_CALL)
def test_what_turns_out_to_be_no_call_is_content_without_the_marks(parser: str, text: str) -> None:
    content, calls = read(parser, text)
    assert calls == []
    assert "sorry" in content
    assert shows_no_mark(parser, content)


@pytest.mark.parametrize("parser", PARSERS)
def test_a_stray_closing_mark_is_no_content(parser: str) -> None:
    strays = "".join(sorted(PARSERS[parser].silent.strings))
    assert read(parser, f"all is well{strays}") == ("all is well", [])


@of(MISSING_CLOSE)
def test_wherever_the_length_cuts_a_call_off_no_mark_is_shown_and_what_was_told_stays(parser: str, text: str) -> None:
    for end in range(len(text)):
        told_before: list[object] = []
        kept = tool_call_parser(parser, AUTO, numbered_ids())
        for character in text[:end]:
            told_before += kept.feed(character)
        pieces = [*told_before, *kept.finish(cut=True)]
        assert joined(pieces) == joined(told(tool_call_parser(parser, AUTO, numbered_ids()), [text[:end]], cut=True))
        assert shows_no_mark(parser, content_of(pieces))
        assert len(calls_of(pieces)) <= 1


def test_arguments_cut_off_by_length_stay_as_they_were_sent() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Par'
    assert read("hermes", text, cut=True) == ("", [("get_weather", '{"city": "Par')])
    coder = "<tool_call><function=get_weather><parameter=days>\n3\n</parameter><parameter=city>\nPar"
    assert read("qwen3_coder", coder, cut=True) == ("", [("get_weather", '{"days": 3, "city": "Par')])


def test_a_value_that_is_no_string_is_told_whole_or_not_at_all() -> None:
    coder = "<tool_call><function=get_weather><parameter=city>\nParis\n</parameter><parameter=days>\n3"
    assert read("qwen3_coder", coder, cut=True) == ("", [("get_weather", '{"city": "Paris"')])


def test_a_name_cut_off_by_length_is_content() -> None:
    assert read("hermes", '<tool_call>{"name": "get_wea', cut=True) == ('{"name": "get_wea', [])


def test_half_a_mark_at_the_end_is_content() -> None:
    assert read("hermes", "a < b <tool_") == ("a < b <tool_", [])


def test_arguments_that_break_off_at_a_mark_end_there() -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {{"city": "Paris"</tool_call><tool_call>{W}</tool_call>'
    content, calls = read("hermes", text)
    assert (content, calls) == ("", [("get_weather", '{"city": "Paris"'), ("get_weather", A)])


def test_arguments_in_pythons_notation_become_json() -> None:
    text = """<tool_call>{"name": "get_weather", "arguments": {'city': 'L}A', 'metric': True}}</tool_call>Next."""
    assert read("hermes", list(text)) == ("Next.", [("get_weather", '{"city":"L}A","metric":true}')])
    broken = text.replace("True", "yes")
    assert read("hermes", broken) == ("Next.", [("get_weather", "{'city': 'L}A', 'metric': yes}")])
    first = """<tool_call>{"arguments": {'city': 'L}A'}, "name": "get_weather"}</tool_call>"""
    assert read("hermes", first) == ("", [("get_weather", '{"city":"L}A"}')])


def test_junk_behind_a_call_is_content() -> None:
    assert read("hermes", f"<tool_call>{W}, right?</tool_call>") == (", right?", [("get_weather", A)])


def test_of_a_list_the_good_calls_are_told_and_the_rest_is_content() -> None:
    content, calls = read("nemotron_deci", f'<TOOLCALL>[{W}, {{"oops": 1}}]</TOOLCALL>')
    assert (content, calls) == ('{"oops": 1}]', [("get_weather", A)])


def test_text_between_the_parameters_is_not_lost() -> None:
    text = "<tool_call><function=get_weather>well<parameter=city>\nParis\n</parameter></function></tool_call>"
    content, calls = read("qwen3_coder", text)
    assert (content, parsed(calls)) == ("well", CALL)


def test_a_parameter_that_is_not_closed_ends_at_the_next_tag() -> None:
    text = "<tool_call><function=get_weather><parameter=city>\nParis\n<parameter=days>\n3\n</function></tool_call>"
    assert parsed(read("qwen3_coder", text)[1]) == [("get_weather", {"city": "Paris", "days": 3})]


# ---- quotes and tags where they do not belong


@pytest.mark.parametrize(
    ("parser", "call", "arguments"),
    [
        (
            "hermes",
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Par"is"}}</tool_call>',
            '{"city": "Par"is"}',
        ),
        (
            "hermes",
            '<tool_call>{"name": "get_weather", "arguments": {"city": "a "b" c", "days": 3}}</tool_call>',
            '{"city": "a "b" c", "days": 3}',
        ),
        ("pythonic", "[get_weather(city='it's nice')]", '{"city": "it\'s nice"}'),
        ("pythonic", "[get_weather(city=r'a', tags=['b' 'c'])]", '{"city": "a", "tags": ["bc"]}'),
    ],
)
def test_a_quote_that_was_not_escaped_ends_no_more_than_its_string(parser: str, call: str, arguments: str) -> None:
    content, calls = read(parser, list(f"{call} Next."))
    assert (content, calls) == ("Next.", [("get_weather", arguments)])


def test_a_key_that_a_mark_stands_in_is_none() -> None:
    broken = f'<TOOLCALL>[{W}, {{"name": "get_time", "arguments{{}}}}]</TOOLCALL>Next. <TOOLCALL>[{W}]</TOOLCALL>'
    content, calls = read("nemotron_deci", list(broken))
    assert calls == [("get_weather", A), ("get_time", "{}"), ("get_weather", A)]
    assert content.endswith("Next.")


@pytest.mark.parametrize(
    "value",
    [
        "close it with </parameter> and go on",
        "<parameter=x>y</parameter> or </function> so",
        "x</function>",
        "</parameter>x",
        "line\n  </parameter>\nmore <tool_call> z",
    ],
)
def test_a_value_may_speak_of_tags_that_stand_on_lines_of_their_own(value: str) -> None:
    coder = (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>Next."
    )
    content, calls = read("qwen3_coder", list(coder))
    assert (content, parsed(calls)) == ("Next.", [("get_weather", {"city": value, "days": 3})])


@pytest.mark.parametrize("value", ["3", "3</parameter>"])
def test_so_may_one_that_is_no_string(value: str) -> None:
    coder = f"<tool_call>\n<function=get_weather>\n<parameter=days>\n{value}\n</parameter>\n</function>\n</tool_call>"
    arguments = json.loads(read("qwen3_coder", list(coder))[1][0][1])
    assert str(arguments["days"]) == value


def test_tags_without_lines_of_their_own_end_a_value_wherever_they_stand() -> None:
    text = "<tool_call><function=get_weather><parameter=city>Paris</parameter> Next."
    assert read("qwen3_coder", list(text)) == ("Next.", [("get_weather", '{"city": "Paris"}')])


def test_a_parameter_without_its_tag_is_content_unless_the_length_cut_it_off() -> None:
    text = "<tool_call>get_weather\n<arg_key>city</arg_key><arg_val Well."
    assert read("glm45", list(text)) == ("city<arg_val Well.", [("get_weather", "{}")])
    assert read("glm45", list(text), cut=True) == ("", [("get_weather", "")])


HEADS = [
    ("<|channel|>final Well, yes.", "Well, yes."),
    ("<|channel|>analysis<|channel|>final<|message|>Well, yes.", "Well, yes."),
    ("<|channel|>Well, yes.<|end|><|start|>assistant", "Well, yes."),
    ("<|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json", ""),
    ("Well, yes.<|start|>assistant", "Well, yes."),
    ("<|channel|>final Well, yes.<|channel|>final<|message|>And no.", "Well, yes.\nAnd no."),
]


@pytest.mark.parametrize(("text", "content"), HEADS)
def test_of_a_head_that_is_none_only_its_own_words_are_passed_over(text: str, content: str) -> None:
    assert read("harmony", list(text)) == (content, [])
    assert read("harmony", text) == (content, [])


# ---- white space


def test_white_space_behind_a_call_with_nothing_before_is_no_content() -> None:
    assert read("hermes", list(f"<tool_call>{W}</tool_call>\n\nDone."))[0] == "Done."


@pytest.mark.parametrize("end", range(15, 30))
def test_a_cut_behind_a_list_of_calls_takes_no_white_space(end: int) -> None:
    text = "So: [get_time()] ) and on"
    assert read("pythonic", [text[:end], text[end:]])[0] == "So:  ) and on"


@pytest.mark.parametrize("text", ["\n\n{}", "{}\n\n", " {}\n{}\n"])
def test_white_space_beside_calls_is_no_content(text: str) -> None:
    call = f"<tool_call>\n{W}\n</tool_call>"
    assert read("hermes", text.replace("{}", call))[0] == ""


def test_white_space_before_a_call_is_no_content_and_between_texts_it_stays() -> None:
    call = f"<tool_call>{W}</tool_call>"
    assert read("hermes", f" One.\n\n{call}")[0] == " One."
    assert read("hermes", f"One.\n{call}\n\n{call} Two.\n")[0] == "One.\n Two."


def test_without_calls_white_space_is_content_as_it_stands() -> None:
    assert read("hermes", list("\n\n a \n\n"))[0] == "\n\n a \n\n"


# ---- cases


def test_parallel_calls_have_indexes_from_0_on() -> None:
    pieces = told(tool_call_parser("hermes", AUTO), f"<tool_call>{W}</tool_call>" * 3)
    assert [piece.index for piece in pieces if isinstance(piece, CallStarted)] == [0, 1, 2]
    assert {piece.index for piece in pieces if isinstance(piece, ArgumentsDelta)} == {0, 1, 2}


def test_each_invocation_in_one_wrapper_is_a_call() -> None:
    invoke = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
    calls = read("minimax_m2", f"<minimax:tool_call>\n{invoke * 3}</minimax:tool_call>")[1]
    assert parsed(calls) == CALL * 3


def test_several_objects_in_one_wrapper_are_calls() -> None:
    assert read("hermes", f"<tool_call>\n{W}\n{W}\n</tool_call>") == ("", [("get_weather", A)] * 2)


def test_a_call_is_told_once_however_often_it_is_fed_on() -> None:
    parser = tool_call_parser("hermes", AUTO)
    started = [each for part in f"<tool_call>{W}</tool_call>" for each in parser.feed(part)]
    assert sum(isinstance(piece, CallStarted) for piece in started) == 1


def test_arguments_over_several_lines_are_found() -> None:
    pretty = json.dumps({"city": "Paris", "tags": ["a", "b"]}, indent=2)
    content, calls = read(
        "hermes", f'<tool_call>\n{{\n "name": "get_weather",\n "arguments": {pretty}\n}}\n</tool_call>'
    )
    assert (content, calls) == ("", [("get_weather", pretty)])


def test_raw_line_breaks_in_strings_become_valid_json() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "New\nYork\t"}}</tool_call>'
    assert parsed(read("hermes", list(text))[1]) == [("get_weather", {"city": "New\nYork\t"})]


def test_marks_inside_strings_are_text() -> None:
    arguments = json.dumps({"city": "<tool_call></tool_call>"})
    text = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'
    assert read("hermes", text) == ("", [("get_weather", arguments)])


def test_two_parsers_know_nothing_of_each_other() -> None:
    one, other = tool_call_parser("hermes", AUTO), tool_call_parser("hermes", AUTO)
    pieces = [*one.feed("<tool_call>"), *other.feed("plain"), *one.feed(W), *other.finish()]
    assert (content_of(pieces), calls_of(pieces)) == ("plain", [("get_weather", A)])
