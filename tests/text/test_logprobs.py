"""Log probabilities in the shapes that clients know."""

from protocols.outputs import PromptLogprobEntry
from tests.text.answers import form
from text.alignment import TokenLogprob
from text.answer_form import PromptEcho
from text.logprobs import chat_logprobs, prompt_logprobs_json, prompt_tokens_of


def test_an_echoed_prompt_without_figures_is_told_without_figures():
    prompt = PromptEcho(token_ids=(1, 5), tokens=("<s>", "Why"), text="Why")

    assert [(t.token, t.offset, t.logprob) for t in prompt_tokens_of(prompt, None)] == [
        ("<s>", 0, None),
        ("Why", 0, None),
    ]


def test_prompt_logprobs_have_vllms_shape():
    position = {5: PromptLogprobEntry(float("-inf"), 3, "x")}

    assert prompt_logprobs_json([None, position]) == [
        None,
        {"5": {"logprob": -9999.0, "rank": 3, "decoded_token": "x"}},
    ]
    assert prompt_logprobs_json(None) is None


def test_a_name_by_id_keeps_the_tokens_bytes():
    entry = chat_logprobs([TokenLogprob("é", 5, -1.0)], form(logprobs=0, tokens_as_ids=True))["content"][0]

    assert (entry["token"], entry["bytes"]) == ("token_id:5", [0xC3, 0xA9])
