"""OffsetCommit 1 to 4: times and retention of the client's own."""

from __future__ import annotations

from compat.handlers.offset_commit import committed_at, expires_at


def test_a_timestamp_counts_as_it_is():
    assert committed_at(1000, now=5000) == 1000
    assert committed_at(0, now=5000) == 0


def test_without_a_timestamp_it_is_committed_now():
    assert committed_at(-1, now=5000) == 5000


def test_a_retention_time_counts_from_now():
    assert expires_at(1000, now=5000) == 6000
    assert expires_at(0, now=5000) == 5000


def test_without_a_retention_time_the_brokers_counts():
    assert expires_at(-1, now=5000) is None
