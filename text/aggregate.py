"""A whole answer as one JSON body, from the same outputs that a stream is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from protocols.errors import InternalError
from protocols.outputs import BackendOutput
from text.answer_form import AnswerForm, finish_name
from text.answer_pieces import AnswerPiece, ContentText
from text.chat_message import message_of
from text.logprobs import chat_logprobs, completion_logprobs, known
from text.token_report import TokenReport
from text.usage import ChoiceCount, UsageCount


class GatheredChoice:
    """One candidate's answer so far."""

    __slots__ = ("_count", "_logprob_count", "_logprob_sum", "_texts", "_thoughts", "ending", "finish", "report")

    def __init__(self, form: AnswerForm, index: int, count: ChoiceCount, *, exact: bool) -> None:
        self._count = count
        self._thoughts = count.reasoning = None if form.reading is None else form.reading.count()
        self._texts: list[str] = []
        self._logprob_sum = 0.0
        self._logprob_count = 0
        self.report = TokenReport(form, form.prompt_of(index), exact=exact)
        self.ending: BackendOutput | None = None
        self.finish: str | None = None

    def feed(self, outputs: Sequence[BackendOutput]) -> None:
        if self.ending is not None:
            return
        for output in outputs:
            self._count.tokens += len(output.token_ids)
            if output.completion_usage is not None:
                self._count.observe(output)
            if self._thoughts is not None:
                self._thoughts.feed(output.tokens)
            if output.text:
                self._texts.append(output.text)
            if output.log_probs:
                self._logprob_sum += sum(map(known, output.log_probs))
                self._logprob_count += len(output.log_probs)
            if output.finish_reason is not None:
                self.ending = output
                self.finish = finish_name(output.finish_reason)
        self.report.add(outputs)

    def text(self) -> str:
        return "".join(self._texts)

    def mean_logprob(self) -> float:
        """How likely the answer is per token; what candidates are ranked by."""
        return self._logprob_sum / self._logprob_count if self._logprob_count else 0.0


class Aggregate(ABC):
    """A unary answer: give it each candidate's outputs, then take the body. `usage` is counted here."""

    kind: ClassVar[str]
    exact: ClassVar[bool]
    prompt_at_root: ClassVar[bool]

    def __init__(self, form: AnswerForm, usage: UsageCount) -> None:
        self._form = form
        self._usage = usage
        counts = usage.choices
        self._gathered = [GatheredChoice(form, index, counts[index], exact=self.exact) for index in range(form.total())]

    def feed(self, index: int, outputs: Sequence[BackendOutput]) -> None:
        """Takes one read's outputs of candidate `index`.

        Raises WorkerFailure when an output is an error or an abort: neither is ever told as a finish.
        """
        self._gathered[index].feed(outputs)

    def body(self, members: Mapping[str, Any] | None = None) -> bytes:
        """The answer; `members` stand beside its own. Raises InternalError when a candidate has no finish."""
        root: dict[str, Any] = {
            "id": self._form.id,
            "object": self.kind,
            "created": self._form.created,
            "model": self._form.model,
            "choices": [],
        }
        for index, gathered in enumerate(self._shown()):
            choice, prompt = self._choice(index, gathered)
            root["choices"].append(choice)
            (root if self.prompt_at_root else choice).update(prompt)
        return orjson.dumps({**root, "usage": self._usage.usage(), **(members or {})})

    def _shown(self) -> list[GatheredChoice]:
        """The choices to show: all, or of each prompt's candidates the likeliest."""
        if not self._form.ranked:
            return self._gathered
        shown = []
        size = self._form.candidates
        for start in range(0, len(self._gathered), size):
            ranked = sorted(self._gathered[start : start + size], key=lambda each: -each.mean_logprob())
            shown += ranked[: self._form.n]
        return shown

    def _choice(self, index: int, gathered: GatheredChoice) -> tuple[dict[str, Any], dict[str, Any]]:
        """A choice, and what is told of its prompt."""
        ending, report = gathered.ending, gathered.report
        if ending is None or gathered.finish is None:
            raise InternalError(f"choice {index} ended without a finish")
        text = gathered.text()
        report.tell(text, ending)
        content, finish = self._content(text, index, gathered.finish)
        choice: dict[str, Any] = {
            "index": index,
            **content,
            "logprobs": None if self._form.logprobs is None else self._logprobs(report),
            "finish_reason": finish,
        }
        if ending.stop_reason is not None:
            choice["stop_reason"] = ending.stop_reason
        if self._form.token_ids:
            choice["token_ids"] = report.token_ids
        return choice, report.prompt_members()

    @abstractmethod
    def _content(self, text: str, index: int, finish: str) -> tuple[dict[str, Any], str]:
        """The member that holds the text, and OpenAI's word for how it ended, `finish` where nothing was called."""

    @abstractmethod
    def _logprobs(self, report: TokenReport) -> dict[str, Any]: ...


class ChatAggregate(Aggregate):
    """`chat.completion`. Content is a string even when it is empty: null is for answers that are calls."""

    kind = "chat.completion"
    exact = True
    prompt_at_root = True

    def _content(self, text: str, index: int, finish: str) -> tuple[dict[str, Any], str]:
        reading = self._form.reading
        lead = self._form.lead
        if reading is None:
            return {"message": {"role": "assistant", "content": lead + text, "refusal": None}}, finish
        parser, rules = reading.parser(), reading.rules
        pieces: list[AnswerPiece] = [*parser.feed(text), *parser.finish(cut=finish != "stop")]
        if lead:
            pieces.insert(0, ContentText(lead))
        message = message_of(pieces, legacy=rules is not None and rules.legacy)
        return {"message": message}, finish if rules is None else rules.finish_name(finish, parser.calls)

    def _logprobs(self, report: TokenReport) -> dict[str, Any]:
        return chat_logprobs(report.entries, self._form)


class CompletionAggregate(Aggregate):
    """`text_completion`, the prompt before the text where it is echoed."""

    kind = "text_completion"
    exact = False
    prompt_at_root = False

    def _content(self, text: str, index: int, finish: str) -> tuple[dict[str, Any], str]:
        prompt = self._form.prompts[index // self._form.n]
        return {"text": prompt.text + text if self._form.echo else text}, finish

    def _logprobs(self, report: TokenReport) -> dict[str, Any]:
        return completion_logprobs(report.entries, self._form)
