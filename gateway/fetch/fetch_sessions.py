"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, and each round costs only what has changed.

A session watches the logs of its partitions. What moved since it last looked is in `pending`, so that a round over a thousand idle
partitions looks at none of them. Rules: Kafka's FetchSession and FetchManager.
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
    """One partition that somebody fetches. `partition` is None while it is not open, or not there.

    `sent_high_watermark` and `sent_start_offset` are what the session was last told: a difference alone makes it worth a row.
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
        """The partition is open: follow it."""
        if self.partition is not partition:
            self.detach()
            self.partition = partition
            self.topic_id = topic_id
            partition.log.watch(self.changed)

    def detach(self) -> None:
        """Follow it no more."""
        if self.partition is not None:
            self.partition.log.unwatch(self.changed)
            self.partition = None

    def changed(self) -> None:
        self.notify(self)

    @property
    def has_unread_records(self) -> bool:
        """There are records that it has not fetched."""
        return (
            self.partition is not None
            and self.requested.fetch_offset < self.partition.log.end_offset
        )


class FetchSession:
    """The partitions of one fetch, with a session or without. `pending` is in the order in which they are to be read."""

    def __init__(self, session_id: int = NO_SESSION) -> None:
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[PartitionKey, CachedPartition] = {}
        self.pending: OrderedDict[CachedPartition, None] = OrderedDict()
        #: Called whenever something becomes pending; set by the request that waits.
        self.on_change: Callable[[], None] | None = None
        self.is_in_use = False
        self.is_closed = False
        self.uses_topic_ids = False
        self.last_used = 0
        #: How many of its partitions count in `FetchSessions.partition_count`.
        self.counted_partitions = 0

    def update(self, key: PartitionKey, requested: FetchPartition) -> CachedPartition:
        """Add a partition, or change where its consumer stands."""
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
        """Let go of every log: now, or at the end of the request that uses the round, which closes it once more."""
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
    """The sessions that are kept, at most `slots`; the one unused longest makes room, if unused for `min_idle_ms`.

    `new_id` gives a positive int32; `max_partitions` bounds one session, for it is a client that names them: whoever fetches more does
    without a session. `max_total_partitions` bounds all of them together, some 400 bytes each; `expire` removes
    those that are unused for `max_idle_ms`.
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
        """The session, marked as used now (ms)."""
        found = self._sessions.get(session_id)
        if found is not None and self._is_expired(found, now):
            self.remove(session_id)
            return None
        if found is not None:
            found.last_used = now
            self._sessions.move_to_end(session_id)
        return found

    def create(self, now: int) -> FetchSession:
        """A new session, or a round without one (id 0) where there is no room."""
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

    def has_room(self, session: FetchSession, now: int) -> bool:
        """Count the partitions of `session`, which have changed. False if they are too many, for one session or for all together: it is not kept."""
        size = len(session.partitions)
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
        """Remove the session that has been unused longest, if for `max_idle_ms`. False where there is none to remove."""
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
    """The epoch of the request after one of `epoch`: 0 is for the first, so it wraps to 1 (FetchMetadata.nextEpoch)."""
    return 1 if epoch == 0x7FFFFFFF else epoch + 1
