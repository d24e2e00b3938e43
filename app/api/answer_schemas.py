"""The answers as JSON schemas, for the OpenAPI document. `tests/conformance` holds answers to OpenAI's own types."""

from __future__ import annotations

from protocols.json_schema import Schema, an_object, array, ref


def _nullable(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def _either(*choices: Schema) -> Schema:
    return {"anyOf": list(choices)}


def _finish(*words: str) -> Schema:
    return {"enum": list(words)}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NULL: Schema = {"type": "null"}
_CHAT_FINISH = ("stop", "length", "tool_calls", "content_filter", "function_call")
_TEXT_FINISH = ("stop", "length", "content_filter")
_CALLED = an_object("name", "arguments", name=_TEXT, arguments=_TEXT)
_CUSTOM = an_object("name", "input", name=_TEXT, input=_TEXT)
_SAID: dict[str, Schema] = {"reasoning_content": _TEXT, "reasoning": _TEXT}
_IDS = array({"type": "integer"})
_OF_CHOICE: dict[str, Schema] = {"index": _COUNT, "stop_reason": {"type": ["string", "integer"]}, "token_ids": _IDS}
_OF_PROMPT: dict[str, Schema] = {
    "prompt_token_ids": _IDS,
    "prompt_logprobs": {"type": "array"},
}
_EXPLAINED: dict[str, Schema] = {"tandem": {"type": "object"}}
_BESIDE: dict[str, Schema] = {**_EXPLAINED, "nvext": {"type": "object"}}
"""What extras ask for stands in the member by whose name they were sent."""


def _answer(kind: str, choice: Schema, usage: Schema | None = None, *required: str, **members: Schema) -> Schema:
    return an_object(
        "id", "object", "created", "model", "choices", *required,
        id=_TEXT, object={"const": kind}, created={"type": "integer"}, model=_TEXT, choices=array(choice),
        usage=usage or ref("Usage"), **members,
    )  # fmt: skip


SCHEMAS: dict[str, Schema] = {
    "Error": an_object(
        "error",
        error=an_object(
            "message", "type", "param", "code",
            message=_TEXT, type=_TEXT, param=_nullable("string"), code=_nullable("string"),
        ),
    ),
    "Usage": an_object(
        "prompt_tokens", "completion_tokens", "total_tokens",
        prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT,
        prompt_tokens_details=an_object(cached_tokens=_COUNT),
        completion_tokens_details=an_object(reasoning_tokens=_COUNT),
    ),
    "TokenLogprob": an_object(
        "token", "logprob", "bytes",
        token=_TEXT, logprob={"type": "number"}, bytes=_nullable("array"), top_logprobs=array(ref("TokenLogprob")),
    ),
    "ChatLogprobs": _either(_NULL, an_object("content", content=_either(_NULL, array(ref("TokenLogprob"))))),
    "TextLogprobs": _either(
        _NULL,
        an_object(
            "tokens", "token_logprobs", "top_logprobs", "text_offset",
            tokens=array(_TEXT), token_logprobs=array(_nullable("number")),
            top_logprobs=array(_nullable("object")), text_offset=array(_COUNT),
        ),
    ),
    "ChatCompletion": _answer(
        "chat.completion",
        an_object(
            "index", "message", "finish_reason",
            message=an_object(
                "role", "content",
                role={"const": "assistant"}, content=_nullable("string"), refusal=_nullable("string"), **_SAID,
                tool_calls=array(
                    _either(
                        an_object("id", "type", "function", id=_TEXT, type={"const": "function"}, function=_CALLED),
                        an_object("id", "type", "custom", id=_TEXT, type={"const": "custom"}, custom=_CUSTOM),
                    )
                ),
                function_call=_CALLED,
            ),
            logprobs=ref("ChatLogprobs"), finish_reason=_finish(*_CHAT_FINISH), **_OF_CHOICE,
        ),
        **_OF_PROMPT, **_BESIDE,
    ),
    "ChatCompletionChunk": _answer(
        "chat.completion.chunk",
        an_object(
            "index", "delta", "finish_reason",
            delta=an_object(
                role={"const": "assistant"}, content=_nullable("string"), **_SAID,
                tool_calls=array(
                    an_object(
                        "index", index=_COUNT, id=_TEXT, type={"enum": ["function", "custom"]},
                        function=an_object(name=_TEXT, arguments=_TEXT), custom=an_object(name=_TEXT, input=_TEXT),
                    )
                ),
                function_call=an_object(name=_TEXT, arguments=_TEXT),
            ),
            logprobs=ref("ChatLogprobs"), finish_reason=_either(_finish(*_CHAT_FINISH), _NULL), **_OF_CHOICE,
        ),
        _either(ref("Usage"), _NULL), **_OF_PROMPT, **_BESIDE,
    ),
    "Completion": _answer(
        "text_completion",
        an_object(
            "index", "text", "finish_reason",
            text=_TEXT, logprobs=ref("TextLogprobs"),
            finish_reason=_either(_finish(*_TEXT_FINISH), _NULL), **_OF_CHOICE, **_OF_PROMPT,
        ),
        _either(ref("Usage"), _NULL), **_BESIDE,
    ),
    "Embeddings": an_object(
        "object", "data", "model", "usage",
        object={"const": "list"}, model=_TEXT,
        data=array(
            an_object(
                "object", "index", "embedding",
                object={"const": "embedding"}, index=_COUNT, embedding=_either(array({"type": "number"}), _TEXT),
            )
        ),
        usage=an_object("prompt_tokens", "total_tokens", prompt_tokens=_COUNT, total_tokens=_COUNT), **_EXPLAINED,
    ),
    "Tokens": an_object(
        "count", "max_model_len", "tokens",
        count=_COUNT, max_model_len=_nullable("integer"), tokens=_IDS, token_strs=_nullable("array"),
    ),
    "Detokenized": an_object("prompt", prompt=_TEXT),
    "Model": an_object(
        "id", "object", "created", "owned_by",
        id=_TEXT, object={"const": "model"}, created={"type": "integer"}, owned_by=_TEXT,
        root=_TEXT, parent=_TEXT, max_model_len=_COUNT,
    ),
    "ModelList": an_object("object", "data", object={"const": "list"}, data=array(ref("Model"))),
    "Health": an_object(
        "status", "models",
        status=_finish("healthy", "unhealthy", "draining"),
        models={"type": "object", "additionalProperties": an_object("servable", servable={"type": "boolean"})},
    ),
    "Live": an_object("status", status={"const": "live"}),
}  # fmt: skip
"""By name."""
