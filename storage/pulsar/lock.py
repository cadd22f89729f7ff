"""The store's lock: one process uses a store at a time.

The lock is an exclusive producer on a topic beside the state tables. The broker refuses a second
exclusive producer and releases the first when its connection ends: at once if the process was
killed; after 30 to 60 s, when the broker's keep-alive fails, if the process hangs or its host is
lost.

The last message in the topic names the holder. The holder repeats it every `lock_beat_seconds`,
which also detects that another process has taken the lock.

A broker can also refuse the holder itself: after a network failure the old connection may still
count as alive when the holder reconnects. A refused holder therefore reads the last message and
tries to reacquire the lock. It is lost only if another process has announced itself, or if the
broker keeps refusing for `lock_contest_seconds`. Data is safe meanwhile, because a process that
takes over the store fences each table and partition separately.

A gateway holds the lock while it is the controller of its cluster. Its message says so, because
older gateways hold the lock alone: the others do not join them.
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
from storage.cluster import OtherController
from storage.log import Fenced, StaleStoreLock, StorageError, StorageFailed, StoreInUse
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import close_producer
from storage.pulsar.client.partition_producers import result_name
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.reconnection import Reconnection
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import LOCK_TOPIC
from storage.pulsar.tables.table_compaction import clear_retention, ensure_topic
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX

RETRY_SECONDS = 1.0
"""Seconds between attempts to reacquire the lock."""

ANNOUNCEMENT_SECONDS = 0.3
"""Time that a new holder has to announce itself before its predecessor is taken for the holder."""

PROCESS_START = time.time()
"""Start time of this process, or slightly later."""

Access = pulsar.ProducerAccessMode
log = logging.getLogger(__name__)


class LockHolder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON message in the lock's topic.

    `token` identifies one call of `take`. `node` is the gateway's name, such as `node 4`. `since`
    (when the lock was taken) and `said` (when this message was sent) are Unix times in seconds.
    `cluster`: whether the holder is the controller of a cluster.
    """

    token: str
    node: str
    host: str
    process: int
    since: float
    said: float
    cluster: bool = False


