"""OffsetCommit v1, in which each partition has a commit timestamp.

Sent by Kafka 0.8.2 clients and by kafka-python, kafka-node and Sarama of that time. Same rules as
Kafka's GroupCoordinator since KIP-211. Times are in ms.
"""

from __future__ import annotations

#: Value that selects the broker's default.
BROKER_DEFAULT = -1


def committed_at(timestamp: int, now: int) -> int:
    return now if timestamp == BROKER_DEFAULT else timestamp
