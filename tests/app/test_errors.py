"""Every failure as a client is told of it: its status, and OpenAI's envelope."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from app.responses import error_event, send_error
from protocols import errors
from protocols.errors import GatewayError, InternalError, InvalidRequest, NoAvailableWorkers, Unavailable, WorkerFailure
from tests.app.client_turn import Client

ABSTRACT = (GatewayError, Unavailable)


def family(kind: type[GatewayError]) -> list[type[GatewayError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in family(child))]


KINDS = [kind for kind in family(GatewayError) if kind not in ABSTRACT and kind.__module__ == errors.__name__]
STATUSES = {
    "InvalidRequest": (400, "invalid_request_error", None),
    "ContextLengthExceeded": (400, "invalid_request_error", "context_length_exceeded"),
    "UnsupportedParameter": (400, "invalid_request_error", "unsupported_parameter"),
    "Unauthorized": (401, "invalid_request_error", "invalid_api_key"),
    "ModelNotFound": (404, "invalid_request_error", "model_not_found"),
    "NotFound": (404, "invalid_request_error", None),
    "MethodNotAllowed": (405, "invalid_request_error", None),
    "BodyTooSlow": (408, "invalid_request_error", None),
    "BodyTooLarge": (413, "invalid_request_error", None),
    "RequestLineTooLong": (414, "invalid_request_error", None),
    "UnsupportedMediaType": (415, "invalid_request_error", None),
    "HeadersTooLarge": (431, "invalid_request_error", None),
    "NoAvailableWorkers": (503, "server_error", "no_available_workers"),
    "Overloaded": (503, "server_error", "overloaded"),
    "DeadlineExceeded": (504, "timeout_error", "deadline_exceeded"),
    "InternalError": (500, "server_error", "internal_error"),
}
"""Status, type and code of each; a worker's failures are 502s whatever their kind."""


async def told(error: GatewayError) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and error of the response that is sent for it."""
    client = Client()
    await send_error(client.turn, error, [(b"x-request-id", b"r")])
    headers = {name.decode(): value.decode() for name, value in client.headers.items()}
    assert client.over
    return client.status, headers, orjson.loads(client.bodies()[0])["error"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_each_kind_of_failure_has_its_status_type_and_code(kind: type[GatewayError]) -> None:
    status, headers, error = await told(kind("what happened", param="prompt"))

    expected = (502, "server_error", "worker_failed") if issubclass(kind, WorkerFailure) else STATUSES[kind.__name__]
    assert (status, error["type"], error["code"]) == expected
    assert error["param"] == "prompt"
    assert headers["content-type"] == "application/json"


OURS = [kind for kind in KINDS if issubclass(kind, WorkerFailure | InternalError)]
"""What a client may not hear the reasons of."""
WORDS = "connect 10.0.0.7:8000 refused: Bearer sk-1234 unauthorized"


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
async def test_what_is_not_the_clients_business_is_told_by_a_plain_sentence_and_the_requests_id(
    kind: type[GatewayError],
):
    _, _, error = await told(kind(WORDS))
    event = orjson.loads(error_event(kind(WORDS), "r")[6:])["error"]

    assert error == event
    assert not [word for word in WORDS.split() if word in error["message"].split()]
    assert re.fullmatch(r"The [\w' ]+\. The gateway's log says more of request r\.", error["message"])
    assert kind(WORDS).message == WORDS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OURS], ids=lambda kind: kind.__name__)
async def test_what_is_said_of_the_request_itself_passes_on(kind: type[GatewayError]) -> None:
    _, _, error = await told(kind("max_tokens is too large"))

    assert error["message"] == "max_tokens is too large"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_of_failure_is_drawn_in_the_tree(kind: type[GatewayError]) -> None:
    assert re.search(rf"── {kind.__name__} ", errors.__doc__ or "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_only_what_another_attempt_may_mend_is_retryable(kind: type[GatewayError]) -> None:
    assert kind("what happened").retryable == issubclass(kind, WorkerFailure)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_inside_a_stream_each_is_one_event(kind: type[GatewayError]) -> None:
    event = error_event(kind('it said: "no"\n\nand left'), "r")

    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert b"\n" not in event[:-2]
    assert set(orjson.loads(event[6:])["error"]) == {"message", "type", "param", "code"}


async def test_nobody_to_serve_says_when_to_come_again_and_a_wrong_request_does_not() -> None:
    _, unavailable, _ = await told(NoAvailableWorkers("nobody"))
    _, invalid, _ = await told(InvalidRequest("wrong"))

    assert unavailable["retry-after"] == "1"
    assert "retry-after" not in invalid


async def test_a_failure_in_prefill_is_named_as_one() -> None:
    status, _, error = await told(WorkerFailure("it broke").in_prefill())

    assert (status, error["code"]) == (502, "prefill_failed")
