"""Messages, tools and formats: what passes as it came, and where a fault is found."""

import pytest

from tests.protocols.request_bodies import USER, chat, refused

PING = {"type": "function", "function": {"name": "ping"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}], "name": "boss"},
        {"role": "user", "content": ""},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        },
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://a/b.png"}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
        {"role": "user", "content": [{"type": "hologram", "depth": 3}]},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "refusal": None},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}], "reasoning_content": "hm"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "tool", "content": [{"type": "text", "text": "4"}], "tool_call_id": "c"},
        {"role": "function", "content": None, "name": "f"},
    ],
)
def test_every_shape_of_message_passes_as_it_came(message):
    assert chat(messages=[USER, message]).messages == [USER, message]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("hi", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": 5, "content": "x"}, "messages[0].role"),
        ({"role": {}, "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "user", "content": ["hi"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "hi"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].image_url.url"),
        ({"role": "user", "content": "x", "name": 5}, "messages[0].name"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": None, "tool_call_id": "c"}, "messages[0].content"),
        ({"role": "function", "name": "f"}, "messages[0].content"),
        ({"role": "function", "content": "x"}, "messages[0].name"),
        ({"role": "assistant", "tool_calls": CALL}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_faulty_message_is_refused_at_its_place(message, place):
    error = refused(chat, messages=[message])

    assert error.param == place
    assert f"'{place}'" in error.message


@pytest.mark.parametrize(
    ("messages", "words"), [([], "at least 1 message"), (None, "got null"), ("hi", "got a string")]
)
def test_a_chat_needs_messages(messages, words):
    error = refused(chat, messages=messages)

    assert error.param == "messages"
    assert words in error.message


def test_the_place_counts_from_the_start_of_the_chat():
    assert refused(chat, messages=[USER, USER, {"role": "user"}]).param == "messages[2].content"


# ---- tools and formats


def test_a_tool_without_parameters_takes_none():
    assert chat(tools=[PING], tool_choice="required").template_tools() == [PING]


def test_no_tools_is_none_for_the_template_however_it_is_said():
    assert chat().template_tools() is None
    assert chat(tools=[]).template_tools() is None
    assert chat(tools=[PING], tool_choice="none").template_tools() is None


@pytest.mark.parametrize("named", [PING, {"name": "ping"}, {"type": "function", "name": "ping"}])
def test_only_allowed_tools_are_shown(named):
    pong = {"type": "function", "function": {"name": "pong"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert chat(tools=[PING, pong], tool_choice=choice).template_tools() == [PING]


def test_deprecated_functions_reach_the_template_as_tools():
    request = chat(functions=[{"name": "ping", "parameters": {}}])

    assert request.template_tools() == [{"type": "function", "function": {"name": "ping", "parameters": {}}}]


def shell(**more):
    return {"type": "custom", "custom": {"name": "shell", **more}}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": PING}, "tools"),
        ({"tools": ["ping"]}, "tools[0]"),
        ({"tools": [{"function": {"name": "ping"}}]}, "tools[0].type"),
        ({"tools": [{"type": "zzz"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [PING, {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 129}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [PING] * 1025}, "tools"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "zzz"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": [PING], "tool_choice": {"type": "function", "function": {"name": "pong"}}},
            "tool_choice.function.name",
        ),
        (
            {"tools": [PING], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"tools": [PING], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": {}}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"tools": [PING], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {
                "tools": [PING],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["ping"]}},
            },
            "tool_choice.allowed_tools.tools[0]",
        ),
        (
            {
                "tools": [PING],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{**PING, "type": []}]},
                },
            },
            "tool_choice.allowed_tools.tools[0].type",
        ),
        (
            {
                "tools": [PING],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]},
                },
            },
            "tool_choice.allowed_tools.tools[0].name",
        ),
        (
            {
                "tools": [PING],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [PING, {"type": "function", "name": "pong"}]},
                },
            },
            "tool_choice.allowed_tools.tools[1].name",
        ),
        ({"tools": [PING], "tool_choice": {"type": "custom", "custom": {"name": "ping"}}}, "tool_choice.custom.name"),
        ({"tools": [shell(format="text")]}, "tools[0].custom.format"),
        ({"tools": [shell(format={"type": "json"})]}, "tools[0].custom.format.type"),
        ({"tools": [shell(format={"type": "grammar"})]}, "tools[0].custom.format.grammar.definition"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"function_call": "required"}, "function_call"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "y"}}},
            "response_format.json_schema.schema",
        ),
        ({"modalities": ["smell"]}, "modalities[0]"),
        ({"documents": [1]}, "documents[0]"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_a_model_could_not_follow_is_refused_at_its_place(fields, place):
    error = refused(chat, **fields)

    assert error.param == place
    assert place in error.message


@pytest.mark.parametrize(
    "choice",
    [
        "none",
        "auto",
        {"type": "function", "function": {"name": "ping"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [PING]}},
    ],
)
def test_tool_choices_pass_as_they_came(choice):
    assert chat(tools=[PING], tool_choice=choice).tool_choice == choice


def test_template_arguments_come_under_both_names():
    request = chat(chat_template_args={"a": 1, "b": 1}, chat_template_kwargs={"b": 2})

    assert request.template_arguments() == {"a": 1, "b": 2}


def test_words_for_effort_are_not_counted():
    assert chat(reasoning_effort="ultra").reasoning_effort == "ultra"
