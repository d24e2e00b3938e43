"""A conversation to the prompt the model was trained on, by the model's own Jinja template.

What a template takes is found out by rendering small conversations with it when it is made, not by reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from protocols.errors import InvalidRequest
from text.chat_messages import MEDIA, NoContent, TemplateTraits, template_messages
from text.jinja_environment import chat_environment

DEFAULT = "default"
TOOL_USE = "tool_use"

_FAILURES = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template can raise while it renders: its own words, or Python's about values it did not expect."""
_SHOWN_CHARS = 500
"""Templates quote messages, which may be long."""
_CONTINUE_HERE = "\ue000continue here\ue000 "
_PROBE = "a probe of mine"
_PROBE_VARIABLES = {"tools": None, "documents": None, "add_generation_prompt": True}


class ChatTemplate:
    """A model's chat template, or several by name: `default`, `tool_use` (for requests with tools), others on demand.

    `special_tokens`: what templates know as `bos_token`, `eos_token`, ...
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, Any] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises ValueError, naming the line, for what is no Jinja template."""
        environment = chat_environment(clock)
        sources = {DEFAULT: source} if isinstance(source, str) else dict(source)
        if not sources:
            raise ValueError("no chat template in an empty list of templates")
        self.source = "\n".join(sources.values())
        """All of them as they were given: what a model's markup is told by."""
        self._constants = {**environment.globals, **(special_tokens or {})}
        self._templates: dict[str, Template] = {}
        for name, text in sources.items():
            try:
                loaded = self._templates[name] = environment.from_string(text)
            except TemplateSyntaxError as error:
                raise ValueError(f"chat template {name!r}, line {error.lineno}: {error.message}") from error
            # They are among the constants; here Jinja would walk through the environment's at every rendering.
            loaded.globals = {}
        self._traits = {name: self._probe(name, text) for name, text in sources.items()}

    def traits(self, template: str | None = None, *, tools: bool = False) -> TemplateTraits:
        """What the template that would be used takes."""
        return self._traits[self._choose(template, tools)]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. No tools, or an empty list, is None to the template.

        `continue_final_message`: the prompt ends with the last message's text, for the model to go on with.
        `template`: one of several by name. `variables`: whatever else the template asks for (`enable_thinking`); they
        go before special tokens and never stand in for the messages.
        Raises InvalidRequest, param `messages`, with the template's own words when it refuses.
        """
        name = self._choose(template, bool(tools))
        prepared = template_messages(messages, self._traits[name])
        if continue_final_message:
            _mark_end(prepared, messages)
        try:
            text = self._run(
                name,
                prepared,
                {
                    **variables,
                    "tools": list(tools) if tools else None,
                    "documents": documents,
                    "add_generation_prompt": add_generation_prompt,
                },
            )
        except _FAILURES as error:
            raise InvalidRequest(_words(error), param="messages") from error
        return _cut_at_mark(text) if continue_final_message else text

    def _choose(self, template: str | None, tools: bool) -> str:
        if template is not None:
            if template not in self._templates:
                raise InvalidRequest(f"the model has no chat template {template!r}", param="chat_template")
            return template
        if tools and TOOL_USE in self._templates:
            return TOOL_USE
        return DEFAULT if DEFAULT in self._templates else next(iter(self._templates))

    def _run(self, name: str, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        template = self._templates[name]
        known = {**self._constants, **variables, "messages": messages}
        # The steps of `render`, which would copy all that is known, twice.
        return "".join(template.root_render_func(template.new_context(known, shared=True)))

    # ---- what a template takes

    def _probe(self, name: str, source: str) -> TemplateTraits:
        strings = self._shows(name, _PROBE, _PROBE)
        parts = self._shows(name, _PROBE, [{"type": "text", "text": _PROBE}])
        arguments_as_text, no_content = self._probe_tool_call(name)
        return TemplateTraits(
            strings=strings or not parts,
            parts=parts,
            developer="developer" in source,
            media=frozenset(kind for kind in MEDIA if parts and self._notices(name, kind)),
            arguments_as_text=arguments_as_text,
            no_content=no_content,
            one_system=self._takes_one_system(name),
        )

    def _takes_one_system(self, name: str) -> bool:
        """Does it show one system message, but not two?"""
        user, first, second = {"role": "user", "content": "U"}, f"{_PROBE} 1", f"{_PROBE} 2"
        system = [{"role": "system", "content": text} for text in (first, second)]
        both = self._attempt(name, [*system, user])
        return first in self._attempt(name, [system[0], user]) and not (first in both and second in both)

    def _shows(self, name: str, text: str, content: Any) -> bool:
        """Does the text come out, and not as a printed Python list?"""
        prompt = self._attempt(name, [{"role": "user", "content": content}])
        return text in prompt and "'type'" not in prompt and '"type"' not in prompt

    def _notices(self, name: str, kind: str) -> bool:
        """Does a part of this kind leave another trace than one of a kind that no template knows?"""
        text = {"type": "text", "text": _PROBE}
        unknown, prompt = (
            self._attempt(name, [{"role": "user", "content": [{"type": part}, text]}]) for part in ("probe", kind)
        )
        return _PROBE in prompt and prompt != unknown

    def _probe_tool_call(self, name: str) -> tuple[bool, NoContent]:
        """The first form of an assistant's tool call that the template writes out whole; else one it bears with."""
        bearable: list[tuple[bool, NoContent]] = []
        for as_text in (False, True):
            for no_content in NoContent:
                traits = TemplateTraits(arguments_as_text=as_text, no_content=no_content)
                prompt = self._attempt(name, template_messages(_TOOL_CALL, traits))
                if not prompt or (no_content is NoContent.NULL and "None" in prompt):
                    continue
                if "probe_function" in prompt and "probe_value" in prompt:
                    return as_text, no_content
                bearable.append((as_text, no_content))
        return bearable[0] if bearable else (False, NoContent.ABSENT)

    def _attempt(self, name: str, messages: list[dict[str, Any]]) -> str:
        """What the template makes of a conversation, also with a system message in front; "" if it refuses both."""
        for lead in ((), ({"role": "system", "content": "S"},)):
            try:
                return self._run(name, [*lead, *messages], _PROBE_VARIABLES)
            except _FAILURES:
                continue
        return ""


