"""From a request and a card to the options of the internal request."""

import json

import pytest

from protocols.errors import ContextLengthExceeded, InvalidRequest
from protocols.model_card import ModelCard
from protocols.openai import parse_chat, parse_completion
from protocols.options import GuidedDecoding, RequestTemplate
from protocols.preprocessed import RouterParams, RoutingConstraints, RoutingHints
from text.options import (
    SMALLEST_TOP_P,
    TOP_K_OFF,
    budget,
    check_against,
    choice_sampling,
    eos_token_ids,
    output_options,
    router_params,
    routing_hints,
    sampling_options,
    stop_conditions,
    told_annotations,
    wanted_tokens,
)

CARD = ModelCard(name="m", context_length=100, vocab_size=1000, eos_token_ids=(2, 3))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**fields):
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}).encode())


def completion(**fields):
    return parse_completion(json.dumps({"model": "m", "prompt": "?", **fields}).encode())


def card(**fields):
    return ModelCard(name="m", **fields)


# ---- lengths


def test_a_completion_has_16_tokens_and_a_chat_the_rest_of_the_context():
    assert wanted_tokens(completion(), CARD) == 16
    assert wanted_tokens(completion(max_tokens=None), CARD) == 16
    assert wanted_tokens(chat(), CARD) is None
    assert budget(40, wanted_tokens(chat(), CARD), 100) == 60


def test_the_operators_length_stands_between_the_request_and_the_default():
    operated = card(template=RequestTemplate(max_completion_tokens=7))

    assert wanted_tokens(chat(), operated) == 7
    assert wanted_tokens(completion(), operated) == 7
    assert wanted_tokens(chat(max_tokens=9), operated) == 9


@pytest.mark.parametrize(
    ("prompt", "wanted", "context", "given"),
    [(10, 5, 100, 5), (90, 50, 100, 10), (99, None, 100, 1), (10, 0, 100, 0), (10, 5, None, 5), (10, None, None, None)],
)
def test_an_answer_ends_where_the_context_ends(prompt, wanted, context, given):
    assert budget(prompt, wanted, context) == given


@pytest.mark.parametrize("prompt", [100, 619])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(prompt):
    with pytest.raises(ContextLengthExceeded) as caught:
        budget(prompt, 5, 100, param="prompt")

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert "maximum context length is 100 tokens" in caught.value.message
    assert str(prompt) in caught.value.message


def test_an_operator_may_refuse_what_the_context_has_no_room_for():
    with pytest.raises(ContextLengthExceeded) as caught:
        budget(40, 61, 100, clamp=False)

    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 100 tokens, but 101 are asked for" in caught.value.message
    assert "40 of the prompt and 61 of the answer" in caught.value.message
    assert budget(40, 60, 100, clamp=False) == 60
    assert budget(40, None, 100, clamp=False) == 60


def test_a_chat_is_as_long_as_the_model_says_where_nobody_else_does():
    model = card(sampling_defaults={"max_new_tokens": 30})

    assert wanted_tokens(chat(), model) == 30
    assert wanted_tokens(chat(max_tokens=40), model) == 40
    assert wanted_tokens(completion(), model) == 16


def test_more_least_tokens_than_most_are_refused():
    with pytest.raises(InvalidRequest, match=r"<= max_tokens \(16\), but got 17") as caught:
        wanted_tokens(completion(min_tokens=17), CARD)
    assert caught.value.param == "min_tokens"


def test_the_least_length_shrinks_with_the_context():
    assert stop_conditions(chat(min_tokens=50), CARD, 10).min_tokens == 10
    assert stop_conditions(chat(min_tokens=0), CARD, 10).min_tokens == 0


# ---- stops


def test_eos_ids_end_hidden_and_the_clients_ids_are_its_own():
    stop = stop_conditions(chat(stop_token_ids=[7]), CARD, 5)

    assert stop.stop_token_ids_hidden == (2, 3)
    assert stop.stop_token_ids == (7,)
    assert stop.stop is stop.stop_token_ids_visible is None
    assert stop.max_tokens == 5


