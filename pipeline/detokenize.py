"""From an engine's ids to text: `Detokenizer` is the operator around a decoder (the seeds' Backend)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.context import RequestContext
from pipeline.outcome import raise_if_failed
from pipeline.service import Service, Sink
from protocols.errors import Enough, GatewayError
from protocols.outputs import BackendOutput, LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from text.decoder import Decoder
from text.tokenizer import Tokenizer
from workers.exchange import push


class Detokenizer:
    """Decodes one attempt. A fresh decoder each time, seeded by the request's checkpoint.

    The ending (the output with the finish reason) goes up after the call below has come back, and what the same read
    brought goes up with it: one write to the client less. When our own stop ended the text and the read that held it
    did not hold the engine's finish too, the reply below is cut by `Enough`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def __call__(
        self,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[BackendOutput],
        downstream: Service[PreprocessedRequest, LLMEngineOutput],
    ) -> None:
        decoder = Decoder(self._tokenizer, request)
        ending: LLMEngineOutput | None = None
        last: list[BackendOutput] = []

        def observe(outputs: Sequence[LLMEngineOutput]) -> None:
            nonlocal ending
            shown = []
            for output in outputs:
                if output.finish_reason is not None:
                    ending = output
                elif not decoder.stopped:
                    shown.append(decoder.feed(output))
            if ending is not None:
                last.extend(shown)
                return
            if shown:
                sink(shown)
            if decoder.stopped:
                raise Enough(decoder, takes_ending=True)

        try:
            await downstream(request, context, observe)
        except Enough as enough:
            if enough.owner is not decoder:
                raise
        except GatewayError as error:
            if decoder.stopped:
                # The text is over: nothing may be added to it elsewhere.
                error.retryable = False
            raise
        if not decoder.stopped:
            raise_if_failed(ending)
        last.append(decoder.ending(ending))
        push(sink, last)

    def length_ending(self, request: PreprocessedRequest) -> BackendOutput:
        """The ending of an attempt that has nothing left to generate: what was withheld, finish length."""
        return Decoder(self._tokenizer, request).ending(LLMEngineOutput.length())
