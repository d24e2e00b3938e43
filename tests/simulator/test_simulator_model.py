"""The scheduler in virtual time: batch, prefill and decode pace, queue, preemption, hand-over of KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from simulator.generation import Voice
from simulator.jobs import Finish, Job, Output, Phase, Spec
from simulator.kv_cache import KvCache
from simulator.model import EngineModel, Pace
from simulator.vocabulary import Vocabulary

PACE = Pace(ttft_s=1.0, prefill_s=0.01, decode_s=0.1, batch_s=0.0, slots=4)


@dataclass
class Engine:
    """A model on a clock of its own, and what it said."""

    pace: Pace = PACE
    blocks: int = 64
    block_size: int = 4
    now: float = 0.0
    outputs: dict[Job, list[int]] = field(default_factory=dict)
    times: dict[Job, list[float]] = field(default_factory=dict)
    finishes: dict[Job, Finish] = field(default_factory=dict)
    loads: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = KvCache(self.blocks, self.block_size)
        voice = Voice(Vocabulary.synthetic())
        self.model = EngineModel(voice, self.cache, lambda: self.now, self.pace, load=self.loads.append)

    def ask(self, prompt: Sequence[int], limit: int = 4, **spec: object) -> Job:
        def sink(job: Job, output: Output) -> None:
            self.outputs.setdefault(job, []).extend(output.ids)
            self.times.setdefault(job, []).append(round(self.now, 6))
            if output.finish is not None:
                self.finishes[job] = output.finish

        job = self.model.submit(Spec(prompt, limit, **spec), sink)  # type: ignore[arg-type]
        self.outputs[job] = []
        return job

    def run(self, until: float = float("inf")) -> None:
        while (due := self.model.due()) is not None and due <= until:
            self.now = max(self.now, due)
            self.model.advance()
        self.now = max(self.now, until) if until < float("inf") else self.now

    def held(self) -> tuple[int, int, int]:
        return self.cache.used, self.cache.pinned, len(self.model.running) + len(self.model.waiting)


def test_an_idle_model_is_never_due() -> None:
    assert Engine().model.due() is None


def test_a_first_token_takes_the_uncached_prompt_and_the_next_ones_a_step_each() -> None:
    engine = Engine()
    job = engine.ask(range(10), 3)

    engine.run()

    assert engine.times[job] == [1.2, 1.3, 1.4]
    assert engine.finishes[job] is Finish.LENGTH


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = Engine()
    engine.ask(range(10), 1)
    engine.run()
    started = engine.now

    job = engine.ask(range(10), 1)
    engine.run()

    assert job.cached_tokens == 8
    assert engine.times[job] == [round(started + 1.0 + 0.1 + 0.02, 6)]


def test_another_salt_shares_no_prefix() -> None:
    engine = Engine()
    engine.ask(range(10), 1, salt="tenant-a")
    engine.run()

    job = engine.ask(range(10), 1, salt="tenant-b")
    engine.run()

    assert job.cached_tokens == 0


def test_the_whole_prompt_is_never_taken_from_the_cache() -> None:
    engine = Engine()
    engine.ask(range(8), 1)
    engine.run()

    job = engine.ask(range(8), 1)
    engine.run()

    assert job.cached_tokens == 4


def test_a_batch_shares_its_steps_and_each_sequence_in_it_slows_them() -> None:
    engine = Engine(pace=Pace(ttft_s=0, prefill_s=0, decode_s=0.1, batch_s=0.05))
    jobs = [engine.ask(range(start, start + 4), 2) for start in (0, 10)]

    engine.run()

    assert [engine.times[job] for job in jobs] == [[0.2, 0.4], [0.2, 0.4]]


def test_beyond_the_slots_requests_wait_their_turn() -> None:
    engine = Engine(pace=Pace(ttft_s=0, prefill_s=0, decode_s=0.1, batch_s=0, slots=1))
    first, second = engine.ask(range(4), 2), engine.ask(range(10, 14), 2)

    engine.run()

    assert engine.times[first] == [0.1, 0.2]
    assert engine.times[second] == [0.3, 0.4]


def test_a_long_prompt_is_computed_in_pieces_while_others_go_on() -> None:
    engine = Engine(pace=Pace(ttft_s=0, prefill_s=0.01, decode_s=0.1, batch_s=0, step_tokens=8))
    short = engine.ask(range(4), 4)
    engine.run(until=0.14)
    long = engine.ask(range(100, 120), 1)

    engine.run()

    assert len(engine.times[long]) == 1
    assert engine.times[short][1] < engine.times[long][0]


def test_everything_is_given_back_at_the_end() -> None:
    engine = Engine()
    for start in range(0, 90, 10):
        engine.ask(range(start, start + 9), 7)

    engine.run()

    assert engine.held() == (0, 0, 0)


def test_when_memory_ends_the_youngest_is_set_back_and_loses_nothing() -> None:
    roomy, tight = Engine(pace=Pace(speed=0)), Engine(pace=Pace(speed=0), blocks=9)
    prompts = [range(8), range(50, 58), range(90, 98)]
    for engine in (roomy, tight):
        for prompt in prompts:
            engine.ask(prompt, 12)
        engine.run()

    assert tight.model.preemptions > 0
    assert list(tight.outputs.values()) == list(roomy.outputs.values())
    assert tight.held() == (0, 0, 0)


def test_a_sequence_that_outgrows_all_memory_ends_by_length() -> None:
    engine = Engine(pace=Pace(speed=0), blocks=3)
    job = engine.ask(range(8), 100)

    engine.run()

    assert engine.finishes[job] is Finish.LENGTH
    assert len(engine.outputs[job]) == 4


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="does not fit into 3 blocks"):
        Engine(blocks=3).ask(range(12))


@pytest.mark.parametrize("after", [0.0, 1.15, 1.35])
def test_an_abort_frees_everything_at_any_moment(after: float) -> None:
    engine = Engine()
    job = engine.ask(range(10), 50)
    engine.run(until=after)

    engine.model.abort(job)
    engine.run()

    assert engine.held() == (0, 0, 0)
    assert not engine.model.abort(job)


def test_speed_divides_all_times() -> None:
    engine = Engine(pace=Pace(ttft_s=1.0, prefill_s=0.01, decode_s=0.1, batch_s=0, speed=10))
    job = engine.ask(range(10), 2)

    engine.run()

    assert engine.times[job] == [0.12, 0.13]


def test_jitter_varies_steps_within_its_bounds() -> None:
    engine = Engine(pace=Pace(ttft_s=0, prefill_s=0, decode_s=0.1, batch_s=0, jitter=0.5))
    job = engine.ask(range(4), 20)

    engine.run()

    gaps = [later - earlier for earlier, later in zip(engine.times[job], engine.times[job][1:], strict=False)]
    assert all(0.05 <= gap <= 0.15 for gap in gaps)
    assert len(set(gaps)) > 5


def test_several_tokens_per_step_say_the_same() -> None:
    single, double = Engine(pace=Pace(speed=0)), Engine(pace=Pace(speed=0, tokens_per_step=3))
    jobs = [engine.ask(range(10), 10) for engine in (single, double)]
    for engine in (single, double):
        engine.run()

    assert double.outputs[jobs[1]] == single.outputs[jobs[0]]
    assert len(double.times[jobs[1]]) == 4


# ---- hand-over


def prefilled(engine: Engine, prompt: Sequence[int], lease: float | None = 30.0) -> Job:
    job = engine.ask(prompt, 1, pin="p", pin_s=lease)
    engine.run(until=engine.now + 5)
    return job


def decode(prompt: Sequence[int], contents: Sequence[int], first: Sequence[int] = (), **spec: object) -> list[int]:
    """What a fresh decode engine says after it was given this KV."""
    engine = Engine(pace=Pace(speed=0))
    job = engine.ask(prompt, 6, peer="peer", **spec)
    engine.run()
    assert engine.loads == [job]
    engine.model.loaded(job, contents, first)
    engine.run()
    assert engine.held() == (0, 0, 0)
    return engine.outputs[job]


def alone(prompt: Sequence[int]) -> list[int]:
    engine = Engine(pace=Pace(speed=0))
    job = engine.ask(prompt, 6)
    engine.run()
    return engine.outputs[job]


PROMPT = range(300, 310)


def test_decode_with_the_right_kv_says_what_one_worker_alone_says() -> None:
    engine = Engine()
    job = prefilled(engine, PROMPT)

    contents = engine.cache.read(job.pinned_blocks, len(PROMPT))

    assert decode(PROMPT, contents) == alone(PROMPT)
    assert decode(PROMPT, contents, engine.outputs[job], recompute_last=False) == alone(PROMPT)


def test_decode_with_kv_of_another_prompt_says_something_else() -> None:
    engine = Engine()
    job = prefilled(engine, range(500, 510))

    assert decode(PROMPT, engine.cache.read(job.pinned_blocks, len(PROMPT))) != alone(PROMPT)


def test_decode_with_too_few_blocks_says_something_else() -> None:
    engine = Engine()
    job = prefilled(engine, PROMPT)

    assert decode(PROMPT, engine.cache.read(job.pinned_blocks, len(PROMPT))[:-1]) != alone(PROMPT)


def test_blocks_whose_lease_is_over_are_read_right_until_somebody_else_writes_them() -> None:
    engine = Engine(blocks=3)
    job = prefilled(engine, PROMPT, lease=30.0)
    engine.run(until=60.0)

    freed = engine.cache.read(job.pinned_blocks, len(PROMPT))
    engine.ask(range(900, 911), 1)
    engine.run()
    reused = engine.cache.read(job.pinned_blocks, len(PROMPT))

    assert engine.cache.expired_pins == 1
    assert decode(PROMPT, freed) == alone(PROMPT)
    assert decode(PROMPT, reused) != alone(PROMPT)


def test_wrong_kv_spoils_the_prefix_cache_for_those_who_come_after() -> None:
    engine = Engine(pace=Pace(speed=0))
    first = engine.ask(PROMPT, 2, peer="peer")
    engine.run()
    engine.model.loaded(first, [1, 2, 3])
    engine.run()

    later = engine.ask(PROMPT, 6)
    engine.run()

    assert later.cached_tokens == 8
    assert engine.outputs[later] != alone(PROMPT)


def test_a_failed_transfer_can_be_made_good_by_computing() -> None:
    engine = Engine(pace=Pace(speed=0))
    job = engine.ask(PROMPT, 6, peer="peer")
    engine.run()

    engine.model.load_failed(job)
    engine.run()

    assert engine.outputs[job] == alone(PROMPT)


def test_a_sequence_aborted_while_its_kv_is_on_the_way_frees_its_blocks() -> None:
    engine = Engine(pace=Pace(speed=0))
    job = engine.ask(PROMPT, 6, peer="peer")
    engine.run()
    assert job.phase is Phase.LOADING

    engine.model.abort(job)
    engine.model.loaded(job, [1, 2, 3])
    engine.run()

    assert engine.held() == (0, 0, 0)
    assert engine.outputs[job] == []


def test_an_aborted_prefill_pins_nothing() -> None:
    engine = Engine()
    job = engine.ask(PROMPT, 1, pin="p", pin_s=30.0)
    engine.run(until=0.5)

    engine.model.abort(job)

    assert engine.held() == (0, 0, 0)
