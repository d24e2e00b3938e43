"""From an engine's outputs to text, for one attempt and choice: ids in, text that may be shown out.

Which ids end an answer, and whether their text is seen (as vLLM 0.32 does, seen through OpenAI's API):
an eos or hidden id ends it unseen; the client's own stop id ends it unseen, unless the matched stop is to be included;
a visible id ends it seen. The id itself is always counted. An id that does not end the answer (`ignore_eos`,
`min_tokens`) is a token like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from protocols.outputs import (
    BackendOutput,
    DecoderCheckpoint,
    FinishReason,
    LLMEngineOutput,
    StopReason,
    TopLogprob,
)
from protocols.preprocessed import PreprocessedRequest
from text.stop_filter import StopFilter
from text.tokenizer import Tokenizer

_CONTEXT = 64
"""Ids of the prompt's end that a stream may look back on."""
_START = DecoderCheckpoint()


class Decoder:
    """Decodes one attempt. Its state after any outputs is a function of the ids, not of how they were cut.

    A replay makes a new one from the request it sends: the prompt and the ids so far as `token_ids`, what was left of
    the limits, and the last output's `jailed_text` as `jail_seed`.
    """

    def __init__(self, tokenizer: Tokenizer, request: PreprocessedRequest) -> None:
        conditions = request.stop_conditions
        seed = request.jail_seed or _START
        end = max(0, len(request.token_ids) - len(seed.pending_token_ids))
        self._tokenizer = tokenizer
        self._stream = tokenizer.decode_stream(
            skip_special_tokens=request.output_options.skip_special_tokens is not False,
            context=request.token_ids[max(0, end - _CONTEXT) : end],
            pending=seed.pending_token_ids,
            shown=request.shown_token_ids,
        )
        include = bool(request.sampling_options.include_stop_str_in_output)
        self._filter = StopFilter(conditions.stop or (), include=include, jailed=seed.jailed_text)
        self._eos = request.eos_token_ids
        self._named = _special_stops(tokenizer, conditions.stop) if conditions.stop else {}
        self._stop_ids = _stop_ids(request, self._named, include)
        self._ending_ids = self._stop_ids.keys()
        self._room = sys.maxsize if conditions.max_tokens is None else conditions.max_tokens
        self._unarmed = conditions.min_tokens or 0
        self._plain = not conditions.stop and not self._unarmed and not seed.jailed_text
        self._finish: FinishReason | None = None
        self._stop_reason: StopReason | None = None
        self._cut = False

    @property
    def stopped(self) -> bool:
        """Has our own stop, or the limit, ended the answer? Then `ending` tells how, and nothing more is taken in."""
        return self._finish is not None

    def feed(self, output: LLMEngineOutput) -> BackendOutput:
        """What an output that is not the last becomes: its ids, those after the stopping one dropped, and the text
        that may be shown now. Never a finish reason. An engine's own `text` passes untouched."""
        if output.text is not None and self._finish is None:
            self._room -= len(output.token_ids)
            return self._render(output, len(output.token_ids), output.text)
        taken, text = self._take(output.token_ids)
        return self._render(output, taken, text)

    def ending(self, output: LLMEngineOutput | None) -> BackendOutput:
        """The last output of the answer. `output`: the engine's finishing one (it may carry ids yet), None when the
        reply was cut off by our stop or ended without a finish.

        Brings the text that was still withheld, the usage of the engine, and the finish: our stop's if there was one,
        else the engine's.
        """
        last = self.feed(output or LLMEngineOutput())
        last.text = (last.text or "") + self._release() or None
        last.jailed_text = None
        if self._finish is not None:
            last.finish_reason, last.stop_reason = self._finish, self._stop_reason
        elif output is not None:
            last.finish_reason, last.stop_reason = output.finish_reason, output.stop_reason
        return last

    def _take(self, ids: Sequence[int]) -> tuple[int, str]:
        """Reads ids up to the one that ends the answer. How many were taken, and the text that may be shown."""
        count = len(ids)
        if not count:
            return 0, ""
        if self._plain and self._finish is None and count <= self._room and self._ending_ids.isdisjoint(ids):
            self._room -= count
            return count, self._stream.feed(ids)
        shown: list[str] = []
        for taken, token_id in enumerate(ids):
            if self._finish is None and self._room <= 0:
                self._finish = FinishReason.LENGTH
            if self._finish is not None:
                return taken, "".join(shown)
            shown.append(self._take_one(token_id))
        return count, "".join(shown)

    def _take_one(self, token_id: int) -> str:
        self._room -= 1
        armed = self._unarmed <= 0
        self._unarmed -= 1
        seen = self._stop_ids.get(token_id) if armed else None
        text, match = "", None
        if seen is not False:
            text, match = self._filter.feed(self._stream.step(token_id), armed=armed)
        if match is not None:
            self._cut = True
            self._stop(match)
        elif seen is not None:
            self._stop(self._named.get(token_id, None if token_id in self._eos else token_id))
        return text

    def _stop(self, reason: StopReason | None) -> None:
        self._finish, self._stop_reason = FinishReason.STOP, reason

    def _release(self) -> str:
        """The text still withheld, at the end. After a stop string in the text there is none."""
        if self._cut:
            return ""
        text, match = self._filter.feed(self._stream.flush(), armed=self._unarmed <= 0)
        if match is None:
            return text + self._filter.flush()
        if self._finish is None:
            self._stop(match)
        return text

    def _render(self, output: LLMEngineOutput, taken: int, text: str) -> BackendOutput:
        ids, tokens = output.token_ids, output.tokens
        log_probs, top_logprobs = output.log_probs, output.top_logprobs
        if taken < len(ids):
            ids = ids[:taken]
            tokens = tokens and tokens[:taken]
            log_probs = log_probs and log_probs[:taken]
            top_logprobs = top_logprobs and top_logprobs[:taken]
        if top_logprobs:
            self._name(top_logprobs)
        if tokens is None:
            tokens = self._tokenizer.token_texts(ids)
        shown = BackendOutput(token_ids=ids, tokens=tokens, text=text or None, jailed_text=self._checkpoint())
        # Set one by one: as arguments they would cost a token's path three times as much.
        shown.cum_log_probs, shown.log_probs, shown.top_logprobs = output.cum_log_probs, log_probs, top_logprobs
        shown.index = output.index
        shown.completion_usage = output.completion_usage
        shown.disaggregated_params = output.disaggregated_params
        shown.encoder_result = output.encoder_result
        shown.worker_trace_link = output.worker_trace_link
        shown.engine_data = output.engine_data
        shown.routing_data = output.routing_data
        return shown

    def _checkpoint(self) -> DecoderCheckpoint | None:
        jailed, pending = self._filter.jailed, self._stream.pending
        return DecoderCheckpoint(jailed, pending) if jailed or pending else None

    def _name(self, positions: Sequence[Sequence[TopLogprob]]) -> None:
        """Gives alternatives that came as bare ids their text and bytes."""
        for alternatives in positions:
            for alternative in alternatives:
                if alternative.token is None:
                    alternative.token = self._tokenizer.token_text(alternative.token_id)
                    alternative.bytes = list(self._tokenizer.token_bytes(alternative.token_id))