class StoreLock:
    """The lock of the store whose tables are in the metadata namespace of `settings`."""

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        settings: PulsarSettings,
        reactor: Reactor,
    ) -> None:
        self._client = client
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self._is_topic_prepared = False
        self._topic = (
            f"{PREFIX}{settings.metadata_tenant}/{settings.metadata_namespace}"
            f"/{INTERNAL_PREFIX}.{LOCK_TOPIC}"
        )
        self._producer: Any = None
        self._holder: LockHolder | None = None
        self._timer: DelayedCall | None = None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._reconnection = Reconnection(reactor.seconds)
        """Asked after each failed heartbeat."""
        self._refused_since: float | None = None
        self._refused_by: str | None = None
        """Token of the controller that refused the last attempt to take the lock."""
        self._has_logged_failure = False
        self._is_heartbeat_in_flight = False
        self._queued_confirmations: list[Deferred[None]] = []
        """`confirm` calls for the next heartbeat; `_sent_confirmations`: for the one in flight."""
        self._sent_confirmations: list[Deferred[None]] = []

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Register `call`, which runs once per `take`, with the reason, if the lock is lost.

        While brokers answer, a takeover is noticed within `lock_beat_seconds` after the new holder
        has announced itself.
        """
        self._on_lost = call

    async def take(self, node: str, takeover: bool, *, replace_controller: bool = False) -> None:
        """Acquire the lock.

        `takeover` fences a holder that is no controller, and `replace_controller` one that is, and
        that has refused the previous attempt: another process may have replaced it meanwhile.
        Raises OtherController (a controller holds the lock), StoreInUse, or StaleStoreLock if the
        holder appears to be dead, and StorageFailed.
        """
        if not self._is_topic_prepared:
            await ensure_topic(self._admin, self._topic)
            await clear_retention(self._admin, self._topic)
            self._is_topic_prepared = True
        for attempt in range(2):
            try:
                await self._acquire(node, fence=False)
            except Fenced:
                pass
            else:
                return
            other = await self._last_holder()
            if other is None or other.cluster:
                token = "" if other is None else other.token
                before, self._refused_by = self._refused_by, token
                if not replace_controller or before not in (None, token):
                    raise OtherController(self._in_use(other))
                break
            if takeover:
                break
            if attempt:
                raise self._refusal(other)
            # The next controller may not have announced itself yet.
            await self._client.pause(ANNOUNCEMENT_SECONDS)
        await self._acquire(node, fence=True)

    async def _acquire(self, node: str, *, fence: bool) -> None:
        """Open the producer and announce this holder. Raises Fenced if the lock is held."""
        now = time.time()
        holder = LockHolder(
            uuid4().hex, node, socket.gethostname(), os.getpid(), now, now, cluster=True
        )
        access = Access.ExclusiveWithFencing if fence else Access.Exclusive

        def open_and_announce() -> Any:
            producer = self._client.producer(self._topic, access)
            try:
                producer.send(msgspec.json.encode(holder))
            except pulsar.PulsarException:
                with suppress(pulsar.PulsarException):
                    producer.close()
                raise
            return producer

        self._producer = await self._client.run(open_and_announce)
        self._reconnection.connected()
        self._holder = holder
        self._refused_since = None
        self._refused_by = None
        self._has_logged_failure = self._is_heartbeat_in_flight = False
        self._schedule(self._settings.lock_beat_seconds, self._heartbeat)

    def _refusal(self, holder: LockHolder) -> StoreInUse:
        is_left = appears_dead(holder, 2 * self._settings.lock_beat_seconds)
        return (StaleStoreLock if is_left else StoreInUse)(self._in_use(holder))

    def confirm(self) -> Deferred[None]:
        """Check with the broker that this process still holds the lock.

        Fires when the broker has acknowledged a message sent after this call: no other process took
        the lock before. Fails with Fenced if the lock is lost, and with StorageFailed if Pulsar
        does not answer within `send_timeout_seconds`. If the broker refuses this holder and no
        other has announced itself, the outcome is known after `lock_contest_seconds`.

        Call this before fencing another process, because that process may be the new holder.
        """
        result: Deferred[None] = Deferred()
        if self._producer is None:
            result.errback(Fenced("another process has taken over the store"))
            return result
        self._queued_confirmations.append(result)
        if self._refused_since is None and not self._is_heartbeat_in_flight:
            if self._timer:
                self._timer.cancel()
            self._heartbeat()
        return result

    async def release(self) -> None:
        """Release the lock, if it is held."""
        producer = self._drop_producer()
        if producer is not None:
            try:
                await self._client.run(producer.close)
            except StorageError as error:
                log.warning(
                    "releasing the store lock failed: %s; closing the client releases it", error
                )

    def _open(self, access: Any) -> Deferred[Any]:
        return self._client.run(lambda: self._client.producer(self._topic, access))

    def _heartbeat(self) -> None:
        """Send the holder's message."""
        self._timer = None
        self._is_heartbeat_in_flight = True
        self._sent_confirmations += self._queued_confirmations
        self._queued_confirmations = []
        producer, wake = self._producer, self._client.reactor_calls
        assert self._holder
        said = msgspec.structs.replace(self._holder, said=time.time())

        def answered(result: Any, _: object) -> None:
            wake.post(lambda: self._answered(producer, result))

        try:
            producer.send_async(msgspec.json.encode(said), answered)
        except pulsar.PulsarException:  # the producer was fenced or closed before
            answered(pulsar.Result.AlreadyClosed, None)

    def _answered(self, producer: Any, result: Any) -> None:
        if producer is not self._producer:
            return
        self._is_heartbeat_in_flight = False
        if result == pulsar.Result.Ok:
            self._refused_since = None
            self._has_logged_failure = False
            self._reconnection.connected()
            if self._queued_confirmations:
                self._settle_confirmations()
                # A callback may have released the lock, or asked for another confirmation.
                if producer is self._producer and not self._is_heartbeat_in_flight:
                    self._heartbeat()
            else:
                self._schedule(self._settings.lock_beat_seconds, self._heartbeat)
                self._settle_confirmations()
        elif result in (
            pulsar.Result.ProducerFenced,
            pulsar.Result.AlreadyClosed,
        ) or self._reconnection.has_given_up(producer):
            self._reacquire()
        else:
            reason = result_name(result.value)
            if not self._has_logged_failure:
                self._has_logged_failure = True
                log.error(
                    "the heartbeat of the store lock failed (%s), retrying every %s s; if Pulsar "
                    "stays unreachable another gateway can take over: check the brokers",
                    reason,
                    self._settings.lock_beat_seconds,
                )
            # Before the failure is reported: the lock may be released because of it.
            self._schedule(self._settings.lock_beat_seconds, self._heartbeat)
            self._settle_confirmations(
                StorageFailed(f"Pulsar did not confirm the store lock ({reason}): retry later")
            )

    def _settle_confirmations(self, failure: StorageError | None = None) -> None:
        confirmations, self._sent_confirmations = self._sent_confirmations, []
        for result in confirmations:
            if result.called:
                continue
            if failure is None:
                result.callback(None)
            else:
                result.errback(failure)

    def _fail_confirmations(self, failure: StorageError) -> None:
        """Fail the confirmations of the heartbeat in flight and those for the next one."""
        self._sent_confirmations += self._queued_confirmations
        self._queued_confirmations = []
        self._settle_confirmations(failure)

    def _schedule(self, delay: float, call: Callable[[], None]) -> None:
        self._timer = self._reactor.callLater(delay, call)

    def _reacquire(self) -> None:
        """Open a new producer, if no other process holds the lock.

        The broker has refused the present one, or the library does not reconnect it.
        """
        self._timer = None
        if self._refused_since is None:
            self._refused_since = time.monotonic()
            log.warning(
                "store lock refused by Pulsar or not reconnected, reacquiring it unless another "
                "gateway has taken it"
            )
        Deferred.fromCoroutine(self._try_reacquire(self._producer)).addErrback(
            self._reacquire_failed, self._producer
        )

    async def _try_reacquire(self, refused: Any) -> None:
        assert self._holder
        assert self._refused_since is not None
        holder = await self._last_holder()
        if self._producer is not refused:
            return
        if holder is not None and holder.token != self._holder.token:
            self._mark_lost(f"{describe(holder)} has taken over the store")
            return
        try:
            producer = await self._open(Access.Exclusive)
        except Fenced:
            if self._producer is not refused:
                # The lock was released, and may have been taken again.
                return
            if time.monotonic() - self._refused_since > self._settings.lock_contest_seconds:
                self._mark_lost(
                    "another producer holds the store's lock and has not announced itself"
                )
            else:
                self._schedule(RETRY_SECONDS, self._reacquire)
            return
        if self._producer is not refused:
            await self._client.run(producer.close)
            return
        self._producer = producer
        self._reconnection.connected()
        close_producer(self._client, refused)
        log.warning("store lock reacquired")
        self._heartbeat()

    def _reacquire_failed(self, failure: Any, refused: Any) -> None:
        """Retry: Pulsar did not answer, and repeats its refusal when it does."""
        if not isinstance(failure.value, StorageFailed):
            log.error(
                "bug: reacquiring the store lock failed",
                exc_info=(failure.type, failure.value, failure.getTracebackObject()),
            )
        # Otherwise the lock was released, and may have been taken again.
        if self._producer is refused:
            self._fail_confirmations(
                StorageFailed("Pulsar did not confirm the store lock: retry later")
            )
            self._schedule(RETRY_SECONDS, self._reacquire)

    def _mark_lost(self, reason: str) -> None:
        close_producer(self._client, self._drop_producer())
        self._on_lost(reason)

    def _drop_producer(self) -> Any:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        producer, self._producer = self._producer, None
        self._fail_confirmations(
            Fenced("another process has taken over the store, or it was closed")
        )
        return producer

    async def _last_holder(self) -> LockHolder | None:
        """The sender of the topic's last message; None if there is none or it has been deleted."""
        return await self._client.run(lambda: self._client.last_json(self._topic, LockHolder))

    def _in_use(self, holder: LockHolder | None) -> str:
        place = f"{self._settings.metadata_tenant}/{self._settings.metadata_namespace}"
        who = (
            "a process that has not announced itself"
            if holder is None
            else f"{describe(holder)}, last heartbeat {age(holder.said)} ago"
        )
        if holder is None or holder.cluster:
            return f"the store in Pulsar's namespace {place} has another controller: {who}"
        return (
            f"the store in Pulsar's namespace {place} is in use by {who}, which does not join "
            "clusters, such as a gateway of an older version: stop that process first, or "
            "configure separate namespaces for this one. Pulsar releases the store at once if "
            "the process was killed, and within a minute if it hangs or its host is lost. To "
            "take over the store from a running process, start with --pulsar-takeover"
        )


def appears_dead(holder: LockHolder, seconds: float) -> bool:
    """Whether the process ended on this host, or its last message is older than `seconds`."""
    return not _may_be_alive(holder) or time.time() - holder.said > seconds


def _may_be_alive(holder: LockHolder) -> bool:
    """Whether the holder's process may be running.

    False if no process on this host has its process id, or if this process has the id but started
    later: in a container the first process always has id 1.
    """
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return holder.process != os.getpid() or holder.since >= PROCESS_START


def describe(holder: LockHolder) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder.since))
    return f"{holder.node} (process {holder.process} on {holder.host}, since {since} UTC)"


def age(moment: float) -> str:
    return f"{max(0, round(time.time() - moment))} s"
