"""Who has the store: one process, by an exclusive producer of a topic beside the tables.

The broker refuses a second exclusive producer, and lets go of the first when its connection ends: at once where a process was killed, and where a process
stands still or its host is lost, when the broker misses its answers (30 to 60 s). The last message says who has it. The holder repeats that every few
seconds, which also tells it when the store was taken away.

A broker may also refuse its holder: when the network was cut, and the old connection still counts as alive when the new one comes. So a holder that
is refused first looks who has the lock. Only another's message, or a lock that stays closed, means that it is lost. Nothing is at risk meanwhile, since
whoever takes the store fences each table and partition by itself.
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

from storage.bridge import Reactor, ScheduledCall
from storage.log import Fenced, StaleStoreLock, StorageError, StorageFailed, StoreInUse
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import LOCK_TOPIC
from storage.pulsar.tables.table_compaction import clear_retention, ensure_topic
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX

RETRY_SECONDS = 1.0
"""Between two attempts to have the lock again."""

PROCESS_START = time.time()
"""When this process did, or little later."""

Access = pulsar.ProducerAccessMode
log = logging.getLogger(__name__)


class LockHolder(msgspec.Struct, frozen=True):
    """`token` is of one `take`. Times are seconds since 1970."""

    token: str
    node: str
    host: str
    process: int
    since: float
    said: float


class StoreLock:
    """The lock of the store whose tables are in the metadata namespace of `settings`."""

    def __init__(
        self, session: PulsarClient, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor
    ) -> None:
        self._session = session
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self._topic = f"{PREFIX}{settings.metadata_tenant}/{settings.metadata_namespace}/{INTERNAL_PREFIX}.{LOCK_TOPIC}"
        self._producer: Any = None
        self._holder: LockHolder | None = None
        self._timer: ScheduledCall | None = None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._refused_since: float | None = None
        self._has_logged_failure = False
        self._is_heartbeat_in_flight = False
        """Whether a beat is on its way."""
        self._queued_confirmations: list[Deferred[None]] = []
        """Those who wait for a beat that has not begun yet; and for the one on its way:"""
        self._sent_confirmations: list[Deferred[None]] = []

    def when_lost(self, call: Callable[[str], None]) -> None:
        """`call` once, with the reason, if the lock is lost; at the latest `lock_beat_seconds` after somebody took it and said so, where brokers answer."""
        self._on_lost = call

    async def take(self, node: str, takeover: bool) -> None:
        """Have the store, or with `takeover` take it away from whoever has it. Raises StoreInUse (StoreLeft where its holder seems to be gone), StorageFailed."""
        await ensure_topic(self._admin, self._topic)
        await clear_retention(self._admin, self._topic)
        now = time.time()
        holder = LockHolder(uuid4().hex, node, socket.gethostname(), os.getpid(), now, now)
        access = Access.ExclusiveWithFencing if takeover else Access.Exclusive

        def open_and_announce() -> Any:
            producer = self._session.producer(self._topic, access)
            try:
                producer.send(msgspec.json.encode(holder))
            except pulsar.PulsarException:
                with suppress(pulsar.PulsarException):
                    producer.close()
                raise
            return producer

        try:
            self._producer = await self._session.run(open_and_announce)
        except Fenced:
            other = await self._last_holder()
            is_left = other is not None and appears_dead(
                other, 2 * self._settings.lock_beat_seconds
            )
            raise (StaleStoreLock if is_left else StoreInUse)(self._in_use(other)) from None
        self._holder = holder
        self._schedule(self._settings.lock_beat_seconds, self._heartbeat)

    @property
    def is_held(self) -> bool:
        """As far as is known here."""
        return self._producer is not None

    def confirm(self) -> Deferred[None]:
        """Fires when the broker has taken a message that is sent from now on: nobody else had the store before. Fails with Fenced where it is lost.

        Fails with StorageFailed where Pulsar does not say so within `send_timeout_seconds`; where it refuses this holder and nobody says that they have the
        store, that is told after `lock_contest_seconds`. To be asked before anything is taken from another process: that may be the new holder.
        """
        result: Deferred[None] = Deferred()
        if self._producer is None:
            result.errback(Fenced("another process has taken the store"))
            return result
        self._queued_confirmations.append(result)
        if self._refused_since is None and not self._is_heartbeat_in_flight:
            if self._timer:
                self._timer.cancel()
            self._heartbeat()
        return result

    async def release(self) -> None:
        """Let others have it. Nothing happens where it is not held."""
        producer = self._drop_producer()
        if producer is not None:
            try:
                await self._session.run(producer.close)
            except StorageError as error:
                log.warning("the lock of the store: %s", error)

    def _open(self, access: Any) -> Deferred[Any]:
        return self._session.run(lambda: self._session.producer(self._topic, access))

    def _heartbeat(self) -> None:
        """Say who has it."""
        self._timer = None
        self._is_heartbeat_in_flight = True
        self._sent_confirmations += self._queued_confirmations
        self._queued_confirmations = []
        producer, wake = self._producer, self._session.reactor_calls
        assert self._holder
        said = msgspec.structs.replace(self._holder, said=time.time())

        def answered(result: Any, _: object) -> None:
            wake.post(lambda: self._answered(producer, result))

        try:
            producer.send_async(msgspec.json.encode(said), answered)
        except pulsar.PulsarException:  # it was fenced or closed before
            answered(pulsar.Result.AlreadyClosed, None)

    def _answered(self, producer: Any, result: Any) -> None:
        if producer is not self._producer:
            return
        self._is_heartbeat_in_flight = False
        if result == pulsar.Result.Ok:
            self._refused_since = None
            self._has_logged_failure = False
            if self._queued_confirmations:
                self._settle_confirmations()
                self._heartbeat()
            else:
                self._schedule(self._settings.lock_beat_seconds, self._heartbeat)
                self._settle_confirmations()
        elif result in (pulsar.Result.ProducerFenced, pulsar.Result.AlreadyClosed):
            self._reacquire()
        else:
            if not self._has_logged_failure:
                self._has_logged_failure = True
                log.error(
                    "Pulsar does not take the lock's message (%s); the store may be taken by another process meanwhile",
                    result.name,
                )
            self._settle_confirmations(
                StorageFailed(
                    f"Pulsar does not say who has the store ({result.name}): try again later"
                )
            )
            self._schedule(self._settings.lock_beat_seconds, self._heartbeat)

    def _settle_confirmations(self, failure: StorageError | None = None) -> None:
        confirmations, self._sent_confirmations = self._sent_confirmations, []
        for result in confirmations:
            if result.called:
                continue
            if failure is None:
                result.callback(None)
            else:
                result.errback(failure)

    def _schedule(self, delay: float, call: Callable[[], None]) -> None:
        self._timer = self._reactor.callLater(delay, call)

    def _reacquire(self) -> None:
        """The broker refuses this holder: see who has it, and have it again where that is nobody."""
        self._timer = None
        if self._refused_since is None:
            self._refused_since = time.monotonic()
            log.warning("Pulsar refuses the lock's producer; looking who has the store")
        Deferred.fromCoroutine(self._try_reacquire(self._producer)).addErrback(
            self._reacquire_failed
        )

    async def _try_reacquire(self, refused: Any) -> None:
        assert self._holder
        assert self._refused_since is not None
        holder = await self._last_holder()
        if self._producer is not refused:
            return
        if holder is not None and holder.token != self._holder.token:
            self._mark_lost(f"{describe(holder)} has taken the store")
            return
        try:
            producer = await self._open(Access.Exclusive)
        except Fenced:
            if time.monotonic() - self._refused_since > self._settings.lock_contest_seconds:
                self._mark_lost(
                    "another producer holds the lock of the store and does not say who it is"
                )
            elif self._producer is refused:
                self._schedule(RETRY_SECONDS, self._reacquire)
            return
        if self._producer is not refused:
            await self._session.run(producer.close)
            return
        self._producer = producer
        log.warning("the lock of the store is held again")
        self._heartbeat()

    def _reacquire_failed(self, failure: Any) -> None:
        """Pulsar does not answer; what it refused it will refuse again."""
        if not isinstance(failure.value, StorageFailed):
            log.error(
                "looking who has the store failed, which is a bug",
                exc_info=(failure.type, failure.value, failure.getTracebackObject()),
            )
        if self._producer is not None:
            self._sent_confirmations += self._queued_confirmations
            self._queued_confirmations = []
            self._settle_confirmations(
                StorageFailed("Pulsar does not say who has the store: try again later")
            )
            self._schedule(RETRY_SECONDS, self._reacquire)

    def _mark_lost(self, reason: str) -> None:
        self._drop_producer()
        self._on_lost(reason)

    def _drop_producer(self) -> Any:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        producer, self._producer = self._producer, None
        confirmations, self._queued_confirmations, self._sent_confirmations = (
            [*self._sent_confirmations, *self._queued_confirmations],
            [],
            [],
        )
        for result in confirmations:
            if not result.called:
                result.errback(Fenced("another process has taken the store, or it is closed here"))
        return producer

    async def _last_holder(self) -> LockHolder | None:
        """Who said last that they have it; None where nobody ever did, or it is forgotten."""
        return await self._session.run(self._read_last)

    def _read_last(self) -> LockHolder | None:
        reader = self._session.reader(self._topic, pulsar.MessageId.latest)
        try:
            if not reader.has_message_available():
                return None
            return msgspec.json.decode(
                reader.read_next(round(self._settings.operation_timeout_seconds * 1000)).data(),
                type=LockHolder,
            )
        except msgspec.DecodeError:
            return None
        finally:
            reader.close()

    def _in_use(self, holder: LockHolder | None) -> str:
        place = f"{self._settings.metadata_tenant}/{self._settings.metadata_namespace}"
        who = (
            "by a process that has not said who it is"
            if holder is None
            else f"by {describe(holder)}, heard last {age(holder.said)} ago"
        )
        return (
            f"the store in Pulsar's namespace {place} is in use {who}: stop that process, or give this one namespaces of its own. The store of a killed "
            "process is free at once, that of one that stands still or whose host is lost after a minute at most, when the broker gives up its connection. "
            "To take the store away from a process that lives, start with --pulsar-takeover"
        )


def appears_dead(holder: LockHolder, seconds: float) -> bool:
    """Whether that process has ended, as far as one can tell from here, or has said nothing for so long."""
    return not _may_be_alive(holder) or time.time() - holder.said > seconds


def _may_be_alive(holder: LockHolder) -> bool:
    """False where the number of its process is nobody's on this host, or is ours and was another's before: a container's first process is 1 each time."""
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
    return f"node {holder.node!r} (process {holder.process} on {holder.host}, since {since} UTC)"


def age(moment: float) -> str:
    return f"{max(0, round(time.time() - moment))} s"
