"""OffsetCommit v1 to v4: clients that send a commit timestamp or a retention time.

Sent by Kafka 0.8.2 to 2.0 clients and by kafka-python, kafka-node and Sarama of that time. Same
rules as Kafka's GroupCoordinator since KIP-211. Times are in ms.
"""

from __future__ import annotations

#: Value that selects the broker's default.
BROKER_DEFAULT = -1


def committed_at(timestamp: int, now: int) -> int:
    """v1: each partition has a commit timestamp."""
    return now if timestamp == BROKER_DEFAULT else timestamp


def expires_at(retention_ms: int, now: int) -> int | None:
    """v2 to v4: the request has a retention time. None means that the broker's retention
    applies.
    """
    return None if retention_ms == BROKER_DEFAULT else now + retention_ms
