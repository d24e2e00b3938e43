"""Every shape an inference server's refusal was seen in, and whose fault it is."""

import pytest

from engines.error_body import ErrorBody, error_body, error_value, event_error, http_error
from protocols.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    EngineFailure,
    InvalidRequest,
    ProtocolViolation,
    WorkerBusy,
    WorkerMisconfigured,
)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"error":{"message":"m","type":"t","param":"p","code":400}}', ErrorBody("m", "t", "p", 400)),
        (b'{"error":{"message":"m","code":"c"}}', ErrorBody("m", code="c")),
        (b'{"object":"error","message":"m","type":"t","param":null,"code":400}', ErrorBody("m", "t", None, 400)),
        (b'{"error":"m"}', ErrorBody("m")),
        (b'{"detail":"m"}', ErrorBody("m")),
        (
            b'{"detail":[{"type":"missing","loc":["body","prompt",0],"msg":"Field required"}]}',
            ErrorBody("Field required", "missing", "prompt.0"),
        ),
        (b'"m"', ErrorBody("m")),
        (b"Internal Server Error\n", ErrorBody("Internal Server Error")),
        (b"\xff", ErrorBody("\ufffd")),
        (b"", ErrorBody("the worker gave no reason")),
        (b"{}", ErrorBody("the worker gave no reason")),
        (b'{"error":{}}', ErrorBody("the worker gave no reason")),
        (b'{"error":{"message":{"a":1}}}', ErrorBody('{"a":1}')),
    ],
)
def test_every_envelope_comes_to_one_shape(body, read):
    assert error_body(body) == read


def test_long_words_are_cut():
    assert len(error_value("x" * 10_000).message) == 2000


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest), (422, InvalidRequest), (413, BodyTooLarge), (401, WorkerMisconfigured),
        (403, WorkerMisconfigured), (404, WorkerMisconfigured), (405, WorkerMisconfigured), (408, EngineFailure),
        (429, WorkerBusy), (499, EngineFailure), (500, EngineFailure), (503, WorkerBusy), (529, WorkerBusy),
        (302, ProtocolViolation),
    ],
)  # fmt: skip
def test_a_status_says_whose_fault_it_is(status, kind):
    assert type(http_error(status, ErrorBody("m", param="p"))) is kind


def test_a_clients_fault_names_the_field():
    assert http_error(400, ErrorBody("m", param="seed")).param == "seed"


@pytest.mark.parametrize(
    "error",
    [
        ErrorBody("This model's maximum context length is 2048 tokens."),
        ErrorBody("request (5000 tokens) exceeds the available context size (2048 tokens)"),
        ErrorBody("no", type="exceed_context_size_error"),
        ErrorBody("no", code="context_length_exceeded"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_as_that(error):
    assert type(http_error(400, error)) is ContextLengthExceeded


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ErrorBody("m", code=400), InvalidRequest),
        (ErrorBody("m", code="422"), InvalidRequest),
        (ErrorBody("m", code=500), EngineFailure),
        (ErrorBody("m", code=503), WorkerBusy),
        (ErrorBody("m", code=429), WorkerBusy),
        (ErrorBody("m"), EngineFailure),
        (ErrorBody("m", code="rate"), EngineFailure),
        (ErrorBody("m", type="invalid_request_error"), InvalidRequest),
        (ErrorBody("m", type="invalid_request_error", code=500), EngineFailure),
        (ErrorBody("m", code=1), EngineFailure),
        (ErrorBody("m", code="context_length_exceeded"), ContextLengthExceeded),
    ],
)
def test_an_error_inside_a_reply_is_the_workers_unless_it_says_otherwise(error, kind):
    assert type(event_error(error)) is kind
