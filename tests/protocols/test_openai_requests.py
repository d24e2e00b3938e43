"""What the front door accepts, what it refuses, and that a refusal names its place."""

import json
from typing import Any

import orjson
import pytest

from protocols.errors import InvalidRequest
from protocols.nesting import MAX_DEPTH
from protocols.openai import parse_chat, parse_completion
from tests.protocols.request_bodies import USER, chat, completion, refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b'{"model": "m",', "not valid JSON"),
        (b'{"model": NaN}', "not valid JSON"),
        (b'{"model": "m", "temperature": 1e999}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b"[" * 2000, "not valid JSON"),
        (b'{"model": "\xff"}', "not valid UTF-8"),
        (b"null", "must be a JSON object, but is null"),
        (b'["m"]', "must be a JSON object, but is an array"),
        (b'"m"', "must be a JSON object, but is a string"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_in_words(body, words):
    with pytest.raises(InvalidRequest, match=words):
        parse_chat(body)


def nested(opened, closed, levels):
    """A body of so many levels, itself the first."""
    inner = levels - 1
    return f'{{"model": "m", "prompt": "x", "vendor": {opened * inner}1{closed * inner}}}'.encode()


NESTINGS = pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])


@NESTINGS
def test_a_body_may_be_nested_as_deep_as_its_limit(opened, closed):
    assert parse_completion(nested(opened, closed, MAX_DEPTH)).prompt == "x"


@NESTINGS
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 300, 900])
def test_a_deeper_body_is_refused_for_no_engine_could_be_told_of_it(opened, closed, levels):
    with pytest.raises(InvalidRequest, match="nested"):
        parse_completion(nested(opened, closed, levels))


def test_many_brackets_are_no_depth():
    request = parse_completion(
        b'{"model": "m", "prompt": [' + b"[1], " * 300 + b'[2]], "vendor": "' + b"[{" * 300 + b'"}'
    )

    assert len(request.prompts()) == 301


def test_a_member_named_twice_counts_as_it_was_named_last():
    request = parse_completion(b'{"model": "a", "prompt": "x", "model": "b"}')

    assert request.model == "b"


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize(("model", "words"), [("", "empty"), ("  ", "empty"), (5, "expected a string"), (None, "null")])
def test_a_model_must_be_named(parse, model, words):
    error = refused(parse, model=model)

    assert error.param == "model"
    assert words in error.message


def test_a_missing_field_is_called_missing():
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(b'{"model": "m"}')

    assert (caught.value.param, caught.value.message) == ("messages", "Missing required parameter: 'messages'.")


# ---- numbers, flags, words


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, ">= 0"),
        ("temperature", 2.1, "<= 2"),
        ("top_p", -0.1, ">= 0"),
        ("top_p", 1.1, "<= 1"),
        ("n", 0, ">= 1"),
        ("n", 129, "<= 128"),
        ("n", 100_000, "<= 128"),
        ("frequency_penalty", -2.5, ">= -2"),
        ("presence_penalty", 3, "<= 2"),
        ("max_tokens", -1, ">="),
        ("seed", 2**63, f"< {2**63}"),
        ("top_k", -2, ">= -1"),
        ("min_p", 1.5, "<= 1"),
        ("repetition_penalty", 0, "> 0"),
        ("min_tokens", -1, ">= 0"),
        ("prompt_logprobs", 21, "<= 20"),
        ("thinking_token_budget", -1, ">= 0"),
        ("cache_salt", "", "at least 1"),
        ("cache_salt", "x" * 1025, "at most 1024"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_limit(parse, field, value, limit):
    error = refused(parse, **{field: value})

    assert error.param == field
    assert f"'{field}'" in error.message
    assert limit in error.message


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", "0.5", "a number, but got a string"),
        ("temperature", True, "a number, but got a boolean"),
        ("n", "1", "an integer, but got a string"),
        ("n", True, "an integer, but got a boolean"),
        ("n", 1.5, "an integer, but got a decimal"),
        ("max_tokens", 2**70, "an integer, but got a decimal"),
        ("stream", "yes", "a boolean, but got a string"),
        ("stream", 1, "a boolean, but got an integer"),
        ("user", 5, "a string, but got an integer"),
        ("stop_token_ids", "5", "an array of token ids, but got a string"),
        ("logit_bias", [5], "an object, but got an array"),
        ("stop", 5, "a string or an array of strings, but got an integer"),
        ("guided_json", 5, "a string or an object, but got an integer"),
        ("response_format", "json", "an object, but got a string"),
        ("ignore_eos", "true", "a boolean, but got a string"),
    ],
)
def test_nothing_is_coerced_from_another_type(field, value, expected):
    error = refused(chat, **{field: value})

    assert error.param == field
    assert expected in error.message


