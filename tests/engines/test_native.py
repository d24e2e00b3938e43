"""The native protocol: our own values to and from people's own engines, in JSON and in MessagePack."""

from dataclasses import replace

import msgpack
import orjson
import pytest

from engines.base import AttemptIds, ProbeReply, Release
from engines.messagepack import ObjectScanner
from engines.native import NativeAdapter
from protocols.errors import (
    Blame,
    EngineAborted,
    EngineFailure,
    IncompleteReply,
    InvalidRequest,
    ProtocolViolation,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.options import SamplingOptions, StopConditions
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import BootstrapInfo, PrefillResult, PreprocessedRequest, RoutingHints
from protocols.worker import Engine, Leg, Role, Worker, WorkerTraits

IDS = AttemptIds("0123456789abcdef0123456789abcdef", 2**40 + 5)
REQUEST = PreprocessedRequest(
    token_ids=(1, 450, 7483),
    model="demo",
    stop_conditions=StopConditions(max_tokens=9, min_tokens=2),
    sampling_options=SamplingOptions(logit_bias={5: -1.0}),
    routing=RoutingHints(cache_namespace="tenant-a"),
)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}


def adapter(*, role=Role.AGGREGATED, bootstrap_port=None, dp_size=1, **traits):
    worker = Worker(
        7,
        "http://w.example:9",
        Engine.NATIVE,
        role,
        bootstrap_port=bootstrap_port,
        dp_size=dp_size,
        traits=WorkerTraits(served_name="m", **traits),
    )
    return NativeAdapter(worker, "demo")


def events(*values):
    return b"".join(b"data: " + (v if isinstance(v, bytes) else orjson.dumps(v)) + b"\n\n" for v in values)


def maps(*values):
    return b"".join(msgpack.packb(value) for value in values)


def json_parser(leg=Leg.DECODE):
    return lambda: adapter().parser(REQUEST, leg)


def msgpack_parser(leg=Leg.DECODE):
    return lambda: adapter(msgpack=True).parser(REQUEST, leg)


# ---- requests


def test_a_request_goes_over_whole_as_json():
    call = adapter().generate_call(REQUEST, IDS)

    assert (call.path, call.content_type) == ("/v1/native/generate", "application/json")
    assert PreprocessedRequest.from_wire(orjson.loads(call.body)) == replace(REQUEST, model="m")
    assert ("X-Request-Id", IDS.name) in call.headers


def test_a_request_goes_over_whole_as_msgpack_where_the_worker_says_so():
    call = adapter(msgpack=True).generate_call(REQUEST, IDS)

    read = msgpack.unpackb(call.body, strict_map_key=False)
    assert call.content_type == "application/msgpack"
    assert PreprocessedRequest.from_wire(read) == replace(REQUEST, model="m")


def test_packed_ids_are_sent_on_msgpack_to_a_worker_that_reads_them():
    call = adapter(msgpack=True, packed_ids=True).generate_call(REQUEST, IDS)

    assert msgpack.unpackb(call.body, strict_map_key=False)["token_ids"] == b"\1\0\0\0\xc2\1\0\0\x3b\x1d\0\0"


@pytest.mark.parametrize("traits", [{"msgpack": True}, {"packed_ids": True}, {}])
def test_ids_stay_a_sequence_without_either(traits):
    call = adapter(**traits).generate_call(REQUEST, IDS)
    read = orjson.loads if call.content_type == "application/json" else msgpack.unpackb

    assert b"token_ids" in call.body
    assert (read(call.body) if read is orjson.loads else read(call.body, strict_map_key=False))["token_ids"] == [
        1,
        450,
        7483,
    ]


def test_prefill_is_asked_for_one_token_and_the_original_is_as_before():
    call = adapter().prefill_call(REQUEST, IDS)

    asked = PreprocessedRequest.from_wire(orjson.loads(call.body))
    assert asked.stop_conditions == StopConditions(max_tokens=1)
    assert REQUEST.stop_conditions == StopConditions(max_tokens=9, min_tokens=2)


def test_decode_gets_what_prefill_gave():
    given = PrefillResult({"any": ["thing"]}, PromptTokensDetails(cached_tokens=2))

    call = adapter().generate_call(replace(REQUEST, prefill_result=given), IDS)

    assert PreprocessedRequest.from_wire(orjson.loads(call.body)).prefill_result == given


# ---- answers in JSON