@pytest.mark.parametrize(
    ("stop", "strings", "ids"),
    [
        ("a", ("a",), (7,)),
        (["a", "b"], ("a", "b"), (7,)),
        ([8, 7], None, (8, 7)),
        (["a", 8], ("a",), (8, 7)),
        ([], None, (7,)),
    ],
)
def test_integers_in_stop_join_the_stop_token_ids(stop, strings, ids):
    conditions = stop_conditions(chat(stop=stop, stop_token_ids=[7]), CARD, 5)

    assert conditions.stop == strings
    assert conditions.stop_token_ids == ids


def test_ignore_eos_takes_the_eos_ids_and_nothing_else():
    request = chat(ignore_eos=True, stop=["a"], stop_token_ids=[7], min_tokens=3)

    stop = stop_conditions(request, CARD, 5)

    assert (stop.stop, stop.stop_token_ids, stop.min_tokens, stop.ignore_eos) == (("a",), (7,), 3, True)
    assert stop.stop_token_ids_hidden is None
    assert eos_token_ids(request, CARD) == ()
    assert eos_token_ids(chat(), CARD) == (2, 3)


def test_a_thinking_budget_of_0_is_a_budget():
    assert stop_conditions(chat(thinking_token_budget=0), CARD, 5).max_thinking_tokens == 0
    assert stop_conditions(chat(tandem={"max_thinking_tokens": 0}), CARD, 5).max_thinking_tokens == 0
    assert stop_conditions(chat(), CARD, 5).max_thinking_tokens is None


# ---- sampling


def test_a_request_wins_over_the_operator_the_operator_over_the_model_the_model_over_openai():
    defaults = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "min_p": 0.1}
    model = card(sampling_defaults=defaults)
    operated = card(sampling_defaults=defaults, template=RequestTemplate(temperature=0.3))

    assert sampling_options(chat(), card()).temperature == 1.0
    assert sampling_options(chat(), model).temperature == 0.6
    assert sampling_options(chat(), operated).temperature == 0.3
    assert sampling_options(chat(temperature=0), operated).temperature == 0.0
    assert sampling_options(chat(temperature=None), model).temperature == 0.6
    options = sampling_options(chat(top_k=5), model)
    assert (options.top_p, options.top_k, options.repetition_penalty, options.min_p) == (0.95, 5, 1.05, 0.1)


def test_what_nobody_said_stays_unsaid_but_for_openais_defaults():
    options = sampling_options(chat(), card())

    assert (options.temperature, options.top_p, options.n) == (1.0, 1.0, 1)
    assert options.top_k is options.min_p is options.seed is options.logit_bias is options.guided_decoding is None


def test_a_models_file_with_no_numbers_counts_for_nothing():
    options = sampling_options(chat(), card(sampling_defaults={"temperature": "hot", "top_p": None, "top_k": True}))

    assert (options.temperature, options.top_p, options.top_k) == (1.0, 1.0, None)


def test_top_p_0_becomes_the_smallest_that_engines_take():
    assert sampling_options(chat(top_p=0), card()).top_p == SMALLEST_TOP_P


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_is_switched_off_in_one_way(top_k):
    assert sampling_options(chat(top_k=top_k), card(sampling_defaults={"top_k": 20})).top_k == TOP_K_OFF


def test_one_internal_request_is_one_choice_whatever_n():
    assert sampling_options(chat(n=5), card()).n == 1


def test_biases_are_keyed_by_token_id():
    assert sampling_options(chat(logit_bias={"5": -100, "17": 0.5}), card()).logit_bias == {5: -100.0, 17: 0.5}


def test_greedy_extras_win_over_a_temperature():
    assert sampling_options(chat(temperature=1.5, nvext={"greed_sampling": True}), card()).temperature == 0.0


def test_every_choice_has_its_own_seed_and_the_first_the_requests():
    options = sampling_options(chat(seed=2**63 - 1), card())

    assert choice_sampling(options, 0).seed == 2**63 - 1
    assert choice_sampling(options, 1).seed == -(2**63)
    assert choice_sampling(sampling_options(chat(), card()), 3).seed is None


# ---- constraints


