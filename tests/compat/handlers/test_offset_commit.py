"""OffsetCommit v1: commit timestamps from clients."""

from __future__ import annotations

from compat.handlers.offset_commit import committed_at


def test_timestamp_of_client_is_used():
    assert committed_at(1000, now=5000) == 1000
    assert committed_at(0, now=5000) == 0


def test_missing_timestamp_means_now():
    assert committed_at(-1, now=5000) == 5000