@pytest.mark.parametrize(
    ("parse", "field"),
    [
        (chat, "min_tokens"),
        (chat, "temperature"),
        (chat, "top_p"),
        (chat, "top_k"),
        (chat, "top_logprobs"),
        (chat, "seed"),
        (chat, "prompt_logprobs"),
        (chat, "thinking_token_budget"),
        (completion, "logprobs"),
        (completion, "min_tokens"),
    ],
)
def test_zero_is_a_value_where_zero_is_valid(parse, field):
    request = parse(**{field: 0})

    assert getattr(request, field) == 0


@pytest.mark.parametrize(
    "field",
    [
        *["temperature", "top_p", "n", "max_tokens", "max_completion_tokens", "stop", "logit_bias", "logprobs"],
        *["top_logprobs", "stream", "stream_options", "tools", "tool_choice", "response_format", "seed", "user"],
        *["parallel_tool_calls", "functions", "function_call", "metadata", "tandem", "nvext", "structured_outputs"],
        *["guided_json", "guided_choice", "top_k", "chat_template_kwargs", "documents", "cache_salt", "modalities"],
    ],
)
def test_an_explicit_null_is_as_good_as_absence(field):
    request = chat(**{field: None})

    assert getattr(request, field) is None


@pytest.mark.parametrize("field", ["max_tokens", "logprobs", "echo", "suffix", "best_of", "n", "stop", "prompt_embeds"])
def test_null_is_absence_in_completions_too(field):
    assert getattr(completion(**{field: None}), field) is None


def test_unknown_fields_are_kept_and_the_body_comes_back_whole():
    sent = {"model": "m", "messages": [USER], "return_routed_experts": True, "x": {"y": [1, None]}, "temperature": 0.5}

    request = parse_chat(json.dumps(sent).encode())

    assert request.model_extra == {"return_routed_experts": True, "x": {"y": [1, None]}}
    assert request.body() == sent


# ---- stops, biases, log probabilities


@pytest.mark.parametrize("stop", ["END", ["a"] * 32, [], [13, 14], ["a", 13]])
def test_a_stop_is_a_string_or_up_to_32_strings_and_token_ids(stop):
    assert chat(stop=stop).stop == stop


@pytest.mark.parametrize(
    ("stop", "place", "words"),
    [
        ("", "stop", "at least 1 character"),
        (["a", ""], "stop[1]", "at least 1 character"),
        (["a"] * 33, "stop", "at most 32 stop sequences, but got 33"),
        (["a", None], "stop[1]", "got null"),
        ([True], "stop[0]", "got a boolean"),
        ([-1], "stop[0]", "got -1"),
    ],
)
def test_an_unusable_stop_is_refused_at_its_place(stop, place, words):
    error = refused(chat, stop=stop)

    assert error.param == place
    assert words in error.message


@pytest.mark.parametrize(
    ("bias", "place", "words"),
    [
        ({"5": 101}, "logit_bias.5", "-100 to 100, but got 101"),
        ({"5": "1"}, "logit_bias.5", "a number, but got a string"),
        ({"x": 1}, "logit_bias.x", "token id"),
        ({"-5": 1}, "logit_bias.-5", "token id"),
        ({"5": True}, "logit_bias.5", "a boolean"),
    ],
)
def test_a_bias_needs_token_ids_and_values_within_100(bias, place, words):
    error = refused(chat, logit_bias=bias)

    assert error.param == place
    assert words in error.message


def test_chat_logprobs_are_a_flag_and_top_logprobs_need_it():
    assert "a boolean" in refused(chat, logprobs=5).message
    assert refused(chat, top_logprobs=5).param == "top_logprobs"
    assert refused(chat, top_logprobs=21, logprobs=True).param == "top_logprobs"
    assert chat(top_logprobs=20, logprobs=True).top_logprobs == 20


def test_completion_logprobs_are_a_count_up_to_20():
    assert completion(logprobs=20).logprobs == 20
    assert "<= 20" in refused(completion, logprobs=21).message
    assert "an integer" in refused(completion, logprobs=True).message


# ---- lengths and streams


def test_max_completion_tokens_wins_over_max_tokens():
    assert chat(max_tokens=5, max_completion_tokens=10).wanted_tokens() == 10
    assert chat(max_completion_tokens=10).wanted_tokens() == 10
    assert chat(max_tokens=5).wanted_tokens() == 5
    assert chat().wanted_tokens() is None


