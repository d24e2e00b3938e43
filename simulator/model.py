"""A simulated engine without a GPU: batch slots, a waiting queue, prefill and decode steps, all in virtual time.

Pure: time comes from an injected clock, and nothing happens but in calls. `due()` says when `advance()` next has work;
an idle model is never due, so it costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.digests import mix
from simulator.generation import Context, Voice
from simulator.jobs import Finish, Job, Output, Phase, Sink, Spec
from simulator.kv_cache import KvCache

_CATCH_UP_S = 0.1
"""How far behind the clock a step may start, so that a late call does not stretch the pace."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long work takes, in seconds, and how much fits in.

    A step takes `decode_s` plus `batch_s` for each job in it plus `prefill_s` for each prompt token computed in it;
    `ttft_s` is added to a sequence's first step; `transfer_s` is per KV block read from a peer. `jitter` varies a step
    by up to this fraction. `speed` divides all of it; 0 means as fast as possible. `tokens_per_step` above 1 looks like
    speculative decoding.
    """

    ttft_s: float = 0.010
    prefill_s: float = 20e-6
    decode_s: float = 0.015
    batch_s: float = 0.0002
    transfer_s: float = 50e-6
    jitter: float = 0.0
    speed: float = 1.0
    slots: int = 64
    step_tokens: int = 8192
    tokens_per_step: int = 1

    def scaled(self, seconds: float) -> float:
        return seconds / self.speed if self.speed else 0.0


class EngineModel:
    """One engine (one data-parallel rank of it).

    `clock` gives seconds. `wake` is called whenever `due()` may have become earlier. `load` is called with a sequence
    whose peer's KV may now be read; the answer comes back by `loaded` or `load_failed`.
    """

    def __init__(
        self,
        voice: Voice,
        cache: KvCache,
        clock: Callable[[], float],
        pace: Pace | None = None,
        *,
        wake: Callable[[], None] | None = None,
        load: Callable[[Job], None] | None = None,
    ) -> None:
        self.voice = voice
        self.cache = cache
        self.pace = pace or Pace()
        self.clock = clock
        self.wake = wake or (lambda: None)
        self.load = load or (lambda job: None)
        self.waiting: deque[Job] = deque()
        self.loading: set[Job] = set()
        self.running: list[Job] = []
        self.preemptions = 0
        self.steps = 0
        self._step: list[tuple[Job, int]] = []
        self._step_ends: float | None = None

    # ---- from outside

    def submit(self, spec: Spec, sink: Sink) -> Job:
        """Queues a sequence; its outputs go to `sink`, the last with a finish. Raises ValueError if it never fits."""
        room = self.cache.total * self.cache.block_size - len(spec.prompt)
        if room < 1:
            raise ValueError(f"a prompt of {len(spec.prompt)} tokens does not fit into {self.cache.total} blocks")
        context = Context(spec.prompt, self.cache.block_size, self.voice)
        job = Job(spec, context, sink, self.clock(), min(spec.limit, room))
        self.waiting.append(job)
        self.wake()
        return job

    def abort(self, job: Job) -> bool:
        """Ends a sequence at once and frees its blocks; its sink hears nothing. False when it was over already."""
        if job.done:
            return False
        self._leave(job)
        self._end(job, Finish.ABORT)
        self.wake()
        return True

    def loaded(self, job: Job, contents: Sequence[int], first_ids: Sequence[int] = ()) -> None:
        """A peer's KV has come: digests of its blocks, for the ids after the local prefix hits.

        Any digest that is not what these ids would have put there corrupts all that follows.
        """
        if job not in self.loading:
            return
        self.loading.discard(job)
        corruption = 0
        for place in range(job.local_hits, self.cache.blocks_for(job.prompt_tokens)):
            taken = place - job.local_hits
            got = contents[taken] if taken < len(contents) else 0
            if got != job.context.content(place, job.prompt_tokens):
                corruption ^= mix(got ^ mix(place))
        job.context.corruption ^= corruption
        self._write(job, job.prompt_tokens)
        self._requeue(job, job.prompt_tokens - 1 if job.spec.recompute_last else job.prompt_tokens, first_ids)

    def load_failed(self, job: Job) -> None:
        """The peer's KV will not come: the job computes its prompt itself (vLLM's policy `recompute`)."""
        if job in self.loading:
            self.loading.discard(job)
            self._requeue(job, job.computed, ())

    def due(self) -> float | None:
        """When `advance` next has something to do; None: not before somebody calls something."""
        if self._step_ends is not None:
            at: float | None = self._step_ends
        else:
            at = self.clock() if self._runnable() else None
        expiry = self.cache.next_expiry()
        return at if expiry is None else expiry if at is None else min(at, expiry)

    def advance(self) -> None:
        """Does everything that is due by now. At speed 0 that is one step."""
        now = self.clock()
        self.cache.expire(now)
        if self._step_ends is None:
            self._begin(now)
        while self._step_ends is not None and self._step_ends <= now:
            ended, self._step_ends = self._step_ends, None
            self._complete(ended)
            if not self.pace.speed:
                break
            self._begin(max(ended, now - _CATCH_UP_S))

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.loading)

    # ---- a step

    def _runnable(self) -> bool:
        return bool(self.running) or (bool(self.waiting) and self._may_admit(self.waiting[0]))

    def _may_admit(self, job: Job) -> bool:
        """Whether the head of the queue fits now."""
        if len(self.running) >= self.pace.slots:
            return False
        needed = self.cache.blocks_for(len(job.context.ids))
        return bool(job.blocks) or needed <= self.cache.free or needed <= self.cache.free + self._shared(job)

    def _shared(self, job: Job) -> int:
        """Blocks of the job's prefix that others hold: sharing them costs nothing."""
        blocks = self.cache.match(self._keys(job, len(job.context.ids)))
        self.cache.release(blocks)
        return sum(block.holders > 0 for block in blocks)

    def _begin(self, now: float) -> None:
        self._admit(now)
        if not self.running:
            return
        self._step = []
        prefill, seconds, budget = 0, self.pace.decode_s, self.pace.step_tokens
        for job in list(self.running):
            todo = min(len(job.context.ids) - job.computed, max(budget, 1))
            if job.phase is not Phase.RUNNING or not self._make_room(job, job.computed + todo):
                continue
            budget -= todo
            prefill += todo if todo > 1 or not job.generated else 0
            if job.first_step:
                job.first_step = False
                seconds += self.pace.ttft_s
            self._step.append((job, todo))
        if not self._step:
            return
        seconds += prefill * self.pace.prefill_s + len(self._step) * self.pace.batch_s
        self.steps += 1
        if self.pace.jitter:
            seconds *= 1 + self.pace.jitter * (mix(self.steps) / 2**63 - 1)
        self._step_ends = now + self.pace.scaled(seconds)

    def _complete(self, now: float) -> None:
        step, self._step = self._step, []
        for job, todo in step:
            if job.phase is not Phase.RUNNING:
                continue
            self._write(job, job.computed + todo)
            if job.computed == len(job.context.ids):
                self._speak(job, now)

    def _speak(self, job: Job, now: float) -> None:
        if job.first_token_at is None:
            job.first_token_at = now
        output = Output([], [] if job.spec.logprobs is not None else None)
        for extra in range(self.pace.tokens_per_step):
            if extra:
                if not self._make_room(job, len(job.context.ids)):
                    break
                self._write(job, len(job.context.ids))
            draw = self.voice.draw(job.context, job.spec.temperature, job.spec.seed)
            self._take(job, self._next_id(job, draw), draw, output)
            if output.finish is not None:
                break
        self._hand_over(job, output)

    def _next_id(self, job: Job, draw: int) -> int:
        script, eos_ids = job.spec.script, self.voice.vocabulary.eos_ids
        if script and not job.context.corruption:
            if job.generated < len(script):
                return script[job.generated]
            if eos_ids:
                return eos_ids[0]
        return self.voice.next_id(job.context, draw, job.generated >= job.spec.min_tokens)

    def _take(self, job: Job, token_id: int, draw: int, output: Output) -> None:
        """One new id: counted, remembered, checked for the end."""
        spec = job.spec
        job.context.append(token_id, self.voice)
        job.generated += 1
        output.ids.append(token_id)
        if output.logprobs is not None:
            output.logprobs.append(self.voice.logprobs(token_id, draw, spec.logprobs or 0))
        if job.generated >= spec.min_tokens:
            if token_id in self.voice.vocabulary.eos_ids and not spec.ignore_eos:
                output.finish = Finish.EOS
            elif token_id in spec.stop_ids:
                output.finish = Finish.STOP
        if output.finish is None and job.generated >= job.limit:
            output.finish = Finish.LENGTH

    def _hand_over(self, job: Job, output: Output) -> None:
        if output.finish is not None:
            self._leave(job)
            self._end(job, output.finish)
        job.sink(job, output)

    # ---- blocks

    def _admit(self, now: float) -> None:
        while self.waiting and self._may_admit(self.waiting[0]):
            job = self.waiting.popleft()
            if job.started_at is None:
                job.started_at = now
            if not job.blocks:
                self._allocate(job)
            if job.spec.peer is not None and not job.peer_answered:
                job.phase = Phase.LOADING
                self.loading.add(job)
                self.load(job)
                continue
            job.phase = Phase.RUNNING
            self.running.append(job)

    def _allocate(self, job: Job) -> None:
        ids = job.context.ids
        hits = self.cache.match(self._keys(job, len(ids)))
        self.cache.queries += len(ids)
        self.cache.hits += len(hits) * self.cache.block_size
        fresh = self.cache.allocate(self.cache.blocks_for(len(ids)) - len(hits)) or []
        job.blocks = hits + fresh
        job.local_hits = len(hits)
        job.computed = len(hits) * self.cache.block_size
        if job.generated == 0:
            job.cached_tokens = job.computed
        for place, block in enumerate(hits):
            if block.prefix != job.context.marks[place]:
                job.context.corruption ^= mix(block.prefix ^ mix(place))

    def _keys(self, job: Job, tokens: int) -> list[int]:
        """Keys of the full blocks that reuse may cover: never all of the ids, the last one must be computed."""
        full = (tokens - 1) // self.cache.block_size
        salt = _salt(job.spec.salt)
        return [mark ^ salt for mark in job.context.marks[1 : full + 1]]

    def _make_room(self, job: Job, tokens: int) -> bool:
        """Blocks for so many tokens, at the cost of the youngest running job if it must be. False: it was that one."""
        while len(job.blocks) < self.cache.blocks_for(tokens):
            fresh = self.cache.allocate(1)
            if fresh is not None:
                job.blocks += fresh
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _preempt(self, job: Job) -> None:
        """Its blocks go; its ids stay, and are computed again when there is room."""
        self.running.remove(job)
        self._step = [entry for entry in self._step if entry[0] is not job]
        self.cache.release(job.blocks)
        job.blocks, job.computed, job.phase = [], 0, Phase.WAITING
        job.context.corruption = 0
        self.waiting.appendleft(job)
        self.preemptions += 1

    def _write(self, job: Job, upto: int) -> None:
        """Computes ids [computed, upto) into the blocks, and publishes those that became full."""
        size, context, start = self.cache.block_size, job.context, job.computed
        while start < upto:
            place, slot = divmod(start, size)
            stop = min((place + 1) * size, upto)
            block = job.blocks[place]
            if slot == 0:
                block.prefix, block.ids = context.marks[place] ^ context.corruption, []
            if len(block.ids) == slot:
                block.ids += context.ids[start:stop]
            start = stop
            if len(block.ids) == size:
                salt = _salt(job.spec.salt)
                parent = context.marks[place] ^ salt if place else None
                self.cache.publish(block, context.marks[place + 1] ^ salt, parent)
        job.computed = max(job.computed, upto)

    def _requeue(self, job: Job, computed: int, first_ids: Sequence[int]) -> None:
        """A loaded job goes to the head of the queue: it has its blocks and only needs a slot."""
        job.computed, job.peer_answered, job.phase = computed, True, Phase.WAITING
        self.waiting.appendleft(job)
        if first_ids:
            job.first_token_at = self.clock()
            output = Output([], [] if job.spec.logprobs is not None else None)
            for token_id in first_ids:
                draw = self.voice.draw(job.context, job.spec.temperature, job.spec.seed)
                self._take(job, token_id, draw, output)
            self._hand_over(job, output)
        self.wake()

    def _leave(self, job: Job) -> None:
        if job.phase is Phase.RUNNING:
            self.running.remove(job)
        elif job in self.loading:
            self.loading.discard(job)
        elif job in self.waiting:
            self.waiting.remove(job)

    def _end(self, job: Job, finish: Finish) -> None:
        job.phase, job.finish = Phase.DONE, finish
        blocks, job.blocks = job.blocks, []
        spec = job.spec
        if spec.pin is not None and finish is not Finish.ABORT:
            job.pinned_blocks = tuple(block.id for block in blocks)
            self.cache.pin(spec.pin, blocks, None if spec.pin_s is None else self.clock() + spec.pin_s)
        else:
            self.cache.release(blocks)


def _salt(salt: str) -> int:
    return mix(int.from_bytes(salt.encode()[:128], "big")) if salt else 0
