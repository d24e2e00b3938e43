"""Series that cost an addition, and what prometheus_client makes of them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from telemetry.series import Histogram, Series


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def series(registry) -> Series:
    return Series(registry, "t_")


def test_a_counter_is_exported_under_its_name_and_total(registry, series):
    child = series.counter("things", "Things.", ("kind",)).child("a")

    child.add()
    child.add(2)

    assert registry.get_sample_value("t_things_total", {"kind": "a"}) == 3


def test_a_gauge_goes_up_and_down(registry, series):
    child = series.gauge("level", "Level.", ()).child()

    child.add(3)
    child.add(-1)

    assert registry.get_sample_value("t_level") == 2


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0.0, [1, 0, 0]), (1.0, [1, 0, 0]), (1.5, [0, 1, 0]), (2.0, [0, 1, 0]), (2.1, [0, 0, 1])],
)
def test_a_bucket_holds_what_is_at_most_its_bound(value, counts):
    histogram = Histogram((1, 2))

    histogram.observe(value)

    assert histogram.counts == counts


def test_buckets_are_exported_cumulatively_with_sum_and_count(registry, series):
    child = series.histogram("time", "Time.", ("model",), (0.5, 1, 60)).child("m")

    child.observe(0.25)
    child.observe(2.0, 3)
    child.observe(100)

    buckets = {
        le: registry.get_sample_value("t_time_bucket", {"model": "m", "le": le})
        for le in ("0.5", "1.0", "60.0", "+Inf")
    }
    assert buckets == {"0.5": 1, "1.0": 1, "60.0": 4, "+Inf": 5}
    assert registry.get_sample_value("t_time_sum", {"model": "m"}) == 106.25
    assert registry.get_sample_value("t_time_count", {"model": "m"}) == 5


def test_a_child_is_one_and_the_same_for_the_same_labels(series):
    family = series.counter("things", "Things.", ("kind",))

    assert family.child("a") is family.child("a")
    assert family.child("a") is not family.child("b")


def test_labels_are_declared_once(series):
    family = series.counter("things", "Things.", ("kind", "colour"))

    with pytest.raises(ValueError, match=r"t_things has the labels \('kind', 'colour'\), not 1 values"):
        family.child("a")


def test_what_a_source_no_longer_names_is_no_longer_exported(registry, series):
    there = ["a", "b"]

    def source():
        metric = GaugeMetricFamily("t_up", "Up.", labels=("worker",))
        for name in there:
            metric.add_metric((name,), 1.0)
        return [metric]

    series.sources.append(source)
    assert registry.get_sample_value("t_up", {"worker": "b"}) == 1

    there.remove("b")
    assert registry.get_sample_value("t_up", {"worker": "b"}) is None
    assert registry.get_sample_value("t_up", {"worker": "a"}) == 1


def test_the_exposition_is_read_by_prometheus_own_parser(registry, series):
    series.counter("things", 'Things with "quotes".', ("kind",)).child('a"\n\\').add()
    series.histogram("time", "Time.", (), (1,)).child().observe(0.5)

    families = {
        family.name: family.type for family in text_string_to_metric_families(generate_latest(registry).decode())
    }

    assert families == {"t_things": "counter", "t_time": "histogram"}
