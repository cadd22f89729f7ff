"""Settings of the embedded store, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class LmdbSettings:
    """Sizes are in bytes."""

    map_bytes: int = 16 * GIB
    """Initial map size. Takes address space, not memory or disk. Large, since growing the map
    pauses reads.
    """

    reserve_bytes: int = 64 * MIB
    """Disk space that appends leave free, and replacements and moved entries half of it.

    LMDB writes new pages even to delete, so on a completely full disk nothing could be deleted.
    """

    held_bytes: int = 14 * MIB
    """The part of the reserve that LMDB's file has already, so that others cannot take it.

    At least three quarters of it are free before a commit. That is enough for two commits: one of
    `index_entries` rows of some hundred partitions and half of `table_rows` took up to 5.5 MiB, and
    the next one, of as many rows that were added meanwhile, up to 4.4 MiB.
    """

    sync_appends: bool = True
    """Whether an append is on the medium when it is acknowledged, or in the page cache."""

    segment_bytes: int = 64 * MIB
    """Size of a file of the journal; less on a volume below 4 GiB, more if a burst is larger.

    Space is freed by whole files, and beginning one costs two flushes.
    """

    index_entries: int = 10_000
    """Rows that wait in memory before they are committed: a commit of some 20 ms."""

    index_seconds: float = 5.0
    """How long rows wait if there are fewer. A restart after a crash reads what waited.

    The flusher writes meanwhile, but a burst that needs the writer thread waits for the commit,
    which takes some 10 ms. Without `sync_appends` it also flushes what was appended before it.
    """

    index_segments: int = 4
    """Segments that may begin while rows wait: four of them hold 256 MiB, which a restart reads."""

    index_limit: int = 200_000
    """Rows that may wait while LMDB cannot commit, about 50 MB. Appends and table rows are refused
    then.
    """

    table_rows: int = 512
    """Table rows that may wait. If there would be more, a burst is a transaction of LMDB.

    A commit begins when half of them wait, and the other half may be added meanwhile.

    For rows that are far apart in a large table, a commit writes up to two pages of 4 KiB each, a
    leaf and a branch: 4 MiB for all of them, see `held_bytes`.
    """

    table_bytes: int = 2 * MIB
    """Bytes of frames with table rows that may wait, like `table_rows`.

    Their commit needs as much room, see `held_bytes`.
    """

    cleaned_bytes: int = 1 * MIB
    """Bytes of a segment that are moved or skipped at a time: appends may have to wait for it."""

    tail_bytes: int = 64 * MIB
    """Recently appended entries kept in memory for consumers at the end of the log.

    Some seconds of a busy broker; small compared to its page cache.
    """

    queue_bytes: int = 256 * MIB
    """Payload that may wait for the disk; more is refused.

    At 100 MB/s the disk then answers within three seconds, before clients time out.
    """

    queue_operations: int = 100_000
    """Writes that may wait for the disk; bounds small writes, about 50 MB of queue."""

    burst_bytes: int = 64 * MIB
    """Payload per commit. LMDB holds it in memory, at most 512 MiB per transaction."""

    burst_operations: int = 10_000
    """Writes per commit, so that the first of many small ones does not wait for all."""

    gathering_seconds: float = 0.001
    """How long the next burst waits for callers whose previous write was just completed.

    A sync costs as much as a dozen appends, so clients that write without pause gain more from
    fewer syncs than they lose by waiting. A single client that waits for each write is not delayed.
    """

    freeing_entries: int = 500
    """Deleted entries freed per commit: a few milliseconds that an append may have to wait."""

    readers: int = 2
    """Threads for reads that may touch the disk.

    They mostly wait for pages; each additional thread competes with the reactor for the GIL.
    """

    reads_waiting: int = 20_000
    """Reads that may wait for those threads; more are refused.

    A fetch reads one partition at a time, so this is the number of connections.
    """
