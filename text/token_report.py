"""What one choice reports beside its text: token ids, log probabilities, its prompt's; streamed or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocols.errors import InvalidRequest, ProtocolViolation
from protocols.outputs import BackendOutput, FinishKind, PromptLogprobs, prompt_logprobs_of
from protocols.wire import WireError
from text.alignment import Alignment, TokenLogprob
from text.answer_form import AnswerForm, PromptEcho
from text.logprobs import prompt_logprobs_json, prompt_tokens_of, tokens_of


class TokenReport:
    """Gathers until the text is told; `entries` and `token_ids` are what may be told now, for the caller to take.

    `exact`: the told tokens make exactly the told text (chat): a token without text at the end, eos above all, is left
    out. Otherwise every generated token is told but those that a stop string cut away.
    """

    __slots__ = ("_alignment", "_echo", "_exact", "_form", "_prompt", "_prompt_logprobs", "entries", "token_ids")

    def __init__(self, form: AnswerForm, prompt: PromptEcho, *, exact: bool) -> None:
        self._form = form
        self._prompt = prompt
        self._exact = exact
        self._echo = form.echo and form.logprobs is not None
        self._alignment = Alignment(len(prompt.text) if form.echo else 0, form.token_bytes)
        self.entries: list[TokenLogprob] = []
        self.token_ids: list[int] = []
        self._prompt_logprobs: PromptLogprobs | None = None

    def add(self, outputs: Sequence[BackendOutput]) -> None:
        """Takes the outputs of one read. Raises ProtocolViolation when prompt logprobs in them are malformed."""
        for output in outputs:
            if self._form.token_ids:
                self.token_ids += output.token_ids
            if self._form.logprobs is not None:
                self._alignment.add(tokens_of(output))
            if output.engine_data is not None and self._prompt_logprobs is None:
                self._prompt_logprobs = _prompt_logprobs(output)

    def tell(self, text: str, ending: BackendOutput | None) -> None:
        """`text` goes out now; `ending`: and it is the last. Moves what belongs to it to `entries`."""
        if self._form.logprobs is None:
            return
        if self._echo:
            self.entries += prompt_tokens_of(self._prompt, self._told_of_prompt(), self._form.token_bytes)
            self._echo = False
        if ending is None:
            self.entries += self._alignment.take(text)
        else:
            self.entries += self._alignment.close(text, keep_rest=self._keeps_rest(ending))

    def prompt_members(self) -> dict[str, Any]:
        """What was asked of the prompt itself, under vLLM's names."""
        members: dict[str, Any] = {}
        if self._form.token_ids:
            members["prompt_token_ids"] = list(self._prompt.token_ids)
        if self._form.prompt_logprobs:
            members["prompt_logprobs"] = prompt_logprobs_json(self._told_of_prompt())
        return members

    def _told_of_prompt(self) -> PromptLogprobs:
        """The engine's numbers; nulls in their place would be a lie. Raises InvalidRequest where it sent none."""
        if self._prompt_logprobs is None:
            asked = "prompt_logprobs" if self._form.prompt_logprobs else "echo"
            words = "'prompt_logprobs'" if self._form.prompt_logprobs else "'echo' with 'logprobs'"
            raise InvalidRequest(
                f"{words} is not supported by this model's engine: it told no log probabilities of the prompt",
                param=asked,
            )
        return self._prompt_logprobs

    def _keeps_rest(self, ending: BackendOutput) -> bool:
        if isinstance(ending.stop_reason, str):
            return False
        reason = ending.finish_reason
        return not self._exact or (reason is not None and reason.kind is FinishKind.LENGTH)


def _prompt_logprobs(output: BackendOutput) -> PromptLogprobs | None:
    try:
        return prompt_logprobs_of(output.engine_data)
    except WireError as error:
        raise ProtocolViolation(str(error)) from None
