"""Rates over a sliding window, and the throttle time that brings a rate back to its limit.

The arithmetic is that of Kafka's Rate, SampledStat and QuotaUtils, so that clients are throttled
for the same time. A window consists of samples; a sample begins with the first value after the end
of the previous one, so that samples need not be adjacent.
"""

from __future__ import annotations

from math import floor

#: Maximum throttle time in ms: throttle_time_ms is an int32.
MAX_THROTTLE_MS = (1 << 31) - 1


class _Sample:
    __slots__ = ("last", "start", "value")

    def __init__(self, now: int) -> None:
        self.reset(now)

    def reset(self, now: int) -> None:
        self.start = self.last = now
        self.value = 0.0


class RateWindow:
    """The sum of values in the last `samples` samples of `sample_ms`, as a rate per second.

    All times are in ms and must not decrease. `recorded_at` is the time of the last value, before
    the first one that of the creation.
    """

    __slots__ = (
        "_current",
        "_min_last",
        "_min_seconds",
        "_oldest",
        "_sample_ms",
        "_samples",
        "_size",
        "_total",
        "recorded_at",
    )

    def __init__(self, samples: int, sample_ms: int, now: int) -> None:
        self._size = samples
        self._sample_ms = sample_ms
        self._min_seconds = (samples - 1) * sample_ms / 1000
        # The first sample begins with the first value. As in Kafka, there may be one more than the
        # window has: the oldest may overlap its beginning.
        self._current = _Sample(now - sample_ms)
        self._samples: list[_Sample] = []
        self._total = 0.0
        self._oldest = self._min_last = now
        self.recorded_at = now

    def record(self, value: float, now: int) -> None:
        """Add a value. A negative one takes back a value that was recorded at the same time."""
        current = self._current
        if now - current.start >= self._sample_ms:
            current = self._advance(now)
        current.value += value
        current.last = self.recorded_at = now
        self._total += value

    def throttle_ms(self, limit: float, now: int) -> int:
        """Return the time after which the rate is at `limit` per second, 0 if it is not above."""
        if self._total <= limit * self._min_seconds:
            # The common case: neither a longer window nor an obsolete sample makes the rate higher.
            return 0
        size = self.size_ms(now)
        rate = self._total / (size / 1000)
        if rate <= limit:
            return 0
        delay = (rate - limit) / limit * size
        return MAX_THROTTLE_MS if delay >= MAX_THROTTLE_MS else floor(delay + 0.5)

    def size_ms(self, now: int) -> int:
        """Return the time by which the sum is divided.

        It is at least that of all samples but one, so that a short burst counts as an average.
        """
        sample_ms = self._sample_ms
        if now - self._min_last >= self._size * sample_ms:
            self._remove_obsolete(now)
        elapsed = now - self._oldest
        missing = self._size - 1 - elapsed // sample_ms
        if missing > 0:
            elapsed += missing * sample_ms
        return max(elapsed, 1)

    def _advance(self, now: int) -> _Sample:
        """Begin a sample, in the place of the oldest one if there are enough."""
        samples = self._samples
        index = (samples.index(self._current) + 1) % (self._size + 1) if samples else 0
        if index < len(samples):
            samples[index].reset(now)
        else:
            samples.append(_Sample(now))
        self._current = samples[index]
        self._summarize()
        return self._current

    def _remove_obsolete(self, now: int) -> None:
        for sample in self._samples:
            if now - sample.last >= self._size * self._sample_ms:
                sample.reset(now)
        if self._samples:
            self._summarize()

    def _summarize(self) -> None:
        samples = self._samples
        self._total = sum(sample.value for sample in samples)
        self._oldest = min(sample.start for sample in samples)
        self._min_last = min(sample.last for sample in samples)
