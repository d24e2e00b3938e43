"""Tokens' log probabilities, in the shapes of chats and of completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from protocols.outputs import BackendOutput, PromptLogprobs, TopLogprob
from text.alignment import BROKEN, Alignment, TokenLogprob
from text.answer_form import AnswerForm, PromptEcho

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say (vLLM's convention)."""


def tokens_of(output: BackendOutput) -> list[TokenLogprob]:
    """An output's tokens. A missing figure stays missing and shifts no other."""
    logprobs, tops, texts = output.log_probs or (), output.top_logprobs or (), output.tokens
    return [
        TokenLogprob(
            token=(texts[place] if place < len(texts) else None) or "",
            token_id=token_id,
            logprob=_finite(logprobs[place]) if place < len(logprobs) else None,
            top=tops[place] if place < len(tops) else [],
        )
        for place, token_id in enumerate(output.token_ids)
    ]


def prompt_tokens_of(
    prompt: PromptEcho, told: PromptLogprobs | None, bytes_of: Callable[[int], bytes] | None = None
) -> list[TokenLogprob]:
    """An echoed prompt's tokens; the first has no log probability, as nothing stands before it."""
    entries = []
    for place, token_id in enumerate(prompt.token_ids):
        position = told[place] if told is not None and place < len(told) else None
        own = position.get(token_id) if position else None
        top = [
            TopLogprob(entry.rank or 0, alternative, entry.decoded_token, entry.logprob)
            for alternative, entry in (position or {}).items()
        ]
        text = prompt.tokens[place] if place < len(prompt.tokens) else None
        entries.append(TokenLogprob(text or "", token_id, None if own is None else _finite(own.logprob), top))
    alignment = Alignment(bytes_of=bytes_of)
    alignment.add(entries)
    return alignment.close(prompt.text, keep_rest=True)


def prompt_logprobs_json(told: PromptLogprobs | None) -> list[dict[str, Any] | None] | None:
    """vLLM's shape: per position null, or token id -> {logprob, rank, decoded_token}."""
    if told is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": known(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in position.items()
        }
        for position in told
    ]


def chat_logprobs(tokens: Sequence[TokenLogprob], form: AnswerForm) -> dict[str, Any]:
    """The chat's shape."""
    content = []
    for token in tokens:
        entry = _chat_entry(token.token, token.token_id, token.logprob, _bytes(token), form)
        entry["top_logprobs"] = [
            _chat_entry(top.token or "", top.token_id, top.logprob, top.bytes, form)
            for top in _best(token, form.logprobs or 0)
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_entry(
    text: str, token_id: int, logprob: float | None, raw: list[int] | None, form: AnswerForm
) -> dict[str, Any]:
    if raw is None and BROKEN not in text:
        raw = list(text.encode())
    elif raw is None and form.token_bytes is not None and token_id >= 0:
        raw = list(form.token_bytes(token_id))
    return {"token": _name(text, token_id, form), "logprob": known(logprob), "bytes": raw}


def completion_logprobs(tokens: Sequence[TokenLogprob], form: AnswerForm) -> dict[str, Any]:
    """The completions' shape: four lists side by side. A token's map holds the token itself, too."""
    names = [_name(token.token, token.token_id, form) for token in tokens]
    tops: list[dict[str, float] | None] = []
    for name, token in zip(names, tokens, strict=True):
        top = {} if token.logprob is None else {name: token.logprob}
        for alternative in _best(token, form.logprobs or 0):
            top.setdefault(_name(alternative.token, alternative.token_id, form), known(alternative.logprob))
        tops.append(top or None)
    return {
        "tokens": names,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops,
        "text_offset": [token.offset for token in tokens],
    }


def _best(token: TokenLogprob, alternatives: int) -> list[TopLogprob]:
    """The likeliest alternatives; engines may add the chosen token to them, whatever its rank."""
    return sorted(token.top, key=lambda top: -top.logprob)[:alternatives]


def _name(text: str | None, token_id: int, form: AnswerForm) -> str:
    """The token's text, or `token_id:5` (vLLM) where the client asked for ids."""
    return f"token_id:{token_id}" if form.tokens_as_ids else text or ""


def _bytes(token: TokenLogprob) -> list[int] | None:
    """The engine's own bytes of the chosen token, where it told them among the alternatives."""
    return next((top.bytes for top in token.top if top.token_id == token.token_id), None)


def known(logprob: float | None) -> float:
    """For places that have no null."""
    finite = _finite(logprob)
    return LOWEST if finite is None else finite


def _finite(logprob: float | None) -> float | None:
    if logprob is None or math.isnan(logprob):
        return None
    return max(logprob, LOWEST)
