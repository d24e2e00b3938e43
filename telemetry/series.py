"""Counters, gauges and histograms that cost an addition, read by prometheus_client only when somebody scrapes.

prometheus_client's own children take a lock and several calls per observation, which a token's path cannot afford. All
writing happens on one thread (the event loop's), so none is needed here. Labels are declared once, with the family; a
child is looked up once and then kept by whoever writes to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import INF, floatToGoString


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Gauge:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float) -> None:
        self.value += amount


class Histogram:
    """`bounds` are the buckets' upper bounds, inclusive, ascending; what exceeds the last counts as +Inf."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1, /) -> None:
        """`count` observations of the same value."""
        self.counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count


Child = TypeVar("Child", Counter, Gauge, Histogram)


class Family(Generic[Child]):
    """All series of one metric. `labels` are the names whose values, in this order, lead to a child."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], make: Callable[[], Child]) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self._make: Callable[[], Child] = make
        self._children: dict[tuple[str, ...], Child] = {}

    def child(self, *values: str) -> Child:
        """The series with these label values; made at zero when it is new. Raises ValueError for a wrong number."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}, not {len(values)} values")
            child = self._children[values] = self._make()
        return child

    def items(self) -> Iterator[tuple[tuple[str, ...], Child]]:
        # A copy: a scrape may run in another thread than the one that adds series.
        return iter(list(self._children.items()))


class Series:
    """A set of families under one prefix, registered with a CollectorRegistry as one collector.

    `sources` are asked at each scrape for metrics that others hold (workers' loads, models' readiness): what they no
    longer name is no longer exported.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._prefix = prefix
        self._counters: list[Family[Counter]] = []
        self._gauges: list[Family[Gauge]] = []
        self._histograms: list[tuple[Family[Histogram], tuple[float, ...]]] = []
        self.sources: list[Callable[[], Iterable[Metric]]] = []
        registry.register(self)

    def counter(self, name: str, help_text: str, labels: Sequence[str]) -> Family[Counter]:
        """`name` without `_total`, which the exposition adds."""
        family = Family(self._prefix + name, help_text, labels, Counter)
        self._counters.append(family)
        return family

    def gauge(self, name: str, help_text: str, labels: Sequence[str]) -> Family[Gauge]:
        family = Family(self._prefix + name, help_text, labels, Gauge)
        self._gauges.append(family)
        return family

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str], bounds: tuple[float, ...]
    ) -> Family[Histogram]:
        family = Family(self._prefix + name, help_text, labels, lambda: Histogram(bounds))
        self._histograms.append((family, bounds))
        return family

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask sources that are not there yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        for counters in self._counters:
            counted = CounterMetricFamily(counters.name, counters.help_text, labels=counters.labels)
            for values, counter in counters.items():
                counted.add_metric(values, counter.value)
            yield counted
        for gauges in self._gauges:
            gauged = GaugeMetricFamily(gauges.name, gauges.help_text, labels=gauges.labels)
            for values, gauge in gauges.items():
                gauged.add_metric(values, gauge.value)
            yield gauged
        for histograms, bounds in self._histograms:
            yield _exposed(histograms, bounds)
        for source in self.sources:
            yield from source()


def _exposed(family: Family[Histogram], bounds: tuple[float, ...]) -> HistogramMetricFamily:
    exposed = HistogramMetricFamily(family.name, family.help_text, labels=family.labels)
    names = [floatToGoString(bound) for bound in (*bounds, INF)]  # type: ignore[no-untyped-call]
    for values, histogram in family.items():
        total = 0
        buckets = []
        for name, count in zip(names, list(histogram.counts), strict=True):
            total += count
            buckets.append((name, float(total)))
        exposed.add_metric(values, buckets=buckets, sum_value=histogram.sum)
    return exposed