def test_an_answer_of_no_tokens_needs_an_echo():
    assert completion(max_tokens=0, echo=True).max_tokens == 0
    assert refused(completion, max_tokens=0).param == "max_tokens"
    assert refused(chat, max_tokens=0).param == "max_tokens"
    assert refused(chat, max_completion_tokens=0).param == "max_completion_tokens"


def test_stream_options_are_for_streams():
    options = {"include_usage": True}

    assert refused(chat, stream_options=options).param == "stream_options"
    assert refused(completion, stream=False, stream_options=options).param == "stream_options"
    assert chat(stream=True, stream_options=options).includes_usage()
    assert chat(stream=True, stream_options={"continuous_usage_stats": True}).continuous_usage()
    assert not chat(stream=True, stream_options={"include_obfuscation": False}).includes_usage()
    error = refused(chat, stream=True, stream_options={"include_usage": 1})
    assert error.param == "stream_options.include_usage"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"thinking": True}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "9"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"include_reasoning": "no"}, "include_reasoning"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 21}, "best_of"),
    ],
)
def test_a_faulty_extension_is_refused_at_its_place(fields, place):
    assert refused(chat, **fields).param == place


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, None),
        ({"thinking": None, "reasoning_effort": "low"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}, "reasoning_effort": "none"}, True),
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "high"}, None),
    ],
)
def test_whether_to_think_is_said_in_two_ways(fields, thinks):
    assert chat(**fields).thinks() is thinks


# ---- our own extras


@pytest.mark.parametrize("name", ["tandem", "nvext"])
def test_extras_are_read_under_our_name_and_dynamos(name):
    request = completion(
        **{name: {"router": {"ttft_target": 0.5}, "annotations": ["a:b"], "agent_hints": {"osl": 5, "zzz": 1}}}
    )

    extras = request.extras()
    assert extras.router.ttft_target == 0.5
    assert extras.annotations == ["a:b"]
    assert extras.agent_hints.osl == 5


@pytest.mark.parametrize("worker_id", [2**63 + 5, str(2**63 + 5)])
def test_a_worker_is_named_by_its_number_or_by_its_digits(worker_id):
    assert completion(tandem={"backend_instance_id": worker_id}).extras().backend_instance_id == 2**63 + 5


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tandem": {"token_data": ["x"]}}, "tandem.token_data[0]"),
        ({"tandem": {"token_data": [-1]}}, "tandem.token_data[0]"),
        ({"tandem": {"extra_fields": "timing"}}, "tandem.extra_fields"),
        ({"tandem": {"backend_instance_id": "w1"}}, "tandem.backend_instance_id"),
        ({"tandem": {"prefill_worker_id": -1}}, "tandem.prefill_worker_id"),
        ({"tandem": {"decode_worker_id": 2**64}}, "tandem.decode_worker_id"),
        ({"tandem": {"dp_rank": 2**32}}, "tandem.dp_rank"),
        ({"tandem": {"zzz": 1}}, "tandem.zzz"),
        ({"tandem": []}, "tandem"),
        ({"nvext": {"annotations": "x"}}, "nvext.annotations"),
        ({"nvext": {"router": {"itl_target": -1}}}, "nvext.router.itl_target"),
        ({"tandem": {"agent_hints": {"priority": 2**31}}}, "tandem.agent_hints.priority"),
        ({"tandem": {}, "nvext": {}}, "nvext"),
    ],
)
def test_a_faulty_extra_is_refused_at_its_place(fields, place):
    assert refused(chat, **fields).param == place


def test_token_data_is_for_one_prompt():
    assert refused(completion, prompt=["a", "b"], tandem={"token_data": [5]}).param == "tandem.token_data"
    assert completion(prompt="a", tandem={"token_data": [5]}).extras().token_data == [5]


# ---- prompts


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([0], [[0]]),
    ],
)
def test_the_four_shapes_of_a_prompt_are_a_list_of_prompts(prompt, prompts):
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize(
    ("prompt", "place", "words"),
    [
        (None, "prompt", "got null"),
        (5, "prompt", "got an integer"),
        ("", "prompt", "empty string"),
        ([], "prompt", "empty array"),
        ([[]], "prompt[0]", "empty array"),
        (["a", ""], "prompt[1]", "empty string"),
        (["a", 1], "prompt[1]", "got an integer"),
        ([1, "a"], "prompt[1]", "got a string"),
        ([1, True], "prompt[1]", "got a boolean"),
        ([1, -1], "prompt[1]", "got -1"),
        ([1, 2**32], "prompt[1]", f"to {2**32 - 1}"),
        ([[1], [2, 1.5]], "prompt[1][1]", "got a decimal"),
        ([[1], "a"], "prompt[1]", "got a string"),
        ([None], "prompt[0]", "got null"),
        (["a"] * 1025, "prompt", "limit of 1024 choices"),
    ],
)
def test_an_unusable_prompt_is_refused_at_its_place(prompt, place, words):
    error = refused(completion, prompt=prompt)

    assert error.param == place
    assert words in error.message


