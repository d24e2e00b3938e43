"""vLLM's hand-off: what prefill is asked, what decode gets of it, and who computes the prompt's logprobs."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from engines.base import Release
from engines.vllm import VllmAdapter
from engines.vllm_request import PROMPT_LOGPROBS
from protocols.errors import EngineAborted, EngineFailure, IncompleteReply, ProtocolViolation
from protocols.options import GuidedDecoding
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import PrefillResult
from protocols.worker import Engine, Leg, Role, WorkerTraits
from tests.engine_calls import IDS, answer_body, body_of, prefill_body, request, worker
from tests.golden_files import recording

OPEN = WorkerTraits(served_name="m", generate=True)
HANDED_OVER = {"do_remote_prefill": True, "remote_block_ids": [[7, 8]], "remote_engine_id": "e", "unheard_of": [None]}


def adapter(role: Role = Role.AGGREGATED, *, traits: WorkerTraits | None = None, **more) -> VllmAdapter:
    return VllmAdapter(worker(Engine.VLLM, role, traits=traits, **more), "gateway-name")


def ended(reason: FinishReason | None, params=None, usage: CompletionUsage | None = None) -> list[LLMEngineOutput]:
    ending = LLMEngineOutput(finish_reason=reason, disaggregated_params=params, completion_usage=usage)
    return [LLMEngineOutput(token_ids=[5]), ending]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP, FinishReason.EOS])
def test_whatever_prefill_ended_by_decode_is_called(reason):
    """Decode samples the first token again, and its read frees what prefill pinned."""
    usage = CompletionUsage(3, 1, 4, PromptTokensDetails(cached_tokens=2))

    given = adapter(Role.PREFILL).handoff(ended(reason, HANDED_OVER, usage))

    assert given == PrefillResult(HANDED_OVER, PromptTokensDetails(cached_tokens=2))


def test_without_parameters_nothing_was_pinned_and_cached_tokens_stay_unknown():
    assert adapter().handoff(ended(FinishReason.LENGTH)) is None
    assert adapter().handoff(ended(FinishReason.LENGTH, HANDED_OVER)).prompt_tokens_details is None


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        ([], IncompleteReply),
        (ended(None, HANDED_OVER), IncompleteReply),
        (ended(FinishReason.error("boom"), HANDED_OVER), EngineFailure),
        (ended(FinishReason.CANCELLED, HANDED_OVER), EngineAborted),
        (ended(FinishReason.LENGTH, "text"), ProtocolViolation),
        (ended(FinishReason.LENGTH, {}), ProtocolViolation),
    ],
)
def test_a_prefill_reply_that_is_no_hand_off_is_refused(outputs, kind):
    with pytest.raises(kind):
        adapter(Role.PREFILL).handoff(outputs)


@pytest.mark.parametrize("traits", [None, OPEN])
def test_prefill_is_one_unstreamed_token_of_the_same_request(traits):
    asked = request(
        stop={"min_tokens": 4, "stop": ("x",), "stop_token_ids": (9,)},
        sampling={"temperature": 0.5, "seed": 3, "guided_decoding": GuidedDecoding(regex="a")},
        output={"logprobs": 2},
        routing={"cache_namespace": "s"},
        extra_body={"bad_words": ["no"]},
    )
    chosen = adapter(Role.PREFILL, traits=traits)

    prefill, answer = prefill_body(chosen, asked), answer_body(chosen, asked)

    inner, whole = (prefill, answer) if traits is None else (prefill["sampling_params"], answer["sampling_params"])
    assert inner["max_tokens"] == 1
    assert prefill["stream"] is False
    assert (
        prefill["kv_transfer_params"]
        == recording("vllm", "pd_nixl_01_prefill_completions").request["kv_transfer_params"]
    )
    assert not {"min_tokens", "logprobs", "stream_options", "return_token_ids"} & {*prefill, *inner}
    same = {"temperature", "seed", "structured_outputs", "stop", "stop_token_ids", "bad_words"}
    assert {name: inner[name] for name in same} == {name: whole[name] for name in same}
    assert prefill["cache_salt"] == answer["cache_salt"]


@pytest.mark.parametrize("traits", [None, OPEN])
def test_decode_gets_the_original_request_and_prefills_parameters_verbatim(traits):
    chosen = adapter(Role.DECODE, traits=traits)

    body = answer_body(chosen, request(prefill_result=PrefillResult(HANDED_OVER)))

    assert body.pop("kv_transfer_params") == HANDED_OVER
    assert body == answer_body(chosen, request())


def test_decode_without_a_hand_off_says_nothing_of_one():
    assert "kv_transfer_params" not in answer_body(adapter(Role.DECODE), request(prefill_result=PrefillResult(None)))


# ---- prompt logprobs


def test_a_plain_request_for_prompt_logprobs_is_not_streamed():
    """They come in no stream, and completions refuse to stream with them."""
    body = answer_body(adapter(), request(output={"prompt_logprobs": 1}, extra_args={"stream_interval": 4}))

    assert (body["prompt_logprobs"], body["stream"]) == (1, False)
    assert not {"stream_options", "stream_interval"} & body.keys()


def test_of_a_pair_prefill_computes_them_and_decode_streams():
    asked = request(output={"prompt_logprobs": 1})
    told = [None, {"450": {"logprob": -1.0, "rank": 1, "decoded_token": None}}]
    given = PrefillResult({**HANDED_OVER, PROMPT_LOGPROBS: told})

    prefill, decode = prefill_body(adapter(), asked), answer_body(adapter(), replace(asked, prefill_result=given))

    assert prefill["prompt_logprobs"] == 1
    assert (decode["stream"], decode["kv_transfer_params"]) == (True, HANDED_OVER)
    assert "prompt_logprobs" not in decode


def test_what_prefill_computed_reaches_decode_through_the_hand_off():
    asked, chosen = request(output={"prompt_logprobs": 1}), adapter()
    reply = {
        "choices": [
            {
                "index": 0,
                "token_ids": [5],
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "prompt_logprobs": [None, {"450": {"logprob": -1.0, "rank": 1, "decoded_token": None}}],
            }
        ],
        "kv_transfer_params": HANDED_OVER,
    }
    outputs = list(chosen.parser(asked, Leg.PREFILL).feed(orjson.dumps(reply)))

    decode = replace(asked, prefill_result=chosen.handoff(outputs))
    first = chosen.parser(decode, Leg.DECODE).feed(
        b'data: {"choices":[{"index":0,"token_ids":[5],"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    )[0]

    assert first.engine_data == {"prompt_logprobs": reply["choices"][0]["prompt_logprobs"]}
    assert answer_body(chosen, decode)["kv_transfer_params"] == HANDED_OVER


# ---- aborts, and what the adapter says of itself


def test_aborts_name_the_ids_that_the_engine_made_of_ours_where_its_route_is_open():
    (call,) = adapter(traits=OPEN).abort_calls(IDS)

    assert call.path == "/inference/v1/abort_requests"
    assert body_of(call) == {"request_ids": [f"generate-tokens-{IDS.name}", f"cmpl-{IDS.name}-0"]}
    assert adapter().abort_calls(IDS) == ()


def said(kind: str, message: str = "no") -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": 400}})


DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
REFUSALS = {
    "by the handler": (said("BadRequestError"), True),
    "of another model": (said("NotFoundError"), True),
    "for it is busy": (said("Service Unavailable"), True),
    "for it failed": (said("InternalServerError"), True),
    "by validation": (said("Bad Request"), False),
    "by a dead engine": (said("InternalServerError", DEAD), False),
    "of a key": (b'{"error":"Unauthorized"}', False),
    "of a route": (b'{"detail":"Not Found"}', False),
    "by a proxy": (b"<html>Bad Gateway</html>", False),
}


@pytest.mark.parametrize("how", REFUSALS)
def test_what_the_handler_of_the_completions_route_refuses_frees_the_blocks(how):
    """Only it tells prefill."""
    body, frees = REFUSALS[how]

    assert adapter(Role.DECODE).refusal_frees(request(), body) is frees
    assert not adapter(Role.DECODE, traits=OPEN).refusal_frees(request(), body)


@pytest.mark.parametrize("role", list(Role))
def test_a_worker_in_any_role_may_answer_alone(role):
    assert adapter(role).plain(role)


def test_pinned_blocks_are_freed_by_decodes_headers_and_kept_thirty_seconds():
    assert (VllmAdapter.release_at, VllmAdapter.default_prefill_policy) == (Release.HEADERS, "local")
    assert (adapter().lease_s, adapter(lease_s=6.0).lease_s) == (30.0, 6.0)
    assert adapter().bootstrap(IDS, 0) is None


def test_a_prefill_reply_without_the_members_that_were_not_asked_for_hands_over():
    # vLLM before 0.10 leaves out token_ids where nobody asked for them.
    choice = b'{"index":0,"text":" pre","logprobs":null,"finish_reason":"length"}'
    params = b'{"do_remote_prefill":true,"remote_block_ids":[100],"remote_engine_id":"e"}'
    reply = adapter(Role.PREFILL).parser(request(), Leg.PREFILL)

    outputs = [*reply.feed(b'{"choices":[' + choice + b'],"kv_transfer_params":' + params + b"}"), *reply.end()]

    assert reply.error is None
    assert outputs[-1].disaggregated_params["remote_block_ids"] == [100]
