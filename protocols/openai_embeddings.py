"""`POST /v1/embeddings`: the request. An input has five shapes, and all but content parts become a list of inputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from protocols.openai_errors import invalid, wrong_type
from protocols.openai_fields import Extras, check_token_ids
from protocols.openai_messages import check_part

MAX_INPUTS = 2048
"""OpenAI's limit."""
FLAT_PARTS = ("text", "image", "video", "audio")
"""SGLang's content parts have no type: these members say what they are."""
Input = str | list[int]
"""One text to embed, or its token ids."""

_SHAPES = "a string, an array of strings, token ids, an array of token id arrays, or an array of content parts"


def check_input(given: Any) -> str | list[Any]:
    """The input as it came, if it has one of the shapes. Raises InvalidRequest, naming the place (`input[1][0]`)."""
    if isinstance(given, str):
        _check_not_empty(given, "input")
        return given
    if not isinstance(given, list):
        raise wrong_type("input", _SHAPES, given)
    _check_not_empty(given, "input")
    first = given[0]
    if type(first) is int:
        check_token_ids("input", given)
        return given
    if len(given) > MAX_INPUTS:
        raise invalid("input", f"expected at most {MAX_INPUTS} inputs, but got {len(given)} instead")
    if isinstance(first, str):
        _check_strings(given)
    elif isinstance(first, list):
        for index, item in enumerate(given):
            check_token_ids(f"input[{index}]", item)
            _check_not_empty(item, f"input[{index}]")
    elif isinstance(first, dict):
        for index, item in enumerate(given):
            _check_part(item, f"input[{index}]")
    else:
        raise wrong_type("input[0]", "a string, a token id, an array of token ids or a content part", first)
    return given


def _check_strings(given: list[Any]) -> None:
    for index, item in enumerate(given):
        if not isinstance(item, str):
            raise wrong_type(f"input[{index}]", "a string like the first input", item)
        _check_not_empty(item, f"input[{index}]")


def _check_not_empty(given: str | list[Any], place: str) -> None:
    if not given:
        what = "string" if isinstance(given, str) else "array"
        raise invalid(place, f"an input must not be empty, but got an empty {what} instead")


def _check_part(part: Any, place: str) -> None:
    if isinstance(part, dict) and "type" not in part and any(part.get(name) is not None for name in FLAT_PARTS):
        text = part.get("text")
        if text is not None and not isinstance(text, str):
            raise wrong_type(f"{place}.text", "a string", text)
        return
    check_part(part, place)


class EmbeddingRequest(BaseModel):
    """A request for vectors: OpenAI's fields, then vLLM's. Unknown fields are kept in `model_extra`.

    `truncate_prompt_tokens`: longer inputs are cut to so many tokens, -1: to the model's context; `truncation_side`
    says which end goes, by default the right one. `add_special_tokens`: with what the tokenizer puts around a text.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    model: str
    input: Annotated[str | list[Any], PlainValidator(check_input)]
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    """Absent means float; OpenAI's SDKs ask for base64 unless told otherwise."""
    user: str | None = None

    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None

    tandem: Extras | None = None
    nvext: Extras | None = None

    @model_validator(mode="after")
    def _together(self) -> EmbeddingRequest:
        if not self.model.strip():
            raise invalid("model", "a model's name must not be empty")
        if self.truncate_prompt_tokens == 0:
            raise invalid("truncate_prompt_tokens", "expected -1 or a value >= 1, but got 0 instead")
        if self.tandem is not None and self.nvext is not None:
            raise invalid("nvext", "it is the same as 'tandem': only one of them is allowed")
        return self

    def extras(self) -> Extras | None:
        return self.tandem or self.nvext

    def inputs(self) -> list[Input]:
        """One or more inputs, whatever the shape; none when they are content parts."""
        if self.parts():
            return []
        if isinstance(self.input, str) or type(self.input[0]) is int:
            return [self.input]
        return self.input

    def parts(self) -> list[dict[str, Any]]:
        """The content parts, when the input is made of them: with a `type` as in chats, or flat as SGLang has them."""
        return self.input if isinstance(self.input, list) and isinstance(self.input[0], dict) else []

    def place(self, index: int) -> str:
        """How an error names the input of this index."""
        return "input" if isinstance(self.input, str) or type(self.input[0]) is int else f"input[{index}]"

    def body(self) -> dict[str, Any]:
        """The request as it came, unknown fields and explicit nulls included."""
        return self.model_dump(exclude_unset=True)