def test_outputs_and_envelopes_give_ids_then_one_finish_with_usage(read_cut):
    body = events(
        {"token_ids": [1], "log_probs": [-0.5]},
        {"data": {"token_ids": [2], "log_probs": [-1.5]}, "id": "9"},
        {"event": "annotation", "comment": ["of no interest"]},
        {"token_ids": [3], "log_probs": [-2.5], "finish_reason": "stop", "stop_reason": "END"},
        {"token_ids": [], "completion_usage": USAGE},
        b"[DONE]",
    )

    read = read_cut(json_parser(), body)

    assert (read.token_ids, read.log_probs) == ([1, 2, 3], [-0.5, -1.5, -2.5])
    assert (read.ending.finish_reason, read.ending.stop_reason) == (FinishReason.STOP, "END")
    assert read.ending.completion_usage == CompletionUsage(3, 2, 5, PromptTokensDetails(cached_tokens=2))
    assert read.error is None


def test_text_of_an_engine_that_detokenizes_passes(read_all):
    read = read_all(json_parser()(), events({"token_ids": [], "text": "!", "finish_reason": "eos"}, b"[DONE]"))

    assert (read.text, read.ending.finish_reason, read.ending.text) == ("!", FinishReason.EOS, None)


def test_what_stands_with_the_finish_alone_stays_with_it(read_all):
    read = read_all(json_parser()(), events({"token_ids": [], "finish_reason": "eos", "engine_data": {"a": 1}}))

    assert read.ending.engine_data == {"a": 1}


@pytest.mark.parametrize("tail", [(), (b"[DONE]",)])
def test_an_end_without_a_finish_is_an_error(read_cut, tail):
    read = read_cut(json_parser(), events({"token_ids": [1]}, *tail))

    assert (read.token_ids, read.ending) == ([1], None)
    assert read.error.startswith("IncompleteReply")


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"token_ids": [], "finish_reason": {"error": "boom"}}, "EngineFailure: boom"),
        ({"token_ids": [2], "finish_reason": "error"}, "EngineFailure: the engine reported an error"),
        ({"token_ids": [], "finish_reason": "cancelled"}, "EngineAborted: the engine cancelled the answer"),
        ({"data": {"token_ids": [], "finish_reason": {"error": "boom"}}}, "EngineFailure: boom"),
        ({"event": "error", "comment": ["boom"]}, "EngineFailure: boom"),
        ({"error": "boom"}, "EngineFailure: boom"),
        ({"error": {"message": "boom"}}, "EngineFailure: boom"),
        ({"message": "boom", "code": 500}, "EngineFailure: boom"),
        ({"message": "boom", "code": 503}, "WorkerBusy: boom"),
        ({"message": "too many", "code": 400}, "InvalidRequest: too many"),
        ({"message": "too long", "code": "context_length_exceeded"}, "ContextLengthExceeded: too long"),
    ],
)
def test_an_error_in_any_form_comes_after_the_tokens_before_it(read_cut, event, error):
    body = events({"token_ids": [1]}) + b"event: error\n" + events(event, b"[DONE]")

    read = read_cut(json_parser(), body)

    assert (read.token_ids, read.ending, read.error) == ([1], None, error)


def test_an_error_after_the_finish_is_none(read_all):
    read = read_all(json_parser()(), events({"token_ids": [1], "finish_reason": "eos"}, {"message": "late"}))

    assert (read.ending.finish_reason, read.error) == (FinishReason.EOS, None)


@pytest.mark.parametrize("event", [[], 5, {"token_ids": "x"}, {"token_ids": [1], "finish_reason": "bored"}])
def test_what_is_no_output_is_a_violation(read_all, event):
    assert read_all(json_parser()(), events(event)).error.startswith("ProtocolViolation")


# ---- answers in MessagePack


def test_msgpack_answers_are_read_as_json_ones_are(read_cut):
    body = maps(
        {"data": {"token_ids": [1]}},
        {"data": {"token_ids": [2, 3], "finish_reason": "length", "completion_usage": USAGE}},
        {"done": True},
    )

    read = read_cut(msgpack_parser(), body)

    assert (read.token_ids, read.ending.finish_reason, read.error) == ([1, 2, 3], FinishReason.LENGTH, None)
    assert read.ending.completion_usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        (b"", "IncompleteReply"),
        (maps({"done": True}), "IncompleteReply"),
        (maps({"error": {"message": "boom", "code": 500}}), "EngineFailure: boom"),
        (b"\xc1", "ProtocolViolation"),
        (b"\x01", "ProtocolViolation"),
        (maps({"data": {"token_ids": [-1]}}), "ProtocolViolation"),
        (b"\x81\xa4data\xa1\xff", "ProtocolViolation"),
        (maps({"data": {"token_ids": [1]}})[:-1], "IncompleteReply"),
    ],
)
def test_a_bad_msgpack_answer_is_an_error_after_its_tokens(read_cut, tail, error):
    read = read_cut(msgpack_parser(), maps({"data": {"token_ids": [1]}}) + tail)

    assert (read.token_ids, read.ending) == ([1], None)
    assert read.error.startswith(error)


