"""Requests without what no worker can honour: as if it had never been said."""

from __future__ import annotations

import pytest

from protocols.openai import ChatCompletionRequest, CompletionRequest
from tests.text.test_options import card
from text.guided import guided_decoding
from text.options import output_options, sampling_options, stop_conditions
from text.unsupported import without


def chat(**fields):
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "Hi"}], **fields)


def completion(**fields):
    return CompletionRequest(model="m", prompt="Hi", **fields)


def understood(request):
    """All that the options make of a request."""
    return sampling_options(request, card()), stop_conditions(request, card(), 9), output_options(request)


@pytest.mark.parametrize(
    ("parameter", "said", "left"),
    [
        ("logit_bias", {"logit_bias": {"5": 1}, "seed": 3}, {"seed": 3}),
        ("use_beam_search", {"use_beam_search": True}, {}),
        ("prompt_logprobs", {"prompt_logprobs": 2}, {}),
        ("thinking_token_budget", {"thinking_token_budget": 5}, {}),
        ("thinking_token_budget", {"tandem": {"max_thinking_tokens": 5}}, {}),
        ("thinking_token_budget", {"nvext": {"max_thinking_tokens": 5}}, {}),
        ("guided_whitespace_pattern", {"guided_regex": "a", "guided_whitespace_pattern": "b"}, {"guided_regex": "a"}),
        (
            "guided_whitespace_pattern",
            {"structured_outputs": {"regex": "a", "whitespace_pattern": "b"}},
            {"structured_outputs": {"regex": "a"}},
        ),
    ],
)
@pytest.mark.parametrize("make", [chat, completion])
def test_a_dropped_parameter_leaves_no_trace(make, parameter, said, left):
    bare = without(make(**said), parameter)

    assert understood(bare) == understood(make(**left))
    assert guided_decoding(bare) == guided_decoding(make(**left))


def test_without_logprobs_a_chat_has_no_alternatives_either():
    bare = without(chat(logprobs=True, top_logprobs=3), "logprobs")

    assert (bare.logprobs, bare.top_logprobs) == (None, None)


def test_without_logprobs_nothing_is_ranked():
    bare = without(completion(best_of=3), "logprobs")

    assert bare.candidates() == 1
    assert output_options(bare).logprobs is None


def test_an_echo_without_the_prompts_logprobs_has_none_at_all():
    bare = without(completion(echo=True, logprobs=1), "prompt_logprobs")

    assert understood(bare) == understood(completion(echo=True))


def test_an_engines_own_field_is_gone_and_the_request_stays_as_it_was():
    request = chat(bad_words=["x"], watermark=1)

    assert without(request, "bad_words").model_extra == {"watermark": 1}
    assert request.model_extra == {"bad_words": ["x"], "watermark": 1}


@pytest.mark.parametrize("parameter", ["cache_salt", "prompt_embeds", "multi_modal_data", "lora_name"])
def test_what_keeps_tenants_apart_or_is_the_prompt_is_never_dropped(parameter):
    assert without(completion(cache_salt="s"), parameter) is None
