"""Workers die and come back, again and again, while clients go on asking."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from simulator.options import NativeOptions, TrtllmOptions, VllmOptions
from tests.stories.house import PAIRED, House, pair
from tests.stories.oracle import answer
from tests.stories.wire import events_of

ROUNDS = [("prefill", 0), ("decode", 1), ("prefill", 1), ("decode", 0)]
TOKENS = 60
BRIEFLY = {
    "vllm": VllmOptions(lease_s=3.0),
    "trtllm": TrtllmOptions(transfer_timeout_s=3.0),
    "native": NativeOptions(pin_s=3.0),
}
"""How long prefill keeps what a decode worker that died would have fetched."""


def test_nobody_notices_as_long_as_each_role_has_one_worker_left(open_house: Callable[..., House]) -> None:
    # Some seconds: a worker that comes back is looked at half a second later.
    house = open_house(*(pair(engine, **BRIEFLY) for engine in PAIRED), health={"interval_s": 0.1})
    over = threading.Event()

    def ask(engine: str) -> int:
        """Asks until it is over; how many answers there were, all of them right."""
        count = 0
        with house.wire() as wire:
            while not over.is_set():
                prompt = f"{engine} tells story {count}"
                body = {"model": f"pair-{engine}", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
                wire.post("/v1/completions", {**body, "stream": count % 2 == 0})
                reply = wire.reply()
                assert reply.status == 200, reply.body
                text = events_of(reply.body).text() if count % 2 == 0 else reply.json()["choices"][0]["text"]
                assert text == answer(prompt, TOKENS), reply.body
                count += 1
        return count

    with ThreadPoolExecutor(len(PAIRED)) as clients:
        asked = [clients.submit(ask, engine) for engine in PAIRED]
        try:
            for role, place in ROUNDS:
                victims = [house.workers(f"pair-{engine}", role)[place] for engine in PAIRED]
                for victim in victims:
                    house.kill(victim)
                house.eventually(lambda: down(house) == len(PAIRED), within_s=2)
                for victim in victims:
                    house.revive(victim)
                house.eventually(lambda: down(house) == 0, within_s=3)
        finally:
            over.set()
        counts = [client.result(10) for client in asked]

    assert min(counts) > len(ROUNDS)
    house.settle(within_s=4)


def down(house: House) -> int:
    """How many workers are not given requests."""
    return sum(state.status.value in ("down", "joining", "cooling") for state in house.gateway.registry.states())
