"""What vLLM is sent: paths, headers and bodies of every kind of call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.vllm import VllmAdapter
from protocols.options import GuidedDecoding
from protocols.preprocessed import MultimodalData
from protocols.worker import Engine, Role, WorkerTraits
from tests.engine_calls import IDS, PROMPT, answer_body, body_of, prefill_body, request, worker
from tests.golden_files import recording

OPEN = WorkerTraits(served_name="m", generate=True)
HANDED_OVER = {"do_remote_prefill": True, "remote_block_ids": [[7, 8]], "remote_engine_id": "e", "unheard_of": [None]}


def adapter(role: Role = Role.AGGREGATED, *, traits: WorkerTraits | None = None, **more) -> VllmAdapter:
    return VllmAdapter(worker(Engine.VLLM, role, traits=traits, **more), "gateway-name")


def sampling(asked, traits: WorkerTraits = OPEN):
    return answer_body(adapter(traits=traits), asked)["sampling_params"]


# ---- routes


@pytest.mark.parametrize(
    ("generate", "path"), [(True, "/inference/v1/generate"), (False, "/v1/completions"), (None, "/v1/completions")]
)
def test_generate_is_used_only_where_it_is_known_to_be_open(generate, path):
    chosen = adapter(traits=WorkerTraits(generate=generate))

    assert chosen.generate_call(request(), IDS).path == path
    assert chosen.prefill_call(request(), IDS).path == path


def test_a_plain_completions_call_says_everything_an_engine_would_otherwise_choose():
    call = adapter().generate_call(request(), IDS)

    assert (call.method, call.content_type) == ("POST", "application/json")
    assert call.headers == (("X-Request-Id", IDS.name),)
    assert body_of(call) == {
        "model": "m",
        "prompt": list(PROMPT),
        "max_tokens": 64,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_plain_generate_call_needs_no_text():
    assert answer_body(adapter(traits=OPEN), request()) == {
        "model": "m",
        "token_ids": list(PROMPT),
        "sampling_params": {
            "max_tokens": 64,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "detokenize": False,
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("name", "traits"),
    [("22_completion_ids_stream", None), ("42_generate_stream", OPEN), ("y5_stop_string_stream", None)],
)
def test_the_members_we_send_are_those_that_a_real_server_was_recorded_with(name, traits):
    """Ours may say more, never the same thing by another name."""
    recorded = recording("vllm", name).request

    sent = answer_body(adapter(traits=traits), request(stop={"stop": (".",)}, output={"logprobs": 2}))

    assert set(recorded) - {"request_id"} <= set(sent)


def test_prompt_embeddings_win_over_ids_and_go_to_completions():
    call = adapter(traits=OPEN).generate_call(request(prompt_embeds="AAAA"), IDS)

    body = body_of(call)
    assert (call.path, body["prompt_embeds"], "prompt" in body) == ("/v1/completions", "AAAA", False)


# ---- what the request says


def test_every_sampling_option_is_mapped():
    asked = request(
        sampling={
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "seed": 2**62,
            "include_stop_str_in_output": True,
            "logit_bias": {5: -100.0},
        },
        stop={"min_tokens": 4, "ignore_eos": True, "max_thinking_tokens": 0},
        output={"logprobs": 3, "skip_special_tokens": False},
    )

    assert sampling(asked) == {
        "max_tokens": 64,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 2**62,
        "min_tokens": 4,
        "logprobs": 3,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "thinking_token_budget": 0,
        "logit_bias": {"5": -100.0},
        "ignore_eos": True,
        "detokenize": False,
    }


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_top_k_off_is_said_in_the_form_that_all_releases_take(top_k):
    assert sampling(request(sampling={"top_k": top_k}))["top_k"] == -1


def test_logprobs_on_completions_are_asked_by_id():
    body = answer_body(adapter(), request(output={"logprobs": 0}))

    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (0, True)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"context_length": 100}, 97),
        ({"traits": WorkerTraits(context_length=50)}, 47),
        ({}, 16),
        ({"context_length": 2}, 1),
    ],
)
def test_without_a_limit_of_its_own_an_answer_may_fill_the_context(told, expected):
    assert answer_body(adapter(**told), request(stop={"max_tokens": None}))["max_tokens"] == expected


def test_the_minimum_is_not_above_the_maximum():
    assert sampling(request(stop={"min_tokens": 9, "max_tokens": 4}))["min_tokens"] == 4


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ({"stop_token_ids": (5,), "stop_token_ids_visible": (6, 5), "stop_token_ids_hidden": (2, 7)}, [5, 6, 2, 7]),
        ({"stop_token_ids": (5,), "stop_token_ids_hidden": (2, 7), "ignore_eos": True}, [5, 7]),
        ({"stop_token_ids": (2,), "stop_token_ids_hidden": (2,), "ignore_eos": True}, [2]),
        ({}, None),
    ],
)
def test_every_stop_id_is_sent_but_an_eos_that_is_ignored(stop, expected):
    assert sampling(request(stop=stop)).get("stop_token_ids") == expected


@pytest.mark.parametrize(
    ("stop", "traits", "sent", "detokenize"),
    [
        (("a", "b"), OPEN, ["a", "b"], None),
        (("a", "b", "c", "d", "e"), OPEN, None, False),
        (("a",), replace(OPEN, stop_strings=False), None, False),
        (None, OPEN, None, False),
    ],
)
def test_stop_strings_are_sent_where_the_worker_takes_them(stop, traits, sent, detokenize):
    told = sampling(request(stop={"stop": stop}), traits)

    assert (told.get("stop"), told.get("detokenize")) == (sent, detokenize)


@pytest.mark.parametrize(
    ("guided", "expected"),
    [
        (GuidedDecoding(json={"type": "object"}), {"json": {"type": "object"}}),
        (GuidedDecoding(regex="a+", whitespace_pattern=" ?"), {"regex": "a+", "whitespace_pattern": " ?"}),
        (GuidedDecoding(choice=("a", "b"), backend="xgrammar"), {"choice": ["a", "b"]}),
        (GuidedDecoding(grammar="root ::= x"), {"grammar": "root ::= x"}),
        (GuidedDecoding(structural_tag={"a": 1}), {"structural_tag": '{"a":1}'}),
        (GuidedDecoding(structural_tag="{}"), {"structural_tag": "{}"}),
        (GuidedDecoding(), None),
    ],
)
def test_a_constraint_becomes_structured_outputs(guided, expected):
    assert sampling(request(sampling={"guided_decoding": guided})).get("structured_outputs") == expected


def test_events_are_gathered_only_when_the_request_says_so():
    asked = request(extra_args={"stream_interval": 16})

    assert sampling(asked)["stream_interval"] == 16
    assert answer_body(adapter(), asked)["stream_interval"] == 16
    assert "stream_interval" not in prefill_body(adapter(), asked)


def test_what_the_template_was_rendered_with_goes_to_generate():
    asked = request(extra_args={"reasoning_parser_kwargs": {"chat_template_kwargs": {"enable_thinking": True}}})

    assert (
        answer_body(adapter(traits=OPEN), asked)["reasoning_parser_kwargs"]
        == asked.extra_args["reasoning_parser_kwargs"]
    )
    assert "reasoning_parser_kwargs" not in answer_body(adapter(), asked)


# ---- routing


def test_ranks_are_the_legs_own():
    asked = request(routing={"dp_rank": 0, "prefill_dp_rank": 3})

    assert ("X-data-parallel-rank", "0") in adapter().generate_call(asked, IDS).headers
    assert ("X-data-parallel-rank", "3") in adapter().prefill_call(asked, IDS).headers


def test_an_adapter_is_chosen_by_its_name_on_both_legs():
    asked = request(routing={"lora_name": "poet"})

    assert answer_body(adapter(), asked)["model"] == "poet"
    assert prefill_body(adapter(traits=OPEN), asked)["model"] == "poet"


@pytest.mark.parametrize("traits", [None, OPEN])
def test_salt_and_priority_are_sent_only_when_set_and_a_higher_priority_is_a_lower_number(traits):
    chosen, asked = adapter(traits=traits), request(routing={"cache_namespace": "tenant", "priority": 5})

    assert [
        (body["cache_salt"], body["priority"]) for body in (answer_body(chosen, asked), prefill_body(chosen, asked))
    ] == [
        ("tenant", -5),
        ("tenant", -5),
    ]
    assert not {"cache_salt", "priority"} & answer_body(chosen, request(routing={})).keys()


# ---- the client's own fields


def test_a_clients_fields_pass_by_the_table_to_both_legs_alike():
    asked = request(
        extra_body={
            "bad_words": ["no"],
            "allowed_token_ids": None,
            "kv_transfer_params": {"remote_host": "evil"},
            "truncate_prompt_tokens": 1,
            "request_id": "mine",
            "max_tokens": 9,
            "detokenize": True,
            "no_such_field": 1,
        }
    )

    for chosen in (adapter(), adapter(traits=OPEN)):
        bodies = answer_body(chosen, asked), prefill_body(chosen, asked)
        plain = answer_body(chosen, request()), prefill_body(chosen, request())
        inner = [body.get("sampling_params", body) for body in bodies]
        assert [told.pop("bad_words") for told in inner] == [["no"], ["no"]]
        # vLLM ignores what it does not know.
        assert [body.pop("no_such_field") for body in bodies] == [1, 1]
        assert bodies == plain


def test_what_the_gateway_says_wins_over_a_clients_field():
    asked = request(stop={"max_thinking_tokens": 5}, extra_body={"thinking_token_budget": 9, "logprob_token_ids": [1]})

    told = sampling(asked)

    assert (told["thinking_token_budget"], told["logprob_token_ids"]) == (5, [1])


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (request(), None),
        (request(prompt_embeds="AAAA"), None),
        (request(multi_modal_data={"image": (MultimodalData("Url", "http://x"),)}), "multi_modal_data"),
        (request(sampling={"use_beam_search": True}), "use_beam_search"),
        (request(sampling={"n": 2, "best_of": 2}), None),
        (request(sampling={"n": 2, "best_of": 3}), "best_of"),
        (request(extra_body={"stop_regex": "a+"}), "stop_regex"),
        (request(extra_body={"json_schema": None, "beam_width": 0, "bad_words": ["x"]}), None),
    ],
)
def test_what_cannot_be_honoured_is_named(asked, named):
    assert adapter().unsupported(asked) == named
