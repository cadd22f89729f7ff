"""A node's presence: an exclusive producer on a topic of its id.

The broker refuses a second exclusive producer and releases the first when its connection ends: at
once if the process was killed, after 30 to 60 s if it hangs or its host is lost. The last message
names the holder, which repeats the message every `lock_beat_seconds`.

The controller waits for the exclusive producer (`presence_watch`) and may hold it for a moment:
when the node has ended, or after a restart of the broker, if the controller connects before the
node. So a refused claim is repeated for `CLAIM_SECONDS`, and a holder that lost the topic claims it
again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec
import pulsar
from twisted.internet.defer import Deferred

from storage.bridge import DelayedCall, Reactor
from storage.cluster import NodeIdInUse
from storage.log import Fenced, StorageError
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import close_producer
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.reconnection import Reconnection
from storage.pulsar.cluster.presence_watch import PresenceWatcher, node_topic
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table_compaction import clear_retention, ensure_topic

CLAIM_SECONDS = 3.0
"""How long a refused claim is repeated. The controller releases the topic within milliseconds."""

RETRY_SECONDS = 0.1

CHECK_SECONDS = 0.5
"""Interval at which the holder checks, without I/O, whether its producer is connected."""

Access = pulsar.ProducerAccessMode
log = logging.getLogger(__name__)


class NodeHolder(msgspec.Struct, frozen=True):
    """The JSON message in a node's topic. `since` is a Unix time in seconds.

    `incarnation` identifies one process with this node id.
    """

    incarnation: str
    description: str
    host: str
    process: int
    since: float


class PulsarPresence:
    """A `Presence`."""

    def __init__(
        self, client: PulsarClient, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor
    ) -> None:
        self._client = client
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self._watcher = PresenceWatcher(client, settings)
        self._topic = ""
        self._holder: NodeHolder | None = None
        self._producer: Any = None
        self._timer: DelayedCall | None = None
        self._next_beat = 0.0
        self._is_beat_in_flight = False
        self._reconnection = Reconnection(reactor.seconds)
        self._on_taken: Callable[[str], None] = lambda reason: None

    def when_taken(self, call: Callable[[str], None]) -> None:
        self._on_taken = call

    def watch(self, node_id: int, on_gone: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch(node_id, on_gone)

    async def claim(self, node_id: int, description: str, *, repeat: bool = True) -> None:
        """`Presence.claim`."""
        self._topic = node_topic(self._settings, node_id)
        await ensure_topic(self._admin, self._topic)
        await clear_retention(self._admin, self._topic)
        holder = NodeHolder(
            uuid4().hex, description, socket.gethostname(), os.getpid(), time.time()
        )
        until = self._reactor.seconds() + CLAIM_SECONDS
        while True:
            try:
                producer = await self._open(holder)
            except Fenced:
                if not repeat or self._reactor.seconds() >= until:
                    other = await self._last_holder()
                    raise NodeIdInUse(self._in_use(node_id, other)) from None
                await self._client.pause(RETRY_SECONDS)
            else:
                break
        self._holder = holder
        self._started(producer)

    async def release(self) -> None:
        self._holder = None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(self._client, producer)
        await self._watcher.close()

    def _open(self, holder: NodeHolder) -> Deferred[Any]:
        """Open the producer and send `holder`. Fails with Fenced if the topic is taken."""

        def open_and_announce() -> Any:
            producer = self._client.producer(self._topic, Access.Exclusive)
            try:
                producer.send(msgspec.json.encode(holder))
            except pulsar.PulsarException:
                with suppress(pulsar.PulsarException):
                    producer.close()
                raise
            return producer

        return self._client.run(open_and_announce)

    def _started(self, producer: Any) -> None:
        self._producer = producer
        self._reconnection.connected()
        self._is_beat_in_flight = False
        self._next_beat = self._reactor.seconds() + self._settings.lock_beat_seconds
        self._timer = self._reactor.callLater(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Send a message if one is due, or if the producer is disconnected.

        The result shows whether this process still holds the topic.
        """
        self._timer = self._reactor.callLater(CHECK_SECONDS, self._check)
        producer, wake = self._producer, self._client.reactor_calls
        if self._reconnection.has_given_up(producer):
            self._lost(producer)
            return
        is_due = self._reactor.seconds() >= self._next_beat
        if self._is_beat_in_flight or (producer.is_connected() and not is_due):
            return
        self._is_beat_in_flight = True
        self._next_beat = self._reactor.seconds() + self._settings.lock_beat_seconds

        def answered(result: Any, _: object) -> None:
            wake.post(lambda: self._answered(producer, result))

        try:
            producer.send_async(msgspec.json.encode(self._holder), answered)
        except pulsar.PulsarException:  # the producer was fenced
            answered(pulsar.Result.AlreadyClosed, None)

    def _answered(self, producer: Any, result: Any) -> None:
        if producer is not self._producer:
            return
        self._is_beat_in_flight = False
        if result in (pulsar.Result.ProducerFenced, pulsar.Result.AlreadyClosed):
            self._lost(producer)

    def _lost(self, producer: Any) -> None:
        """Claim the topic again: the broker released it, or the library does not reconnect."""
        log.warning("node id lost in Pulsar, claiming it again topic=%s", self._topic)
        self._producer = None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        close_producer(self._client, producer)
        assert self._holder
        Deferred.fromCoroutine(self._claim_again(self._holder)).addErrback(
            lambda failure: log.error("bug: claiming the node id failed: %s", failure.value)
        )

    async def _claim_again(self, holder: NodeHolder) -> None:
        while self._holder is holder:
            try:
                if await self._try_claim(holder):
                    return
            except StorageError as error:
                log.debug("claiming the node id again failed, retrying: %s", error)
            except Exception:
                log.exception("bug: claiming the node id failed, retrying")
            await self._client.pause(RETRY_SECONDS)

    async def _try_claim(self, holder: NodeHolder) -> bool:
        """Return False if this should be repeated. Raises StorageError."""
        try:
            producer = await self._open(holder)
        except Fenced:
            other = await self._last_holder()
            if other is None or other.incarnation == holder.incarnation:
                return False
            if self._holder is holder:
                self._holder = None
                self._on_taken(f"{describe(other)} has taken this gateway's node id")
            return True
        if self._holder is holder:
            log.warning("node id claimed again topic=%s", self._topic)
            self._started(producer)
        else:
            await close_producer(self._client, producer)
        return True

    async def _last_holder(self) -> NodeHolder | None:
        """The sender of the topic's last message; None if there is none."""
        return await self._client.run(lambda: self._client.last_json(self._topic, NodeHolder))

    def _in_use(self, node_id: int, holder: NodeHolder | None) -> str:
        who = "a process that has not announced itself" if holder is None else describe(holder)
        return (
            f"node id {node_id} is in use by {who}: start this gateway with another --node-id, or "
            "without --node-id, or stop that process. Pulsar releases the id at once if the "
            "process was killed, and within a minute if it hangs or its host is lost"
        )


def describe(holder: NodeHolder) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder.since))
    return f"{holder.description} (process {holder.process} on {holder.host}, since {since} UTC)"
