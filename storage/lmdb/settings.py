"""The limits of the embedded store, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class LmdbSettings:
    """Sizes are in bytes."""

    map_bytes: int = 16 * GIB
    """The map at the start. It takes address space, not memory and not disk; growing it stops the reads for a moment, so it begins large."""

    reserve_bytes: int = 64 * MIB
    """Disk that appends leave alone: LMDB writes new pages even to delete, so a disk full to the last page could never be made less full."""

    tail_bytes: int = 64 * MIB
    """Entries appended last, kept in memory for the consumers at the tail: some seconds of a busy broker, little beside its page cache."""

    queue_bytes: int = 256 * MIB
    """Payload that may wait for the disk; more is refused. A disk of 100 MB/s then answers within three seconds, before clients time out."""

    queue_operations: int = 100_000
    """Writes that may wait for the disk, so that small ones too are bounded: some 50 MB of queue."""

    burst_bytes: int = 64 * MIB
    """Payload of one commit: LMDB holds it in memory until then, and takes no more than 512 MiB in a transaction."""

    burst_operations: int = 10_000
    """Writes of one commit, so that the first of a flood of small ones does not wait for all."""

    gathering_seconds: float = 0.001
    """How long after a burst the next one waits for those who may write again. Each sync costs as much as a dozen appends, and those who write without a
    pause gain more from the fewer of them than they lose. Who writes one at a time, waiting for each, waits no longer."""

    freeing_entries: int = 500
    """Deleted entries freed in one commit: some milliseconds that an append may have to wait."""

    readers: int = 2
    """Threads for reads that may touch the disk. They wait for pages more than they compute; each one more competes with the reactor."""

    reads_waiting: int = 20_000
    """Reads that may wait for those threads; more are refused. A fetch asks one partition at a time, so this is that many connections."""
