"""Waits until node ids are free, by producers that the broker creates when the node's is closed.

The creation is asynchronous and needs no thread. The watches have a separate client, because a wait
needs a long operation timeout (a request that timed out stays in the broker's queue), and because
only closing the client ends a wait early.

A wait also ends although the node is alive if the broker restarts and the watcher connects before
the node. The producer is closed at once, so that the node can claim its id again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import _pulsar
import pulsar
from twisted.internet.defer import Deferred

from storage.bridge import SharedResult
from storage.cluster import MAX_NODES
from storage.log import StorageError, StorageFailed
from storage.pulsar.client.partition_producers import result_name
from storage.pulsar.client.pulsar_client import PulsarClient, connect, token_of
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import table_topic

WAIT_SECONDS = 1_000_000.0
"""Operation timeout of the watching client, about eleven days. After it, the wait is repeated."""

RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


def node_topic(settings: PulsarSettings, node_id: int) -> str:
    """The topic of a node's presence."""
    return table_topic(settings, f"node-{node_id}")


class NodeWatch:
    """The watch of one node. `on_gone` is None once it was stopped."""

    __slots__ = ("on_gone",)

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self.on_gone: Callable[[], None] | None = on_gone


class PresenceWatcher:
    """Watches up to MAX_NODES nodes."""

    def __init__(self, client: PulsarClient, settings: PulsarSettings) -> None:
        self._client = client
        self._settings = replace(settings, operation_timeout_seconds=WAIT_SECONDS)
        self._opening: SharedResult[pulsar.Client] | None = None
        self._watches: dict[int, NodeWatch] = {}

    def watch(self, node_id: int, on_gone: Callable[[], None]) -> Callable[[], None]:
        """`Presence.watch`. Raises StorageFailed if there are MAX_NODES watches already."""
        active = [one for one in self._watches.values() if one.on_gone]
        if len(active) >= MAX_NODES:
            raise StorageFailed(f"{MAX_NODES} nodes are watched already")
        watch = self._watches.get(node_id)
        if watch is None:
            watch = self._watches[node_id] = NodeWatch(on_gone)
            Deferred.fromCoroutine(self._wait(node_id, watch))
        else:
            watch.on_gone = on_gone

        def stop() -> None:
            if watch.on_gone is on_gone:
                watch.on_gone = None
                if not any(one.on_gone for one in self._watches.values()):
                    Deferred.fromCoroutine(self.close())

        return stop

    async def close(self) -> None:
        """Stop all watches."""
        self._watches.clear()
        opening, self._opening = self._opening, None
        if opening is not None:
            try:
                client = await opening
                await self._client.run(client.close)
            except StorageError as error:
                log.debug("closing the client that watches nodes failed: %s", error)

    async def _wait(self, node_id: int, watch: NodeWatch) -> None:
        """Wait until a node has ended, then call `on_gone` unless the watch was stopped."""
        while self._watches.get(node_id) is watch:
            try:
                result, producer = await self._producer(node_topic(self._settings, node_id))
            except Exception as error:  # noqa: BLE001 - logged and retried
                log.warning("watching node %d failed, retrying: %s", node_id, error)
                await self._client.pause(RETRY_SECONDS)
                continue
            if result == pulsar.Result.Ok:
                self._close(producer)
            elif result != pulsar.Result.TopicNotFound:
                if self._watches.get(node_id) is watch:
                    log.debug("watching node %d ended: %s", node_id, result_name(result.value))
                    await self._client.pause(RETRY_SECONDS)
                continue
            if self._watches.get(node_id) is watch:
                del self._watches[node_id]
                if watch.on_gone:
                    watch.on_gone()

    async def _producer(self, topic: str) -> tuple[Any, Any]:
        """Wait for the exclusive producer. Returns the library's result and the producer."""
        client = await self._opened()
        created: Deferred[tuple[Any, Any]] = Deferred()

        def on_created(result: Any, producer: Any) -> None:
            self._client.reactor_calls.post(partial(created.callback, (result, producer)))

        configuration = _pulsar.ProducerConfiguration()
        configuration.access_mode(pulsar.ProducerAccessMode.WaitForExclusive)
        configuration.schema(pulsar.schema.BytesSchema().schema_info())
        client._client.create_producer_async(topic, configuration, on_created)
        return await created

    async def _opened(self) -> pulsar.Client:
        opening = self._opening
        if opening is None:
            opening = self._opening = SharedResult()
            self._client.run(
                lambda: connect(self._settings, token_of(self._settings))
            ).addCallbacks(opening.succeed, lambda failure: opening.fail(failure.value))
        try:
            return await opening
        except StorageError:
            if self._opening is opening:
                self._opening = None
            raise

    def _close(self, producer: Any) -> None:
        def close() -> None:
            try:
                producer.close()
            except Exception as error:  # noqa: BLE001 - the topic is free in any case
                log.debug("closing the producer of a watched node failed: %s", error)

        self._client.run(close).addErrback(lambda _: None)
