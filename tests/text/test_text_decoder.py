"""The decoder of one attempt: text, ids and finish, for any cut of the ids into outputs and attempts."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.outputs import (
    BackendOutput,
    CompletionUsage,
    DecoderCheckpoint,
    FinishReason,
    LLMEngineOutput,
    TopLogprob,
    TraceLink,
)
from protocols.preprocessed import PreprocessedRequest
from tests.text import small_tokenizers
from text.decoder import Decoder

TOKENIZER = small_tokenizers.byte_level()
EOS, CALL, THINK = range(TOKENIZER.vocab_size - 3, TOKENIZER.vocab_size)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def bytewise(text: str) -> list[int]:
    """One id per byte."""
    return list(text.encode())


def request_for(
    prompt: list[int] | str = "Say: ", *, include: bool = False, skip_special: bool | None = None, **conditions: Any
) -> PreprocessedRequest:
    return PreprocessedRequest(
        model="m",
        token_ids=tuple(ids_of(prompt) if isinstance(prompt, str) else prompt),
        stop_conditions=StopConditions(**conditions),
        sampling_options=SamplingOptions(include_stop_str_in_output=include),
        output_options=OutputOptions(skip_special_tokens=skip_special),
        eos_token_ids=(EOS,),
    )


@dataclass
class Answer:
    text: str
    ids: list[int]
    finish: FinishReason | None
    stop_reason: str | int | None


def answer_of(outputs: list[BackendOutput]) -> Answer:
    return Answer(
        text="".join(output.text or "" for output in outputs),
        ids=[token_id for output in outputs for token_id in output.token_ids],
        finish=outputs[-1].finish_reason,
        stop_reason=outputs[-1].stop_reason,
    )


def decode(
    request: PreprocessedRequest, *portions: list[int], last: LLMEngineOutput | None = None, until_stopped: bool = True
) -> list[BackendOutput]:
    """What a detokenizer would push up: portions until our own stop, then the ending."""
    decoder = Decoder(TOKENIZER, request)
    outputs = []
    for portion in portions:
        if decoder.stopped and until_stopped:
            break
        outputs.append(decoder.feed(LLMEngineOutput(token_ids=portion)))
    return [*outputs, decoder.ending(last)]


# ---- the meaning, spelt out over whole answers


def whole_answer(request: PreprocessedRequest, ids: list[int], finish: FinishReason) -> Answer:
    """Token by token over all that was generated, with nothing clever. For prompts that end on a whole character."""
    conditions = request.stop_conditions
    include = bool(request.sampling_options.include_stop_str_in_output)
    hidden = {*request.eos_token_ids, *(conditions.stop_token_ids_hidden or ())}
    visible = {*(conditions.stop_token_ids_visible or ())}
    if conditions.ignore_eos:
        hidden, visible = hidden - {EOS}, visible - {EOS}
    ends = hidden | visible | {*(conditions.stop_token_ids or ())}
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for count, token_id in enumerate(ids, start=1):
        if conditions.max_tokens is not None and count > conditions.max_tokens:
            return Answer(text + utf8.decode(b"", True), ids[: count - 1], FinishReason.LENGTH, None)
        armed = count > (conditions.min_tokens or 0)
        ending = armed and token_id in ends
        unseen = ending and token_id not in visible and (token_id in hidden or not include)
        searched = len(text)
        if not unseen and token_id not in TOKENIZER.special_token_ids:
            text += utf8.decode(TOKENIZER.token_bytes(token_id))
        for end in range(searched + 1, len(text) + 1) if armed else ():
            match = max((s for s in conditions.stop or () if text[:end].endswith(s)), key=len, default=None)
            if match is not None:
                shown = text[: end if include else end - len(match)]
                return Answer(shown, ids[:count], FinishReason.STOP, match)
        if ending:
            reason = None if token_id == EOS else token_id
            return Answer(text + utf8.decode(b"", True), ids[:count], FinishReason.STOP, reason)
    return Answer(text + utf8.decode(b"", True), ids, finish, None)


TOKENS = st.sampled_from([*b"STOPab ", *"é€😀".encode(), *range(256, TOKENIZER.vocab_size)])
STRINGS = st.lists(st.sampled_from(["STOP", "OP", "TO", "a", " the", "é", "€😀", "stop", "ab b"]), max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> PreprocessedRequest:
    some_ids = st.none() | st.lists(st.sampled_from([EOS, CALL, THINK, ord("b")]), max_size=2).map(tuple)
    return request_for(
        include=draw(st.booleans()),
        stop=tuple(draw(STRINGS)) or None,
        max_tokens=draw(st.none() | st.integers(1, 12)),
        min_tokens=draw(st.none() | st.integers(0, 4)),
        ignore_eos=draw(st.none() | st.booleans()),
        stop_token_ids=draw(some_ids),
        stop_token_ids_hidden=draw(some_ids),
        stop_token_ids_visible=draw(some_ids),
    )


IDS = st.lists(TOKENS, max_size=14)
CUTS = st.lists(st.integers(0, 14), max_size=4).map(sorted)


def cut(ids: list[int], places: list[int]) -> list[list[int]]:
    bounds = [0, *(min(place, len(ids)) for place in places), len(ids)]
    return [ids[start:end] for start, end in pairwise(bounds)]


@settings(max_examples=300)
@given(requests(), IDS, CUTS)
def test_any_cut_of_the_ids_gives_the_same_answer(
    request: PreprocessedRequest, ids: list[int], places: list[int]
) -> None:
    outputs = decode(request, *cut(ids, places), last=LLMEngineOutput.length())
    assert answer_of(outputs) == whole_answer(request, ids, FinishReason.LENGTH)


@settings(max_examples=300)
@given(requests(), IDS, CUTS)
def test_ids_in_the_finishing_output_give_the_same_answer(
    request: PreprocessedRequest, ids: list[int], places: list[int]
) -> None:
    *portions, tail = cut(ids, places)
    last = LLMEngineOutput(token_ids=tail, finish_reason=FinishReason.LENGTH)
    assert answer_of(decode(request, *portions, last=last)) == whole_answer(request, ids, FinishReason.LENGTH)


def less(limit: int | None, count: int) -> int | None:
    return None if limit is None else max(0, limit - count)


def go_on(request: PreprocessedRequest, shown: list[BackendOutput]) -> PreprocessedRequest:
    """The request that a replay sends: the ids so far appended, the limits reduced, the last checkpoint as seed."""
    so_far = [token_id for output in shown for token_id in output.token_ids]
    conditions = request.stop_conditions
    return replace(
        request,
        token_ids=(*request.token_ids, *so_far),
        jail_seed=shown[-1].jailed_text if shown else request.jail_seed,
        stop_conditions=replace(
            conditions,
            max_tokens=less(conditions.max_tokens, len(so_far)),
            min_tokens=less(conditions.min_tokens, len(so_far)),
        ),
    )


def migrated(request: PreprocessedRequest, ids: list[int], attempts: list[int], outputs: list[int]) -> Answer:
    """The answer through several attempts, each begun by a new decoder from the checkpoint before."""
    shown: list[BackendOutput] = []
    for attempt in cut(ids, attempts):
        decoder = Decoder(TOKENIZER, request)
        before = len(shown)
        for portion in cut(attempt, outputs):
            shown.append(decoder.feed(LLMEngineOutput(token_ids=portion)))
            if decoder.stopped:
                return answer_of([*shown, decoder.ending(None)])
        request = go_on(request, shown[before:])
    return answer_of([*shown, Decoder(TOKENIZER, request).ending(LLMEngineOutput.length())])


@settings(max_examples=400)
@given(requests(), IDS, CUTS, CUTS)
def test_any_cut_into_attempts_gives_the_same_answer(
    request: PreprocessedRequest, ids: list[int], attempts: list[int], outputs: list[int]
) -> None:
    assert migrated(request, ids, attempts, outputs) == whole_answer(request, ids, FinishReason.LENGTH)


@settings(max_examples=200)
@given(st.lists(TOKENS, max_size=6), IDS, CUTS)
def test_attempts_agree_also_behind_a_prompt_that_ends_inside_a_character(
    prompt: list[int], ids: list[int], attempts: list[int]
) -> None:
    request = request_for(prompt, stop=("STOP", "é"))
    assert migrated(request, ids, attempts, []) == migrated(request, ids, [], [])


@settings(max_examples=100)
@given(requests(), IDS)
def test_feeding_never_sets_a_finish(request: PreprocessedRequest, ids: list[int]) -> None:
    decoder = Decoder(TOKENIZER, request)
    output = decoder.feed(LLMEngineOutput(token_ids=ids, finish_reason=FinishReason.LENGTH))
    assert output.finish_reason is None
    assert output.stop_reason is None


# ---- stop ids


def test_eos_ends_the_answer_unseen_but_counted_and_gives_no_reason() -> None:
    answer = answer_of(decode(request_for(), [*ids_of("the"), EOS, *ids_of("in")]))
    assert answer == Answer("the", [*ids_of("the"), EOS], FinishReason.STOP, None)


def test_eos_is_unseen_even_where_special_tokens_and_stops_are_shown() -> None:
    answer = answer_of(decode(request_for(include=True, skip_special=False), [*ids_of("the"), EOS]))
    assert answer.text == "the"


@pytest.mark.parametrize(("include", "text"), [(False, "the "), (True, "the n")])
def test_the_clients_stop_id_is_unseen_unless_stops_are_included(include: bool, text: str) -> None:
    request = request_for(include=include, stop_token_ids=(ord("n"),))
    answer = answer_of(decode(request, [*ids_of("the"), ord(" "), ord("n"), ord("g")]))
    assert answer == Answer(text, [*ids_of("the"), ord(" "), ord("n")], FinishReason.STOP, ord("n"))


def test_a_visible_stop_id_is_seen_and_ends_the_answer() -> None:
    request = request_for(skip_special=False, stop_token_ids_visible=(CALL,))
    answer = answer_of(decode(request, [*ids_of("the"), CALL, *ids_of("in")]))
    assert answer == Answer("the<|call|>", [*ids_of("the"), CALL], FinishReason.STOP, CALL)


def test_a_visible_stop_id_stays_visible_where_it_is_an_eos_id_too() -> None:
    request = replace(request_for(skip_special=False, stop_token_ids_visible=(CALL,)), eos_token_ids=(EOS, CALL))
    assert answer_of(decode(request, [*ids_of("the"), CALL])).text == "the<|call|>"


def test_ignore_eos_goes_on_behind_eos_and_keeps_the_clients_stops() -> None:
    request = request_for(ignore_eos=True, stop=("STOP",), stop_token_ids_hidden=(EOS,))
    answer = answer_of(decode(request, [EOS, *ids_of("the"), EOS, *ids_of(" STOP in")]))
    assert answer.text == "the "
    assert answer.stop_reason == "STOP"


def test_ignore_eos_keeps_a_stop_id_that_the_client_asked_for() -> None:
    answer = answer_of(decode(request_for(ignore_eos=True, stop_token_ids=(EOS,)), [ord("a"), EOS, ord("b")]))
    assert (answer.text, answer.finish) == ("a", FinishReason.STOP)


def test_no_stop_is_looked_for_before_min_tokens() -> None:
    request = request_for(min_tokens=3, stop=("a",))
    answer = answer_of(decode(request, [ord("a"), EOS, ord("a"), ord("b"), ord("a")]))
    assert answer == Answer("aab", [ord("a"), EOS, ord("a"), ord("b"), ord("a")], FinishReason.STOP, "a")


# ---- stop strings


def test_ids_behind_the_stopping_token_are_dropped_with_their_logprobs() -> None:
    decoder = Decoder(TOKENIZER, request_for(stop=("STOP",)))
    ids = [*bytewise("a STOP b")]
    top = [[TopLogprob(rank=1, token_id=token_id, logprob=-1.0)] for token_id in ids]
    output = decoder.feed(
        LLMEngineOutput(token_ids=ids, log_probs=[-float(n) for n in range(len(ids))], top_logprobs=top)
    )
    assert decoder.stopped
    assert output.text == "a "
    assert output.token_ids == bytewise("a STOP")
    assert output.tokens == [*"a STOP"]
    assert output.log_probs == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    assert output.top_logprobs == top[:6]


def test_half_a_stop_waits_while_its_ids_go_up() -> None:
    decoder = Decoder(TOKENIZER, request_for(stop=("STOP",)))
    output = decoder.feed(LLMEngineOutput(token_ids=bytewise("a ST")))
    assert (output.text, output.token_ids) == ("a ", bytewise("a ST"))
    assert output.jailed_text == DecoderCheckpoint("ST")


def test_nothing_withheld_is_no_checkpoint() -> None:
    assert Decoder(TOKENIZER, request_for(stop=("STOP",))).feed(LLMEngineOutput(token_ids=[97])).jailed_text is None


def test_an_output_without_text_to_show_has_none() -> None:
    output = Decoder(TOKENIZER, request_for()).feed(LLMEngineOutput(token_ids=[0xE2]))
    assert output.text is None
    assert output.jailed_text == DecoderCheckpoint("", (0xE2,))


def test_withheld_text_is_shown_at_the_end_when_it_was_no_stop() -> None:
    outputs = decode(request_for(stop=("STOP",)), bytewise("a ST"), last=LLMEngineOutput.length())
    assert answer_of(outputs).text == "a ST"
    assert outputs[-1].jailed_text is None


def test_withheld_text_is_shown_when_the_engine_ended_without_a_finish() -> None:
    answer = answer_of(decode(request_for(stop=("STOP",)), bytewise("a ST")))
    assert (answer.text, answer.finish) == ("a ST", None)


def test_an_incomplete_character_at_the_end_is_shown_as_broken() -> None:
    assert answer_of(decode(request_for(), bytewise("a€")[:-1], last=LLMEngineOutput.stop())).text == "a\ufffd"


def test_a_stop_string_may_begin_inside_a_token() -> None:
    answer = answer_of(decode(request_for(stop=("hei",)), [*ids_of("the"), *ids_of("in")]))
    assert (answer.text, answer.stop_reason) == ("t", "hei")


@pytest.mark.parametrize("skip_special", [True, False])
def test_a_stop_string_that_is_a_special_token_stops_though_its_text_is_never_seen(skip_special: bool) -> None:
    request = request_for(stop=("x", small_tokenizers.CALL), skip_special=skip_special)
    answer = answer_of(decode(request, [*ids_of("the"), CALL, *ids_of("in")]))
    assert answer == Answer("the", [*ids_of("the"), CALL], FinishReason.STOP, small_tokenizers.CALL)


def test_text_withheld_before_a_special_stop_token_is_shown() -> None:
    request = request_for(stop=("STOP", small_tokenizers.CALL))
    assert answer_of(decode(request, [*bytewise("a ST"), CALL])).text == "a ST"


# ---- limits


def test_exactly_max_tokens_leave_the_finish_to_the_engine() -> None:
    decoder = Decoder(TOKENIZER, request_for(max_tokens=2))
    decoder.feed(LLMEngineOutput(token_ids=[97, 98]))
    assert not decoder.stopped
    assert decoder.ending(LLMEngineOutput.length()).finish_reason is FinishReason.LENGTH


def test_ids_beyond_max_tokens_are_dropped() -> None:
    answer = answer_of(decode(request_for(max_tokens=2), [97, 98, 99]))
    assert answer == Answer("ab", [97, 98], FinishReason.LENGTH, None)


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    answer = answer_of(decode(request_for(max_tokens=2), [97, EOS, 99]))
    assert answer.finish is FinishReason.STOP


# ---- the ending


def test_the_ending_carries_the_engines_usage_and_payloads() -> None:
    usage = CompletionUsage(3, 1, 4)
    link = TraceLink("a" * 32, "b" * 16)
    last = LLMEngineOutput(
        finish_reason=FinishReason.STOP,
        stop_reason="x",
        completion_usage=usage,
        disaggregated_params={"p": 1},
        encoder_result={"e": 1},
        engine_data={"d": 1},
        routing_data={"r": 1},
        worker_trace_link=link,
        cum_log_probs=-2.5,
        index=3,
    )
    ending = Decoder(TOKENIZER, request_for()).ending(last)
    assert (ending.finish_reason, ending.stop_reason, ending.completion_usage) == (FinishReason.STOP, "x", usage)
    assert (ending.disaggregated_params, ending.encoder_result) == ({"p": 1}, {"e": 1})
    assert (ending.engine_data, ending.routing_data, ending.worker_trace_link) == ({"d": 1}, {"r": 1}, link)
    assert (ending.cum_log_probs, ending.index) == (-2.5, 3)


def test_our_own_stop_goes_before_the_engines_finish_and_keeps_its_usage() -> None:
    usage = CompletionUsage(3, 9, 12)
    last = LLMEngineOutput(finish_reason=FinishReason.LENGTH, completion_usage=usage, token_ids=[97, 97])
    outputs = decode(request_for(stop=("b",)), [97, 98], last=last)
    assert answer_of(outputs) == Answer("a", [97, 98], FinishReason.STOP, "b")
    assert outputs[-1].completion_usage is usage


def test_after_our_own_stop_nothing_more_is_shown() -> None:
    outputs = decode(request_for(stop=("b",)), [97, 98], [97], last=LLMEngineOutput(text="more"), until_stopped=False)
    assert answer_of(outputs).text == "a"


# ---- what the engine decoded itself


def test_an_engines_own_text_passes_untouched() -> None:
    decoder = Decoder(TOKENIZER, request_for(stop=("b",)))
    output = decoder.feed(LLMEngineOutput(text="abc"))
    assert (output.text, output.token_ids, decoder.stopped) == ("abc", [], False)


def test_an_engines_own_tokens_are_kept() -> None:
    output = Decoder(TOKENIZER, request_for()).feed(LLMEngineOutput(token_ids=[97], tokens=["A"]))
    assert output.tokens == ["A"]


def test_alternatives_known_by_id_only_get_their_text_and_bytes() -> None:
    top = [
        [TopLogprob(rank=1, token_id=0xE2), TopLogprob(rank=2, token_id=EOS), TopLogprob(rank=3, token_id=1, token="x")]
    ]
    Decoder(TOKENIZER, request_for()).feed(LLMEngineOutput(token_ids=[0xE2], log_probs=[-0.1], top_logprobs=top))
    assert [(entry.token, entry.bytes) for entry in top[0]] == [("\ufffd", [0xE2]), (EOS_TEXT, EOS_BYTES), ("x", None)]


EOS_TEXT = small_tokenizers.EOS
EOS_BYTES = list(EOS_TEXT.encode())


def test_the_prompts_text_is_not_shown_in_the_first_delta() -> None:
    request = request_for([*ids_of("cost: "), 0xE2, 0x82])
    assert answer_of(decode(request, [0xAC, *ids_of("5")], last=LLMEngineOutput.stop())).text == "€5"


@pytest.mark.parametrize("kind", ["llama_2", "word_piece"])
def test_a_replay_decodes_in_context(kind: str) -> None:
    tokenizer = small_tokenizers.ALL[kind]()
    ids = tokenizer.encode("the stop. it", add_special_tokens=False)
    request = PreprocessedRequest(model="m", token_ids=tuple(ids[:1]))
    first = Decoder(tokenizer, request).feed(LLMEngineOutput(token_ids=ids[1:3]))
    replay = replace(request, token_ids=tuple(ids[:3]), jail_seed=first.jailed_text)
    second = Decoder(tokenizer, replay).feed(LLMEngineOutput(token_ids=ids[3:]))
    assert tokenizer.decode(ids[:1]) + (first.text or "") + (second.text or "") == tokenizer.decode(ids)


def test_special_tokens_that_are_to_be_read_are_shown_and_others_are_not() -> None:
    request = replace(request_for(ignore_eos=True), shown_token_ids=frozenset({CALL}))
    ids = [*ids_of("the"), CALL, EOS, *ids_of("st")]

    assert answer_of(decode(request, ids)).text == f"the{small_tokenizers.CALL}st"
    assert answer_of(decode(replace(request, shown_token_ids=frozenset()), ids)).text == "thest"


def test_an_eos_that_is_to_be_read_is_unseen_where_it_ends_the_answer() -> None:
    request = replace(request_for(), shown_token_ids=frozenset({EOS, CALL}))

    assert answer_of(decode(request, [*ids_of("the"), CALL, EOS])).text == f"the{small_tokenizers.CALL}"
