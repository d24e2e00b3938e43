"""A conversation to the prompt the model was trained on, by the model's own Jinja template.

What a template takes is found out by rendering small conversations with it when it is made, not by reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from protocols.errors import InvalidRequest
from text.chat_messages import (
    INSTRUCTIONS,
    MEDIA,
    Message,
    NoContent,
    TemplateTraits,
    joined_instructions,
    template_messages,
)
from text.chat_tools import Tool, completed_tools, template_tools
from text.jinja_environment import chat_environment

DEFAULT = "default"
TOOL_USE = "tool_use"

Way = tuple[list[Message], list[Tool] | None]
"""Messages and tools in a form that a template may take."""

_FAILURES = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template can raise while it renders: its own words, or Python's about values it did not expect."""
_SHOWN_CHARS = 500
"""Templates quote messages, which may be long."""
_CONTINUE_HERE = "\ue000continue here\ue000 "
_PROBE = "a probe of mine"
_LEADS: tuple[tuple[dict[str, Any], ...], ...] = ((), ({"role": "system", "content": "S"},))
"""What stands before a conversation that a template is tried with."""
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
        calls = (self._attempt(name, _called(_SHORT_ID, traits)) for name, traits in self._traits.items())
        self.markup = "\n".join((*sources.values(), *calls))
        """All of them as they were given, and how they write a call: what a model's own markup is told by."""

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
        """The prompt. No tools, or an empty list, is None to the template. What tools may leave out (descriptions,
        parameters) is filled in for a template that cannot do without, and several system messages are one to a
        template that takes one.

        `continue_final_message`: the prompt ends with the last message's text, for the model to go on with.
        `template`: one of several by name. `variables`: whatever else the template asks for (`enable_thinking`); they
        go before special tokens and never stand in for the messages.
        Raises InvalidRequest, param `messages`, with the template's own words when it refuses.
        """
        name = self._choose(template, bool(tools))
        prepared = template_messages(messages, self._traits[name])
        ways = _ways(prepared, template_tools(tools) if tools else None)
        if continue_final_message:
            _mark_end(prepared, messages)
            ways = (way for way in ways if way[0][-1] is prepared[-1])
        known = {**variables, "documents": documents, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._first_of(name, ways, known)
        except _FAILURES as error:
            raise InvalidRequest(_words(error), param="messages") from error
        return _cut_at_mark(text) if continue_final_message else text

    def _first_of(self, name: str, ways: Iterator[Way], known: Mapping[str, Any]) -> str:
        """The first of the prompts that can be made; where there is none, raises what the template says of the first
        way: there it was told what was given."""
        refusal: Exception | None = None
        for messages, tools in ways:
            try:
                return self._run(name, messages, {**known, "tools": tools})
            except _FAILURES as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

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
        calling = TemplateTraits(arguments_as_text=arguments_as_text, no_content=no_content)
        developer = "developer" in source and self._knows_developers(name)
        return TemplateTraits(
            strings=strings or not parts,
            parts=parts,
            developer=developer,
            media=frozenset(kind for kind in MEDIA if parts and self._notices(name, kind)),
            arguments_as_text=arguments_as_text,
            no_content=no_content,
            short_ids=self._attempt(name, _called("call_probe_of_mine", calling)) == ""
            and self._attempt(name, _called(_SHORT_ID, calling)) != "",
            lone=self._lone(name, developer=developer),
        )

    def _knows_developers(self, name: str) -> bool:
        """Does a developer's message come out? Some templates speak of developers without knowing their role."""
        messages = [{"role": "developer", "content": _PROBE}, {"role": "user", "content": "U"}]
        return _PROBE in self._attempt(name, messages, leads=((),))

    def _lone(self, name: str, *, developer: bool) -> frozenset[str]:
        """The roles of which it passes over all messages but one. One that refuses others says so when it renders."""
        if not self._loses_one(name, "system", "system"):
            return frozenset()
        return INSTRUCTIONS if developer and self._loses_one(name, "system", "developer") else frozenset({"system"})

    def _loses_one(self, name: str, *roles: str) -> bool:
        """Of several such messages, is one left out that would be shown alone?"""
        said = [{"role": role, "content": f"{_PROBE} {place}"} for place, role in enumerate(roles)]
        user = {"role": "user", "content": "U"}
        alone, both = (self._attempt(name, [*these, user], leads=((),)) for these in (said[:1], said))
        return said[0]["content"] in alone and both != "" and not all(each["content"] in both for each in said)

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
        """The form of an assistant's tool call that the template writes out whole; else one it bears with.

        Without content where that works, as transformers has it; else in the way that adds least to the prompt.
        """
        bearable: list[tuple[bool, NoContent]] = []
        for as_text in (False, True):
            whole: dict[NoContent, str] = {}
            for no_content in NoContent:
                traits = TemplateTraits(arguments_as_text=as_text, no_content=no_content)
                prompt = self._attempt(name, _called(_SHORT_ID, traits))
                if not prompt or (no_content is NoContent.NULL and "None" in prompt):
                    continue
                bearable.append((as_text, no_content))
                if "probe_function" in prompt and "probe_value" in prompt:
                    whole[no_content] = prompt
            if NoContent.ABSENT in whole:
                return as_text, NoContent.ABSENT
            if whole:
                return as_text, min(whole, key=lambda no_content: len(whole[no_content]))
        return bearable[0] if bearable else (False, NoContent.ABSENT)

    def _attempt(
        self, name: str, messages: list[dict[str, Any]], leads: tuple[tuple[dict[str, Any], ...], ...] = _LEADS
    ) -> str:
        """What the template makes of a conversation with the first lead that it takes; "" if it refuses all."""
        for lead in leads:
            try:
                return self._run(name, [*lead, *messages], _PROBE_VARIABLES)
            except _FAILURES:
                continue
        return ""


_SHORT_ID = "probe1234"
"""Mistral's templates insist on ids of nine characters."""


def _ways(messages: list[Message], tools: list[Tool] | None) -> Iterator[Way]:
    """Messages and tools as they are; then with what tools may leave out, and with all instructions in one message, for
    a template that cannot do without."""
    yield messages, tools
    completed = completed_tools(tools) if tools is not None else None
    if completed is not None:
        yield messages, completed
    one = joined_instructions(messages)
    if one is not messages:
        yield one, tools
        if completed is not None:
            yield one, completed


def _called(call_id: str, traits: TemplateTraits) -> list[dict[str, Any]]:
    """A conversation with a tool call and its result."""
    function = {"name": "probe_function", "arguments": {"probe_key": "probe_value"}}
    return template_messages(
        [
            {"role": "user", "content": "U"},
            {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call_id, "name": "probe_function", "content": "T"},
        ],
        traits,
    )


def _words(error: BaseException) -> str:
    if type(error) is TemplateError:
        return (error.message or "the chat template refuses these messages")[:_SHOWN_CHARS]
    return f"the chat template cannot render these messages: {str(error)[:_SHOWN_CHARS]}"


def _mark_end(prepared: Sequence[dict[str, Any]], messages: Sequence[Mapping[str, Any]]) -> None:
    """Puts the mark behind the last message's text, where it has one of its own and stands at the end."""
    moved = len(prepared) < len(messages) and messages[-1].get("role") in INSTRUCTIONS
    if messages and messages[-1].get("content") is not None and not moved:
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