def _stop_ids(request: PreprocessedRequest, named: Collection[int], include: bool) -> Mapping[int, bool]:
    """The ids that end the answer, and whether their text is seen."""
    conditions, eos = request.stop_conditions, request.eos_token_ids
    own, hidden, visible = (
        conditions.stop_token_ids or (),
        conditions.stop_token_ids_hidden or (),
        conditions.stop_token_ids_visible or (),
    )
    if not (named or own or visible or conditions.ignore_eos) and hidden == eos:
        return _eos_alone(eos)
    unseen, seen = {*hidden, *eos}, {*visible}
    if conditions.ignore_eos:
        unseen.difference_update(eos)
        seen.difference_update(eos)
    return {**dict.fromkeys((*named, *own), include), **dict.fromkeys(unseen, False), **dict.fromkeys(seen, True)}


@lru_cache(maxsize=64)
def _eos_alone(eos: tuple[int, ...]) -> Mapping[int, bool]:
    """The usual request brings no stops of its own: it shares its model's."""
    return dict.fromkeys(eos, False)


def _special_stops(tokenizer: Tokenizer, stops: Sequence[str]) -> dict[int, str]:
    """Stop strings that are special tokens, by id: their text may never appear, so the id is what stops."""
    found = ((tokenizer.token_id(stop), stop) for stop in stops)
    return {token_id: stop for token_id, stop in found if token_id in tokenizer.special_token_ids}
