"""The internal request: its wire form, which of its nulls are written, and what it knows of itself."""

from dataclasses import replace

import orjson
import pytest

from protocols.options import GuidedDecoding, OutputOptions, SamplingOptions, StopConditions
from protocols.outputs import DecoderCheckpoint, PromptTokensDetails, TraceLink
from protocols.preprocessed import (
    AgentContext,
    BootstrapInfo,
    MmRoutingInfo,
    MultimodalData,
    PrefillResult,
    PreprocessedEmbeddingRequest,
    PreprocessedRequest,
    RequestPhase,
    RouterConfigOverride,
    RouterParams,
    RoutingConstraints,
    RoutingHints,
)
from protocols.wire import WireError, from_wire, to_wire

REQUEST = PreprocessedRequest((1, 2, 3), model="test-model")
HANDOFF_ID = "00000000-0000-0000-0000-00000000002a"

WHOLE = PreprocessedRequest(
    token_ids=(1, 2, 3),
    model="m",
    prompt_embeds="AAAA",
    multi_modal_data={"image": (MultimodalData("Url", "http://x/y"), MultimodalData("UuidOnly", "u"))},
    multi_modal_uuids={"image": ("u", None)},
    mm_routing_info=MmRoutingInfo((1, 9, 9), (None, {"mm_hash": 5}), 3),
    stop_conditions=StopConditions(8, ("a",), (1,), (2,), (3,), 1, True, 0),
    sampling_options=SamplingOptions(
        n=1, best_of=2, presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.1, temperature=0.0,
        top_p=0.9, top_k=-1, min_p=0.1, use_beam_search=False, length_penalty=1.0, seed=-5,
        include_stop_str_in_output=True, logit_bias={7: -100.0},
        guided_decoding=GuidedDecoding(json={"type": "object"}, choice=("a",)),
    ),
    output_options=OutputOptions(0, 2, False, True, True),
    eos_token_ids=(2,),
    mdc_sum="abc",
    annotations=("a:b",),
    routing=RoutingHints(
        1, 2, 3, 0, 1, 99, "lora", "tenant", 0.5, 1, -3, frozenset({9, 4}),
        RoutingConstraints(frozenset({"z", "a"}), {"fast": 2.0}),
    ),
    router_config_override=RouterConfigOverride(router_temperature=0.5),
    prefill_result=PrefillResult({"x": [1]}, PromptTokensDetails(cached_tokens=2)),
    encoder_result={"uri": "nixl://e"},
    migration_link=TraceLink("a" * 32, "b" * 16),
    bootstrap_info=BootstrapInfo("h", 65535, 2**64 - 1, HANDOFF_ID),
    extra_args={"extra_body": {"top_a": 1}},
    kv_hint={"action": "transfer"},
    require_reasoning=True,
    router=RouterParams(0.2, 0.01),
    agent_context=AgentContext("s", "p", True, {"x-h": "v"}, "user"),
    image_cache_scope="scope",
    mm_processor_kwargs={"use_audio_in_video": True},
    media_io_kwargs={"video": {"fps": 1}},
    request_timestamp_ms=1.5,
    is_probe=True,
)  # fmt: skip


def through_json(request):
    return PreprocessedRequest.from_wire(orjson.loads(orjson.dumps(request.to_wire(), option=orjson.OPT_NON_STR_KEYS)))


# ---- the seeds' wire rules


def test_every_field_goes_over_the_wire_and_comes_back():
    assert through_json(WHOLE) == WHOLE


def test_only_two_nulls_are_written():
    assert REQUEST.to_wire() == {
        "token_ids": [1, 2, 3],
        "model": "test-model",
        "stop_conditions": {},
        "sampling_options": {},
        "output_options": {},
        "eos_token_ids": [],
        "mdc_sum": None,
        "annotations": [],
        "router_config_override": None,
    }


def test_nulls_of_optional_fields_are_read_as_absent():
    optional = [
        "prompt_embeds",
        "routing",
        "prefill_result",
        "bootstrap_info",
        "encoder_result",
        "extra_args",
        "router",
    ]

    read = PreprocessedRequest.from_wire({**REQUEST.to_wire(), **dict.fromkeys(optional)})

    assert read == REQUEST


