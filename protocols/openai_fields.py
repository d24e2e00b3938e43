"""What chat and text completions have in common: `GenerationRequest`, and the checkers of its odder fields.

Values stay as they came (`body()` gives the object back); nothing is coerced; null means absent for every optional
field. Unknown fields are kept in `model_extra`: the engines know more parameters than OpenAI does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from protocols.openai_errors import invalid, shown, wrong_type
from protocols.openai_tools import check_response_format
from protocols.token_ids import MAX_TOKEN_ID

MAX_CHOICES = 1024
"""Choices of one request, prompts times n; each is a request of its own below."""
MAX_N = 128
MAX_BEST_OF = 20
MAX_STOPS = 32
MAX_LOGPROBS = 20
MAX_CACHE_SALT = 1024


def check_stop(stop: Any) -> str | list[str | int]:
    """A string, or up to 32 strings; integers among them are stop token ids."""
    if isinstance(stop, str):
        _check_stop_string(stop, "stop")
        return stop
    if not isinstance(stop, list):
        raise wrong_type("stop", "a string or an array of strings", stop)
    if len(stop) > MAX_STOPS:
        raise invalid("stop", f"expected at most {MAX_STOPS} stop sequences, but got {len(stop)} instead")
    for index, item in enumerate(stop):
        if isinstance(item, str):
            _check_stop_string(item, f"stop[{index}]")
        else:
            check_token_id(item, f"stop[{index}]", "a string or a token id")
    return stop


def _check_stop_string(stop: str, place: str) -> None:
    if not stop:
        raise invalid(place, "a stop sequence must have at least 1 character")


def check_token_id(value: Any, place: str, expected: str = "a token id") -> None:
    if type(value) is not int:
        raise wrong_type(place, expected, value)
    if not 0 <= value <= MAX_TOKEN_ID:
        raise invalid(place, f"expected a token id from 0 to {MAX_TOKEN_ID}, but got {value} instead")


def check_token_ids(place: str, ids: Any) -> None:
    """A list of token ids, of any length; a long one is judged as a whole."""
    if not isinstance(ids, list):
        raise wrong_type(place, "an array of token ids", ids)
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
        return
    for index, item in enumerate(ids):
        check_token_id(item, f"{place}[{index}]")


def _check_stop_token_ids(ids: Any) -> list[int]:
    check_token_ids("stop_token_ids", ids)
    return ids  # type: ignore[no-any-return]


def check_logit_bias(bias: Any) -> dict[str, float]:
    """Token ids as decimal strings (JSON has no other keys), each with -100..100."""
    if not isinstance(bias, dict):
        raise wrong_type("logit_bias", "an object", bias)
    for key, value in bias.items():
        place = f"logit_bias.{key}"
        if not (key.isascii() and key.isdigit()) or int(key) > MAX_TOKEN_ID:
            raise invalid(place, f"the key must be a token id, but is {shown(key)}")
        if type(value) not in (int, float):
            raise wrong_type(place, "a number", value)
        if not -100 <= value <= 100:
            raise invalid(place, f"expected a value from -100 to 100, but got {value} instead")
    return bias


def _text_or_object(place: str) -> PlainValidator:
    """A schema or a tag: an object, or its JSON as text."""

    def check(value: Any) -> Any:
        if not isinstance(value, (str, dict)):
            raise wrong_type(place, "a string or an object", value)
        return value

    return PlainValidator(check)


class StreamOptions(BaseModel):
    """`continuous_usage_stats` (vLLM): usage so far on every chunk."""

    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class RouterTargets(BaseModel):
    """Wanted times to the first token and between tokens, in seconds."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ttft_target: Annotated[float, Field(ge=0)] | None = None
    itl_target: Annotated[float, Field(ge=0)] | None = None


class AgentHints(BaseModel):
    """What an agent knows of its turn. Hints that we do not know are ignored: they may be.

    `osl`: expected answer length in tokens. `priority`: the engine's own scale. `strict_priority`: a tier of our queue.
    `latency_sensitivity`: seconds of earlier arrival in our queue.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    osl: Annotated[int, Field(ge=0)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    strict_priority: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    latency_sensitivity: Annotated[float, Field(ge=0)] | None = None


class TaintConstraints(BaseModel):
    """Taints a worker must have, and weights of those it had better have."""

    model_config = ConfigDict(strict=True, extra="forbid")

    required_taints: list[str] | None = None
    preferred_taints: dict[str, float] | None = None


CacheSalt = Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)]


def _check_token_data(ids: Any) -> list[int]:
    check_token_ids("tandem.token_data", ids)
    return ids  # type: ignore[no-any-return]


def _worker_id(place: str) -> PlainValidator:
    """A number, or its decimal digits as text: worker ids are longer than JavaScript's numbers."""

    def check(value: Any) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
            value = int(value)
        if type(value) is not int:
            raise wrong_type(place, "a worker's id", value)
        if not 0 <= value < 2**64:
            raise invalid(place, "expected a worker's id below 2^64")
        return value

    return PlainValidator(check)


