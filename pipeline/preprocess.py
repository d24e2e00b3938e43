"""From an OpenAI request to the workers' requests, and the choices' outputs back up.

Renders, tokenizes, checks the budget, then fans n > 1 and lists of prompts out: every choice is a request of its own
below, with its own ids, seed, migration and explanation, and shares deadline, flow and cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.context import RequestContext
from pipeline.service import Service, Sink
from protocols.errors import InvalidRequest
from protocols.model_card import ModelCard
from protocols.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from protocols.openai_errors import invalid
from protocols.options import SamplingOptions
from protocols.outputs import BackendOutput
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from text.answer_form import AnswerForm, PromptEcho, chat_form, completion_form
from text.answer_parser import ModelMarkup
from text.asked import Asked, Remembered
from text.chat_messages import raw_prompt, refuse_media
from text.chat_reader import ChatPlan, ChatReader
from text.chat_template import ChatTemplate
from text.options import budget, choice_sampling, stop_conditions, wanted_tokens
from text.reasoning.styles import THINKING_ARGUMENTS
from text.tokenizer import Tokenizer
from text.truncation import cut
from text.unsupported import without

LONG_TEXT = 16_384
"""Characters from which on tokenizing leaves the event loop: under it takes less than about 5 ms."""

END_OF_A_PROMPT = 64
"""Tokens of a prompt in which its last marks are found."""


@dataclass(slots=True)
class ChoiceOutputs:
    """What one read brought for one choice. `index` counts the candidates of all prompts, in order."""

    index: int
    outputs: Sequence[BackendOutput]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its prompts tokenized: ready to be sent, and to be shown."""

    request: ChatCompletionRequest | CompletionRequest
    prompts: tuple[PreprocessedRequest, ...]
    form: AnswerForm
    texts: Sequence[str] | None = None
    """The prompts before they were tokenized; None where they came as ids."""
    dropped: tuple[str, ...] = ()
    """Parameters that were left out because no worker could honour them."""

    def prompt_tokens(self) -> list[int | None]:
        """Each prompt's length; None for embeddings, whose length only the engine knows."""
        return [
            prompt.expanded_prompt_token_count() if prompt.prompt_embeds is None else None for prompt in self.prompts
        ]


