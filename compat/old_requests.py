"""ListOffsets v0 and OffsetCommit v1, which behave differently from later versions.

They are plain functions over values; only `gateway.handlers.old.old_versions` calls them.
"""

from __future__ import annotations

LATEST = -1
EARLIEST = -2

#: Commit timestamp that selects the broker's time.
BROKER_TIME = -1


def offsets_before(
    timestamp: int, max_offsets: int, *, start: int, end: int, last_before: int | None
) -> list[int]:
    """Return the offsets of a ListOffsets v0 reply, newest first.

    Sent by Kafka 0.8 to 0.10.0 clients, kafka-python <= 1.3, kafka-node and Sarama < 1.27.

    Kafka's rule (Log.getOffsetsBefore in 0.8, later UnifiedLog.legacyFetchOffsetsBefore): of the
    segments' base offsets and the log end offset, return those whose segment was last modified at
    or before the timestamp, newest first, at most `max_offsets`. The stores here have no segments,
    so the log counts as one segment. `last_before` is the offset after the newest record at or
    before `timestamp`, if there is one.
    """
    if timestamp == LATEST:
        offsets = [end, start]
    elif timestamp == EARLIEST:
        offsets = [start]
    else:
        offsets = [start] if last_before is None else [last_before, start]
    return list(dict.fromkeys(offsets))[: max(max_offsets, 0)]


def committed_at(timestamp: int, now: int) -> int:
    """Return the commit time (ms) of a partition in OffsetCommit v1, which carries a timestamp.

    Sent by Kafka 0.8.2 clients and by kafka-python, kafka-node and Sarama of that time. Same rules
    as Kafka's GroupCoordinator since KIP-211.
    """
    return now if timestamp == BROKER_TIME else timestamp