_TOOL_CALL: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "U"},
    {
        "role": "assistant",
        # Mistral's templates insist on ids of nine characters.
        "tool_calls": [
            {
                "id": "probe1234",
                "type": "function",
                "function": {"name": "probe_function", "arguments": {"probe_key": "probe_value"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "probe1234", "name": "probe_function", "content": "T"},
)


def _words(error: BaseException) -> str:
    if type(error) is TemplateError:
        return (error.message or "the chat template refuses these messages")[:_SHOWN_CHARS]
    return f"the chat template cannot render these messages: {str(error)[:_SHOWN_CHARS]}"


def _mark_end(prepared: Sequence[dict[str, Any]], messages: Sequence[Mapping[str, Any]]) -> None:
    """Puts the mark behind the last message's text, where it has one of its own."""
    if messages and messages[-1].get("content") is not None:
        last = prepared[-1]
        if isinstance(last["content"], str):
            last["content"] += _CONTINUE_HERE
            return
        texts = [part for part in last["content"] if part["type"] == "text"]
        if texts:
            texts[-1]["text"] += _CONTINUE_HERE
            return
    raise InvalidRequest("the final message has no text to continue", param="messages")


def _cut_at_mark(text: str) -> str:
    place = text.rfind(_CONTINUE_HERE.strip())
    if place < 0:
        raise InvalidRequest(
            "the chat template leaves out the final message, so it cannot be continued", param="messages"
        )
    # A template that trims messages has taken the mark's last blank too; then the text before it would be trimmed.
    kept = text.startswith(_CONTINUE_HERE, place)
    return text[:place] if kept else text[:place].rstrip()
