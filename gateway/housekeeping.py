"""Periodic jobs, and what remains to be done after another gateway has deleted a topic.

The jobs apply retention, expire idle producers, committed offsets and fetch sessions, and compact
partitions. Each job works in small steps, between which the reactor serves requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from gateway import logs
from gateway.broker import Broker
from gateway.compaction import LogCleaner
from gateway.coroutines import Cancel, call_later, sleep
from gateway.groups.offsets.offset_expiry import OffsetExpiry
from gateway.protocol.errors import KafkaError
from gateway.settings.model import Settings
from gateway.topics.topic_state import TopicState
from storage.log import StorageError, Topic

_log = logs.get_logger(__name__)

_MINUTE_MS = 60_000

Job = Callable[[], Awaitable[None]]
#: Returns the time until the next run. Called for each run, because the setting may change.
Interval = Callable[[Settings], int]


class Housekeeping:
    """Runs the periodic jobs. `start` runs a coroutine in the background."""

    def __init__(self, broker: Broker, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._broker = broker
        self._start = start
        self._log_cleaner = LogCleaner(broker)
        retention_ms = broker.settings.offsets_retention_minutes * _MINUTE_MS
        self._expiry = OffsetExpiry(broker.offsets, broker.groups, retention_ms, broker.clock)
        self._timers: dict[Job, Cancel] = {}
        self._is_stopped = False

    def start(self) -> None:
        # Separate jobs: compacting a large log may take many minutes, which must not delay
        # retention.
        self._schedule(self._retain_all, lambda settings: settings.log_retention_check_interval_ms)
        self._schedule(self._log_cleaner.run_once, lambda settings: settings.log_cleaner_backoff_ms)
        self._schedule(
            self._expire_offsets, lambda settings: settings.offsets_retention_check_interval_ms
        )
        self._schedule(self._expire_fetch_sessions, lambda _: _MINUTE_MS)
        self._broker.store.watch_deletions(self._forget)

    def stop(self) -> None:
        self._is_stopped = True
        self._log_cleaner.stop()
        self._expiry.stop()
        for cancel in self._timers.values():
            cancel()

    def _schedule(self, job: Job, interval_ms: Interval) -> None:
        seconds = interval_ms(self._broker.settings) / 1000
        self._timers[job] = call_later(
            self._broker.clock, seconds, partial(self._start_job, job, interval_ms)
        )

    def _start_job(self, job: Job, interval_ms: Interval) -> None:
        self._start(self._run_job(job, interval_ms))

    async def _run_job(self, job: Job, interval_ms: Interval) -> None:
        try:
            await job()
        finally:
            # The interval starts at the end of a run, so runs of a job never overlap.
            if not self._is_stopped:
                self._schedule(job, interval_ms)

    async def _expire_offsets(self) -> None:
        broker = self._broker
        await broker.offsets.delete_orphans(
            broker.now() - broker.settings.offsets_retention_minutes * _MINUTE_MS
        )
        await self._expiry.run(broker.now())

    async def _expire_fetch_sessions(self) -> None:
        broker = self._broker
        while not self._is_stopped and broker.fetch_sessions.expire(broker.now()):
            # A session may have 10,000 partitions, which takes some milliseconds.
            await sleep(broker.clock, 0)

    async def _retain_all(self) -> None:
        await self._forget_deleted_topics()
        for live in list(self._broker.topics):
            await self._apply_retention(live)

    async def _forget_deleted_topics(self) -> None:
        """Delete the remaining state of topics that others deleted at least one interval ago."""
        broker = self._broker
        for topic in await broker.topics.forget_deleted(
            broker.now() - broker.settings.log_retention_check_interval_ms
        ):
            # The topic may have been listed again meanwhile.
            if broker.topics.get(topic.topic_id) is None:
                await broker.offsets.delete_topic(topic)

    def _forget(self, topic: Topic) -> None:
        """Delete the remaining state of a topic that another gateway has deleted.

        All writes are queued at once: another program may create a topic with the same id, whose
        offsets are stored after that.
        """
        self._start(self._broker.offsets.delete_topic(topic))
        self._start(self._broker.topics.forget(topic))

    async def _apply_retention(self, live: TopicState) -> None:
        for index in range(live.topic.partitions):
            if self._is_gone(live):
                return
            try:
                await self._retain(live, index)
            except (StorageError, KafkaError) as failure:
                if self._is_gone(live):
                    return
                _log.warning(
                    "retention failed, retried by the next check",
                    topic=live.name,
                    partition=index,
                    reason=str(failure),
                )

    def _is_gone(self, live: TopicState) -> bool:
        """Whether the topic is deleted or the gateway is stopping."""
        return self._is_stopped or self._broker.topics.get(live.name) is not live

    async def _retain(self, live: TopicState, index: int) -> None:
        now, config = self._broker.now(), live.config
        if not self._broker.topics.opener.can_open(live, index):
            # Another gateway leads it.
            return
        if index not in live.partitions and self._broker.store.retains_by_itself:
            # Opening the partition would fence its current leader.
            return
        partition = await self._broker.topics.partition(live.name, index)
        partition.producers.expire(now - self._broker.settings.producer_id_expiration_ms)
        if not config.deletes or (config.retention_ms is None and config.retention_bytes is None):
            return
        since = None if config.retention_ms is None else now - config.retention_ms
        before = partition.log.start_offset
        try:
            after = await partition.log.retain(since=since, at_most_bytes=config.retention_bytes)
        except StorageError as failure:
            raise partition.handle_storage_error(failure) from failure
        if after != before:
            _log.debug(
                "records deleted by retention",
                topic=live.name,
                partition=index,
                start_offset=after,
            )
