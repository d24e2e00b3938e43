"""One call to one worker, from its sending to the end of its reply.

A `Reading` is the client's `Reader`: it parses what came and pushes the outputs up in the same step. What is said to
the worker is its `Talk`'s; it knows nothing of retries beyond HTTP's own (a pooled connection that was dead).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from engines.base import Call
from pipeline.context import RequestContext
from pipeline.service import Sink
from pipeline.talk import Parser, Talk
from protocols.errors import Blame, DeadlineExceeded, Disconnected, Enough, GatewayError, WorkerFailure, WorkerSilent
from workers.exchange import Exchange, push

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter

MAX_REFUSAL_BYTES = 1024 * 1024
_NOT_MADE = Call("")

T = TypeVar("T")


class Reading(Generic[T]):
    """`open` sends, `wait` returns when the answer is complete, `close` ends it in this same step.

    `taken`: the worker has answered 200, so it has the request. `outputs_seen`: an output has come. Cancelling `wait`
    leaves the reply running, as does the request's deadline: who owns the reading closes it, or goes on waiting.
    """

    __slots__ = (
        "_call",
        "_exchange",
        "_failure",
        "_head_owner",
        "_parser",
        "_refusal",
        "_refusal_size",
        "_router",
        "_settled",
        "_since",
        "_sink",
        "_status",
        "_ticked_at",
        "context",
        "lease",
        "outputs_seen",
        "taken",
        "talk",
    )

    def __init__(
        self,
        router: WorkerRouter,
        lease: Lease,
        talk: Talk[T],
        context: RequestContext,
        sink: Sink[T],
    ) -> None:
        self._router = router
        self.lease = lease
        self.talk = talk
        self.context = context
        self._sink = sink
        self._call = _NOT_MADE
        self._exchange: Exchange | None = None
        self._parser: Parser[T] | None = None
        self._failure: BaseException | None = None
        self._head_owner: object = None
        self._settled = False
        self._status = 0
        self._refusal: list[bytes] = []
        self._refusal_size = 0
        # When the worker last did anything: a pause on our side moves it on.
        self._since = self._ticked_at = 0.0
        self.taken = False
        self.outputs_seen = False

    # ---- how far it is

    @property
    def began_at(self) -> float | None:
        """When the reply's first byte came, in the loop's time; None before."""
        return self._exchange.began_at if self._exchange is not None else None

    @property
    def sent(self) -> bool:
        return self._exchange is not None

    @property
    def ended(self) -> bool:
        """The reply is over, well or not."""
        return self._exchange is not None and self._exchange.finished

    @property
    def running(self) -> bool:
        """The call was sent, and its reply is not over."""
        return self._exchange is not None and not self._exchange.finished

    @property
    def settled(self) -> bool:
        """`wait` has told how the reply ended. A cancel may fall between the reply's end and that."""
        return self._settled and not self.running

    @property
    def status(self) -> int:
        """What the worker has answered; 0 before."""
        return self._status

    @property
    def refused(self) -> bool:
        """The worker has answered something else than 200."""
        return self._status not in (0, 200)

    @property
    def refusal(self) -> bytes:
        """The body of what it has answered then."""
        return b"".join(self._refusal)

    @property
    def ended_well(self) -> bool:
        """The worker said its finish (or ended its unary reply): it holds nothing of this request any more."""
        return self.ended and self._parser is not None and self._parser.finish_seen

    @property
    def abandoned(self) -> bool:
        """The worker may still be at it when the call is closed now: it took the call, and has not said its finish."""
        return self.sent and not self.refused and not self.ended_well

    # ---- the call

    async def open(self) -> None:
        """Sends the call. Raises CannotConnect when the worker was never reached."""
        await self._send(fresh=False)

    async def _send(self, *, fresh: bool, broken: Disconnected | None = None) -> None:
        """`broken`: how it failed before. The worker may have got it then, so that stays the failure."""
        if self._failure is not None:
            raise self._failure
        call = self._call = self.talk.call(self.lease)
        self._parser = self.talk.parser(self.lease)
        self._refusal, self._refusal_size, self._status, self._settled = [], 0, 0, False
        try:
            exchange = self._exchange = await self._router.client.send(
                self.lease.worker.url, call, self, fresh=fresh, headers=self.context.trace
            )
        except WorkerFailure as error:
            raise self._failed(broken or error) from error.__cause__
        if self._failure is not None:
            exchange.close()
            raise self._failure
        self._since = self._ticked_at = self._router.clock()
        if not self.lease.for_handoff:
            self.context.flow.join(exchange)
        self._router.ticker.add(self)

    async def wait(self) -> None:
        """Until the answer is complete. Raises what ended it: a GatewayError, `Enough`, or SinkFailed."""
        while True:
            exchange = self._exchange
            assert exchange is not None
            try:
                await exchange.wait()
            except Disconnected as error:
                if error is self._failure:
                    raise self._failed(error) from error.__cause__
                if exchange.reused and exchange.began_at is None:
                    if not self.talk.reads_once and not self._unwanted:
                        await self._again(fresh=True, broken=error)
                        continue
                    # The connection may have been dead before the call: the worker may well take the next attempt.
                    error.blame = Blame.NOBODY
                self._over(error)
                return
            except GatewayError as error:
                raise self._failed(error) from error.__cause__
            if self._status == 200:
                self._over(None)
                return
            await self._refused()

    async def _again(self, *, fresh: bool, broken: Disconnected | None = None) -> None:
        self._leave()
        self._exchange = None
        await self._send(fresh=fresh, broken=broken)

    async def _refused(self) -> None:
        """The worker answered something else than 200: it may have taught us how to ask; else it is an error."""
        body = self.refusal
        learnt = None if self._unwanted else self.lease.adapter.learn(self._call, self._status, body)
        if learnt is None:
            raise self._failed(self.talk.rejection(self.lease, self._status, body))
        self._router.learn(self.lease, learnt)
        await self._again(fresh=False)

    def _over(self, broken: Disconnected | None) -> None:
        """The reply has ended; after a finish was seen, it ended well whatever else happened."""
        self._leave()
        self._settled = True
        parser = self._parser
        assert parser is not None
        outputs = parser.end()
        if outputs:
            push(self._push, outputs)
        if parser.error is not None:
            raise self._failed(broken if broken is not None and not parser.done else parser.error)

    @property
    def _unwanted(self) -> bool:
        """A prefill whose client has left: what came to nothing is not asked again."""
        return self.lease.for_handoff and self.context.outlives

    def close(self) -> None:
        """Ends the call in this step; the sink is never called again. Idempotent."""
        self._leave()
        if self._exchange is not None:
            self._exchange.close()

    def fail(self, error: BaseException) -> None:
        """Ends the call by `error`, which comes out of `wait`, or out of `open` where it is just being sent.

        A reply that is over stays as it ended.
        """
        self._failure = error
        self._leave()
        if self._exchange is not None:
            self._exchange.fail(error)

    # ---- for one that outlives its client

    def outlive(self) -> None:
        """The client is gone: neither its pace nor its deadline matters to this reply any more. Its silence counts
        anew.
        """
        self._leave()
        if self.running:
            assert self._exchange is not None
            self._settled = False
            self._since = self._ticked_at = self._router.clock()
            self._exchange.resume()
            self._router.ticker.add(self)
        self.context = self.context.released()

    def stop_at_head(self, owner: object) -> None:
        """End by `Enough(owner)` as soon as the worker has answered 200; at once if it has."""
        self._head_owner = owner
        if self.taken and self._exchange is not None:
            self._exchange.fail(Enough(owner))

    def sink_to(self, sink: Sink[T]) -> None:
        """From now on outputs go to `sink`."""
        self._sink = sink

    def _leave(self) -> None:
        self._router.ticker.discard(self)
        if self._exchange is not None:
            self.context.flow.leave(self._exchange)

    # ---- the client's Reader

    def head(self, status: int) -> None:
        self._status = status
        if status == 200:
            self.taken = True
            if self._head_owner is not None:
                raise Enough(self._head_owner)

    def data(self, data: bytes) -> None:
        if self._status != 200:
            if self._refusal_size < MAX_REFUSAL_BYTES:
                self._refusal.append(data)
                self._refusal_size += len(data)
            return
        parser, exchange = self._parser, self._exchange
        assert parser is not None
        assert exchange is not None
        outputs = parser.feed(data)
        if outputs:
            self._push(outputs)
        if parser.error is not None:
            exchange.fail(parser.error)
        elif parser.done:
            exchange.finish()

    def _push(self, outputs: Sequence[T]) -> None:
        self.outputs_seen = True
        if self._exchange is not None and self._exchange.read_at is not None:
            self._since = self._exchange.read_at
        self._sink(outputs)

    # ---- deadlines

    def tick(self, now: float) -> None:
        quiet_from, self._ticked_at = max(self._since, self._ticked_at), now
        deadline = self.context.deadline
        if deadline is not None and now > deadline:
            if self._exchange is not None:
                self._exchange.interrupt(DeadlineExceeded("the request's deadline has passed"))
            return
        if not self.lease.for_handoff and self.context.flow.paused:
            self._since += now - quiet_from
            return
        limits = self._router.deadlines
        if self.outputs_seen:
            if now - self._since > limits.between_tokens_s:
                self._silent(f"the worker sent nothing for {limits.between_tokens_s:g} s")
        elif self._call.streams or self.lease.for_handoff:
            limit = limits.first_output(self.talk.prompt_tokens)
            if now - self._since > limit:
                self._silent(f"the worker sent no token within {limit:g} s")

    def _silent(self, words: str) -> None:
        """Ends the call; a prefill's only for who waits, since its reply may still tell what it has pinned."""
        if self.lease.for_handoff and not self.context.outlives and self._exchange is not None:
            self._exchange.interrupt(WorkerSilent(words))
        else:
            self.fail(WorkerSilent(words))

    # ---- failures

    def _failed(self, error: GatewayError) -> GatewayError:
        """Records whose failure it is, before anyone sees it."""
        self._leave()
        self._settled = True
        return self._router.record(error, self.lease, self.context)
