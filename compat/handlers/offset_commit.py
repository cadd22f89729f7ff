"""OffsetCommit 1 to 4: clients that say themselves when an offset counts as committed, or how long it is to be kept.

For Kafka 0.8.2 to 2.0 clients, kafka-python, kafka-node and Sarama of that time. As in Kafka's GroupCoordinator since KIP-211. Times are ms.
"""

from __future__ import annotations

#: What a client sends that leaves it to the broker.
BROKER_DEFAULT = -1


def committed_at(timestamp: int, now: int) -> int:
    """Of v1, which brings a timestamp with each partition."""
    return now if timestamp == BROKER_DEFAULT else timestamp


def expires_at(retention_ms: int, now: int) -> int | None:
    """Of v2 to v4, which bring a retention time; None where it is the broker's that counts."""
    return None if retention_ms == BROKER_DEFAULT else now + retention_ms
