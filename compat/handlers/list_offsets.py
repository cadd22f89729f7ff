"""ListOffsets v0, which returns an array of offsets instead of one.

Sent by Kafka 0.8 to 0.10.0 clients, kafka-python <= 1.3, kafka-node and Sarama < 1.27.

Kafka's rule (Log.getOffsetsBefore in 0.8, later UnifiedLog.legacyFetchOffsetsBefore): of the
segments' base offsets and the log end offset, return those whose segment was last modified at or
before the timestamp, newest first, at most `max_offsets`. The stores here have no segments, so the
log counts as one segment.
"""

from __future__ import annotations

LATEST = -1
EARLIEST = -2


def offsets_before(
    timestamp: int, max_offsets: int, *, start: int, end: int, last_before: int | None
) -> list[int]:
    """Return the offsets, newest first.

    `last_before` is the offset after the newest record at or before `timestamp`, if there is one.
    """
    if timestamp == LATEST:
        offsets = [end, start]
    elif timestamp == EARLIEST:
        offsets = [start]
    else:
        offsets = [start] if last_before is None else [last_before, start]
    return list(dict.fromkeys(offsets))[: max(max_offsets, 0)]
