"""A choice's outputs to OpenAI's stream events; the last step of a token's way.

The bytes around a text are made beforehand. What the engine sent as one event becomes one chunk, so that whoever counts
chunks sees the engine's own pace; the chunks of one read leave together. Nothing is sent that shows nothing: ids whose
text is withheld wait for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import orjson

from protocols.errors import InternalError
from protocols.outputs import BackendOutput
from text.answer_form import AnswerForm, finish_name
from text.answer_pieces import AnswerPiece, ContentText
from text.chat_message import delta_of
from text.logprobs import chat_logprobs, completion_logprobs
from text.token_report import TokenReport
from text.usage import ChoiceCount, UsageCount

DONE = b"data: [DONE]\n\n"
_HOLE = "\x7f"


class ChunkFrame:
    """What all chunks of one stream share: the bytes before the choices, and what follows them."""

    __slots__ = ("_continuous", "_include_usage", "_usage", "head", "tail")

    def __init__(self, form: AnswerForm, kind: str, usage: UsageCount) -> None:
        shared = {"id": form.id, "object": kind, "created": form.created, "model": form.model}
        self.head = b"data: " + orjson.dumps(shared)[:-1] + b',"choices":['
        self.tail = b'],"usage":null}\n\n' if form.include_usage else b"]}\n\n"
        self._include_usage = form.include_usage
        self._continuous = form.continuous_usage
        self._usage = usage

    def chunk(self, choice: bytes, members: Mapping[str, Any]) -> bytes:
        """A chunk of one choice, given as JSON; `members`: what else the chunk itself says."""
        if self._continuous:
            members = {**members, "usage": self._usage.usage()}
        elif members and self._include_usage:
            members = {**members, "usage": None}
        if not members:
            return self.head + choice + self.tail
        return self._told(choice, members)

    def aside(self, members: Mapping[str, Any]) -> bytes:
        """A chunk without a choice, in the midst of a stream."""
        return self._told(b"", {**members, "usage": None} if self._include_usage else members)

    def closing(self, members: Mapping[str, Any]) -> bytes:
        """The chunk without a choice that ends a stream with its usage; nothing where there is nothing to say."""
        if self._include_usage:
            members = {**members, "usage": self._usage.usage()}
        return self._told(b"", members) if members else b""

    def _told(self, choice: bytes, members: Mapping[str, Any]) -> bytes:
        """`members`: at least one."""
        return self.head + choice + b"]," + orjson.dumps(members)[1:] + b"\n\n"


class ChoiceDeltas(ABC):
    """One choice's part of a stream."""

    kind: ClassVar[str]
    exact: ClassVar[bool]
    """See TokenReport."""
    prompt_at_root: ClassVar[bool]
    """Where the prompt's own report stands: in the chunk, or in the choice."""

    def __init__(self, form: AnswerForm, index: int, count: ChoiceCount, frame: ChunkFrame) -> None:
        self.finished = False
        self._form = form
        self._index = index
        self._count = count
        self._frame = frame
        self._prompt = form.prompt_of(index)
        self._echo = self._prompt.text if form.echo else ""
        self._report: TokenReport | None = None
        if form.logprobs is not None or form.token_ids or form.prompt_logprobs:
            self._report = TokenReport(form, self._prompt, exact=self.exact)
        self._first = True
        self._plain = self._report is None and not form.continuous_usage
        before, after = _around_text(type(self), index)
        self._lead = frame.head + before
        self._trail = after + frame.tail

    def feed(self, outputs: Sequence[BackendOutput]) -> bytes:
        """The events of one read's outputs, b"" when they show nothing. Raises when an output is an error."""
        if len(outputs) == 1:
            return self._feed_one(outputs[0])
        return b"".join(map(self._feed_one, outputs))

    def _feed_one(self, output: BackendOutput) -> bytes:
        if self.finished:
            return b""
        count = self._count
        count.tokens += len(output.token_ids)
        if output.completion_usage is not None:
            count.observe(output)
        if self._report is not None:
            self._report.add((output,))
        text = output.text or ""
        if output.finish_reason is not None:
            return self._events(text, output)
        if not text:
            return b""
        if self._plain and not self._echo:
            return self._lead + orjson.dumps(text) + self._trail
        return self._events(text, None)

    def _events(self, text: str, ending: BackendOutput | None) -> bytes:
        finish = None if ending is None or ending.finish_reason is None else finish_name(ending.finish_reason)
        if self._report is not None:
            self._report.tell(text, ending)
        events = b""
        if self._echo or text:
            events = self._chunk(_choice(self._index, self.body(self._echo + text)))
            self._echo = ""
        if ending is not None:
            events += self._close(ending, finish)
        return events

    def _close(self, ending: BackendOutput, finish: str | None) -> bytes:
        """The chunk that tells the finish."""
        self.finished = True
        if self._report is None and ending.stop_reason is None:
            return self._frame.chunk(_finish(type(self), self._index, finish), {})
        choice = _choice(self._index, self.empty_body(), finish)
        if ending.stop_reason is not None:
            choice["stop_reason"] = ending.stop_reason
        return self._chunk(choice)

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        """The chunk of a choice, with what the report has to tell by now."""
        members: dict[str, Any] = {}
        report = self._report
        if report is not None:
            if self._form.logprobs is not None and (report.entries or choice["finish_reason"] is None):
                choice["logprobs"] = self._logprobs(report)
                report.entries = []
            if self._form.token_ids:
                choice["token_ids"] = report.token_ids
                report.token_ids = []
            if self._first:
                self._first = False
                (members if self.prompt_at_root else choice).update(report.prompt_members())
        return self._frame.chunk(orjson.dumps(choice), members)

    def opening(self) -> bytes:
        """What is sent before anything of any choice."""
        return b""

    @staticmethod
    @abstractmethod
    def body(text: str) -> dict[str, Any]:
        """A choice's member that holds its text."""

    @staticmethod
    @abstractmethod
    def empty_body() -> dict[str, Any]:
        """The same where there is no text."""

    @abstractmethod
    def _logprobs(self, report: TokenReport) -> dict[str, Any]: ...


