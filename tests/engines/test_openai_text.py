"""OpenAI-compatible servers: the client's request forwarded, the recorded answers of real servers re-shaped."""

import orjson
import pytest

from engines.base import AttemptIds, ProbeReply
from engines.openai_reply import OpenAIStream, OpenAIUnary, Shape
from engines.openai_text import OpenAIAdapter, forward_call, rejection
from protocols.errors import (
    ContextLengthExceeded,
    EngineFailure,
    InternalError,
    InvalidRequest,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import Engine, Leg, Role, Worker

WORKER = Worker(7, "http://w", Engine.OPENAI, served_name="smollm2-135m")
CHUNK = Shape("chatcmpl-ours", 1_800_000_000, "demo", "chat.completion.chunk")
WHOLE = Shape("chatcmpl-ours", 1_800_000_000, "demo", "chat.completion")


def stream(*, include_usage=True, choices=1):
    return OpenAIStream(CHUNK, include_usage=include_usage, choices=choices)


def read(parser, pieces):
    chunks = [chunk for piece in pieces for chunk in parser.feed(piece)]
    parser.end()
    return chunks


def text_of(chunks):
    return "".join(
        (choice.get("delta", choice).get("content") or choice.get("text") or "")
        for chunk in chunks
        for choice in chunk["choices"]
    )


def event(**chunk):
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def choice(index=0, finish=None, **more):
    return {"index": index, "delta": {"content": "x"}, "finish_reason": finish, **more}


# ---- requests


def test_the_request_passes_as_it_is_under_the_workers_name_for_the_model(golden):
    body = golden("llama/42_chat_tools_required.req").json()

    call = forward_call({"model": "demo", **body}, WORKER, "/v1/chat/completions")

    assert (call.path, orjson.loads(call.body)) == ("/v1/chat/completions", {**body, "model": "smollm2-135m"})


@pytest.mark.parametrize(
    "field",
    ["kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_room", "room",
     "data_parallel_rank", "routed_dp_rank", "decode_tp_size", "rid", "request_id", "session_id", "session_params",
     "routing_key", "lora_path", "lora_request", "custom_logit_processor", "custom_params", "vllm_xargs", "kv_hints",
     "input_ids", "input_embeds", "image_data", "stream_interval", "priority", "labels", "tandem", "nvext",
     "chat_template"],
)  # fmt: skip
def test_rule_7_what_steers_a_worker_does_not_pass(field):
    call = forward_call({"model": "demo", "messages": [], field: "x"}, WORKER, "/v1/chat/completions")

    assert orjson.loads(call.body) == {"model": "smollm2-135m", "messages": []}


@pytest.mark.parametrize(
    "field",
    ["prompt", "messages", "documents", "modalities", "temperature", "n", "best_of", "logit_bias", "tools", "user",
     "response_format", "prompt_cache_key", "chat_template_kwargs", "mirostat", "cache_prompt", "top_k",
     "return_token_ids", "return_routed_experts", "truncate_prompt_tokens", "stream_reasoning", "mm_processor_kwargs"],
)  # fmt: skip
def test_what_is_asked_passes_whether_we_know_it_or_not(field):
    call = forward_call({"model": "demo", field: [1, {"a": None}]}, WORKER, "/v1/completions")

    assert orjson.loads(call.body)[field] == [1, {"a": None}]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_stream_is_always_asked_for_its_usage(options):
    body = {"model": "demo", "stream": True, "stream_options": options}

    asked = orjson.loads(forward_call(body, WORKER, "/v1/completions").body)

    assert asked["stream_options"] == {"include_usage": True}


def test_other_stream_options_pass():
    body = {"model": "demo", "stream": True, "stream_options": {"continuous_usage_stats": True}}

    asked = orjson.loads(forward_call(body, WORKER, "/v1/completions").body)

    assert asked["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


@pytest.mark.parametrize("stream_", [False, None])
def test_without_a_stream_there_are_no_stream_options(stream_):
    body = {"model": "demo", "stream": stream_, "stream_options": {"include_usage": True}}

    assert "stream_options" not in orjson.loads(forward_call(body, WORKER, "/v1/completions").body)


# ---- streams of real servers

STREAMS = [
    ("llama/41_chat_stream_usage", "L'Étoile, la Mar", "length", 8),
    ("llama/31_v1_completions_ids_stream_usage", "L'Étoile, la Mar", "length", 8),
    ("vllm_chat/61_chat_stream_usage", "L'Étoile, la Marseillaise,", "length", 12),
    ("vllm_chat/63_chat_stream_return_token_ids_logprobs", None, "length", None),
    ("vllm_chat/67_chat_tools_required_stream", "", "tool_calls", 51),
    ("trtllm/v12_chat_stream", "The sky", "length", 2),
]


@pytest.mark.parametrize(("name", "text", "finish", "tokens"), STREAMS)
def test_a_recorded_stream_keeps_its_text_and_gets_our_ids(golden, name, text, finish, tokens):
    parser = stream()

    chunks = read(parser, [golden(f"{name}.resp").body])

    assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
        ("chatcmpl-ours", 1_800_000_000, "demo", "chat.completion.chunk")
    }
    assert text in (None, text_of(chunks))
    finishes = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert finishes == [finish]
    assert parser.usage is None or parser.usage["completion_tokens"] == tokens
    assert (parser.error, parser.done, parser.finish_seen) == (None, True, True)


@pytest.mark.parametrize("name", [name for name, *_ in STREAMS])
def test_any_cut_of_the_bytes_gives_the_same_chunks(golden, name):
    """Three thousand reads of one byte, and some 450 readings of 3 kB."""
    body = golden(f"{name}.resp").body
    whole = read(stream(), [body])

    assert read(stream(), [body[i : i + 1] for i in range(len(body))]) == whole
    assert all(read(stream(), [body[:cut], body[cut:]]) == whole for cut in range(1, len(body), 7))


def test_unknown_members_survive(golden):
    chunks = read(stream(), [golden("llama/41_chat_stream_usage.resp").body])

    assert chunks[-1]["timings"]["cache_n"] == 36
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 36}
    assert chunks[0]["system_fingerprint"] == "b0-unknown"