def test_ids_are_one_json_array():
    body = orjson.dumps(PreprocessedRequest((11, 22, 33)).to_wire())

    assert b'"token_ids":[11,22,33]' in body
    assert PreprocessedRequest.from_wire(orjson.loads(body)).token_ids == (11, 22, 33)


def test_a_copy_shares_token_storage_and_never_changes_the_original():
    copy = replace(REQUEST, model="other")
    grown = replace(copy, token_ids=(*copy.token_ids, 4))

    assert copy.token_ids is REQUEST.token_ids
    assert (REQUEST.token_ids, grown.token_ids) == ((1, 2, 3), (1, 2, 3, 4))


def test_the_probe_marker_is_named_health_check_and_left_out_when_false():
    probe = replace(REQUEST, is_probe=True).to_wire()

    assert probe["_HEALTH_CHECK"] is True
    assert "_HEALTH_CHECK" not in REQUEST.to_wire()
    assert "is_probe" not in probe
    assert through_json(replace(REQUEST, is_probe=True)).is_probe
    assert not through_json(REQUEST).is_probe


def test_required_reasoning_is_left_out_when_false():
    guided = replace(REQUEST, require_reasoning=True)

    assert "require_reasoning" not in REQUEST.to_wire()
    assert guided.to_wire()["require_reasoning"] is True
    assert (through_json(REQUEST).require_reasoning, through_json(guided).require_reasoning) == (False, True)


def test_a_thinking_budget_of_zero_is_a_value():
    request = replace(REQUEST, stop_conditions=StopConditions(max_thinking_tokens=0), require_reasoning=False)

    wire = request.to_wire()

    assert "require_reasoning" not in wire
    assert wire["stop_conditions"] == {"max_thinking_tokens": 0}
    assert through_json(request).stop_conditions.max_thinking_tokens == 0


def test_the_smallest_canary_is_read():
    request = PreprocessedRequest.from_wire({"token_ids": [1], "_HEALTH_CHECK": True})

    assert request == PreprocessedRequest((1,), model="", is_probe=True)


def test_an_encoder_result_comes_back_as_it_was():
    payload = {
        "embedding_handle": {"shape": [1, 1024], "dtype": "fp16", "uri": "nixl://encoder-0/embedding-42"},
        "processed_token_ids": [128_000, 200_001, 200_002],
    }
    request = replace(REQUEST, encoder_result=payload)

    assert request.to_wire()["encoder_result"] == payload
    assert through_json(request).encoder_result == payload


def test_an_encoder_result_is_absent_when_there_is_none():
    assert "encoder_result" not in REQUEST.to_wire()


@pytest.mark.parametrize("value", [[1], "x", 5])
def test_an_encoder_result_is_an_object_or_nothing(value):
    with pytest.raises(WireError, match="encoder_result: must be a JSON object"):
        PreprocessedRequest.from_wire({"token_ids": [1], "encoder_result": value})


def test_the_cache_namespace_is_called_cache_salt_on_the_wire():
    wire = to_wire(RoutingHints(cache_namespace="tenant-a"))

    assert wire == {"cache_salt": "tenant-a"}
    assert from_wire(RoutingHints, wire).cache_namespace == "tenant-a"


def test_bootstrap_info_carries_only_a_stable_identity():
    info = BootstrapInfo("127.0.0.1", 1234, 7, HANDOFF_ID)

    wire = to_wire(info)

    assert wire == {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 1234,
        "bootstrap_room": 7,
        "handoff_id": HANDOFF_ID,
    }
    assert from_wire(BootstrapInfo, wire) == info
    assert "handoff_id" not in to_wire(replace(info, handoff_id=None))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("bootstrap_port", 65536),
        ("bootstrap_port", -1),
        ("bootstrap_room", 2**64),
        ("bootstrap_room", 1.0),
        ("bootstrap_room", "7"),
        ("handoff_id", "not-a-uuid"),
        ("bootstrap_host", None),
    ],
)
def test_bootstrap_info_out_of_range_is_refused(member, value):
    wire = {"bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": 7, member: value}

    with pytest.raises(WireError, match=f"bootstrap_info.{member}"):
        PreprocessedRequest.from_wire({"token_ids": [1], "bootstrap_info": wire})


