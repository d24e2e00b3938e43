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


def test_python_quotes_do_not_hide_the_end_of_the_arguments() -> None:
    text = """<tool_call>{"name": "get_weather", "arguments": {'city': 'L}A'}}</tool_call>Next."""
    assert read("hermes", text) == ("Next.", [("get_weather", "{'city': 'L}A'}")])


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


# ---- white space


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