Rank = Annotated[int, Field(ge=0, lt=2**32)]


class Extras(BaseModel):
    """The request's `tandem` object (also read from `nvext`, Dynamo's name): what no OpenAI field can say.

    An unknown member is refused: unlike a parameter of an engine, it could only be meant for us.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    annotations: list[str] | None = None
    """What is told before the answer: `request_id`, `token_ids`, `formatted_prompt`. Others are for native workers."""
    extra_fields: list[str] | None = None
    """What is told after it: `timing`, `worker_id`, `stop_reason`, `completion_token_ids`. Others are ignored."""
    token_data: Annotated[list[int], PlainValidator(_check_token_data)] | None = None
    """The prompt's token ids, in place of its text."""
    use_raw_prompt: bool | None = None
    """A chat's prompt is its first message's text, without the template."""
    backend_instance_id: Annotated[int, _worker_id("tandem.backend_instance_id")] | None = None
    prefill_worker_id: Annotated[int, _worker_id("tandem.prefill_worker_id")] | None = None
    decode_worker_id: Annotated[int, _worker_id("tandem.decode_worker_id")] | None = None
    dp_rank: Rank | None = None
    prefill_dp_rank: Rank | None = None
    request_timestamp_ms: float | None = None
    router: RouterTargets | None = None
    agent_hints: AgentHints | None = None
    routing_constraints: TaintConstraints | None = None
    cache_salt: CacheSalt | None = None
    max_thinking_tokens: Annotated[int, Field(ge=0)] | None = None
    greed_sampling: bool | None = None


Penalty = Annotated[float, Field(ge=-2, le=2)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class GenerationRequest(BaseModel):
    """The fields of both endpoints: OpenAI's, then those that engines add (vLLM's names unless said otherwise)."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    best_of: Annotated[int, Field(ge=0, le=MAX_BEST_OF)] | None = None
    """OpenAI knows it for completions only."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Ratio | None = None
    """0 keeps the likeliest token only; engines take (0, 1], so it reaches them as a tiny fraction."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    max_tokens: Count | None = None
    stop: Annotated[str | list[str | int], PlainValidator(check_stop)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: Annotated[dict[str, float], PlainValidator(check_logit_bias)] | None = None
    response_format: Annotated[dict[str, Any], PlainValidator(check_response_format)] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Ratio | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    length_penalty: float | None = None
    use_beam_search: bool | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], PlainValidator(_check_stop_token_ids)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """A longer prompt is cut to so many tokens, -1: to as many as leave room for the answer."""
    truncation_side: Literal["left", "right"] | None = None
    """The end that is cut off; left by default, unlike an embedding's."""
    echo: bool | None = None
    """In a chat: the answer begins with the text of a last message that is its own."""
    thinking_token_budget: Count | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: CacheSalt | None = None

    structured_outputs: dict[str, Any] | None = None
    guided_json: Annotated[str | dict[str, Any], _text_or_object("guided_json")] | None = None
    guided_regex: Text | None = None
    guided_choice: Annotated[list[Text], Field(min_length=1)] | None = None
    guided_grammar: Text | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    structural_tag: Annotated[str | dict[str, Any], _text_or_object("structural_tag")] | None = None
    regex: Text | None = None
    """SGLang's name."""
    ebnf: Text | None = None
    """SGLang's name."""
    json_schema: Annotated[str | dict[str, Any], _text_or_object("json_schema")] | None = None
    """SGLang's name."""

    tandem: Extras | None = None
    nvext: Extras | None = None

    def check_together(self) -> None:
        """What one field alone cannot tell. Raises InvalidRequest."""
        if not self.model.strip():
            raise invalid("model", "a model's name must not be empty")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "it is only allowed when 'stream' is true")
        if self.tandem is not None and self.nvext is not None:
            raise invalid("nvext", "it is the same as 'tandem': only one of them is allowed")
        if self.truncate_prompt_tokens == 0:
            raise invalid("truncate_prompt_tokens", "expected -1 or a value >= 1, but got 0 instead")
        self._check_candidates()

    def _check_candidates(self) -> None:
        n = self.n or 1
        if self.best_of is not None and self.best_of < n:
            raise invalid("best_of", f"expected a value >= n ({n}), but got {self.best_of} instead")
        if self.stream and self.candidates() > n:
            raise invalid("best_of", "more candidates than choices ('n') cannot be streamed")

    def candidates(self) -> int:
        """Answers generated per prompt, of which the best `n` are shown."""
        return max(self.best_of or 1, self.n or 1)

    def extras(self) -> Extras | None:
        return self.tandem or self.nvext

    def body(self) -> dict[str, Any]:
        """The request as it came, unknown fields and explicit nulls included."""
        return self.model_dump(exclude_unset=True)

    def includes_usage(self) -> bool:
        """Whether a stream's last chunk tells the usage."""
        options = self.stream_options
        return options is not None and bool(options.include_usage or options.continuous_usage_stats)

    def continuous_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)