def test_a_room_above_2_to_the_53_stays_exact():
    request = replace(REQUEST, bootstrap_info=BootstrapInfo("h", 1, 2**63 - 25))

    assert through_json(request).bootstrap_info.bootstrap_room == 2**63 - 25


def test_what_is_this_processs_own_never_travels():
    request = replace(
        REQUEST,
        jail_seed=DecoderCheckpoint("ST", (195,)),
        staged_kv_cleanup=True,
        phase=RequestPhase.DECODE,
    )

    assert request.to_wire() == REQUEST.to_wire()
    read = PreprocessedRequest.from_wire(
        {**REQUEST.to_wire(), "jail_seed": "X", "staged_kv_cleanup": True, "phase": "x"}
    )
    assert (read.jail_seed, read.staged_kv_cleanup, read.phase) == (None, False, RequestPhase.AGGREGATED)


def test_sets_are_written_in_order():
    wire = WHOLE.to_wire()["routing"]

    assert wire["allowed_worker_ids"] == [4, 9]
    assert wire["routing_constraints"] == {"required_taints": ["a", "z"], "preferred_taints": {"fast": 2.0}}


def test_a_raw_url_is_read_by_others_as_a_url():
    assert to_wire(MultimodalData("RawUrl", "x")) == {"Url": "x"}


@pytest.mark.parametrize("value", [{}, {"Url": 5}, {"Url": "a", "UuidOnly": "b"}, {"File": "a"}, "Url"])
def test_what_is_no_media_slot_is_refused(value):
    with pytest.raises(WireError, match=r"multi_modal_data\.image\[0\]: not a media slot"):
        PreprocessedRequest.from_wire({"token_ids": [1], "multi_modal_data": {"image": [value]}})


# ---- what a request knows of itself


def test_an_annotation_is_there_or_not():
    request = replace(REQUEST, annotations=("formatted_prompt", "query_instance_id:7", "query_instance_id:8", "empty:"))

    assert request.has_annotation("formatted_prompt")
    assert not request.has_annotation("query_instance_id")
    assert request.get_annotation_value("query_instance_id") == "7"
    assert request.get_annotation_value("empty") == ""
    assert request.get_annotation_value("formatted_prompt") is None


@pytest.mark.parametrize("info", [None, MmRoutingInfo(), MmRoutingInfo((), (None,), 9)])
def test_without_routing_ids_overlap_is_computed_on_the_prompt(info):
    request = replace(REQUEST, mm_routing_info=info)

    assert request.block_mm_routing_info() == ((1, 2, 3), None)
    assert request.expanded_prompt_token_count() == 3


def test_with_routing_ids_overlap_is_computed_on_them():
    request = replace(REQUEST, mm_routing_info=MmRoutingInfo((1, 9, 9, 9, 0, 0), (None, {"mm_hash": 5}), 4))

    assert request.block_mm_routing_info() == ((1, 9, 9, 9, 0, 0), (None, {"mm_hash": 5}))
    assert request.expanded_prompt_token_count() == 4


def test_without_an_expanded_length_the_prompts_counts():
    assert replace(REQUEST, mm_routing_info=MmRoutingInfo((1, 9, 9, 9))).expanded_prompt_token_count() == 3


def test_a_request_is_aggregated_until_a_leg_is_chosen():
    assert REQUEST.phase is RequestPhase.AGGREGATED


# ---- embeddings


def test_an_embedding_request_leaves_out_what_was_not_asked():
    request = PreprocessedEmbeddingRequest(((1, 2, 3),), "test-model")

    wire = to_wire(request)

    assert wire == {
        "token_ids": [[1, 2, 3]],
        "model": "test-model",
        "dimensions": None,
        "mdc_sum": None,
        "annotations": [],
    }
    assert from_wire(PreprocessedEmbeddingRequest, wire) == request


def test_an_embedding_request_keeps_what_was_asked():
    request = PreprocessedEmbeddingRequest(
        ((1,),), "m", encoding_format="float", truncate_prompt_tokens=-1, dimensions=8, annotations=("a",)
    )

    wire = to_wire(request)

    assert (wire["encoding_format"], wire["truncate_prompt_tokens"], wire["dimensions"]) == ("float", -1, 8)
    assert from_wire(PreprocessedEmbeddingRequest, wire) == request
    assert request.has_annotation("a")
    assert not request.has_annotation("b")
