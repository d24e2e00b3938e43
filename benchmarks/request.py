"""What a streamed chat costs in pure Python, part by part: a request of one token, and each further token, in µs.

    python benchmarks/request.py [MODEL_FOLDER]

No sockets and no event loop: what stands here is the floor that no server gets below. Without an argument the demo
model serves. Each figure is the best of many short runs; the parts are hot, in a server they cost half as much again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import orjson

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from engines import adapter_for  # noqa: E402
from engines.base import AttemptIds  # noqa: E402
from protocols.model_card import ModelCard  # noqa: E402
from protocols.openai import parse_chat  # noqa: E402
from protocols.preprocessed import PreprocessedRequest  # noqa: E402
from protocols.worker import Engine, Leg, Worker  # noqa: E402
from routers.base import Candidate, Query, choose  # noqa: E402
from routers.load import Loads  # noqa: E402
from routers.modes import RouterMode, build_profile  # noqa: E402
from telemetry.exposition import Exposition  # noqa: E402
from telemetry.metrics import Metrics  # noqa: E402
from telemetry.record import Telemetry  # noqa: E402
from text.answer_form import chat_form  # noqa: E402
from text.decoder import Decoder  # noqa: E402
from text.deltas import StreamRenderer  # noqa: E402
from text.loading import load_model  # noqa: E402
from text.options import output_options, sampling_options, stop_conditions  # noqa: E402
from text.usage import UsageCount  # noqa: E402

WORDS = ("river", "capital", "of", "the", "light", "house", "keeper", "mill")
REPEATS, RUNS = 40, 200


def event(token_ids: list[int], finish: str | None) -> bytes:
    """One of vLLM's events."""
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return b"data: " + orjson.dumps({"choices": [{**choice, "token_ids": token_ids}]}) + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1}}\n\n'
ENDING = event([], "length") + USAGE + b"data: [DONE]\n\n"


class Chat:
    """One chat, and what its parts do to it."""

    def __init__(self, path: Path) -> None:
        prompt = " ".join(random.Random(1).choices(WORDS, k=200))
        asked = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "stream": True}
        self.body = orjson.dumps({**asked, "temperature": 0.0, "stream_options": {"include_usage": True}})
        self.files = load_model(path)
        self.card = ModelCard("m", eos_token_ids=self.files.eos_token_ids)
        self.request = parse_chat(self.body)
        self.text = self.render()
        self.ids = tuple(self.encode())
        self.internal = self.preprocess()
        self.adapter = adapter_for(Worker(1, "http://worker:8000", Engine.VLLM), "m")
        self.names = AttemptIds("0" * 32, 2**40)
        self.telemetry = Telemetry(Metrics(Exposition().registry, ["m"]))
        self.profile = build_profile(RouterMode.ROUND_ROBIN, "m", Leg.DECODE, random.Random(1))
        self.loads = Loads()
        self.candidates = [Candidate(Worker(n, f"http://w{n}", Engine.VLLM), self.loads.of(n)) for n in range(2)]
        self.first = event([500], None)
        self.open_token_stream()

    def render(self) -> str:
        assert self.files.chat_template is not None
        return self.files.chat_template.render(self.request.messages)

    def encode(self) -> list[int]:
        return self.files.tokenizer.encode(self.text, add_special_tokens=False)

    def preprocess(self, max_tokens: int | None = 1) -> PreprocessedRequest:
        return PreprocessedRequest(
            token_ids=self.ids,
            model="m",
            stop_conditions=stop_conditions(self.request, self.card, max_tokens),
            sampling_options=sampling_options(self.request, self.card),
            output_options=output_options(self.request),
            eos_token_ids=self.card.eos_token_ids,
        )

    def choose(self) -> None:
        choice = choose(self.profile, self.candidates, Query(Leg.DECODE, alone=True))
        self.loads.reserve(choice.worker.id, Leg.DECODE).release()

    def answer(self) -> None:
        """The reply's two reads, to the client's events."""
        parser = self.adapter.parser(self.internal, Leg.DECODE)
        decoder = Decoder(self.files.tokenizer, self.internal)
        form = chat_form(self.request, "chatcmpl-1", 1, "m")
        renderer = StreamRenderer.chat(form, UsageCount([len(self.ids)]))
        renderer.feed(0, [decoder.feed(output) for output in parser.feed(self.first)])
        renderer.feed(0, [decoder.ending(output) for output in parser.feed(ENDING)])
        renderer.end()

    def record(self) -> None:
        record = self.telemetry.request("chat_completions", "id")
        record.began("m", stream=True)
        record.prepared(UsageCount([len(self.ids)]))
        record.succeeded()
        record.ended()

    def open_token_stream(self) -> None:
        endless = self.preprocess(max_tokens=None)
        self._parser = self.adapter.parser(endless, Leg.DECODE)
        self._decoder = Decoder(self.files.tokenizer, endless)
        self._renderer = StreamRenderer.chat(chat_form(self.request, "chatcmpl-1", 1, "m"), UsageCount([1]))
        self._record = self.telemetry.request("chat_completions", "id")

    def token(self) -> None:
        """One read of one token, to the client's event."""
        shown = [self._decoder.feed(output) for output in self._parser.feed(self.first)]
        self._record.observe(shown)
        self._renderer.feed(0, shown)


def cost(part: Callable[[], object]) -> float:
    return min(timeit.repeat(part, number=RUNS, repeat=REPEATS, timer=time.process_time)) / RUNS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", nargs="?", type=Path, default=ROOT / "app" / "demo_model")
    chat = Chat(parser.parse_args().path)
    parts: dict[str, Callable[[], object]] = {
        "read the body": lambda: parse_chat(chat.body),
        "render the template": chat.render,
        f"encode to {len(chat.ids)} tokens": chat.encode,
        "options, internal request": chat.preprocess,
        "choose and reserve": chat.choose,
        "the worker's call": lambda: chat.adapter.generate_call(chat.internal, chat.names),
        "reply, text, events": chat.answer,
        "metrics": chat.record,
    }
    costs = {name: cost(part) for name, part in parts.items()}
    for name, micros in {**costs, "one request": sum(costs.values()), "each further token": cost(chat.token)}.items():
        print(f"{name:<28}{micros:8.2f} µs")


if __name__ == "__main__":
    main()
