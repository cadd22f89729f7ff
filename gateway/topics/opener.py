"""Opens partitions on first use, reopens them after their log was fenced, and closes shards.

Only partitions in shards that this gateway leads can be opened. While their shard opens, requests
wait for it.

A log is fenced when another writer takes over the partition or when the outcome of an append is
unknown (`storage.log.Fenced`). Reopening reads what was actually stored and rebuilds the idempotent
producers' state from it, so that a retried batch is recognized as a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from gateway import logs
from gateway.cluster.shard_leadership import NotLeader, ShardLeadership
from gateway.coroutines import Clock, sleep
from gateway.partitions.partition import Partition, ProducerRecovery
from gateway.partitions.producer_snapshots import ProducerSnapshots
from gateway.protocol.errors import ErrorCode, KafkaError, storage_error
from gateway.settings.model import Settings
from gateway.topics.topic_state import OpenBackoff, Opening, TopicState
from storage.log import EntryDamaged, StorageError, Store, UnknownTopic

_log = logs.get_logger(__name__)

#: Backoff after the second consecutive failure, in seconds; doubles with each further failure. The
#: first retry is immediate, since most failures are transient.
INITIAL_BACKOFF = 0.1

#: How often an entry is read that the disk cannot read, before it is left out, and the pause in
#: seconds. The whole disk may be unavailable for a time; further entries have less time.
FAILED_READS, MORE_FAILED_READS, FAILED_READ_SECONDS = 30, 3, 1.0

#: Seconds that closing a shard waits for message sets that are being repacked, and between checks.
REPACK_SECONDS, REPACK_CHECK_SECONDS = 5.0, 0.01


class PartitionOpener:
    """Opens partitions; `start` runs a coroutine in the background."""

    def __init__(
        self,
        store: Store,
        leadership: ShardLeadership,
        snapshots: ProducerSnapshots,
        settings: Settings,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._snapshots = snapshots
        self._clock = clock
        self._start = start
        self._open_timeout = settings.partition_open_timeout_ms / 1000
        self._max_backoff = settings.partition_open_backoff_max_ms / 1000

    def shard_of(self, state: TopicState, index: int) -> int:
        return state.shard_of(index, self._store.shard_count)

    def can_open(self, state: TopicState, index: int) -> bool:
        """Whether the partition's shard is open in this gateway."""
        return self._leadership.is_open(self.shard_of(state, index))

    async def partition(self, state: TopicState, index: int) -> Partition:
        """Return an existing partition once it is open. Raises KafkaError."""
        opening = state.opening.get(index) or self._start_opening(state, index)
        try:
            return await opening.result.with_timeout(
                self._clock, opening.deadline - self._clock.seconds()
            )
        except TimeoutError:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is still being opened"
            ) from None

    async def hold(self, state: TopicState, index: int) -> None:
        """Wait until this gateway may serve the partition's shard. Raises KafkaError."""
        try:
            await self._leadership.wait(self.shard_of(state, index), self._open_timeout)
        except NotLeader as failure:
            raise _not_leader(failure) from None

    def prefetch(self, state: TopicState, index: int) -> None:
        """Start opening a partition without waiting for it."""
        if (
            index in state.partitions
            or index in state.opening
            or not 0 <= index < state.topic.partitions
            or not self._leadership.leads(self.shard_of(state, index))
        ):
            return
        backoff = state.backoffs.get(index)
        if backoff is None or self._clock.seconds() >= backoff.retry_at:
            self._start_opening(state, index)

    def _start_opening(self, state: TopicState, index: int) -> Opening:
        try:
            self._leadership.require(self.shard_of(state, index))
        except NotLeader as failure:
            raise _not_leader(failure) from None
        now = self._clock.seconds()
        backoff = state.backoffs.get(index)
        if backoff is not None and now < backoff.retry_at:
            raise KafkaError(backoff.error.code, backoff.error.message)
        opening = state.opening[index] = Opening(now + self._open_timeout)
        self._start(self._open(state, index, opening))
        return opening

    async def _open(self, state: TopicState, index: int, opening: Opening) -> None:
        try:
            await self._leadership.wait(self.shard_of(state, index), self._open_timeout)
            if state.opening.get(index) is not opening:
                return
            partition = await self._load(state, index)
        except NotLeader as failure:
            if state.opening.get(index) is opening:
                del state.opening[index]
                opening.result.fail(_not_leader(failure))
            return
        except StorageError as failure:
            if state.opening.get(index) is not opening:
                return
            del state.opening[index]
            error = storage_error(failure)
            if not isinstance(failure, UnknownTopic):
                _log.warning(
                    "partition could not be opened, retried by later requests",
                    topic=state.name,
                    partition=index,
                    reason=str(failure),
                )
                self._back_off(state, index, error)
            opening.result.fail(error)
            return
        except Exception as failure:
            # A bug. Back off here too, or each retry of a client would log another traceback.
            if state.opening.get(index) is opening:
                del state.opening[index]
            self._back_off(
                state,
                index,
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the partition cannot be opened"),
            )
            opening.result.fail(failure)
            raise
        if state.opening.get(index) is not opening:
            # The shard was closed meanwhile; the request has been answered.
            return
        self._snapshots.release_row(state.topic.topic_id, index)
        state.partitions[index] = partition
        state.opened_at[index] = self._clock.seconds()
        del state.opening[index]
        if partition.recovery is not None:
            self._start(self._recover(state, partition, partition.recovery))
        opening.result.succeed(partition)

    async def wait_for_recovery(self, partition: Partition) -> None:
        """Wait until the partition's idempotent producers are recovered. Raises KafkaError."""
        recovery = partition.recovery
        if recovery is None:
            return
        try:
            await recovery.finished.with_timeout(
                self._clock, recovery.deadline - self._clock.seconds()
            )
        except TimeoutError:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the partition's idempotent producers are still being recovered",
            ) from None

    async def _recover(
        self, state: TopicState, partition: Partition, recovery: ProducerRecovery
    ) -> None:
        """Replay the log; reads and appends without sequence numbers proceed meanwhile."""
        try:
            await self._replay(state, partition, recovery)
        except StorageError as failure:
            error = storage_error(failure)
            if not state.is_deleted:
                _log.warning(
                    "idempotent producers not recovered, the next request reopens the partition",
                    topic=state.name,
                    partition=partition.index,
                    reason=str(failure),
                )
            # The reopened partition resumes the replay from here.
            self._discard(state, partition, error)
            recovery.finished.fail(error)
        except Exception as failure:
            self._discard(
                state,
                partition,
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the partition cannot be opened"),
            )
            recovery.finished.fail(failure)
            raise
        else:
            partition.recovery = None
            recovery.finished.succeed(None)

    async def _replay(
        self, state: TopicState, partition: Partition, recovery: ProducerRecovery
    ) -> None:
        """Replay the log without its damaged entries. Raises StorageError."""
        topic_id = state.topic.topic_id
        skipped = reads = 0
        first = last = failing = -1
        while True:
            try:
                await self._snapshots.replay(topic_id, partition, recovery)
                break
            except EntryDamaged as damaged:
                reads = reads + 1 if damaged.base_offset == failing else 1
                failing, end = damaged.base_offset, damaged.last_offset
                may_recover = damaged.may_recover
            if may_recover and reads < (MORE_FAILED_READS if skipped else FAILED_READS):
                await sleep(self._clock, FAILED_READ_SECONDS)
                continue
            self._snapshots.skip_damaged(partition, recovery, end)
            first, last = first if skipped else failing, end
            skipped += 1
        if skipped:
            # The next opening does not read them again.
            self._snapshots.save_soon(topic_id, partition)
            _log.warning(
                "damaged entries skipped in the recovery of idempotent producers: batches that "
                "are sent again may be stored twice",
                topic=state.name,
                partition=partition.index,
                entries=skipped,
                first_offset=first,
                last_offset=last,
            )

    async def _load(self, state: TopicState, index: int) -> Partition:
        log = await self._store.log(state.name, index)
        if state.is_deleted:
            # Deleted meanwhile; the log may belong to a new topic of the same name.
            raise UnknownTopic(state.name)
        producers, offset = self._snapshots.load(state.topic, index, log)
        partition = Partition(
            state.name, index, log, state.config, producers, partial(self._fenced, state)
        )
        if offset < log.end_offset:
            partition.recovery = ProducerRecovery(
                offset, self._clock.seconds() + self._open_timeout
            )
        return partition

    def refuse_openings(self, topics: Iterable[TopicState]) -> None:
        """Refuse the requests that wait for a partition to open. The next one opens it again."""
        for state in topics:
            for index in list(state.opening):
                state.opening.pop(index).result.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    async def close_shard(self, shard: int, topics: Iterable[TopicState]) -> None:
        """Discard the partitions of a shard and save their producer states.

        Appends in flight continue; the store completes them before it closes the shard.
        """
        left: list[tuple[bytes, Partition]] = []
        for state in topics:
            for index in [one for one in state.opening if self.shard_of(state, one) == shard]:
                state.opening.pop(index).result.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            for index in [one for one in state.backoffs if self.shard_of(state, one) == shard]:
                del state.backoffs[index]
            for index in [one for one in state.partitions if self.shard_of(state, one) == shard]:
                del state.opened_at[index]
                left.append((state.topic.topic_id, state.partitions.pop(index)))
        for _, partition in left:
            partition.resign()
        deadline = self._clock.seconds() + REPACK_SECONDS
        while self._clock.seconds() < deadline and any(one.has_queued_appends for _, one in left):
            await sleep(self._clock, REPACK_CHECK_SECONDS)
        try:
            await self._snapshots.save_all(left)
        except StorageError as failure:
            _log.warning(
                "producer snapshots not written, the next opening reads the logs instead",
                shard=shard,
                reason=str(failure),
            )

    def _fenced(self, state: TopicState, partition: Partition, failure: StorageError) -> None:
        if self._discard(state, partition, storage_error(failure)):
            _log.warning(
                "partition fenced, the next request reopens it",
                topic=state.name,
                partition=partition.index,
                epoch=partition.log.leader_epoch,
                reason=str(failure),
            )

    def _discard(self, state: TopicState, partition: Partition, error: KafkaError) -> bool:
        """Drop a partition that is fenced or failed to recover; the next request reopens it.

        Returns False if it was dropped before, or its topic is deleted.
        """
        index = partition.index
        if state.is_deleting or state.partitions.get(index) is not partition:
            return False
        del state.partitions[index]
        if state.is_deleted:
            return False
        # The outcome of in-flight appends is unknown until the log is reopened.
        partition.producers.rewind(partition.log.end_offset)
        self._snapshots.keep_row(state.topic.topic_id, partition)
        if self._clock.seconds() - state.opened_at.pop(index) >= self._max_backoff:
            state.backoffs.pop(index, None)
        self._back_off(state, index, error)
        return True

    def _back_off(self, state: TopicState, index: int, error: KafkaError) -> None:
        before = state.backoffs.get(index)
        failures = 1 if before is None else before.failures + 1
        # Bound the exponent: a partition may fail for weeks.
        pause = (
            0.0
            if failures == 1
            else min(INITIAL_BACKOFF * 2 ** min(failures - 2, 20), self._max_backoff)
        )
        state.backoffs[index] = OpenBackoff(failures, self._clock.seconds() + pause, error)


def _not_leader(failure: NotLeader) -> KafkaError:
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(failure))
