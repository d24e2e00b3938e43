"""Engine outputs and decoded outputs: constructors, errors, wire form, and the pieces they carry."""

import orjson
import pytest

from protocols.outputs import (
    Annotated,
    BackendOutput,
    CompletionTokensDetails,
    CompletionUsage,
    ContentPart,
    DecoderCheckpoint,
    EmbeddingsEngineOutput,
    FinishKind,
    FinishReason,
    LLMEngineOutput,
    OutputType,
    PromptLogprobEntry,
    PromptTokensDetails,
    TopLogprob,
    TraceLink,
    prompt_logprobs_of,
)
from protocols.wire import WireError, from_wire, to_wire

WHOLE = LLMEngineOutput(
    token_ids=[5, 6],
    tokens=["a", None],
    text="a",
    output_type=OutputType.IMAGE,
    content_parts=[ContentPart("text", "t"), ContentPart("image_url", "http://x/y.png")],
    cum_log_probs=-1.5,
    log_probs=[-0.5, -1.0],
    top_logprobs=[[TopLogprob(1, 5, "a", -0.5, [97])], []],
    finish_reason=FinishReason.STOP,
    stop_reason="END",
    index=0,
    disaggregated_params={"any": ["thing"]},
    encoder_result={"uri": "nixl://e"},
    worker_trace_link=TraceLink("a" * 32, "b" * 16),
    extra_args={"x": 1},
    completion_usage=CompletionUsage(3, 2, 5, PromptTokensDetails(1, None), CompletionTokensDetails(1)),
    engine_data={"prompt_logprobs": None, "own": [1]},
    routing_data={"timing": {"ttft_ms": 1.0}},
    jailed_text=DecoderCheckpoint("ST"),
)


def through_json(output):
    return type(output).from_wire(orjson.loads(orjson.dumps(output.to_wire())))


# ---- wire form


def test_every_field_goes_over_the_wire_and_comes_back():
    assert through_json(WHOLE) == WHOLE


def test_an_empty_output_writes_the_seeds_nulls():
    assert LLMEngineOutput().to_wire() == {
        "token_ids": [],
        "tokens": None,
        "text": None,
        "output_type": "text",
        "cum_log_probs": None,
        "log_probs": None,
        "top_logprobs": None,
        "finish_reason": None,
        "index": None,
    }


def test_an_empty_decoded_output_writes_the_seeds_nulls():
    assert BackendOutput().to_wire() == {
        "token_ids": [],
        "tokens": [],
        "text": None,
        "cum_log_probs": None,
        "log_probs": None,
        "top_logprobs": None,
        "finish_reason": None,
        "index": None,
    }


def test_only_token_ids_must_be_there():
    assert LLMEngineOutput.from_wire({"token_ids": [1], "of_tomorrow": 1}) == LLMEngineOutput(token_ids=[1])


@pytest.mark.parametrize("value", [{}, {"text": "x"}, {"token_ids": None}, {"token_ids": [-1]}, [], None, "x"])
def test_an_output_without_token_ids_is_none(value):
    with pytest.raises(WireError):
        LLMEngineOutput.from_wire(value)


@pytest.mark.parametrize("missing", ["token_ids", "tokens"])
def test_a_decoded_output_has_ids_and_their_texts(missing):
    wire = {"token_ids": [], "tokens": []}
    del wire[missing]

    with pytest.raises(WireError, match=f"{missing}: missing"):
        BackendOutput.from_wire(wire)


def test_written_ids_are_a_copy():
    output = LLMEngineOutput(token_ids=[1])

    output.to_wire()["token_ids"].append(2)

    assert output.token_ids == [1]


@pytest.mark.parametrize(
    "value",
    [{"rank": 1, "token_id": 5}, {"rank": 1, "logprob": -1.0}, {"token_id": 5, "logprob": -1.0}],
)
def test_an_alternative_has_rank_id_and_logprob(value):
    with pytest.raises(WireError, match=r"top_logprobs\[0\]\[0\]"):
        LLMEngineOutput.from_wire({"token_ids": [5], "top_logprobs": [[value]]})


def test_an_embedding_output_goes_over_the_wire():
    output = EmbeddingsEngineOutput(["AAAA"], 3, 3)

    assert from_wire(EmbeddingsEngineOutput, to_wire(output)) == output


