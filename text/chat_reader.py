"""What a chat's request and prompt say of its answer: what binds the engine, and how the text is to be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from protocols.openai import ChatCompletionRequest
from protocols.openai_errors import invalid
from protocols.options import GuidedDecoding
from text.answer_parser import AnswerReading, ModelMarkup
from text.tokenizer import Tokenizer
from text.tool_calls.constraint import constraint_for
from text.tool_calls.rules import CallMode, CallRules, request_rules


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """One chat's. `guided`: the engine's constraint. `reading`: None where the text is content as it stands.

    `shown_token_ids`: special tokens that the reading needs in the text. `thinks_first`: the constraint is meant for
    what follows the thoughts that the answer begins with.
    """

    guided: GuidedDecoding | None = None
    reading: AnswerReading | None = None
    shown_token_ids: frozenset[int] = frozenset()
    thinks_first: bool = False


_PLAIN = ChatPlan()


class ChatReader:
    """One model's. `structural_tags`: do all of its workers take them?"""

    def __init__(self, markup: ModelMarkup, tokenizer: Tokenizer, *, structural_tags: bool = False) -> None:
        self._markup = markup
        self._tokenizer = tokenizer
        self._structural_tags = structural_tags
        self._shown: dict[frozenset[str], frozenset[int]] = {}

    def plan(
        self,
        request: ChatCompletionRequest,
        prompt: str,
        arguments: Mapping[str, Any],
        guided: GuidedDecoding | None,
    ) -> ChatPlan:
        """`prompt`: as rendered; `arguments`: what the template was told; `guided`: the client's own constraint.

        Raises InvalidRequest for a constraint that cannot be joined with that of the calls.
        """
        rules = request_rules(request)
        if rules is None and self._markup.reasoning is None:
            return _PLAIN if guided is None else ChatPlan(guided)
        structured = guided is not None and guided.json is not None
        forced = rules is not None and rules.mode is not CallMode.AUTO
        reading = self._markup.reading(
            rules,
            prompt,
            arguments,
            continued=bool(request.continue_final_message),
            structured=structured or forced,
        )
        thinking = reading is not None and reading.thinking
        if rules is not None:
            guided = self._bound(request, rules, guided, thinking=thinking)
        shown = self._shown_ids(reading)
        if reading is not None and request.separate_reasoning is False:
            reading = replace(reading, style=None) if reading.tool_calls is not None else None
        elif reading is not None and not request.tells_thoughts():
            reading = replace(reading, told=False)
        return ChatPlan(guided, reading, shown, thinking and guided is not None)

    def _bound(
        self, request: ChatCompletionRequest, rules: CallRules, guided: GuidedDecoding | None, *, thinking: bool
    ) -> GuidedDecoding | None:
        """The constraint of the calls and the client's own in one."""
        parser, tags = self._markup.tool_calls, self._structural_tags
        formatted = request.response_format is not None and guided is not None and guided.json is not None
        if rules.mode is not CallMode.AUTO:
            if guided is not None and not formatted:
                place = "tool_choice" if request.tool_choice is not None else "function_call"
                raise invalid(place, "a call that is forced excludes another constraint on the answer's format")
            # Behind thoughts the model's own markup could not be told from them; JSON can.
            return constraint_for(rules, parser, structural_tags=tags and not thinking)
        if parser is None or (guided is not None and not formatted):
            return guided
        answer = None if guided is None else guided.json
        both = constraint_for(rules, parser, structural_tags=tags, answer=answer)
        if both is None and answer is not None:
            raise invalid(
                "response_format",
                "beside tools that may be called it takes a structural tag, which the model's workers, or its way of "
                "marking calls, do not have",
            )
        return both

    def _shown_ids(self, reading: AnswerReading | None) -> frozenset[int]:
        if reading is None:
            return frozenset()
        tokens = reading.tokens()
        ids = self._shown.get(tokens)
        if ids is None:
            found = {self._tokenizer.token_id(token) for token in tokens}
            ids = self._shown[tokens] = self._tokenizer.special_token_ids.intersection(
                token_id for token_id in found if token_id is not None
            )
        return ids