def test_a_usage_chunk_that_the_client_did_not_ask_for_is_dropped(golden):
    asked, silent = stream(), stream(include_usage=False)
    body = golden("llama/41_chat_stream_usage.resp").body

    full, short = read(asked, [body]), read(silent, [body])

    assert short == [chunk for chunk in full if chunk["choices"]]
    assert silent.usage == asked.usage


def test_usage_in_the_finishing_chunk_is_taken_out_of_it(golden):
    parser = stream(include_usage=False)

    chunks = read(parser, [golden("llama/31_v1_completions_ids_stream_usage.resp").body])

    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert not any("usage" in chunk for chunk in chunks)
    assert parser.usage["total_tokens"] == 45


def test_a_finish_reason_that_was_left_out_is_null(golden):
    chunks = read(stream(), [golden("trtllm/v12_chat_stream.resp").body])

    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [None, None, "length"]


def test_a_chunk_without_choices_or_usage_passes():
    chunks = read(
        stream(include_usage=False), [event(choices=[], prompt_filter_results=[]), event(choices=[choice(0, "stop")])]
    )

    assert chunks[0]["prompt_filter_results"] == []


# ---- ends


def test_a_stream_that_is_cut_is_incomplete(golden):
    parser = stream()

    chunks = read(parser, [golden("trtllm/v12_chat_stream_cut.resp").body])

    assert text_of(chunks) == "The"
    assert str(parser.error) == "the worker's reply ended before its answer did"
    assert not parser.done


def test_done_without_a_finish_is_incomplete():
    parser = stream()

    read(parser, [event(choices=[choice()]), b"data: [DONE]\n\n"])

    assert str(parser.error) == "the worker ended its reply without a finish reason"


def test_every_choice_must_finish():
    parser = stream(choices=2)

    read(parser, [event(choices=[choice(0, "stop")])])

    assert parser.error is not None


def test_a_choice_that_began_must_finish():
    parser = stream()

    read(parser, [event(choices=[choice(0, "stop")]), event(choices=[choice(1)])])

    assert parser.error is not None


def test_a_cut_after_the_finish_is_a_success():
    parser = stream()

    read(parser, [event(choices=[choice(0, "stop")]), b'data: {"cho'])

    assert (parser.error, parser.finish_seen) == (None, True)


@pytest.mark.parametrize("junk", [b"data: {]\n\n", b"data: [DONE]\n\n", event(error={"message": "late"}), b"\xff\xfe"])
def test_what_follows_done_is_ignored(junk):
    parser = stream()

    chunks = read(parser, [event(choices=[choice(0, "stop")]) + b"data: [DONE] \n\n" + junk])

    assert (len(chunks), parser.error) == (1, None)


@pytest.mark.parametrize(
    ("tail", "kind", "words"),
    [
        (event(error={"message": "boom", "type": "server_error", "code": None}), "EngineFailure", "boom"),
        (event(error={"message": "boom", "code": 500}), "EngineFailure", "boom"),
        (event(error="boom"), "EngineFailure", "boom"),
        (event(object="error", message="no", type="BadRequestError", code=400), "InvalidRequest", "no"),
        (event(error={"message": "no", "type": "invalid_request_error", "param": "n"}), "InvalidRequest", "no"),
        (b'event: error\ndata: {"message":"boom"}\n\n', "EngineFailure", "boom"),
        (event(choices=[choice(0, "abort")]), "EngineAborted", "aborted"),
        (event(choices=[choice(0, "error")]), "EngineFailure", "failed"),
        (event(choices=None), "ProtocolViolation", "no choices"),
        (event(choices=[5]), "ProtocolViolation", "no choices"),
        (event(choices=[choice([])]), "ProtocolViolation", "index"),
        (b"data: 5\n\n", "ProtocolViolation", "not an object"),
        (b"data: {\n\n", "ProtocolViolation", "not JSON"),
    ],
)
def test_a_failure_comes_after_the_chunks_before_it(tail, kind, words):
    parser = stream()

    chunks = read(parser, [event(choices=[choice()]) + tail])

    assert (text_of(chunks), type(parser.error).__name__) == ("x", kind)
    assert words in parser.error.message