# ---- constructors and errors


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (LLMEngineOutput.cancelled(), FinishKind.CANCELLED),
        (LLMEngineOutput.stop(), FinishKind.STOP),
        (LLMEngineOutput.length(), FinishKind.LENGTH),
        (LLMEngineOutput.failed("boom"), FinishKind.ERROR),
    ],
)
def test_a_constructor_gives_an_output_with_nothing_but_its_finish(output, kind):
    assert output.finish_reason.kind is kind
    output.finish_reason = None
    assert output == LLMEngineOutput()


def test_a_finish_of_kind_error_is_an_error():
    assert LLMEngineOutput.stop().error() is None
    assert LLMEngineOutput().error() is None
    assert LLMEngineOutput.failed("Test error").error() == "Test error"
    assert BackendOutput(finish_reason=FinishReason.error("Test error")).error() == "Test error"
    assert BackendOutput(finish_reason=FinishReason.EOS).error() is None


def test_an_error_without_words_is_still_an_error():
    assert LLMEngineOutput.failed("").error() is not None


def test_an_encode_terminal_has_the_seeds_shape():
    payload = {"embedding_handle": {"uri": "nixl://encoder/0", "shape": [1, 1024]}}

    output = LLMEngineOutput.encode_terminal(payload)

    assert (output.token_ids, output.finish_reason, output.index) == ([], FinishReason.STOP, 0)
    assert output.encoder_result == payload
    assert (output.disaggregated_params, output.worker_trace_link, output.completion_usage) == (None, None, None)


@pytest.mark.parametrize("payload", [[1], "x"])
def test_an_encode_terminal_takes_an_object_only(payload):
    with pytest.raises(WireError, match="must be a JSON object"):
        LLMEngineOutput.encode_terminal(payload)


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ("eos", FinishReason.EOS),
        ("length", FinishReason.LENGTH),
        ("stop", FinishReason.STOP),
        ("cancelled", FinishReason.CANCELLED),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ({"error": "boom: twice"}, FinishReason.error("boom: twice")),
    ],
)
def test_a_finish_reason_goes_over_the_wire(wire, reason):
    assert LLMEngineOutput.from_wire({"token_ids": [], "finish_reason": wire}).finish_reason == reason
    assert LLMEngineOutput(finish_reason=reason).to_wire()["finish_reason"] == wire


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ("abort", FinishReason.CANCELLED),
        ("error", FinishReason.error("")),
        ("error: boom: twice", FinishReason.error("boom: twice")),
    ],
)
def test_other_spellings_of_a_finish_reason_are_read(wire, reason):
    assert FinishReason.__from_wire__(wire) == reason


@pytest.mark.parametrize("wire", ["bored", 5, [], {"error": "a", "code": 1}, {}])
def test_an_unknown_finish_reason_is_refused(wire):
    with pytest.raises(WireError, match="finish_reason"):
        LLMEngineOutput.from_wire({"token_ids": [], "finish_reason": wire})


@pytest.mark.parametrize("stop_reason", ["END", 13])
def test_a_stop_reason_is_a_string_or_an_id(stop_reason):
    assert LLMEngineOutput.from_wire({"token_ids": [], "stop_reason": stop_reason}).stop_reason == stop_reason


# ---- the decoder's checkpoint


def test_a_checkpoint_is_the_bare_withheld_string_on_the_wire():
    absent = BackendOutput().to_wire()
    written = BackendOutput(jailed_text=DecoderCheckpoint("ST", [195])).to_wire()

    assert "jailed_text" not in absent
    assert BackendOutput.from_wire({**absent, "jailed_text": None}).jailed_text is None
    assert written["jailed_text"] == "ST"
    assert b"195" not in orjson.dumps(written)
    read = BackendOutput.from_wire({**absent, "jailed_text": "ST"}).jailed_text
    assert (read.jailed_text, read.pending_token_ids) == ("ST", ())


def test_a_checkpoint_is_compared_with_its_pending_ids():
    checkpoint = DecoderCheckpoint("ST", [195])

    assert checkpoint == DecoderCheckpoint("ST", (195,))
    assert hash(checkpoint) == hash(DecoderCheckpoint("ST", (195,)))
    assert checkpoint != DecoderCheckpoint("ST")
    assert checkpoint != "ST"
    assert repr(checkpoint) == "DecoderCheckpoint('ST', (195,))"