def _choice(index: int, body: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, **body, "logprobs": None, "finish_reason": finish}


@lru_cache(maxsize=256)
def _around_text(deltas: type[ChoiceDeltas], index: int) -> tuple[bytes, bytes]:
    """The bytes of a choice before its text and after it, the same in all streams."""
    before, _, after = orjson.dumps(_choice(index, deltas.body(_HOLE))).partition(orjson.dumps(_HOLE))
    return before, after


@lru_cache(maxsize=256)
def _finish(deltas: type[ChoiceDeltas], index: int, finish: str | None) -> bytes:
    """The bytes of a choice that says nothing but how it ended."""
    return orjson.dumps(_choice(index, deltas.empty_body(), finish))


class ChatDeltas(ChoiceDeltas):
    """Chunks `chat.completion.chunk`: a role, contents, a finish."""

    kind = "chat.completion.chunk"
    exact = True
    prompt_at_root = True

    def opening(self) -> bytes:
        return self._opened(speaks=True)

    def _opened(self, *, speaks: bool) -> bytes:
        """`speaks`: who answers will say something, and not only call."""
        lead = self._form.lead
        opening = self._frame.chunk(_opening(self._index, speaks or bool(lead)), {})
        return opening + self._frame.chunk(orjson.dumps(_choice(self._index, self.body(lead))), {}) if lead else opening

    @staticmethod
    def body(text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    @staticmethod
    def empty_body() -> dict[str, Any]:
        return {"delta": {}}

    def _logprobs(self, report: TokenReport) -> dict[str, Any]:
        return chat_logprobs(report.entries, self._form)


@lru_cache(maxsize=256)
def _opening(index: int, speaks: bool) -> bytes:
    """The bytes of a chat's choice that says who speaks. Content is null for who may call in place of speaking."""
    return orjson.dumps(_choice(index, {"delta": {"role": "assistant", "content": "" if speaks else None}}))


class ReadChatDeltas(ChatDeltas):
    """The chunks of a chat whose text is read: thoughts, contents, calls, each piece in a chunk of its own.

    What is reported beside the text belongs to the text as it was generated: it waits for the next chunk.
    """

    def __init__(self, form: AnswerForm, index: int, count: ChoiceCount, frame: ChunkFrame) -> None:
        super().__init__(form, index, count, frame)
        assert form.reading is not None, "a text that is not read is for ChatDeltas"
        self._parser = form.reading.parser()
        self._rules = form.reading.rules
        self._legacy = self._rules is not None and self._rules.legacy
        self._thoughts = count.reasoning = form.reading.count()
        self._bare = self._plain
        self._plain = False
        self._silent = not form.lead
        """Was no content told yet?"""

    def opening(self) -> bytes:
        return self._opened(speaks=self._rules is None)

    def _feed_one(self, output: BackendOutput) -> bytes:
        if self.finished:
            return b""
        if self._thoughts is not None:
            self._thoughts.feed(output.tokens)
        if not self._bare or output.finish_reason is not None or output.completion_usage is not None:
            return super()._feed_one(output)
        # What nearly all outputs are: a bit of text, with nothing to be told beside it.
        self._count.tokens += len(output.token_ids)
        pieces = self._parser.feed(output.text) if output.text else ()
        if len(pieces) == 1:
            return self._piece(pieces[0])
        return self._pieces(pieces) if pieces else b""

    def _events(self, text: str, ending: BackendOutput | None) -> bytes:
        finish = None if ending is None or ending.finish_reason is None else finish_name(ending.finish_reason)
        if self._report is not None:
            self._report.tell(text, ending)
        pieces = self._parser.feed(text) if text else ()
        if finish is None or ending is None:
            return self._pieces(pieces)
        events = self._pieces([*pieces, *self._parser.finish(cut=finish != "stop")])
        calls = self._parser.calls
        if self._rules is not None:
            finish = self._rules.finish_name(finish, calls)
            if self._silent and not calls:
                # The opening said null, which is for answers that are calls.
                events += self._pieces([ContentText("")])
        return events + self._close(ending, finish)

    def _pieces(self, pieces: Sequence[AnswerPiece]) -> bytes:
        return b"".join(map(self._piece, pieces))

    def _piece(self, piece: AnswerPiece) -> bytes:
        if isinstance(piece, ContentText):
            self._silent = False
            if self._bare:
                return self._lead + orjson.dumps(piece.text) + self._trail
        return self._chunk(_choice(self._index, {"delta": delta_of(piece, legacy=self._legacy)}))


class CompletionDeltas(ChoiceDeltas):
    """Chunks `text_completion`: texts, the echoed prompt before the first, a finish."""

    kind = "text_completion"
    exact = False
    prompt_at_root = False

    @staticmethod
    def body(text: str) -> dict[str, Any]:
        return {"text": text}

    @staticmethod
    def empty_body() -> dict[str, Any]:
        return {"text": ""}

    def _logprobs(self, report: TokenReport) -> dict[str, Any]:
        return completion_logprobs(report.entries, self._form)


class StreamRenderer:
    """A whole answer as server-sent events: give it each choice's outputs, send what it returns.

    The openings of all choices come before anything else, in order: SDKs index choices densely. They wait for the first
    event with something to show, so that a failure before it can still be told by its status. `usage` is counted here
    and may be read when the answer has ended.
    """

    def __init__(self, form: AnswerForm, usage: UsageCount, deltas: type[ChoiceDeltas]) -> None:
        if form.ranked:
            raise ValueError("candidates that are ranked at the end cannot be streamed")
        self._frame = ChunkFrame(form, deltas.kind, usage)
        counts = usage.choices
        self._choices = [deltas(form, index, counts[index], self._frame) for index in range(form.total())]
        self._started = False
        self._preface = b""

    @classmethod
    def chat(cls, form: AnswerForm, usage: UsageCount) -> StreamRenderer:
        return cls(form, usage, ChatDeltas if form.reading is None else ReadChatDeltas)

    @classmethod
    def completion(cls, form: AnswerForm, usage: UsageCount) -> StreamRenderer:
        return cls(form, usage, CompletionDeltas)

    def announce(self, members: Mapping[str, Any]) -> None:
        """They are told in a chunk of their own before the openings."""
        self._preface = self._frame.aside(members)

    def start(self) -> bytes:
        """The openings, once; `feed` sends them by itself if nobody asked before."""
        if self._started:
            return b""
        self._started = True
        return self._preface + b"".join([choice.opening() for choice in self._choices])

    def feed(self, index: int, outputs: Sequence[BackendOutput]) -> bytes:
        """The events of one read's outputs of choice `index`; b"" when they show nothing.

        Raises WorkerFailure when an output is an error or an abort: neither is ever told as a finish.
        """
        events = self._choices[index].feed(outputs)
        if events and not self._started:
            return self.start() + events
        return events

    @property
    def complete(self) -> bool:
        """Every choice has told its finish."""
        return all(choice.finished for choice in self._choices)

    def end(self, members: Mapping[str, Any] | None = None) -> bytes:
        """The last events: usage where it was asked for, `members` beside it, and [DONE].

        Raises InternalError when a choice has no finish yet: an answer never ends cleanly without one.
        """
        for index, choice in enumerate(self._choices):
            if not choice.finished:
                raise InternalError(f"choice {index} ended without a finish")
        return self._frame.closing(members or {}) + DONE
