"""Incremental fetch sessions (KIP-227).

A consumer lists its partitions once; later requests name only changes. A session watches the logs
of its partitions and keeps those that changed in `pending`, so that a fetch over a thousand idle
partitions checks none of them. Follows Kafka's FetchSession and FetchManager.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.partitions.partition import Partition
from gateway.protocol.wire.fetch_codec import FetchPartition

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
NO_SESSION = 0

PartitionKey = tuple[str | bytes, int]


class CachedPartition:
    """A partition of a fetch; `partition` is None if it is not open or does not exist.

    `sent_high_watermark` and `sent_start_offset` are the values last sent to the consumer; a change
    of either makes the partition part of the next response.
    """

    __slots__ = (
        "key",
        "log_size",
        "notify",
        "partition",
        "requested",
        "sent_high_watermark",
        "sent_start_offset",
        "topic_id",
    )

    def __init__(
        self,
        key: PartitionKey,
        requested: FetchPartition,
        notify: Callable[[CachedPartition], None],
    ) -> None:
        self.key = key
        self.requested = requested
        self.notify = notify
        self.partition: Partition | None = None
        self.topic_id = b""
        self.sent_high_watermark = -1
        self.sent_start_offset = -1
        self.log_size = 0

    def attach(self, partition: Partition, topic_id: bytes) -> None:
        """Watch the log of an open partition."""
        if self.partition is not partition:
            self.detach()
            self.partition = partition
            self.topic_id = topic_id
            partition.log.watch(self.changed)

    def detach(self) -> None:
        """Stop watching the log."""
        if self.partition is not None:
            self.partition.log.unwatch(self.changed)
            self.partition = None

    def changed(self) -> None:
        self.notify(self)

    @property
    def has_unread_records(self) -> bool:
        """Whether the log has records at or after the fetch offset."""
        return (
            self.partition is not None
            and self.requested.fetch_offset < self.partition.log.end_offset
        )


class FetchSession:
    """The partitions of one fetch, with or without a session id.

    `pending` holds the partitions to read, in this order. `owner` is the principal of its client;
    those of others cannot use the session, unlike in Kafka.
    """

    def __init__(self, session_id: int = NO_SESSION) -> None:
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[PartitionKey, CachedPartition] = {}
        self.pending: OrderedDict[CachedPartition, None] = OrderedDict()
        #: Called when a partition becomes pending; set by a waiting request.
        self.on_change: Callable[[], None] | None = None
        self.is_in_use = False
        self.is_closed = False
        self.uses_topic_ids = False
        self.owner: object = None
        self.last_used = 0
        #: Number of its partitions included in `FetchSessions.partition_count`.
        self.counted_partitions = 0

    def update(self, key: PartitionKey, requested: FetchPartition) -> CachedPartition:
        """Add a partition or update its fetch offset."""
        cached = self.partitions.get(key)
        if cached is None:
            cached = self.partitions[key] = CachedPartition(key, requested, self._partition_changed)
        cached.requested = requested
        self.pending[cached] = None
        return cached

    def forget(self, key: PartitionKey) -> None:
        cached = self.partitions.pop(key, None)
        if cached is not None:
            cached.detach()
            self.pending.pop(cached, None)

    def close(self) -> None:
        """Stop watching all logs.

        If a request is using the session, the session stays open until that request calls this
        again.
        """
        self.is_closed = True
        if self.is_in_use:
            return
        for cached in self.partitions.values():
            cached.detach()
        self.partitions.clear()
        self.pending.clear()

    def _partition_changed(self, cached: CachedPartition) -> None:
        self.pending[cached] = None
        if self.on_change is not None:
            self.on_change()


class FetchSessions:
    """The cached sessions.

    At most `slots` are kept; the least recently used is evicted if it has been idle for
    `min_idle_ms`. `new_id` returns a positive int32. Partitions, some 400 bytes each, are limited
    to `max_partitions` per session (a fetch of more gets no session) and `max_total_partitions` in
    total. `expire` removes sessions that have been idle for `max_idle_ms`.
    """

    def __init__(
        self,
        slots: int,
        new_id: Callable[[], int],
        *,
        min_idle_ms: int = 120_000,
        max_idle_ms: int = 600_000,
        max_partitions: int = 10_000,
        max_total_partitions: int = 200_000,
    ) -> None:
        self.max_partitions = max_partitions
        self._max_total_partitions = max_total_partitions
        self._max_idle_ms = max_idle_ms
        self.partition_count = 0
        self._slots = slots
        self._new_id = new_id
        self._min_idle_ms = min_idle_ms
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int, now: int) -> FetchSession | None:
        """Return the session and mark it as used at `now` (ms)."""
        found = self._sessions.get(session_id)
        if found is None:
            return None
        if now - found.last_used >= self._max_idle_ms and self._is_expired(found, now):
            self.remove(session_id)
            return None
        found.last_used = now
        self._sessions.move_to_end(session_id)
        return found

    def create(self, now: int) -> FetchSession:
        """Create a session, or return one with id 0 (uncached) if there is no room."""
        if len(self._sessions) >= self._slots and not self._evict(now):
            return FetchSession()
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        created = FetchSession(session_id)
        created.last_used = now
        self._sessions[session_id] = created
        return created

    def remove(self, session_id: int) -> None:
        found = self._sessions.pop(session_id, None)
        if found is not None:
            self.partition_count -= found.counted_partitions
            found.counted_partitions = 0
            found.close()

    def clear(self) -> None:
        """Remove all sessions. Clients learn it from their next fetch, and name all partitions."""
        for session_id in list(self._sessions):
            self.remove(session_id)

    def has_room(self, session: FetchSession, now: int) -> bool:
        """Update the partition count of a session.

        Returns False and removes the session if it exceeds the limit per session or in total.
        """
        size = len(session.partitions)
        if size == session.counted_partitions:
            # The common case. The limits hold for those that are counted.
            return True
        self.partition_count += size - session.counted_partitions
        session.counted_partitions = size
        if size <= self.max_partitions:
            while self.partition_count > self._max_total_partitions and self._evict(now):
                pass
            if self.partition_count <= self._max_total_partitions:
                return True
        self.remove(session.session_id)
        return False

    def expire(self, now: int) -> bool:
        """Remove the least recently used session if it has expired; return whether it was."""
        for session_id, session in self._candidates():
            if not self._is_expired(session, now):
                return False
            self.remove(session_id)
            return True
        return False

    def _is_expired(self, session: FetchSession, now: int) -> bool:
        return not session.is_in_use and now - session.last_used >= self._max_idle_ms

    def _evict(self, now: int) -> bool:
        for session_id, session in self._candidates():
            if now - session.last_used < self._min_idle_ms:
                return False
            self.remove(session_id)
            return True
        return False

    def _candidates(self) -> Iterable[tuple[int, FetchSession]]:
        return (
            (session_id, session)
            for session_id, session in self._sessions.items()
            if not session.is_in_use
        )


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next request (FetchMetadata.nextEpoch).

    It wraps to 1, since 0 is the epoch of the first request.
    """
    return 1 if epoch == 0x7FFFFFFF else epoch + 1