@pytest.mark.parametrize(
    ("fields", "guided"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, GuidedDecoding(json={"type": "object"})),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            GuidedDecoding(json=SCHEMA),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            GuidedDecoding(json={"type": "object"}),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {}}},
            GuidedDecoding(structural_tag={"type": "structural_tag", "format": {}}),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, GuidedDecoding(json=SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, GuidedDecoding(json=SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, GuidedDecoding(json={"type": "object"})),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"choice": ["a", "b"]}}, GuidedDecoding(choice=("a", "b"))),
        (
            {
                "structured_outputs": {
                    "json": {},
                    "disable_any_whitespace": True,
                    "disable_additional_properties": False,
                }
            },
            GuidedDecoding(json={}, disable_any_whitespace=True),
        ),
        (
            {"structured_outputs": {"regex": "a+", "whitespace_pattern": " "}},
            GuidedDecoding(regex="a+", whitespace_pattern=" "),
        ),
        ({"guided_json": json.dumps(SCHEMA)}, GuidedDecoding(json=SCHEMA)),
        ({"guided_regex": "a+", "guided_decoding_backend": "xgrammar"}, GuidedDecoding(regex="a+", backend="xgrammar")),
        ({"guided_choice": ["a"]}, GuidedDecoding(choice=("a",))),
        ({"guided_grammar": "root ::= 'a'"}, GuidedDecoding(grammar="root ::= 'a'")),
        ({"structural_tag": {"a": 1}}, GuidedDecoding(structural_tag={"a": 1})),
        ({"regex": "a+"}, GuidedDecoding(regex="a+")),
        ({"ebnf": "root ::= 'a'", "response_format": {"type": "text"}}, GuidedDecoding(grammar="root ::= 'a'")),
        ({"json_schema": json.dumps(SCHEMA)}, GuidedDecoding(json=SCHEMA)),
    ],
)
def test_a_constraint_is_understood_in_every_tongue(fields, guided):
    assert sampling_options(chat(**fields), CARD).guided_decoding == guided
    assert sampling_options(completion(**fields), CARD).guided_decoding == guided


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "'guided_json', 'guided_regex'"),
        ({"response_format": {"type": "json_object"}, "ebnf": "a"}, "ebnf", "'response_format', 'ebnf'"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "structured_outputs.regex"),
        ({"guided_json": "{"}, "guided_json", "not a JSON schema"),
        ({"guided_json": "[]"}, "guided_json", "an object"),
        ({"guided_json": '{"a":' * 300 + "1" + "}" * 300}, "guided_json", "nested too deeply"),
        ({"guided_json": "[" * 9000}, "guided_json", "not a JSON schema"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice[1]", "a string"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "an array"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1"),
        ({"structured_outputs": {"zzz": 1}}, "structured_outputs.zzz", "Unknown parameter"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": 1}},
            "structured_outputs.disable_any_whitespace",
            "boolean",
        ),
        (
            {"structured_outputs": {"json": {}, "disable_fallback": True}},
            "structured_outputs.disable_fallback",
            "Unknown",
        ),
    ],
)
def test_two_constraints_or_an_unusable_one_are_refused(fields, place, words):
    with pytest.raises(InvalidRequest) as caught:
        sampling_options(chat(**fields), CARD)

    assert caught.value.param == place
    assert words in caught.value.message


# ---- reports


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5)],
)
def test_a_chats_flag_and_count_are_one_number(fields, logprobs):
    assert output_options(chat(**fields)).logprobs == logprobs


def test_an_echo_with_logprobs_needs_the_prompts_too():
    assert output_options(completion(echo=True, logprobs=2)).prompt_logprobs == 2
    assert output_options(completion(echo=True, logprobs=0)).prompt_logprobs == 0
    assert output_options(completion(echo=True, logprobs=1, prompt_logprobs=3)).prompt_logprobs == 3
    assert output_options(completion(echo=True)).prompt_logprobs is None
    assert output_options(completion(logprobs=2)).prompt_logprobs is None


def test_a_thinking_budget_is_said_in_three_ways():
    said = {"thinking": {"type": "enabled", "budget_tokens": 3}}

    assert stop_conditions(chat(**said), CARD, 9).max_thinking_tokens == 3
    assert stop_conditions(chat(**said, thinking_token_budget=0), CARD, 9).max_thinking_tokens == 0
    assert stop_conditions(chat(**said, tandem={"max_thinking_tokens": 1}), CARD, 9).max_thinking_tokens == 1


