"""One timer for all deadlines: it runs while there is something to watch, and survives what it watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pipeline.ticker import Ticker


class Watch:
    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.ticks: list[float] = []
        self.ticked = asyncio.Event()
        self._then = then

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.ticked.set()
        self._then()


async def test_a_watch_is_called_in_the_loops_time_while_it_is_there() -> None:
    ticker, watch = Ticker(0.001), Watch()
    before = asyncio.get_running_loop().time()

    ticker.add(watch)
    await watch.ticked.wait()
    ticker.discard(watch)

    assert watch.ticks[0] >= before
    assert len(ticker) == 0


async def test_a_watch_that_another_has_discarded_is_not_called_any_more() -> None:
    ticker, second = Ticker(3600.0), Watch()
    first = Watch(lambda: ticker.discard(second))
    ticker.add(first)
    ticker.add(second)

    ticker.tick(1.0)

    assert (first.ticks, second.ticks) == ([1.0], [])
    ticker.close()


async def test_a_watch_that_joins_while_others_are_called_has_its_turn_next_time() -> None:
    ticker, late = Ticker(3600.0), Watch()
    first = Watch(lambda: ticker.add(late))
    ticker.add(first)

    ticker.tick(1.0)
    assert late.ticks == []
    ticker.tick(2.0)

    assert late.ticks == [2.0]
    ticker.close()


async def test_an_idle_ticker_has_no_timer_and_a_new_watch_starts_it_again() -> None:
    ticker, first, second = Ticker(0.001), Watch(), Watch()
    ticker.add(first)
    ticker.discard(first)
    await asyncio.sleep(0.005)

    ticker.add(second)
    await second.ticked.wait()

    assert first.ticks == []
    ticker.close()


async def test_a_watch_that_fails_does_not_stop_the_clock_for_the_others() -> None:
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))

    def fail() -> None:
        raise ValueError("our bug")

    ticker, broken, other = Ticker(0.001), Watch(fail), Watch()
    ticker.add(broken)
    await broken.ticked.wait()
    ticker.discard(broken)
    ticker.add(other)

    await other.ticked.wait()

    assert [str(error) for error in complaints] == ["our bug"]
    ticker.close()


@pytest.mark.parametrize("watches", [0, 1])
async def test_a_closed_ticker_calls_nobody(watches: int) -> None:
    ticker, watch = Ticker(0.001), Watch()
    for _ in range(watches):
        ticker.add(watch)

    ticker.close()
    await asyncio.sleep(0.005)

    assert watch.ticks == []
    assert len(ticker) == 0
