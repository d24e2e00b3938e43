"""What an answer must look like: the values that all its chunks share, and what the client wants told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocols.errors import EngineAborted, EngineFailure
from protocols.openai import ChatCompletionRequest, CompletionRequest
from protocols.outputs import FinishKind, FinishReason
from protocols.quick_init import quick_init
from text.answer_parser import AnswerReading

FINISH_NAMES = {
    FinishKind.EOS: "stop",
    FinishKind.STOP: "stop",
    FinishKind.LENGTH: "length",
    FinishKind.CONTENT_FILTER: "content_filter",
}


@quick_init
@dataclass(frozen=True, slots=True)
class PromptEcho:
    """A prompt as it is told back: `tokens[i]` is the text of `token_ids[i]` alone, `text` that of all."""

    token_ids: Sequence[int] = ()
    tokens: Sequence[str | None] = ()
    text: str = ""


_UNTOLD = (PromptEcho(),)


@quick_init
@dataclass(frozen=True, slots=True)
class AnswerForm:
    """One answer's form.

    `created` in unix seconds. Every prompt has `candidates` generated answers of which the best `n` are shown; a choice
    is fed by its number among the candidates of all prompts, in order. `logprobs`: alternatives per token, None for no
    logprobs at all. `echo`: each answer starts with its prompt. `lead`: a chat's content starts with it, as the model
    had it in its prompt. `token_bytes`: a token's own bytes by its id; without it, tokens that are parts of a character
    are told without bytes, at places that are guessed. `reading`: how a chat's text is told apart into thoughts,
    content and calls; None where all of it is content.
    """

    id: str
    created: int
    model: str
    prompts: tuple[PromptEcho, ...] = _UNTOLD
    n: int = 1
    candidates: int = 1
    echo: bool = False
    lead: str = ""
    logprobs: int | None = None
    prompt_logprobs: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    token_bytes: Callable[[int], bytes] | None = None
    reading: AnswerReading | None = None

    @property
    def ranked(self) -> bool:
        """Are there more candidates than are shown?"""
        return self.candidates > self.n

    def prompt_of(self, index: int) -> PromptEcho:
        """The prompt that candidate `index` answers."""
        return self.prompts[index // self.candidates]

    def total(self) -> int:
        """How many candidates there are in all."""
        return len(self.prompts) * self.candidates


def chat_form(
    request: ChatCompletionRequest,
    answer_id: str,
    created: int,
    model: str,
    prompt: PromptEcho | None = None,
    *,
    token_bytes: Callable[[int], bytes] | None = None,
    reading: AnswerReading | None = None,
) -> AnswerForm:
    """The form of a chat's answer. `prompt` is needed where the client wants its ids told (`return_token_ids`)."""
    return AnswerForm(
        id=answer_id,
        created=created,
        model=model,
        prompts=_UNTOLD if prompt is None else (prompt,),
        n=request.n or 1,
        candidates=request.candidates(),
        lead=_lead(request),
        token_bytes=token_bytes,
        reading=reading,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs is not None,
        token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        include_usage=request.includes_usage(),
        continuous_usage=request.continuous_usage(),
    )


def _lead(request: ChatCompletionRequest) -> str:
    """The text that a chat's answer is asked to begin with: a last message's that is the assistant's own (vLLM)."""
    if not request.echo:
        return ""
    last = request.messages[-1]
    content = last.get("content") or ""
    if last["role"] != "assistant":
        return ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def completion_form(
    request: CompletionRequest,
    answer_id: str,
    created: int,
    model: str,
    prompts: Sequence[PromptEcho],
    *,
    token_bytes: Callable[[int], bytes] | None = None,
) -> AnswerForm:
    """The form of a completion's answer, one PromptEcho per prompt, filled where `echo` or `return_token_ids` asks."""
    return AnswerForm(
        id=answer_id,
        created=created,
        model=model,
        prompts=tuple(prompts),
        n=request.n or 1,
        candidates=request.candidates(),
        token_bytes=token_bytes,
        echo=bool(request.echo),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs is not None,
        token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        include_usage=request.includes_usage(),
        continuous_usage=request.continuous_usage(),
    )


def finish_name(reason: FinishReason) -> str:
    """OpenAI's word for why an answer ended. An error or an abort is no end: raises the failure it stands for."""
    if reason.kind is FinishKind.ERROR:
        raise EngineFailure(reason.message or "the engine reported an error")
    if reason.kind is FinishKind.CANCELLED:
        raise EngineAborted("the engine aborted the answer")
    return FINISH_NAMES[reason.kind]
