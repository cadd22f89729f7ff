"""OffsetCommit v2 to v4: retention times from clients."""

from __future__ import annotations

from gateway.handlers.old.old_group_versions import expires_at


def test_retention_time_starts_now():
    assert expires_at(1000, now=5000) == 6000
    assert expires_at(0, now=5000) == 5000


def test_missing_retention_time_uses_broker_default():
    assert expires_at(-1, now=5000) is None
