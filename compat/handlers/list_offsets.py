"""ListOffsets v0: an array of offsets instead of one. For Kafka 0.8 to 0.10.0 clients, kafka-python <= 1.3, kafka-node and Sarama < 1.27.

Kafka 0.8's rule (Log.getOffsetsBefore, then UnifiedLog.legacyFetchOffsetsBefore): of the offsets where segments begin, and the end, those
whose segment was last written at or before the timestamp, newest first, at most as many as asked for. A store here has no segments:
the log counts as one.
"""

from __future__ import annotations

LATEST = -1
EARLIEST = -2


def offsets_before(
    timestamp: int, max_offsets: int, *, start: int, end: int, last_before: int | None
) -> list[int]:
    """The offsets to answer, newest first. `last_before` is the offset after the newest record at or before `timestamp`, where one was asked
    for and there is one."""
    if timestamp == LATEST:
        offsets = [end, start]
    elif timestamp == EARLIEST:
        offsets = [start]
    else:
        offsets = [start] if last_before is None else [last_before, start]
    return list(dict.fromkeys(offsets))[: max(max_offsets, 0)]
