"""The partitions that this gateway leads: opened when first asked for, given up when their log is finished, and opened anew after that.

A log is finished when another writer has taken the partition, or when it cannot be known what became of an append (`storage.log.Fenced`). The log
that the store then gives says what was stored; from it the producers' state is recovered, so that a retry of such an append is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from gateway import logs
from gateway.coroutines import Clock
from gateway.partitions.partition import Partition, ProducerRecovery, storage_error
from gateway.partitions.producer_snapshots import ProducerSnapshots
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from gateway.topics.topic_state import OpenBackoff, Opening, TopicState
from storage.log import StorageError, Store, UnknownTopic

_log = logs.get_logger(__name__)

#: The pause after the second failure in a row. The first has none, since most are over at once; each further one has twice as much.
INITIAL_BACKOFF = 0.1


class PartitionOpener:
    """`start` runs a coroutine in the background."""

    def __init__(
        self,
        store: Store,
        snapshots: ProducerSnapshots,
        settings: Settings,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._clock = clock
        self._start = start
        self._open_timeout = settings.partition_open_timeout_ms / 1000
        self._max_backoff = settings.partition_open_backoff_max_ms / 1000
        # A medium that goes on without this process may have had other leaders, of whose epochs nobody knows before a partition is opened.
        self._unknown_epoch = -1 if store.retains_by_itself else 0
        #: Goes up whenever a partition's leader epoch is another than clients may have been told, for caches.
        self.version = 0

    async def partition(self, state: TopicState, index: int) -> Partition:
        """A partition that is there but not open, once it is. Raises KafkaError."""
        opening = state.opening.get(index) or self._start_opening(state, index)
        try:
            return await opening.result.with_timeout(
                self._clock, opening.deadline - self._clock.seconds()
            )
        except TimeoutError:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is still being opened"
            ) from None

    def prefetch(self, state: TopicState, index: int) -> None:
        """Begin to open a partition; whoever asks for it hears what came of it."""
        if (
            index in state.partitions
            or index in state.opening
            or not 0 <= index < state.topic.partitions
        ):
            return
        backoff = state.backoffs.get(index)
        if backoff is None or self._clock.seconds() >= backoff.retry_at:
            self._start_opening(state, index)

    def leader_epoch(self, state: TopicState, index: int) -> int:
        """The epoch of a partition's leader as far as it is known."""
        return state.epochs.get(index, self._unknown_epoch)

    def _start_opening(self, state: TopicState, index: int) -> Opening:
        now = self._clock.seconds()
        backoff = state.backoffs.get(index)
        if backoff is not None and now < backoff.retry_at:
            raise KafkaError(backoff.error.code, backoff.error.message)
        opening = state.opening[index] = Opening(now + self._open_timeout)
        self._start(self._open(state, index, opening))
        return opening

    async def _open(self, state: TopicState, index: int, opening: Opening) -> None:
        try:
            partition = await self._load(state, index)
        except StorageError as failure:
            del state.opening[index]
            error = storage_error(failure)
            if not isinstance(failure, UnknownTopic):
                _log.warning(
                    "partition could not be opened",
                    topic=state.name,
                    partition=index,
                    reason=str(failure),
                )
                self._back_off(state, index, error)
            opening.result.fail(error)
            return
        except Exception as failure:
            # A bug. Clients come again and again, and each time the log has a traceback: it is tried no more often than what is known to fail.
            del state.opening[index]
            self._back_off(
                state,
                index,
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the partition cannot be opened"),
            )
            opening.result.fail(failure)
            raise
        self._snapshots.release_row(state.topic.topic_id, index)
        state.partitions[index] = partition
        state.opened_at[index] = self._clock.seconds()
        epoch = partition.log.leader_epoch
        if epoch != self.leader_epoch(state, index):
            self.version += 1
        state.epochs[index] = epoch
        del state.opening[index]
        if partition.recovery is not None:
            self._start(self._recover(state, partition, partition.recovery))
        opening.result.succeed(partition)

    async def wait_for_recovery(self, partition: Partition) -> None:
        """Returns when the partition knows its idempotent producers. Raises KafkaError."""
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
        """Reads and what asks for no sequence are served meanwhile."""
        try:
            await self._snapshots.replay(state.topic.topic_id, partition, recovery)
        except StorageError as failure:
            error = storage_error(failure)
            if not state.is_deleted:
                _log.warning(
                    "idempotent producers not recovered",
                    topic=state.name,
                    partition=partition.index,
                    reason=str(failure),
                )
            # Opened again it goes on from there.
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

    async def _load(self, state: TopicState, index: int) -> Partition:
        log = await self._store.log(state.name, index)
        if state.is_deleted:
            # Deleted meanwhile; the log may even be that of a new topic of the same name.
            raise UnknownTopic(state.name)
        producers, offset = self._snapshots.load(state.topic, index, log)
        partition = Partition(
            state.name, index, log, state.config, producers, partial(self._discard, state)
        )
        if offset < log.end_offset:
            partition.recovery = ProducerRecovery(
                offset, self._clock.seconds() + self._open_timeout
            )
        return partition

    def _discard(
        self, state: TopicState, partition: Partition, error: KafkaError | None = None
    ) -> None:
        """Its log is finished, or its producers cannot be recovered: the next who asks for the partition has it opened anew."""
        index = partition.index
        if state.is_deleting or state.partitions.get(index) is not partition:
            return
        del state.partitions[index]
        if state.is_deleted:
            return
        # What was in flight may be stored or not: the log that is opened next says it.
        partition.producers.rewind(partition.log.end_offset)
        self._snapshots.keep_row(state.topic.topic_id, partition)
        if self._clock.seconds() - state.opened_at.pop(index) >= self._max_backoff:
            state.backoffs.pop(index, None)
        _log.warning(
            "partition given up, to be opened anew",
            topic=state.name,
            partition=index,
            epoch=partition.log.leader_epoch,
        )
        other_leader = KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "this partition has another leader, or none"
        )
        self._back_off(state, index, error or other_leader)

    def _back_off(self, state: TopicState, index: int, error: KafkaError) -> None:
        before = state.backoffs.get(index)
        failures = 1 if before is None else before.failures + 1
        # The exponent is bounded, too: a partition may fail for weeks.
        pause = (
            0.0
            if failures == 1
            else min(INITIAL_BACKOFF * 2 ** min(failures - 2, 20), self._max_backoff)
        )
        state.backoffs[index] = OpenBackoff(failures, self._clock.seconds() + pause, error)
