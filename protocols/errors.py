"""Every way a request can fail, as one tree.

    GatewayError
    ├── InvalidRequest            400  the client's fault, field named
    │   ├── ContextLengthExceeded 400  prompt (or prompt + max_tokens) longer than the context
    │   ├── UnsupportedParameter  400  it changes the answer, and no worker of the model can honour it
    │   ├── Unauthorized          401  no key of ours, or a wrong one
    │   ├── ModelNotFound         404
    │   ├── NotFound              404  unknown route
    │   ├── MethodNotAllowed      405
    │   ├── BodyTooSlow           408  the request's body did not come
    │   ├── BodyTooLarge          413
    │   ├── RequestLineTooLong    414
    │   ├── UnsupportedMediaType  415
    │   └── HeadersTooLarge       431
    ├── Unavailable               503  nobody can take it now; Retry-After
    │   ├── NoAvailableWorkers         no ready worker, or none untried
    │   └── Overloaded                 every eligible worker refused as overloaded
    ├── DeadlineExceeded          504
    ├── WorkerFailure             502  a worker did not do its part (`worker_failed`, or `prefill_failed`)
    │   ├── CannotConnect              no request byte reached the worker
    │   ├── Disconnected               the connection broke before the reply was complete
    │   ├── ProtocolViolation          bytes that are not the engine's protocol
    │   ├── IncompleteReply            the reply ended without a finish, or with no output at all
    │   ├── WorkerBusy                 429 or 503 before the request was taken: nobody's fault
    │   ├── EngineFailure              the engine said that it failed (5xx, error event, failed transfer)
    │   ├── EngineAborted              finish "abort" that nobody here asked for
    │   ├── WorkerSilent               nothing came within the deadline for a first or a next token
    │   └── WorkerMisconfigured        it refuses our key (401, 403) or lacks a route we need
    └── InternalError             500  our bug

`Enough`, `SinkFailed` and `ClientGone` stand outside the tree: they say nothing about a worker.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar


class Blame(enum.Enum):
    """Who caused a worker's failure, and so who is excluded from the next attempt."""

    WORKER = "worker"
    PEER = "peer"
    PAIR = "pair"
    CLIENT = "client"
    NOBODY = "nobody"


class GatewayError(Exception):
    """A failure that a client may be told of. `status`, `type` and `code` are those of OpenAI's error envelope.

    `message` is for the log and may name hosts and quote a worker. `told` is what the client is told instead, with the
    request's id; None where the message is about the client's own request and is told as it is.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    told: str | None = None
    retryable: bool = False
    """Whether another attempt may go better; of the class, unless the place that an error came from says otherwise."""

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def envelope(self, request_id: str) -> dict[str, Any]:
        """OpenAI's error body: `{"error": {"message", "type", "param", "code"}}`, all that a client learns."""
        message = self.message
        if self.told is not None:
            message = f"{self.told} The gateway's log says more of request {request_id}."
        return {"error": {"message": message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(GatewayError):
    """The request cannot be answered as it is; sending it again changes nothing."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt plus max_tokens, does not fit the model's context."""

    code = "context_length_exceeded"


class UnsupportedParameter(InvalidRequest):
    """No worker that the request could go to can honour a parameter that changes the answer."""

    code = "unsupported_parameter"


class Unauthorized(InvalidRequest):
    """The client sent none of the keys that this gateway asks for."""

    status = 401
    code = "invalid_api_key"


class ModelNotFound(InvalidRequest):
    status = 404
    code = "model_not_found"


class NotFound(InvalidRequest):
    status = 404


class MethodNotAllowed(InvalidRequest):
    status = 405


class BodyTooSlow(InvalidRequest):
    status = 408


class BodyTooLarge(InvalidRequest):
    status = 413


class RequestLineTooLong(InvalidRequest):
    status = 414


class UnsupportedMediaType(InvalidRequest):
    status = 415


class HeadersTooLarge(InvalidRequest):
    status = 431


class Unavailable(GatewayError):
    """Nobody can take the request now."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = 1.0) -> None:
        super().__init__(message, param=param, retry_after=retry_after)


class NoAvailableWorkers(Unavailable):
    code = "no_available_workers"


class Overloaded(Unavailable):
    code = "overloaded"


class DeadlineExceeded(GatewayError):
    """The request's own deadline has passed."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class InternalError(GatewayError):
    code = "internal_error"
    told = "The gateway failed to answer."


class WorkerFailure(GatewayError):
    """A worker did not do its part.

    `worker_id` is the worker that the failing call was sent to; `blame` says whom the next attempt must avoid;
    `worker_status` is the HTTP status it answered with, if it answered.
    """

    status = 502
    code: str | None = "worker_failed"  # type: ignore[misc]
    told = "The worker failed."
    retryable = True
    blame: Blame = Blame.WORKER

    def __init__(
        self,
        message: str,
        *,
        worker_id: int | None = None,
        blame: Blame | None = None,
        worker_status: int | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, param=param, retry_after=retry_after)
        self.worker_id = worker_id
        self.worker_status = worker_status
        if blame is not None:
            self.blame = blame

    def in_prefill(self) -> WorkerFailure:
        """The same failure, named as the prefill leg's."""
        self.code = "prefill_failed"
        return self


class CannotConnect(WorkerFailure):
    """The worker was never reached: no byte of the request left."""

    told = "The worker could not be reached."


class Disconnected(WorkerFailure):
    """The connection broke before the reply was complete."""

    told = "The connection to the worker broke before its answer was complete."


class ProtocolViolation(WorkerFailure):
    """The worker sent bytes that are not its protocol."""

    told = "The worker's reply could not be read."


class IncompleteReply(WorkerFailure):
    """The reply ended properly but without a finish, or without any output."""

    told = "The worker's reply ended before its answer did."


class WorkerBusy(WorkerFailure):
    """The worker refused before taking the request (429, 503). It cools down; it is not at fault."""

    blame = Blame.NOBODY
    told = "The worker is overloaded."


class EngineFailure(WorkerFailure):
    """The engine itself reported a failure: a 5xx, an error event, a failed KV transfer."""

    told = "The worker's engine failed."


class EngineAborted(WorkerFailure):
    """The engine ended the answer by "abort" though nobody here asked (a draining or restarting engine)."""

    told = "The worker's engine gave the answer up."


class WorkerSilent(WorkerFailure):
    """No first token, or no next token, within its deadline."""

    told = "The worker sent nothing for too long."


class WorkerMisconfigured(WorkerFailure):
    """The worker refuses our credentials or lacks a route that we need."""

    told = "The worker does not take what the gateway sends it."


class Enough(Exception):
    """Raised by a sink that wants no more outputs. Whoever raised it catches it around its own `await`.

    `takes_ending`: the finishing output is still welcome where the same read brought it.
    """

    def __init__(self, owner: object, *, takes_ending: bool = False) -> None:
        super().__init__()
        self.owner = owner
        self.takes_ending = takes_ending


class ClientGone(Exception):
    """The client left before its request was complete."""


class SinkFailed(Exception):
    """What a sink raised that is not `Enough`: our bug or a vanished client, never the worker's fault.

    The cause is `__cause__`.
    """
