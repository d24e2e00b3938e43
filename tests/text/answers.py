"""Outputs as a decoder makes them, and answers as strict OpenAI clients read them.

Reading goes through the openai package: its SSE decoder, and its types with strict validation, which its own client
does not do.
"""

from openai._streaming import SSEDecoder
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from protocols.outputs import BackendOutput, CompletionUsage, PromptTokensDetails, TopLogprob
from text.answer_form import AnswerForm

CHUNK = TypeAdapter(ChatCompletionChunk)
CHAT = TypeAdapter(ChatCompletion)
COMPLETION = TypeAdapter(Completion)


def form(**fields):
    return AnswerForm(**{"id": "answer-1", "created": 1_790_000_000, "model": "m", **fields})


def output(text=None, ids=(), tokens=None, logprobs=None, tops=None, **fields):
    """`ids` default to one per token; `tokens` to the text as one token."""
    tokens = [text] if tokens is None and text else list(tokens or ())
    ids = list(ids) or [1000 + place for place in range(len(tokens))]
    return BackendOutput(
        token_ids=ids, tokens=tokens or [None] * len(ids), text=text, log_probs=logprobs, top_logprobs=tops, **fields
    )


def top(rank, token_id, token, logprob, raw=None):
    return TopLogprob(rank=rank, token_id=token_id, token=token, logprob=logprob, bytes=raw)


def engine_usage(cached=None, prompt=10, completion=3):
    details = None if cached is None else PromptTokensDetails(cached_tokens=cached)
    return CompletionUsage(prompt, completion, prompt + completion, prompt_tokens_details=details)


def data_of(stream):
    """The data of every event, as the SDK's decoder dispatches them; [DONE] is a string."""
    return [event.data if event.data == "[DONE]" else event.json() for event in SSEDecoder().iter_bytes(iter([stream]))]


def chat_chunks(stream):
    """Every chunk of a finished or unfinished stream, each checked strictly."""
    chunks = [data for data in data_of(stream) if data != "[DONE]"]
    for chunk in chunks:
        CHUNK.validate_python(chunk, strict=True)
    return chunks


def completion_chunks(stream):
    """The same for text completions."""
    chunks = [data for data in data_of(stream) if data != "[DONE]"]
    for chunk in chunks:
        check_completion(chunk)
    return chunks


def check_completion(answer):
    """Strictly, but for the nulls that OpenAI sends and its SDK's type does not know: the finish of a stream's chunks,
    and the first echoed token's log probability."""
    choices = []
    for choice in answer["choices"]:
        logprobs = choice["logprobs"] and {
            **choice["logprobs"],
            "token_logprobs": [value or 0.0 for value in choice["logprobs"]["token_logprobs"]],
            "top_logprobs": [value or {} for value in choice["logprobs"]["top_logprobs"]],
        }
        choices.append({**choice, "finish_reason": choice["finish_reason"] or "stop", "logprobs": logprobs})
    COMPLETION.validate_python({**answer, "choices": choices}, strict=True)


def contents(chunks, index=0):
    """The text of one choice, over all chunks of a chat."""
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def texts(chunks, index=0):
    """The text of one choice, over all chunks of a completion."""
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index)