def test_candidates_are_ranked_by_logprobs_even_if_none_are_told():
    assert output_options(completion(best_of=3)).logprobs == 0
    assert output_options(chat(best_of=3)).logprobs == 0
    assert output_options(completion(n=3)).logprobs is None


def test_special_tokens_and_ids_are_passed_on():
    options = output_options(chat(skip_special_tokens=False, return_tokens_as_token_ids=True))

    assert (options.skip_special_tokens, options.return_tokens_as_token_ids) == (False, True)


# ---- what only the model can tell


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        (completion(prompt=[5, 1000]), "prompt[1]"),
        (completion(prompt=[[5], [6, 1000]]), "prompt[1][1]"),
        (completion(logit_bias={"1000": 1}), "logit_bias.1000"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_with_its_limit(request_, place):
    with pytest.raises(InvalidRequest, match="from 0 to 999, but got 1000") as caught:
        check_against(request_, CARD)
    assert caught.value.param == place


def test_ids_pass_within_the_vocabulary_and_where_it_is_not_known():
    check_against(completion(prompt=[0, 999], logit_bias={"999": 1}), CARD)
    check_against(completion(prompt=[5_000_000], logit_bias={"5000000": 1}), card())
    check_against(completion(prompt="text"), CARD)


@pytest.mark.parametrize(
    ("request_", "place"), [(completion(suffix="x"), "suffix"), (chat(modalities=["text", "audio"]), "modalities")]
)
def test_what_would_change_the_answer_and_cannot_be_done_is_refused(request_, place):
    with pytest.raises(InvalidRequest) as caught:
        check_against(request_, CARD)
    assert caught.value.param == place


@pytest.mark.parametrize("grammar", [{"grammar": {"definition": "a", "syntax": "lark"}}, {"definition": "a"}])
def test_a_custom_tools_grammar_is_refused_as_nothing_binds_a_call_to_it(grammar):
    tool = {"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", **grammar}}}

    with pytest.raises(InvalidRequest) as caught:
        check_against(chat(tools=[tool]), CARD)

    assert caught.value.param == "tools[0].custom.format"


def test_an_empty_suffix_and_text_alone_are_no_wishes():
    check_against(completion(suffix=""), CARD)
    check_against(chat(modalities=["text"]), CARD)


# ---- where and when


def test_hints_come_from_extras_before_plain_fields():
    request = chat(
        cache_salt="plain",
        priority=1,
        tandem={
            "cache_salt": "extra",
            "agent_hints": {"osl": 80, "priority": -2, "strict_priority": 3},
            "routing_constraints": {"required_taints": ["gpu"], "preferred_taints": {"near": 0.5}},
        },
    )

    assert routing_hints(request) == RoutingHints(
        cache_namespace="extra",
        expected_output_tokens=80,
        priority=-2,
        priority_jump=0.0,
        strict_priority=3,
        routing_constraints=RoutingConstraints(frozenset({"gpu"}), {"near": 0.5}),
    )


def test_a_body_may_name_the_workers():
    named = {
        "backend_instance_id": 1,
        "prefill_worker_id": 2,
        "decode_worker_id": 3,
        "dp_rank": 0,
        "prefill_dp_rank": 4,
    }

    assert routing_hints(chat(nvext=named)) == RoutingHints(**named)


def test_workers_hear_a_clients_annotations_but_no_routers_word():
    said = ["kept", "x-bypass-remote-prefill", "x-bypass-remote-prefill:1"]

    assert told_annotations(chat(tandem={"annotations": said})) == ("kept",)
    assert told_annotations(chat()) == ()


def test_plain_fields_hint_alone_and_silence_hints_nothing():
    assert routing_hints(chat(cache_salt="s", priority=0)) == RoutingHints(cache_namespace="s", priority=0)
    assert routing_hints(chat()) is None
    assert routing_hints(chat(tandem={"annotations": ["a"]})) is None


def test_a_latency_hint_is_a_jump_in_the_queue():
    assert routing_hints(chat(nvext={"agent_hints": {"latency_sensitivity": 2.5}})).priority_jump == 2.5


def test_latency_targets_reach_the_router():
    assert router_params(chat(tandem={"router": {"ttft_target": 0.2}})) == RouterParams(ttft_target=0.2)
    assert router_params(chat(tandem={})) is None
    assert router_params(chat()) is None
