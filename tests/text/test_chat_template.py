"""Conversations to prompts."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest

from protocols.errors import InvalidRequest
from text.chat_messages import NoContent
from text.chat_template import ChatTemplate

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
USER = [{"role": "user", "content": "Hi"}]
CALL = {"id": "call12345", "type": "function", "function": {"name": "f", "arguments": '{"x": "ü"}'}}
CALLING = [*USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]

PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% elif p.type == 'image' %}<image>{% endif %}"
    "{% endfor %};{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}"
)
TOOL_CALLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}={{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
)


def text_of(source: str, messages: list[dict[str, Any]], /, **variables: Any) -> str:
    return ChatTemplate(source).render(messages, **variables)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


# ---- the environment


def test_a_conversation_is_rendered_with_the_prompt_for_the_answer() -> None:
    assert text_of(CHATML, USER) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_generation_prompt_the_conversation_ends() -> None:
    assert text_of(CHATML, USER, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_blocks_are_trimmed_and_newlines_of_the_text_are_kept() -> None:
    source = "  {% if true %}\n  a\n\n  {% endif %}\nb\n"
    assert text_of(source, USER) == "  a\n\nb\n".removesuffix("\n")


def test_tojson_writes_json_as_models_have_seen_it() -> None:
    source = "{{ {'b': '<é&\"\\'>', 'a': [1, none, true]} | tojson }}|{{ {'k': 1} | tojson(indent=2) }}"
    assert text_of(source, USER) == '{"b": "<é&\\"\'>", "a": [1, null, true]}|{\n  "k": 1\n}'


def test_loops_may_break_and_continue() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert text_of(source, USER) == "02"


def test_the_generation_tag_renders_its_body_in_a_scope_of_its_own() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}<{{ messages[0].content }}>{% endgeneration %}{{ x }}"
    assert text_of(source, USER) == "<Hi>1"


def test_the_clock_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2026, 11, 30))
    assert template.render(USER) == "30 Nov 2026"


def test_special_tokens_are_known_by_name_and_variables_go_before_them() -> None:
    template = ChatTemplate("{{ bos_token }}{{ mood }}", special_tokens={"bos_token": "<s>"})
    assert template.render(USER, mood="calm") == "<s>calm"
    assert template.render(USER, mood="calm", bos_token="<b>") == "<b>calm"


@pytest.mark.parametrize("name", ["messages", "self", "name", "_private", "0"])
def test_no_variable_stands_in_for_the_messages_or_breaks_the_call(name: str) -> None:
    assert text_of("{{ messages[0].content }}", USER, **{name: "x"}) == "Hi"


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_none(tools: list[dict[str, Any]] | None) -> None:
    source = "{% if tools is not none %}tools{% else %}none{% endif %}"
    assert text_of(source, USER, tools=tools) == "none"


def test_namespaces_and_dicts_work() -> None:
    source = (
        "{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ dict(a=3).a }}{{ dict.fromkeys(['k'], 4) }}"
    )
    assert text_of(source, USER) == "23{'k': 4}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ range(99999999999) | list }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequest):
        text_of(source, USER)


# ---- failures


def test_a_refusal_has_the_templates_own_words() -> None:
    with pytest.raises(InvalidRequest) as caught:
        text_of("{{ raise_exception('Roles must alternate!') }}", USER)
    assert caught.value.message == "Roles must alternate!"
    assert caught.value.param == "messages"


@pytest.mark.parametrize("source", ["{{ 'a' + 1 }}", "{{ messages[9].content }}", "{{ 1 // 0 }}", "{{ {}['a'].b }}"])
def test_a_template_that_breaks_refuses_the_messages(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render"):
        text_of(source, USER)


def test_a_broken_template_is_refused_when_made() -> None:
    with pytest.raises(ValueError, match=r"'default', line 2"):
        ChatTemplate("{{ 1 }}\n{% if %}")


# ---- named templates


@pytest.mark.parametrize(
    ("tools", "name", "text"), [(None, None, "plain"), ([{}], None, "with tools"), ([{}], "rag", "with documents")]
)
def test_the_template_is_chosen_by_name_or_by_tools(tools: Any, name: str | None, text: str) -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "with tools", "rag": "with documents"})
    assert template.render(USER, tools=tools, template=name) == text


def test_an_unknown_name_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest, match="no chat template 'rag'"):
        ChatTemplate("plain").render(USER, template="rag")


# ---- content


def test_parts_become_a_string_for_a_template_that_wants_one() -> None:
    assert text_of("{{ messages[0].content }}", [{"role": "user", "content": parts("a", "b")}]) == "a\nb"


def test_a_string_becomes_parts_for_a_template_that_wants_them() -> None:
    assert text_of(PARTS, USER) == "user:Hi;"


def test_a_template_that_takes_both_gets_what_the_client_sent() -> None:
    messages = [*USER, {"role": "user", "content": parts("a", "b")}]
    assert text_of(EITHER, messages) == "user:Hi;user:[a][b];"


def test_a_tools_result_is_always_a_string() -> None:
    messages = [*USER, {"role": "tool", "content": parts("a", "b")}]
    assert text_of(EITHER, messages) == "user:Hi;tool:a\nb;"


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image"])
def test_an_image_leaves_its_mark_where_the_template_has_one(kind: str) -> None:
    content = [{"type": kind, kind: {"url": "data:"}}, *parts("what?")]
    assert text_of(PARTS, [{"role": "user", "content": content}]) == "user:<image>what?;"


@pytest.mark.parametrize(
    ("source", "kind", "what"),
    [(EITHER, "image_url", "image"), (PARTS, "input_audio", "audio"), ("{{ messages[0].content }}", "video", "video")],
)
def test_media_without_a_place_in_the_template_are_refused(source: str, kind: str, what: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"messages\[0\].content\[0\]: this model takes no {what} input"):
        text_of(source, [{"role": "user", "content": [{"type": kind}]}])


def test_a_models_thinking_sent_back_as_a_part_is_left_out() -> None:
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "refusal", "refusal": "no"}]
    assert text_of("{{ messages[0].content }}", [{"role": "assistant", "content": content}]) == "no"


@pytest.mark.parametrize("content", [5, [{"type": "smell"}], [{"type": "text"}], [7]])
def test_other_content_is_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        text_of("{{ messages[0].content }}", [{"role": "user", "content": content}])
    assert caught.value.param == "messages"


def test_the_given_messages_are_not_changed() -> None:
    messages = [{"role": "developer", "content": "d", "name": None}, *CALLING]
    before = repr(messages)
    text_of(TOOL_CALLS, messages)
    assert repr(messages) == before


PRINTS = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"


@pytest.mark.parametrize(
    ("source", "role"),
    [
        (PRINTS, "system"),
        ("{# developer #}" + PRINTS, "developer"),
        ("Ask your developer. " + PRINTS.replace("messages", "messages if m.role in ['system', 'user']"), "system"),
        ("{% if messages[0].role == 'developer' %}{{ raise_exception('no!') }}{% endif %}" + PRINTS, "system"),
    ],
)
def test_a_developer_is_a_system_message_to_a_template_that_knows_none(source: str, role: str) -> None:
    assert f"{role}=d;" in text_of(source, [{"role": "developer", "content": "d"}, *USER])


STRICT = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}|{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'system' %}{{ raise_exception('System message must be first') }}{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)
FORGETFUL = STRICT.replace("{{ raise_exception('System message must be first') }}", "{% continue %}")


@pytest.mark.parametrize("source", [STRICT, FORGETFUL])
def test_several_system_messages_are_one_to_a_template_that_takes_one(source: str) -> None:
    messages = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        {"role": "user", "content": "U"},
        {"role": "system", "content": "C"},
    ]

    assert text_of(source, messages) == "A\n\nB\n\nC|user:U;"
    assert text_of(source, messages[:1] + messages[2:3]) == "A|user:U;"


STAYS = [
    {"role": "system", "content": "A"},
    {"role": "user", "content": "U"},
    {"role": "system", "content": "B"},
]
LATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
TWO_REFUSED = "{% if messages[1].role == 'system' %}{{ raise_exception('no!') }}{% endif %}" + LATE


@pytest.mark.parametrize("source", [LATE, TWO_REFUSED])
def test_several_system_messages_stay_where_they_are_for_a_template_that_takes_them(source: str) -> None:
    assert text_of(source, STAYS) == "s:A;u:U;s:B;"


def test_a_template_that_refuses_system_messages_in_the_midst_has_them_in_front() -> None:
    source = "{% if messages[-1].role == 'system' %}{{ raise_exception('no!') }}{% endif %}" + LATE
    assert text_of(source, STAYS) == "s:A\n\nB;u:U;"
    assert text_of(source, [STAYS[0], STAYS[2], STAYS[1]]) == "s:A;s:B;u:U;"


def test_a_template_that_refuses_them_all_speaks_of_the_given_ones() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception(messages | length ~ ' of them') }}{% endif %}"
    with pytest.raises(InvalidRequest, match="3 of them"):
        text_of(source, STAYS)


FIRST_INSTRUCTS = (
    "{% if messages[0].role in ['system', 'developer'] %}!{{ messages[0].content }};{% endif %}"
    "{% for m in messages if m.role == 'user' %}{{ m.content }};{% endfor %}"
)
ONE_OF_EACH = (
    "{% for role in ['system', 'developer'] %}"
    "{{ '!' }}{{ messages | selectattr('role', 'equalto', role) | map(attribute='content') | first }};"
    "{% endfor %}{{ messages[-1].content }};"
)


@pytest.mark.parametrize(("source", "prompt"), [(FIRST_INSTRUCTS, "!S\n\nD;U;"), (ONE_OF_EACH, "!S;!D;U;")])
def test_a_developer_beside_a_system_message_is_not_lost(source: str, prompt: str) -> None:
    messages = [{"role": role, "content": role[0].upper()} for role in ("system", "developer", "user")]
    assert text_of(source, messages) == prompt


def test_system_messages_that_say_nothing_add_nothing() -> None:
    said = [{"role": "system", "content": text} for text in ("A", "", "B")]
    assert text_of(FORGETFUL, [*said, {"role": "user", "content": "U"}]) == "A\n\nB|user:U;"


@pytest.mark.parametrize("source", [STRICT, FORGETFUL])
def test_a_last_message_that_is_moved_to_the_front_is_not_gone_on_with(source: str) -> None:
    with pytest.raises(InvalidRequest):
        text_of(source, STAYS, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_found_under_its_other_names(name: str) -> None:
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    assert text_of(source, [{"role": "assistant", "content": "", name: "R"}]) == "RR"


# ---- tool calls


def test_arguments_are_an_object_to_the_template() -> None:
    assert text_of(TOOL_CALLS, CALLING) == 'Hi;f={"x": "ü"};'


def test_arguments_are_text_to_a_template_that_can_only_print_text() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ 'args: ' + c.function.arguments }}{{ c.function.name }}"
        "{% endfor %}{% endfor %}"
    )
    assert text_of(source, CALLING) == 'args: {"x": "ü"}f'


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    assert text_of(TOOL_CALLS, [{"role": "assistant", "tool_calls": [call]}]) == "f={};"


DEEP = ['{"a":' * levels + "1" + "}" * levels for levels in (129, 300, 5000)]


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', 5, "[" * 90_000, *DEEP], ids=lambda text: repr(text)[:9])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequest, match=r"messages\[0\].tool_calls\[0\].function.arguments"):
        text_of(TOOL_CALLS, [{"role": "assistant", "tool_calls": [call]}])


def test_a_refusal_quotes_no_more_than_a_little() -> None:
    with pytest.raises(InvalidRequest) as part:
        text_of(CHATML, [{"role": "user", "content": [{"type": "x" * 9000}]}])
    with pytest.raises(InvalidRequest) as template:
        text_of("{{ raise_exception('no ' + messages[0].content) }}", [{"role": "user", "content": "x" * 9000}])

    assert len(part.value.message) < 200
    assert len(template.value.message) < 1000


@pytest.mark.parametrize("call", [5, {"id": "x"}, {"function": "f"}])
def test_a_tool_call_without_a_function_is_refused(call: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"tool_calls\[0\]"):
        text_of(TOOL_CALLS, [{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize("calls", [True, 5, 1.5, "calls", {"a": 1}], ids=str)
def test_tool_calls_that_are_no_list_are_refused_whoever_made_them(calls: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\].tool_calls"):
        text_of(TOOL_CALLS, [{"role": "user", "content": "x", "tool_calls": calls}])


def test_an_empty_list_of_tool_calls_is_no_list() -> None:
    source = "{% if messages[0].tool_calls is defined %}calls{% else %}none{% endif %}"
    assert text_of(source, [{"role": "assistant", "content": "", "tool_calls": []}]) == "none"


@pytest.mark.parametrize(
    ("source", "no_content"),
    [
        (TOOL_CALLS, NoContent.ABSENT),
        (CHATML, NoContent.EMPTY),
        (
            "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}"
            "{{ m.tool_calls[0].function.arguments.probe_key }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
            NoContent.NULL,
        ),
    ],
)
def test_a_message_without_content_comes_as_the_template_can_bear_it(source: str, no_content: NoContent) -> None:
    template = ChatTemplate(source)
    assert template.traits().no_content is no_content
    assert "None" not in template.render(CALLING)


def test_what_adds_least_stands_for_missing_content() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}"
        "{% if m['content'] is not none %}<{{ m['content'].strip() }}>{% endif %}{% endfor %}"
    )
    assert text_of(source, CALLING) == "<Hi>{'name': 'f', 'arguments': {'x': 'ü'}}"


# ---- what OpenAI allows and a template does not

IDS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9!') }}"
    "{% endif %}{{ c.function.name }}{{ c.function.arguments }}[{{ c.id }}]{% endfor %}"
    "{% if m.tool_call_id %}[{{ m.tool_call_id }}]{% endif %}{% endfor %}"
)


def history(call_id: str) -> list[dict[str, Any]]:
    return [
        *USER,
        {"role": "assistant", "tool_calls": [{**CALL, "id": call_id}]},
        {"role": "tool", "tool_call_id": call_id},
    ]


def ids_in(prompt: str) -> list[str]:
    return re.findall(r"\[(\w+)]", prompt)


def test_ids_are_shortened_for_a_template_that_takes_none_but_nine_characters() -> None:
    shown = ids_in(text_of(IDS, history("call_00000000000000000001")))
    others = ids_in(text_of(IDS, history("call_00000000000000000002")))

    assert [len(each) for each in shown] == [9, 9]
    assert shown[0] == shown[1] != others[0] == others[1]


@pytest.mark.parametrize(("source", "call_id"), [(IDS, "Ab3dE6gH9"), (IDS.replace("!= 9", "< 9"), "call_000000000001")])
def test_ids_that_a_template_takes_are_left_alone(source: str, call_id: str) -> None:
    assert ids_in(text_of(source, history(call_id))) == [call_id, call_id]


DESCRIBED = (
    "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}"
    "{% for name, p in t.function.parameters.properties.items() %}{{ name + p.description }}{% endfor %};{% endfor %}"
)


def test_what_tools_leave_out_is_empty_to_a_template_that_cannot_do_without() -> None:
    tools = [
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "parameters": {"properties": {"a": {}, "b": True}}}},
    ]
    source = DESCRIBED.replace("p.description", "(p.description if p is mapping else '?')")
    assert text_of(source, USER, tools=tools) == "f: ;g: ab?;"


def test_tools_are_shown_as_they_came_to_a_template_that_bears_with_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    assert text_of("{{ tools | tojson }}", USER, tools=tools) == json.dumps(tools)


def test_a_template_that_refuses_completed_tools_too_speaks_of_the_given_ones() -> None:
    source = "{{ raise_exception('no description') if 'description' not in tools[0].function else 1 // 0 }}"
    with pytest.raises(InvalidRequest, match="no description"):
        text_of(source, USER, tools=[{"type": "function", "function": {"name": "f"}}])


def test_a_custom_tool_is_a_function_of_one_string() -> None:
    custom = {"type": "custom", "custom": {"name": "shell", "description": "Runs.", "format": {"type": "text"}}}
    source = "{{ tools[0].type }} {{ tools[0].function | tojson }}"
    schema = '{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}'
    shown = '{"name": "shell", "description": "Runs.", "parameters": ' + schema + "}"
    assert text_of(source, USER, tools=[custom]) == f"function {shown}"


def test_a_custom_call_in_the_history_is_a_call_of_that_function() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": 'echo "ü"'}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert text_of(TOOL_CALLS, messages) == 'Hi;shell={"input": "echo \\"ü\\""};'


def test_the_deprecated_function_call_and_its_answer_are_a_tools() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %} {{ c.function.name }}{{ c.id }}"
        "{{ c.function.arguments.x }}{% endfor %}{{ ' ' ~ m.tool_call_id ~ ' ' ~ m.content if m.tool_call_id }}"
        ";{% endfor %}"
    )
    messages = [
        *USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": "T"},
    ]
    assert text_of(source, messages) == "user;assistant fcall_f1;tool call_f T;"


# ---- going on with the last message


@pytest.mark.parametrize("content", ["So I ", parts("So I ")])
def test_the_last_message_can_be_left_open(content: Any) -> None:
    messages = [*USER, {"role": "assistant", "content": content}]
    text = text_of(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSo I "


def test_a_template_that_trims_leaves_the_last_message_trimmed() -> None:
    source = "{% for m in messages %}{{ m.content | trim }};{% endfor %}"
    messages = [{"role": "assistant", "content": " So I "}]
    assert text_of(source, messages, continue_final_message=True) == "So I"


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{{ messages[0].role }}", USER),
        (CHATML, []),
        (CHATML, [{"role": "assistant", "tool_calls": [CALL]}]),
    ],
)
def test_what_cannot_be_continued_is_refused(source: str, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequest, match="continue"):
        text_of(source, messages, continue_final_message=True)