def test_a_prompt_may_be_missing_only_beside_embeddings():
    with pytest.raises(InvalidRequest, match="Missing required parameter: 'prompt'"):
        parse_completion(b'{"model": "m"}')
    assert parse_completion(b'{"model": "m", "prompt_embeds": "AAAA"}').prompts() == [""]
    assert refused(completion, prompt_embeds="?").param == "prompt_embeds"
    assert refused(completion, prompt_embeds="").param == "prompt_embeds"


def test_choices_are_bounded_over_all_prompts():
    assert completion(prompt=["a"] * 8, n=128).candidates() == 128
    assert "9 prompts with 128 choices each" in refused(completion, prompt=["a"] * 9, n=128).message


def test_best_of_is_at_least_n_and_is_not_streamed():
    assert completion(n=2, best_of=4).candidates() == 4
    assert completion(n=2, best_of=2, stream=True).candidates() == 2
    assert "n (2)" in refused(completion, n=2, best_of=1).message
    assert refused(completion, n=2, best_of=4, stream=True).param == "best_of"
    assert refused(completion, best_of=21).param == "best_of"


# ---- chats of the same parameters


def chat_body(content: str, **more: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **more})


def test_chats_of_the_same_parameters_are_alike_and_keep_their_own_messages() -> None:
    one, other = (parse_chat(chat_body(content, temperature=0.5, odd=[1])) for content in ("one", "other"))

    assert one.alike is other.alike
    assert [chat.messages[0]["content"] for chat in (one, other)] == ["one", "other"]
    assert one.temperature == other.temperature == 0.5
    assert one.model_extra == {"odd": [1]}


def test_a_chat_that_is_like_an_earlier_one_is_what_it_would_be_alone() -> None:
    parse_chat(chat_body("earlier", top_p=0.25, user=None))

    chat = parse_chat(chat_body("later", top_p=0.25, user=None))

    assert chat.body() == orjson.loads(chat_body("later", top_p=0.25, user=None))
    assert chat.model_fields_set == {"model", "messages", "top_p", "user"}


@pytest.mark.parametrize("more", [{"temperature": 1}, {"temperature": None}, {"seed": 1}, {}, {"odd": 1}])
def test_chats_that_differ_in_anything_but_messages_are_not_alike(more: dict[str, Any]) -> None:
    assert parse_chat(chat_body("x", **more)).alike is not parse_chat(chat_body("x", temperature=0.5)).alike


def test_a_refusal_is_not_remembered_as_anything_else() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            parse_chat(chat_body("x", temperature=3))
        assert refused.value.param == "temperature"


def test_parameters_of_any_size_are_read() -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}", "description": "d" * 1000}} for n in range(100)]

    assert len(parse_chat(chat_body("x", tools=tools)).tools or ()) == 100


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 250, 900])
@pytest.mark.parametrize("place", ["message", "parameter"])
def test_a_chat_that_is_nested_too_deeply_is_refused_wherever_that_is(levels: int, place: str) -> None:
    deep = b"[" * levels + b"]" * levels
    message, parameter = (deep, b"1") if place == "message" else (b"1", deep)
    body = b'{"model": "m", "odd": %b, "messages": [{"role": "user", "content": "x", "odd": %b, "name": "n"}]}'

    with pytest.raises(InvalidRequest, match="nested"):
        parse_chat(body % (parameter, message))


@pytest.mark.parametrize("place", ["odd", "messages"])
def test_so_is_one_whose_parameters_are_too_large_to_be_remembered(place: str) -> None:
    deep = b"[" * 200 + b"]" * 200
    odd, inner = (deep, b"1") if place == "odd" else (b"1", deep)
    body = b'{"model": "m", "pad": "%b", "odd": %b, "messages": [{"role": "user", "content": "x", "odd": %b}]}'

    with pytest.raises(InvalidRequest, match="nested"):
        parse_chat(body % (b"x" * 70_000, odd, inner))
