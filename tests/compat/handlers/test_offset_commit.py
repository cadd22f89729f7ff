"""OffsetCommit v1 to v4: commit timestamps and retention times from clients."""

from __future__ import annotations

from compat.handlers.offset_commit import committed_at, expires_at


def test_timestamp_of_client_is_used():
    assert committed_at(1000, now=5000) == 1000
    assert committed_at(0, now=5000) == 0


def test_missing_timestamp_means_now():
    assert committed_at(-1, now=5000) == 5000


def test_retention_time_starts_now():
    assert expires_at(1000, now=5000) == 6000
    assert expires_at(0, now=5000) == 5000


def test_missing_retention_time_uses_broker_default():
    assert expires_at(-1, now=5000) is None