def test_a_claim_of_two_billion_elements_reserves_nothing():
    parser = msgpack_parser()()

    parser.feed(b"\x81\xa4data\x81\xa9token_ids\xdd\x80\x00\x00\x00\x01\x02")

    assert parser.error is None
    assert len(parser._buffer) < 64
    assert (list(parser.end()), type(parser.error)) == ([], IncompleteReply)


def test_a_message_without_end_is_refused_at_its_limit():
    parser = msgpack_parser()()

    parser.feed(b"\xdb\x80\x00\x00\x00" + bytes(16 * 1024 * 1024))

    assert type(parser.error) is ProtocolViolation


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, 127, -32, -1, 128, 255, 256, 2**16, 2**32, 2**63, -33, -200, -(2**15), -(2**40), 0.5, "",
        "é" * 40, "x" * 300, "x" * 70_000, b"", b"x" * 300, b"x" * 70_000, [], [1] * 16, [1] * 70_000, [[[]]], {},
        {"a": {"b": [None]}}, {str(i): i for i in range(20)}, msgpack.ExtType(1, b"x"), msgpack.ExtType(1, b"xx"),
        msgpack.ExtType(1, b"x" * 4), msgpack.ExtType(1, b"x" * 8), msgpack.ExtType(1, b"x" * 16),
        msgpack.ExtType(1, b"x" * 300), msgpack.ExtType(1, b"x" * 70_000),
    ],
)  # fmt: skip
def test_the_scanner_finds_the_end_of_every_kind_of_object(value):
    packed = msgpack.packb(value)
    scanner, ends = ObjectScanner(), ObjectScanner().feed(packed + b"\xc1rest")

    before = scanner.feed(packed[:-1])

    assert ends == len(packed)
    assert (before, scanner.feed(packed)) == (None, len(packed))


# ---- the hand-off


def first_of(parser, *values):
    outputs = [*parser.feed(events(*values, b"[DONE]")), *parser.end()]
    return outputs, parser.error


@pytest.mark.parametrize("finish", ["length", None])
def test_a_prefill_with_length_or_no_finish_hands_over(finish):
    first = {"token_ids": [5], "disaggregated_params": {"ctx_request_id": 42}, "completion_usage": USAGE}

    outputs, error = first_of(json_parser(Leg.PREFILL)(), {**first, "finish_reason": finish})

    assert error is None
    assert adapter().handoff(outputs) == PrefillResult({"ctx_request_id": 42}, PromptTokensDetails(cached_tokens=2))


@pytest.mark.parametrize("finish", ["eos", "stop", "content_filter"])
def test_a_prefill_that_ends_is_the_answer(finish):
    outputs, _ = first_of(json_parser(Leg.PREFILL)(), {"token_ids": [2], "finish_reason": finish})

    answer = adapter().handoff(outputs)

    assert (answer.token_ids, answer.finish_reason.kind.value) == ([2], finish)


@pytest.mark.parametrize(
    ("finish", "kind"), [("cancelled", EngineAborted), ({"error": "prefill failed"}, EngineFailure)]
)
def test_a_failed_prefill_is_a_failure(finish, kind):
    outputs, error = first_of(json_parser(Leg.PREFILL)(), {"token_ids": [2], "finish_reason": finish})

    assert (outputs, type(error)) == ([], kind)


def test_a_data_less_first_output_is_refused():
    _, error = first_of(json_parser(Leg.PREFILL)(), {"id": "1", "event": "hello"})

    assert type(error) is EngineFailure
    assert "no data" in error.message


def test_a_later_error_of_prefill_is_not_lost():
    first = {"token_ids": [5], "disaggregated_params": {}}

    _, error = first_of(json_parser(Leg.PREFILL)(), first, {"error": "prefill stream failed"})

    assert error.message == "prefill stream failed"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (None, "no disaggregated_params"),
        ({"ctx_request_id": None}, "no usable ctx_request_id"),
        ({"request_type": "context_only"}, "no usable ctx_request_id"),
    ],
)
def test_a_handoff_that_decode_could_not_use_is_refused(params, words):
    with pytest.raises(EngineFailure, match=words):
        adapter().handoff([LLMEngineOutput(token_ids=[5], disaggregated_params=params)])


@pytest.mark.parametrize("params", [{}, {"kv": "x"}, "opaque"])
def test_other_parameters_are_opaque(params):
    assert adapter().handoff([LLMEngineOutput(disaggregated_params=params)]).disaggregated_params == params


