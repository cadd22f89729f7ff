"""Kafka's retention as Pulsar policies. Expected values are calculated manually."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.retention_policies import KEEP_ALL, Retention, retention_of

WEEK = PulsarSettings("pulsar://h:1", "http://h:1", retention_ms=604_800_000, retention_bytes=-1)


@pytest.mark.parametrize(
    ("configs", "minutes", "megabytes"),
    [
        ({}, 10_080, -1),
        ({"retention.ms": "60000"}, 1, -1),
        ({"retention.ms": "60001"}, 2, -1),
        ({"retention.ms": "1"}, 1, -1),
        ({"retention.ms": "0"}, 1, -1),
        ({"retention.ms": "-1"}, -1, -1),
        ({"retention.bytes": "1048576"}, 10_080, 1),
        ({"retention.bytes": "1048577"}, 10_080, 2),
        ({"retention.bytes": "0"}, 10_080, 1),
        ({"retention.ms": "9223372036854775807", "retention.bytes": "9223372036854775807"}, -1, -1),
        ({"retention.ms": "no number"}, 10_080, -1),
        ({"cleanup.policy": "compact"}, -1, -1),
        ({"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "1"}, -1, -1),
        ({"cleanup.policy": ""}, -1, -1),
        ({"cleanup.policy": "delete", "retention.ms": "60000"}, 1, -1),
        ({"cleanup.policy": "compact, delete", "retention.ms": "60000"}, 1, -1),
    ],
)
def test_retention_policy_follows_topic_configs(
    configs: dict[str, str], minutes: int, megabytes: int
) -> None:
    assert retention_of(configs, WEEK) == Retention(minutes, megabytes)


def test_default_compaction_keeps_everything() -> None:
    assert (
        retention_of({}, PulsarSettings("pulsar://h:1", "http://h:1", cleanup_policy="compact"))
        == KEEP_ALL
    )


@given(st.integers(-1, 1 << 63), st.integers(-1, 1 << 63))
def test_policy_never_keeps_less_than_configs(milliseconds: int, size: int) -> None:
    kept = retention_of({"retention.ms": str(milliseconds), "retention.bytes": str(size)}, WEEK)
    assert kept.retentionTimeInMinutes == -1 or (
        0 <= milliseconds <= kept.retentionTimeInMinutes * 60_000
    )
    assert kept.retentionSizeInMB == -1 or (0 <= size <= kept.retentionSizeInMB << 20)
    # Zero and values above Java's int have another meaning in Pulsar.
    assert all(
        amount == -1 or 1 <= amount < 1 << 31
        for amount in (kept.retentionTimeInMinutes, kept.retentionSizeInMB)
    )
