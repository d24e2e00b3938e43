"""What workers say, engine by engine, as short as each engine's adapter accepts it.

Every answer begins with the token that prefill sampled, `FIRST`, as the engines' own do.
"""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from protocols.worker import Engine, WorkerTraits

PROMPT = (1, 450, 7483)
FIRST = 9
DONE = b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Dialect:
    """One engine. An instance is one decode reply on its way: it counts its own tokens."""

    engine: ClassVar[Engine]
    traits: ClassVar[WorkerTraits] = WorkerTraits(served_name="m")
    worker: ClassVar[dict[str, Any]] = {}
    abort_path: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.count = 0

    # ---- prefill

    @classmethod
    def prefilled(cls, *, finish: str | None = "length", cached: int | None = None, **more: Any) -> dict[str, Any]:
        """Prefill's whole reply, with what decode needs in it."""
        raise NotImplementedError

    # ---- decode

    def tokens(self, *ids: int, finish: str | None = None) -> bytes:
        """One event."""
        self.count += len(ids)
        return _event(self._chunk(list(ids), finish))

    def finish(self, reason: str = "length") -> bytes:
        return self.tokens(finish=reason)

    def close(self, cached: int | None = None) -> bytes:
        """What comes after the finish: the usage, where it has an event of its own, and the end mark."""
        return DONE

    def whole(self, *ids: int, reason: str = "length") -> bytes:
        return self.tokens(*ids) + self.finish(reason) + self.close()

    def error(self, message: str = "boom", code: int = 500) -> bytes:
        """The engine reports a failure inside its stream."""
        return _event({"error": {"message": message, "type": "InternalServerError", "code": code}}) + DONE

    def _chunk(self, ids: list[int], finish: str | None) -> dict[str, Any]:
        raise NotImplementedError


class Vllm(Dialect):
    engine = Engine.VLLM

    @classmethod
    def prefilled(cls, *, finish: str | None = "length", cached: int | None = None, **more: Any) -> dict[str, Any]:
        params = {"remote_engine_id": "e", "remote_block_ids": [[1]], "remote_request_id": "r", "remote_port": 1}
        return {
            "choices": [
                {"index": 0, "token_ids": [FIRST], "logprobs": None, "finish_reason": finish, "stop_reason": None}
            ],
            "usage": _usage(1, cached),
            "kv_transfer_params": params,
            **more,
        }

    def close(self, cached: int | None = None) -> bytes:
        return _event({"choices": [], "usage": _usage(self.count, cached)}) + DONE

    def _chunk(self, ids: list[int], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "token_ids": ids, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return {"choices": [choice]}


class Trtllm(Dialect):
    engine = Engine.TRTLLM
    traits = WorkerTraits(served_name="m", version="1.2.0")

    @classmethod
    def prefilled(cls, *, finish: str | None = "length", cached: int | None = None, **more: Any) -> dict[str, Any]:
        params = {"request_type": "context_only", "ctx_request_id": 77, "first_gen_tokens": [FIRST]}
        params |= more.pop("params", {})
        choice = {"index": 0, "token_ids": [FIRST], "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return {
            "choices": [{**choice, "disaggregated_params": params}],
            "prompt_token_ids": list(PROMPT),
            "usage": _usage(1, cached),
            **more,
        }

    def close(self, cached: int | None = None) -> bytes:
        return _event({"choices": [], "usage": _usage(self.count, cached)}) + DONE

    def _chunk(self, ids: list[int], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "token_ids": ids, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return {"choices": [choice]}


class Sglang(Dialect):
    engine = Engine.SGLANG
    traits = WorkerTraits(served_name="m", incremental=True)
    worker: ClassVar[dict[str, Any]] = {"bootstrap_host": "10.0.0.5", "bootstrap_port": 8998}
    abort_path = "/abort_request"

    @classmethod
    def prefilled(cls, *, finish: str | None = "length", cached: int | None = None, **more: Any) -> dict[str, Any]:
        meta = {"finish_reason": finish and {"type": finish}, "prompt_tokens": 3, "completion_tokens": 1}
        if cached is not None:
            meta["cached_tokens"] = cached
        return {"output_ids": [FIRST], "meta_info": {**meta, **more}}

    def _chunk(self, ids: list[int], finish: str | None) -> dict[str, Any]:
        meta = {"finish_reason": finish and {"type": finish}, "prompt_tokens": 3, "completion_tokens": self.count}
        return {"output_ids": ids, "meta_info": meta}


class Native(Dialect):
    engine = Engine.NATIVE

    @classmethod
    def prefilled(cls, *, finish: str | None = "length", cached: int | None = None, **more: Any) -> dict[str, Any]:
        return {
            "token_ids": [FIRST],
            "finish_reason": finish,
            "disaggregated_params": {"state": 1},
            "completion_usage": _usage(1, cached),
            **more,
        }

    def _chunk(self, ids: list[int], finish: str | None) -> dict[str, Any]:
        usage = {"completion_usage": _usage(self.count)} if finish else {}
        return {"token_ids": ids, "finish_reason": finish, **usage}

    def error(self, message: str = "boom", code: int = 500) -> bytes:
        return b"event: error\n" + _event({"message": message, "code": code})


class TiedNative(Native):
    """A native engine whose legs run at once."""

    worker: ClassVar[dict[str, Any]] = {"bootstrap_host": "10.0.0.5", "bootstrap_port": 8998}


IN_TURN = (Vllm, Trtllm, Native)
AT_ONCE = (Sglang, TiedNative)
ALL = (*IN_TURN, *AT_ONCE)


def _usage(completion: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": 3,
        "completion_tokens": completion,
        "total_tokens": 3 + completion,
        "prompt_tokens_details": details,
    }