class Preprocessor:
    """One model's way from text to token ids. `template` is None for a model that has none: then chats are refused.

    `context_length` gives the limit in force, in tokens, prompt and answer together; the card's where it is not given.
    `reader`: what is made of a chat's tools and thoughts; without it thoughts and free calls stay text. `unsupported`:
    tells what no worker can honour of a request, where that is to be dropped.
    """

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        context_length: Callable[[], int | None] | None = None,
        reader: ChatReader | None = None,
        unsupported: Callable[[PreprocessedRequest], str | None] | None = None,
    ) -> None:
        self._card = card
        self._tokenizer = tokenizer
        self._template = template
        self._reader = reader or ChatReader(ModelMarkup(), tokenizer)
        self._unsupported = unsupported
        self._remembered = Remembered(card)
        self.context_length = context_length or (lambda: card.context_length)

    async def prepare(
        self,
        request: GenerationRequest,
        context: RequestContext,
        created: int,
        hints: RoutingHints | None = None,
    ) -> Prepared:
        """Renders and tokenizes. `hints`: what the headers say; they win over the body. Raises InvalidRequest."""
        assert isinstance(request, (ChatCompletionRequest, CompletionRequest))
        if self._unsupported is None:
            return await self._prepare(request, context, created, hints)
        dropped: list[str] = []
        if isinstance(request, CompletionRequest) and request.suffix:
            # No engine is asked for it, so none refuses it.
            request, dropped = request.model_copy(update={"suffix": None}), ["suffix"]
        prepared = await self._prepare(request, context, created, hints)
        while (parameter := self._unsupported(prepared.prompts[0])) is not None:
            bare = None if parameter in dropped else without(request, parameter)
            if bare is None:
                break
            dropped.append(parameter)
            request = bare
            prepared = await self._prepare(request, context, created, hints)
        return replace(prepared, dropped=tuple(dropped)) if dropped else prepared

    async def _prepare(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        context: RequestContext,
        created: int,
        hints: RoutingHints | None,
    ) -> Prepared:
        asked = self._remembered.asked(request)
        sampling = asked.sampling
        plan, texts = ChatPlan(sampling.guided_decoding), None
        given = _token_data(request)
        prompts = [given or []]
        if isinstance(request, ChatCompletionRequest):
            arguments = _template_arguments(request)
            text = self._chat_text(request, arguments) if given is None else self._end_of(given)
            plan = self._reader.plan(request, text, arguments, sampling.guided_decoding)
            if plan.guided is not sampling.guided_decoding:
                sampling = replace(sampling, guided_decoding=plan.guided)
            if given is None:
                prompts, texts = [await self._chat_ids(request, text)], [text]
        elif given is None:
            prompts = [await self._prompt_ids(prompt, request) for prompt in request.prompts()]
            texts = [prompt for prompt in request.prompts() if isinstance(prompt, str)] or None
        if request.truncate_prompt_tokens is not None:
            prompts, texts = [self._truncated(request, ids) for ids in prompts], None
        sent = self._preprocessed(request, prompts, asked, sampling, plan, merged_hints(asked.hints, hints))
        form = self._form(request, context.request_id, created, prompts, plan)
        return Prepared(request, sent, form, texts)

    async def __call__(
        self,
        prepared: Prepared,
        context: RequestContext,
        sink: Sink[ChoiceOutputs],
        downstream: Service[PreprocessedRequest, BackendOutput],
    ) -> None:
        requests = list(_choices(prepared))
        try:
            if len(requests) == 1:
                await downstream(requests[0], context, lambda outputs: sink([ChoiceOutputs(0, outputs)]))
                return
            await _together(requests, context, sink, downstream)
        except InvalidRequest as error:
            raise _as_asked(error, prepared.form) from error.__cause__

    # ---- text to ids

    async def chat_ids(self, request: ChatCompletionRequest) -> list[int]:
        """A chat's prompt. Raises InvalidRequest, with the template's own words when it refuses."""
        return await self._chat_ids(request, self._chat_text(request, _template_arguments(request)))

    def _truncated(self, request: ChatCompletionRequest | CompletionRequest, ids: list[int]) -> list[int]:
        """At most as many ids as the request says, or as leave room for the answer."""
        most = request.truncate_prompt_tokens or 0
        if most < 0:
            longest = self.context_length()
            most = len(ids) if longest is None else max(longest - (wanted_tokens(request, self._card) or 1), 1)
        return cut(ids, most, from_left=request.truncation_side != "right")

    def _end_of(self, ids: Sequence[int]) -> str:
        """The end of a prompt that came as ids: it tells whether the answer begins inside thoughts."""
        return self._tokenizer.decode(ids[-END_OF_A_PROMPT:], skip_special_tokens=False)

    def _chat_text(self, request: ChatCompletionRequest, arguments: Mapping[str, Any]) -> str:
        extras = request.extras()
        if extras is not None and extras.use_raw_prompt:
            return raw_prompt(request.messages)
        if self._template is None:
            raise invalid("messages", f"the model '{self._card.name}' has no chat template; use /v1/completions")
        tools = request.template_tools()
        if self._template.traits(tools=bool(tools)).media:
            refuse_media(request.messages)
        return self._template.render(request.messages, tools=tools, **arguments)

    async def _chat_ids(self, request: ChatCompletionRequest, text: str) -> list[int]:
        if not request.add_special_tokens:
            return await self._encode(text, add_special_tokens=False, param="messages")
        ids = await self._encode(text, add_special_tokens=True, param="messages")
        bos = self._card.bos_token_id
        # Most templates write it themselves.
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    async def _prompt_ids(self, prompt: str | list[int], request: CompletionRequest) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        if request.prompt_embeds is not None and not prompt:
            return []
        special = request.add_special_tokens is not False
        return await self._encode(prompt, add_special_tokens=special, param="prompt")

    async def _encode(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        if len(text) < LONG_TEXT:
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            ids = await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        if not ids:
            raise invalid(param, "the prompt has no tokens")
        return ids

    # ---- the request below

    def _preprocessed(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        prompts: Sequence[list[int]],
        asked: Asked,
        sampling: SamplingOptions,
        plan: ChatPlan,
        hints: RoutingHints | None,
    ) -> tuple[PreprocessedRequest, ...]:
        """One request per prompt; they differ in ids and in the room left for an answer."""
        card, longest, wanted = self._card, self.context_length(), asked.wanted
        param = "messages" if isinstance(request, ChatCompletionRequest) else "prompt"
        sent = []
        for ids in prompts:
            most = budget(len(ids), wanted, longest, param=param, clamp=card.clamps)
            sent.append(
                PreprocessedRequest(
                    token_ids=tuple(ids),
                    model=card.name,
                    prompt_embeds=request.prompt_embeds if isinstance(request, CompletionRequest) else None,
                    stop_conditions=asked.stop if most == wanted else stop_conditions(request, card, most),
                    sampling_options=sampling,
                    output_options=asked.output,
                    eos_token_ids=card.eos_token_ids,
                    mdc_sum=card.checksum,
                    annotations=asked.annotations,
                    routing=hints,
                    extra_args=asked.extra_args,
                    require_reasoning=plan.thinks_first,
                    router=asked.router,
                    request_timestamp_ms=asked.timestamp_ms,
                    shown_token_ids=plan.shown_token_ids,
                )
            )
        return tuple(sent)

    def _form(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        answer_id: str,
        created: int,
        prompts: Sequence[list[int]],
        plan: ChatPlan,
    ) -> AnswerForm:
        token_bytes = self._tokenizer.token_bytes
        if isinstance(request, ChatCompletionRequest):
            echo = self._echo(prompts[0], text=None) if request.return_token_ids else None
            return chat_form(
                request, answer_id, created, request.model, echo, token_bytes=token_bytes, reading=plan.reading
            )
        told = bool(request.echo or request.return_token_ids)
        # Of a prompt that was cut off, or came in another form, the text is what its ids say.
        as_said = request.truncate_prompt_tokens is None and _token_data(request) is None
        given = request.prompts() if as_said else [[]] * len(prompts)
        echoes = [
            self._echo(ids, text=text if isinstance(text, str) else None) if told else PromptEcho()
            for ids, text in zip(prompts, given, strict=True)
        ]
        return completion_form(request, answer_id, created, request.model, echoes, token_bytes=token_bytes)

    def _echo(self, ids: list[int], *, text: str | None) -> PromptEcho:
        return PromptEcho(
            token_ids=ids,
            tokens=self._tokenizer.token_texts(ids),
            text=self._tokenizer.decode(ids, skip_special_tokens=False) if text is None else text,
        )


def _token_data(request: GenerationRequest) -> list[int] | None:
    """The prompt's ids where the client has tokenized it already."""
    extras = request.extras()
    return extras.token_data or None if extras is not None else None


def _template_arguments(request: ChatCompletionRequest) -> Mapping[str, Any]:
    """What the template is told beside messages and tools."""
    arguments = dict(request.template_arguments())
    continued = bool(request.continue_final_message)
    generation = request.add_generation_prompt
    arguments["add_generation_prompt"] = not continued if generation is None else generation
    if continued:
        arguments["continue_final_message"] = True
    if request.documents is not None:
        arguments["documents"] = request.documents
    if request.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", request.reasoning_effort)
    thinks = request.thinks()
    if thinks is not None:
        for name in THINKING_ARGUMENTS:
            arguments.setdefault(name, thinks)
    return arguments


def merged_hints(body: RoutingHints | None, headers: RoutingHints | None) -> RoutingHints | None:
    """Hints of the body with those of the headers over them."""
    if body is None or headers is None:
        return headers or body
    said = {name: value for name in body.__slots__ if (value := getattr(headers, name)) is not None}
    return replace(body, **said)


def _as_asked(error: InvalidRequest, form: AnswerForm) -> InvalidRequest:
    """A refusal of the prompt's logprobs, named as the client asked for them."""
    if error.param != "prompt_logprobs" or form.prompt_logprobs:
        return error
    words = error.message.replace("'prompt_logprobs'", "prompt_logprobs")
    return type(error)(words.replace("prompt_logprobs", "'echo' with 'logprobs'"), param="echo")


def _choices(prepared: Prepared) -> Sequence[PreprocessedRequest]:
    """One request per candidate of each prompt, with seeds that differ."""
    candidates = prepared.form.candidates
    if candidates == 1:
        return prepared.prompts
    return [
        replace(prompt, sampling_options=choice_sampling(prompt.sampling_options, index))
        for prompt in prepared.prompts
        for index in range(candidates)
    ]


async def _together(
    requests: Sequence[PreprocessedRequest],
    context: RequestContext,
    sink: Sink[ChoiceOutputs],
    downstream: Service[PreprocessedRequest, BackendOutput],
) -> None:
    """Runs every choice as a task. The first failure cancels the others and is the request's."""

    async def one(index: int, request: PreprocessedRequest) -> None:
        await downstream(request, context.child(index), lambda outputs: sink([ChoiceOutputs(index, outputs)]))

    tasks = [asyncio.create_task(one(index, request)) for index, request in enumerate(requests)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in done if not task.cancelled() and task.exception() is not None), None)
        if failed is not None:
            await failed
    finally:
        for task in tasks:
            task.cancel()
        if any(not task.done() for task in tasks):
            await asyncio.shield(asyncio.wait(tasks))
