"""Throttle times, calculated manually from Kafka's Rate, SampledStat and QuotaUtils.

With 11 samples of 1 s a sum is divided by at least 10 s.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.security.rate_windows import MAX_THROTTLE_MS, RateWindow


def window(*values: tuple[int, float], samples: int = 11, sample_ms: int = 1000) -> RateWindow:
    """A window with values, as (ms, value)."""
    made = RateWindow(samples, sample_ms, values[0][0])
    for now, value in values:
        made.record(value, now)
    return made


@pytest.mark.parametrize(
    ("values", "now", "limit", "expected"),
    [
        # 1,000 in 10 s are 100/s.
        ([(0, 1000)], 0, 100, 0),
        # 1,001 are 100.1/s: (100.1 - 100) / 100 * 10,000 ms.
        ([(0, 1001)], 0, 100, 10),
        # 3,000 are 300/s: 2 * 10,000 ms.
        ([(0, 3000)], 0, 100, 20_000),
        # After half a second the window is 10.5 s: 3,000 / 10.5 = 285.71/s.
        ([(0, 3000)], 500, 100, 19_500),
        # A sum within one sample.
        ([(0, 1000), (999, 2000)], 999, 100, 19_001),
        # Samples begin with a value: the second at 1,500. 11.5 s would be one window more.
        ([(0, 1000), (1500, 2000)], 1500, 100, 19_500),
        # 10 full samples: the window is the time since the first value.
        ([(0, 1500), (10_500, 0)], 10_500, 100, 4500),
        # At 11 s after its last value a sample is obsolete.
        ([(0, 3000), (10_999, 1000)], 10_999, 100, 29_001),
        ([(0, 3000), (11_000, 1000)], 11_000, 100, 0),
        # A fraction of a percent: 0.5 % of a second at 0.01 %.
        ([(0, 0.5)], 0, 0.01, 40_000),
    ],
)
def test_throttle_time_is_kafkas(
    values: list[tuple[int, float]], now: int, limit: float, expected: int
) -> None:
    assert window(*values).throttle_ms(limit, now) == expected


def test_rounding_is_that_of_java() -> None:
    # 10.5 ms and 11.49 ms; Math.round rounds half up.
    assert window((0, 100_105)).throttle_ms(10_000, 0) == 11
    assert window((0, 100_114)).throttle_ms(10_000, 0) == 11


def test_throttle_time_ends_when_the_rate_is_at_its_limit() -> None:
    made = window((0, 1500))
    assert made.throttle_ms(100, 0) == 5000
    # Over 15 s the rate would be exactly the limit, but after 11 s the sample is obsolete.
    assert made.throttle_ms(100, 5000) == 5000
    assert made.throttle_ms(100, 11_000) == 0


def test_value_can_be_taken_back() -> None:
    made = window((0, 500), (700, 9000), (700, -9000))
    assert made.throttle_ms(100, 700) == 0
    assert made.throttle_ms(49, 700) == window((0, 500)).throttle_ms(49, 700) == 0
    assert made.throttle_ms(40, 700) == window((0, 500)).throttle_ms(40, 700) == 1800


def test_single_sample_has_at_least_a_millisecond() -> None:
    # 5 in 1 ms are 5,000/s.
    assert window((0, 5), samples=1).throttle_ms(1000, 0) == 4


def test_throttle_time_fits_its_field() -> None:
    assert window((0, 1e15)).throttle_ms(0.001, 0) == MAX_THROTTLE_MS


class Reference:
    """SampledStat and Rate as in Kafka, without any shortcut."""

    def __init__(self, samples: int, sample_ms: int) -> None:
        self.size, self.length = samples, sample_ms
        self.samples: list[list[float]] = []
        self.current = 0

    def record(self, value: float, now: int) -> None:
        if not self.samples:
            self.samples.append([now, now, 0.0])
        if now - self.samples[self.current][0] >= self.length:
            self.current = (self.current + 1) % (self.size + 1)
            if self.current >= len(self.samples):
                self.samples.append([now, now, 0.0])
            else:
                self.samples[self.current] = [now, now, 0.0]
        self.samples[self.current][2] += value
        self.samples[self.current][1] = now

    def throttle_ms(self, limit: float, now: int) -> int:
        for index, (_, last, _) in enumerate(self.samples):
            if now - last >= self.size * self.length:
                self.samples[index] = [now, now, 0.0]
        elapsed = now - min(start for start, _, _ in self.samples)
        full = int(elapsed / self.length)
        if full < self.size - 1:
            elapsed += (self.size - 1 - full) * self.length
        elapsed = max(elapsed, 1)
        rate = sum(value for _, _, value in self.samples) / (elapsed / 1000)
        return 0 if rate <= limit else int((rate - limit) / limit * elapsed + 0.5)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5000)), min_size=1, max_size=40),
)
def test_shortcuts_do_not_change_throttle_times(samples: int, steps: list[tuple[int, int]]) -> None:
    now = 1_000_000
    made, reference = RateWindow(samples, 1000, now), Reference(samples, 1000)
    for pause, value in steps:
        if reference.samples:
            now += pause
        made.record(value, now)
        reference.record(value, now)
        assert made.throttle_ms(500, now) == reference.throttle_ms(500, now)