def test_with_a_bootstrap_prefill_need_give_nothing():
    assert isinstance(adapter(bootstrap_port=8998).handoff([LLMEngineOutput(token_ids=[5])]), PrefillResult)


def test_without_a_bootstrap_port_prefill_comes_first():
    assert adapter().bootstrap(IDS, 0) is None


@pytest.mark.parametrize(
    ("number", "ranks", "rank", "room"),
    [
        (2**40 + 5, 8, None, 2**40 + 5),
        (2**40 + 5, 8, 3, 2**40 + 3),
        (2**63 - 1, 8, 0, 2**63 - 8),
        (2**63 - 2, 3, 2, 2**63 - 3),
        (2**40 + 5, 1, 0, 2**40 + 5),
    ],
)
def test_the_bootstrap_room_names_the_prefill_rank(number, ranks, rank, room):
    info = adapter(bootstrap_port=8998, dp_size=ranks).bootstrap(AttemptIds("0" * 32, number), rank)

    assert info == BootstrapInfo("w.example", 8998, room)


# ---- the rest


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (404, WorkerMisconfigured),
        (401, WorkerMisconfigured),
        (429, WorkerBusy),
        (503, WorkerBusy),
        (500, EngineFailure),
    ],
)
def test_a_refusal_is_read_in_either_codec(status, kind):
    envelope = {"error": {"message": "no", "param": "seed"}}

    errors = [
        adapter().rejection(status, orjson.dumps(envelope)),
        adapter(msgpack=True).rejection(status, msgpack.packb(envelope)),
        adapter(msgpack=True).rejection(status, orjson.dumps(envelope)),
    ]

    assert [type(error) for error in errors] == [kind] * 3
    assert all("no" in error.message for error in errors)


@pytest.mark.parametrize(
    ("role", "words", "blame"),
    [
        (Role.DECODE, "KV transfer failed: the blocks are gone", Blame.PAIR),
        (Role.DECODE, "Bootstrap timed out", Blame.PAIR),
        (Role.PREFILL, "the handshake failed: decode is gone", Blame.PAIR),
        (Role.DECODE, "CUDA error", Blame.WORKER),
        (Role.AGGREGATED, "transfer to the host failed", Blame.WORKER),
    ],
)
def test_what_a_leg_says_of_the_transfer_may_be_its_peers_fault(role, words, blame):
    envelope = {"error": {"message": words, "code": 500}}
    native, binary = adapter(role=role), adapter(role=role, msgpack=True)
    parsers = [native.parser(REQUEST, Leg.DECODE) for _ in range(3)]
    said = [envelope, {"token_ids": [], "finish_reason": {"error": words}}, {"event": "error", "comment": [words]}]
    for parser, event in zip(parsers, said, strict=True):
        parser.feed(events(event))
    packed = binary.parser(REQUEST, Leg.DECODE)
    packed.feed(maps(envelope))

    errors = [parser.error for parser in (*parsers, packed)]
    errors += [native.rejection(500, orjson.dumps(envelope)), binary.rejection(500, msgpack.packb(envelope))]

    assert [(type(error), error.blame) for error in errors] == [(EngineFailure, blame)] * 6


def test_a_refusal_that_is_no_object_has_no_reason():
    assert adapter(msgpack=True).rejection(500, b"\xc1").message


def test_the_worker_tells_what_it_is():
    info = {
        "model": "m", "version": "3", "context_length": 4096, "packed_ids": True, "msgpack": True, "page_size": 16,
        "kv_dtype": "fp8", "incarnation": "a", "role": "prefill", "dp_size": 2, "bootstrap_port": 8998,
    }  # fmt: skip

    traits = adapter().traits({"/v1/native/info": ProbeReply(200, orjson.dumps(info))})

    assert traits == WorkerTraits(
        served_name="m", version="3", context_length=4096, packed_ids=True, msgpack=True, page_size=16, kv_dtype="fp8",
        incarnation="a", role=Role.PREFILL, dp_size=2, bootstrap_port=8998,
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"{}", b"[]", b"x", b'{"role":[],"dp_size":"2","msgpack":1}'])
def test_a_worker_that_tells_nothing_is_spoken_to_in_json(body):
    assert adapter().traits({"/v1/native/info": ProbeReply(200, body)}) == WorkerTraits()


def test_what_else_the_contract_asks():
    native = adapter()

    assert [native.plain(role) for role in Role] == [True, False, False]
    assert (native.unsupported(REQUEST), native.abort_calls(IDS)) == (None, ())
    assert (native.release_at, native.lease_s, native.default_prefill_policy) == (Release.FIRST_TOKEN, None, "strict")
    assert native.health_probe().path == "/health"
