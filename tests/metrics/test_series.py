"""Series: kept in bounded memory, cleared of what restarts repeat, cut into buckets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.metrics.chart import ChartAxes, Line, draw
from shunter.metrics.series import MOST_POINTS, MetricTable, Series, decimate

numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


def series_of(values, steps=None):
    series = Series("loss", "trainer", 0)
    for index, value in enumerate(values):
        series.add(value, None if steps is None else steps[index], 1000.0 + index)
    return series


def test_very_many_values_are_thinned_and_their_extremes_kept():
    count = 10 * MOST_POINTS
    series = series_of(1000.0 if n == 77_777 else math.sin(n) for n in range(count))
    assert len(series) <= MOST_POINTS
    assert series.count == count
    assert series.greatest == 1000.0
    assert 1000.0 in series.values
    assert series.last_step == count - 1
    assert list(series.steps) == sorted(series.steps)


def test_what_a_restart_repeats_is_replaced():
    series = series_of([5, 4, 3, 2, 3.5, 2.5, 1.5], steps=[0, 1, 2, 3, 2, 3, 4])
    assert list(series.progress(restarts=1).steps) == [0, 1, 2, 3, 4]
    assert list(series.progress(restarts=1).values) == [5, 4, 3.5, 2.5, 1.5]


def test_an_undefined_value_is_a_value_but_not_an_extreme():
    series = series_of([math.nan, 2.0, math.nan])
    assert (series.count, series.least, series.greatest) == (3, 2.0, 2.0)
    assert math.isnan(series.last)
    assert series.to_json()["values"] == [None, 2, None]


@given(st.lists(numbers, min_size=1, max_size=300), st.integers(1, 50))
def test_buckets_hold_all_values_and_the_last_one(values, buckets):
    found = decimate(series_of(values), buckets)
    assert len(found) <= buckets
    assert sum(bucket.count for bucket in found) == len(values)
    assert min(bucket.low for bucket in found) == min(values)
    assert max(bucket.high for bucket in found) == max(values)
    assert found[-1].last == values[-1]
    assert [bucket.x for bucket in found] == sorted(bucket.x for bucket in found)


def test_buckets_of_a_range_and_by_time():
    series = series_of([1.0, 2.0, 3.0, 4.0])
    assert [b.last for b in decimate(series, 10, start=1, end=2)] == [2.0, 3.0]
    assert [b.x for b in decimate(series, 2, by="time")] == [1001.0, 1003.0]


@pytest.mark.parametrize("place", [math.inf, -math.inf, math.nan, 1e308, -1e308])
def test_steps_and_times_that_cannot_be_are_not_kept(place):
    table = MetricTable()
    for step, value in ((place, 1.0), (2.0, 2.0)):
        table.add("loss", ("trainer", 0), value, step, place)
    (series,) = table.by_name()["loss"]
    assert list(series.steps) == [0.0, 2.0]
    assert all(math.isnan(time) for time in series.times)
    for by in ("step", "time"):
        assert decimate(series, 4, by=by) is not None


def test_a_chart_leaves_out_what_cannot_be_drawn():
    series = Series("loss", "trainer", 0)
    for step, value in enumerate((-1e308, 1e308, math.inf, 7.0, 8.0)):
        series.add(value, step)
    drawn = draw([Line("loss", series)], ChartAxes(), 60, 10, has_colours=False)
    assert any(line.lstrip().startswith("8 ") for line in drawn)
