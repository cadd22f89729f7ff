"""What is done at intervals: retention, and forgetting producers that have gone. One partition at a time, with the reactor free in between."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from gateway import logs
from gateway.broker import Broker
from gateway.errors import KafkaError
from gateway.topics import LiveTopic
from gateway.waiting import Cancel, call_later
from storage.log import StorageError

_log = logs.part(__name__)


class Housekeeping:
    """`start` runs a coroutine in the background."""

    def __init__(self, broker: Broker, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._broker = broker
        self._start = start
        self._cancel: Cancel | None = None
        self._is_stopped = False

    def start(self) -> None:
        self._cancel = call_later(self._broker.clock, self._broker.settings.log_retention_check_interval_ms / 1000, self._round)

    def stop(self) -> None:
        self._is_stopped = True
        if self._cancel is not None:
            self._cancel()

    def _round(self) -> None:
        self._start(self._work())

    async def _work(self) -> None:
        try:
            for live in list(self._broker.topics):
                await self._look_after(live)
        finally:
            # The next round counts from the end of this one: however long it takes, there is never a second.
            if not self._is_stopped:
                self.start()

    async def _look_after(self, live: LiveTopic) -> None:
        for index in range(live.topic.partitions):
            if self._is_stopped or self._broker.topics.get(live.name) is not live:
                return
            try:
                await self._retain(live, index)
            except (StorageError, KafkaError) as failure:
                _log.warning("retention failed", topic=live.name, partition=index, reason=str(failure))

    async def _retain(self, live: LiveTopic, index: int) -> None:
        now, config = self._broker.now(), live.config
        partition = await self._broker.topics.partition(live.name, index)
        partition.producers.expire(now - self._broker.settings.producer_id_expiration_ms)
        if not config.deletes or (config.retention_ms is None and config.retention_bytes is None):
            return
        since = None if config.retention_ms is None else now - config.retention_ms
        before = partition.log.start_offset
        after = await partition.log.retain(since=since, at_most_bytes=config.retention_bytes)
        if after != before:
            _log.debug("retention", topic=live.name, partition=index, start_offset=after)