@pytest.mark.parametrize("value", [5, ["ST"], {"jailed_text": "ST"}])
def test_a_checkpoint_is_read_from_a_string_only(value):
    with pytest.raises(WireError, match="jailed_text: expected a string"):
        BackendOutput.from_wire({"token_ids": [], "tokens": [], "jailed_text": value})


# ---- the envelope


def test_an_envelope_goes_over_the_wire():
    envelope = Annotated(LLMEngineOutput(token_ids=[1]), "7", "x", ["c"], None)

    assert Annotated.from_wire(orjson.loads(orjson.dumps(envelope.to_wire()))) == envelope
    assert Annotated().to_wire() == {}


@pytest.mark.parametrize(
    ("wire", "failure"),
    [
        ({"error": "boom"}, "boom"),
        ({"error": {"message": "boom", "type": "x"}}, "boom"),
        ({"event": "error", "comment": ["a", "b"]}, "a; b"),
        ({"event": "error"}, "unspecified error"),
        ({"data": {"token_ids": [], "finish_reason": {"error": "boom"}}}, "boom"),
        ({"data": {"token_ids": [1]}}, None),
        ({"event": "annotation", "comment": ["a"]}, None),
        ({}, None),
    ],
)
def test_an_envelope_fails_by_itself_or_by_its_data(wire, failure):
    assert Annotated.from_wire(wire).failure() == failure


@pytest.mark.parametrize("wire", [{"data": {}}, {"error": 5}, {"comment": "x"}, {"data": []}])
def test_a_malformed_envelope_is_refused(wire):
    with pytest.raises(WireError):
        Annotated.from_wire(wire)


# ---- prompt logprobs


def test_prompt_logprobs_are_read_from_engine_data():
    data = {"prompt_logprobs": [None, {"7": {"logprob": -1, "rank": 3, "decoded_token": "x"}, "8": {"logprob": -2.5}}]}

    read = prompt_logprobs_of(data)

    assert read == [None, {7: PromptLogprobEntry(-1.0, 3, "x"), 8: PromptLogprobEntry(-2.5)}]


@pytest.mark.parametrize("data", [None, {}, {"prompt_logprobs": None}, [], "x"])
def test_where_there_are_none_there_are_none(data):
    assert prompt_logprobs_of(data) is None


@pytest.mark.parametrize(
    "value",
    [5, "x", {}, [5], [{"7": -1.0}], [{"7": {}}], [{"x": {"logprob": -1.0}}], [{"7": {"logprob": "low"}}]],
)
def test_malformed_prompt_logprobs_are_an_error_that_says_so(value):
    with pytest.raises(WireError, match="invalid prompt_logprobs payload"):
        prompt_logprobs_of({"prompt_logprobs": value})


# ---- parts


@pytest.mark.parametrize(
    ("part", "wire"),
    [
        (ContentPart("text", "t"), {"type": "text", "text": "t"}),
        (ContentPart("image_url", "u"), {"type": "image_url", "image_url": {"url": "u"}}),
        (ContentPart("video_url", "u"), {"type": "video_url", "video_url": {"url": "u"}}),
        (ContentPart("audio_url", "u"), {"type": "audio_url", "audio_url": {"url": "u"}}),
    ],
)
def test_a_content_part_names_its_kind_twice(part, wire):
    assert to_wire(part) == wire
    assert ContentPart.__from_wire__(wire) == part


@pytest.mark.parametrize(
    "wire",
    [
        5, {}, {"type": "text"}, {"type": "text", "text": 5}, {"type": "text", "text": {"url": "u"}},
        {"type": "image_url", "image_url": "u"}, {"type": "image_url", "image_url": {}}, {"type": "file", "file": "f"},
        {"type": ["text"]},
    ],
)  # fmt: skip
def test_what_is_no_content_part_is_refused(wire):
    with pytest.raises(WireError, match="not a content part"):
        ContentPart.__from_wire__(wire)


@pytest.mark.parametrize(
    ("details", "cached"), [(None, None), (PromptTokensDetails(), None), (PromptTokensDetails(0), 0)]
)
def test_cached_tokens_are_unknown_rather_than_zero(details, cached):
    assert CompletionUsage(3, 1, 4, details).cached_tokens() == cached