def test_an_error_document_instead_of_a_stream_is_read():
    parser = stream()

    read(parser, [b' {"error":{"message":"no', b' memory","code":500}}'])

    assert (type(parser.error), parser.error.message) == (EngineFailure, "no memory")


def test_a_whole_answer_instead_of_a_stream_is_a_violation(golden):
    parser = stream()

    read(parser, [golden("llama/40_chat.resp").body])

    assert "one document" in str(parser.error)


# ---- whole answers


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama/40_chat", "L'Étoile, la Marseillaise, la femme au"),
        ("llama/30_v1_completions_ids", "L'Étoile, la Mar"),
        ("vllm_chat/60_chat", None),
        ("vllm_chat/65_chat_tools_required", ""),
        ("trtllm/v12_chat_unary", "The sky"),
    ],
)
def test_a_recorded_answer_keeps_all_but_our_ids(golden, name, text):
    message = golden(f"{name}.resp")
    parser = OpenAIUnary(WHOLE)
    for start in range(0, len(message.body), 100):
        parser.feed(message.body[start : start + 100])

    answer = parser.end()

    ours = {"id": "chatcmpl-ours", "created": 1_800_000_000, "model": "demo", "object": "chat.completion"}
    assert answer == {**message.json(), **ours}
    assert parser.usage == answer["usage"]
    said = answer["choices"][0].get("message", {}).get("content") or answer["choices"][0].get("text") or ""
    assert text in (None, said)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "IncompleteReply"),
        (b'{"choices":[{"mess', "IncompleteReply"),
        (b'{"choices":[]}', "IncompleteReply"),
        (b'{"choices":}', "ProtocolViolation"),
        (b"{}", "ProtocolViolation"),
        (b'{"error":{"message":"boom"}}', "EngineFailure"),
        (b'{"choices":[{"index":0,"finish_reason":"abort"}]}', "EngineAborted"),
    ],
)
def test_what_is_no_answer_is_an_error(body, kind):
    parser = OpenAIUnary(WHOLE)
    parser.feed(body)

    assert parser.end() is None
    assert type(parser.error).__name__ == kind


def test_an_answer_beyond_its_limit_is_refused():
    parser = OpenAIUnary(WHOLE)
    for _ in range(65):
        parser.feed(bytes(1024 * 1024))

    assert parser.end() is None
    assert "exceeds" in parser.error.message


# ---- refusals


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama/50_err_bad_json", InvalidRequest),
        ("llama/51_err_too_long", ContextLengthExceeded),
        ("llama/53_err_out_of_vocab", InvalidRequest),
        ("llama/54_err_404", WorkerMisconfigured),
        ("vllm_chat/96_err_chat_no_messages", InvalidRequest),
        ("trtllm/error_too_long_num_tokens", ContextLengthExceeded),
        ("trtllm/error_wrong_type", InvalidRequest),
        ("trtllm/error_plain_text_500", EngineFailure),
    ],
)
def test_a_recorded_refusal_says_whose_fault_it_is(golden, name, kind):
    reply = golden(f"{name}.resp")

    assert type(rejection(reply.status, reply.body)) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, WorkerMisconfigured),
        (403, WorkerMisconfigured),
        (429, WorkerBusy),
        (503, WorkerBusy),
        (502, EngineFailure),
    ],
)
def test_a_status_says_it_too(status, kind):
    error = rejection(status, b"<html>no</html>")

    assert type(error) is kind
    assert error.worker_status == status


# ---- the adapter


def test_name_and_context_length_come_from_the_model_list(golden):
    reply = golden("llama/01_models.resp")

    traits = OpenAIAdapter(WORKER, "demo").traits({"/v1/models": ProbeReply(reply.status, reply.body)})

    assert (traits.served_name, traits.context_length) == ("smollm2-135m", 2048)


def test_health_is_asked_of_the_route_that_all_have():
    adapter = OpenAIAdapter(WORKER, "demo")

    assert [adapter.health_probe().path, *(probe.path for probe in adapter.info_probes())] == ["/v1/models"] * 2
    assert (adapter.plain(Role.AGGREGATED), adapter.unsupported(PreprocessedRequest((1,)))) == (True, None)
    assert isinstance(adapter.rejection(400, b"no"), InvalidRequest)


@pytest.mark.parametrize(
    "call",
    [
        lambda adapter: adapter.prefill_call(PreprocessedRequest((1,)), AttemptIds("a", 1)),
        lambda adapter: adapter.generate_call(PreprocessedRequest((1,)), AttemptIds("a", 1)),
        lambda adapter: adapter.parser(PreprocessedRequest((1,)), Leg.DECODE),
        lambda adapter: adapter.handoff([]),
    ],
)
def test_such_a_server_takes_no_tokens(call):
    with pytest.raises(InternalError, match="takes no token ids"):
        call(OpenAIAdapter(WORKER, "demo"))
