"""Messages between gateways, through non-persistent topics.

Nothing is stored. The broker passes messages on from memory, and drops them if no reader is
connected or the reader is slow. Each inbox is a partitioned topic with one partition. The metadata
of a partitioned topic is durable, so both ends reconnect after a restart of the broker. A topic
without partitions would no longer exist.

A thread reads the messages, because other topics can block the library's single listener thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pulsar

from storage.bridge import Reactor
from storage.cluster import MAX_CALL_BYTES
from storage.log import LogClosed, StorageError
from storage.pulsar.admin.admin_api import Conflict, PulsarAdmin
from storage.pulsar.client.exclusive_producer import close_producer
from storage.pulsar.client.library_threads import keep_thread_state
from storage.pulsar.client.partition_producers import result_name
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.client.reconnection import READER_GIVE_UP_SECONDS, Reconnection
from storage.pulsar.client.topic_readers import close
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX

WAITING_MESSAGES = 1000
WAITING_BYTES = 4 * MAX_CALL_BYTES
"""Limits on messages to one receiver that the broker has not acknowledged. More are dropped."""

RECEIVED_MESSAGES = 1000
"""Prefetched messages of an inbox. While there are as many, the broker drops new ones.

A thread takes them out at once, so that their sizes matter little.
"""

RECEIVED_BYTES = 4 * MAX_CALL_BYTES
"""Limit on received messages that the reactor has not handled yet. More are dropped."""

MESSAGE_OVERHEAD = 300
"""Estimated memory of such a message in bytes besides its contents."""

POLL_MS = 500
"""How long one read waits; after it, the thread checks whether it should end."""

REOPEN_SECONDS = 0.5

log = logging.getLogger(__name__)


def inbox_path(settings: PulsarSettings, node_id: int) -> str:
    """The inbox of a node as tenant, namespace and topic."""
    namespace = f"{settings.metadata_tenant}/{settings.metadata_namespace}"
    return f"{namespace}/{INTERNAL_PREFIX}.inbox-{node_id}"


def inbox_topic(settings: PulsarSettings, node_id: int) -> str:
    """Full name of the only partition of the inbox's topic."""
    return f"non-persistent://{inbox_path(settings, node_id)}-partition-0"


class InboxReader:
    """Passes messages of one topic to `on_message`, in the reactor thread.

    Callers repeat their calls, so messages may be dropped while the reactor is busy.
    """

    def __init__(
        self, client: PulsarClient, topic: str, on_message: Callable[[bytes], None]
    ) -> None:
        self._client = client
        self._topic = topic
        self._on_message = on_message
        self._ended = threading.Event()
        self._reconnection = Reconnection(time.monotonic, READER_GIVE_UP_SECONDS)
        self._is_failing = False
        # Only the reading thread changes the first one, only the reactor's thread the second one.
        self._received_bytes = self._handled_bytes = 0
        self._is_dropping = False

    async def open(self) -> None:
        """Connect, so that later messages arrive. Raises StorageFailed."""
        reader = await self._client.run(self._connect)
        threading.Thread(target=self._run, args=(reader,), name="pulsar-inbox", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon; nothing is delivered after this call."""
        self._ended.set()

    def _connect(self) -> Any:
        return self._client.reader(self._topic, pulsar.MessageId.latest, queue=RECEIVED_MESSAGES)

    def _run(self, reader: Any) -> None:
        while True:
            try:
                self._read(reader)
            except pulsar.PulsarException as error:
                self._failed(error)
            close(reader)
            while True:
                if self._ended.is_set():
                    return
                try:
                    reader = self._connect()
                except LogClosed:
                    return
                except (pulsar.PulsarException, StorageError) as error:
                    self._failed(error)
                else:
                    break

    def _read(self, reader: Any) -> None:
        """Pass on messages. Returns if the reader should be replaced."""
        self._reconnection.connected()
        read_next = reader._reader.read_next
        while not self._ended.is_set():
            try:
                message = read_next(POLL_MS)
            except pulsar.Timeout:
                if self._reconnection.has_given_up(reader):
                    return
                continue
            self._is_failing = False
            self._received(message.data())

    def _received(self, data: bytes) -> None:
        cost = len(data) + MESSAGE_OVERHEAD
        if self._received_bytes - self._handled_bytes + cost > RECEIVED_BYTES:
            # Log the first dropped message of a series.
            if not self._is_dropping:
                self._is_dropping = True
                log.warning(
                    "dropping messages of the inbox, too many are waiting topic=%s", self._topic
                )
            return
        self._is_dropping = False
        self._received_bytes += cost
        self._client.reactor_calls.post(partial(self._pass_on, data))

    def _pass_on(self, data: bytes) -> None:
        self._handled_bytes += len(data) + MESSAGE_OVERHEAD
        if not self._ended.is_set():
            self._on_message(data)

    def _failed(self, error: Exception) -> None:
        """Log the first failure of a series, and wait before the next attempt."""
        if not self._is_failing and not self._ended.is_set():
            self._is_failing = True
            log.warning(
                "reading the inbox failed, retrying topic=%s error=%s",
                self._topic,
                to_storage_error(error),
            )
        self._ended.wait(REOPEN_SECONDS)


class Outbox:
    """Sends messages to one node, in order.

    The producer is created for the first message. If that fails, waiting messages are dropped. So
    are new ones for `REOPEN_SECONDS`; after that, the next message causes another attempt.
    """

    def __init__(self, client: PulsarClient, reactor: Reactor, topic: str) -> None:
        self._client = client
        self._reactor = reactor
        self._topic = topic
        self._producer: Any = None
        self._is_opening = False
        self._next_attempt = 0.0
        self._is_closed = False
        self._unsent: deque[bytes] = deque()
        self._messages = 0
        self._bytes = 0
        self._is_dropping = False

    def send(self, message: bytes) -> None:
        if self._messages >= WAITING_MESSAGES or self._bytes + len(message) > WAITING_BYTES:
            self._drop("too many messages are waiting")
            return
        if self._producer is None and not self._is_opening:
            if self._reactor.seconds() < self._next_attempt:
                return
            self._open()
        self._messages += 1
        self._bytes += len(message)
        if self._producer is None:
            self._unsent.append(message)
        else:
            self._send(message)

    def close(self) -> None:
        self._is_closed = True
        self._unsent.clear()
        self._drop_producer()

    def _open(self) -> None:
        self._is_opening = True
        self._client.run(
            lambda: self._client.producer(
                self._topic,
                pulsar.ProducerAccessMode.Shared,
                pending_messages=WAITING_MESSAGES,
            )
        ).addCallbacks(self._opened, self._failed)

    def _opened(self, producer: Any) -> None:
        self._is_opening = False
        self._producer = producer
        if self._is_closed:
            self._drop_producer()
        while self._unsent and self._producer is not None:
            self._send(self._unsent.popleft())

    def _failed(self, failure: Any) -> None:
        self._is_opening = False
        self._next_attempt = self._reactor.seconds() + REOPEN_SECONDS
        for message in self._unsent:
            self._release(len(message))
        self._unsent.clear()
        self._drop(str(failure.value))

    def _send(self, message: bytes) -> None:
        producer, wake, size = self._producer, self._client.reactor_calls, len(message)

        def answered(result: Any, _: object) -> None:
            keep_thread_state()
            wake.post(lambda: self._answered(producer, result, size))

        try:
            producer.send_async(message, answered)
        except pulsar.PulsarException as error:
            self._release(size)
            self._drop(type(error).__name__)
            if not isinstance(error, pulsar.ProducerQueueIsFull):
                self._drop_producer()

    def _answered(self, producer: Any, result: Any, size: int) -> None:
        self._release(size)
        if result == pulsar.Result.Ok:
            self._is_dropping = False
            return
        self._drop(result_name(result.value))
        if producer is self._producer and (
            result != pulsar.Result.Timeout or not producer.is_connected()
        ):
            # The library may never reconnect it.
            self._drop_producer()

    def _release(self, size: int) -> None:
        self._messages -= 1
        self._bytes -= size

    def _drop(self, reason: str) -> None:
        """Log the first dropped message of a series."""
        if not self._is_dropping and not self._is_closed:
            self._is_dropping = True
            log.warning(
                "dropping messages to another gateway topic=%s reason=%s", self._topic, reason
            )

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(self._client, producer)


class PulsarInbox:
    """An `Inbox`."""

    def __init__(
        self, client: PulsarClient, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor
    ) -> None:
        self._client = client
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self._reader: InboxReader | None = None
        self._outboxes: dict[int, Outbox] = {}

    async def open(self, node_id: int, on_message: Callable[[bytes], None]) -> None:
        """`Inbox.open`. Creates the topic if it is missing."""
        path = f"/non-persistent/{inbox_path(self._settings, node_id)}/partitions"
        with suppress(Conflict):
            await self._admin.put(path, 1)
        reader = InboxReader(self._client, inbox_topic(self._settings, node_id), on_message)
        await reader.open()
        self._reader = reader

    def send(self, node_id: int, message: bytes) -> None:
        """`Inbox.send`."""
        if len(message) > MAX_CALL_BYTES:
            raise ValueError(
                f"a message to another gateway has {len(message)} bytes, the limit is "
                f"{MAX_CALL_BYTES}"
            )
        outbox = self._outboxes.get(node_id)
        if outbox is None:
            outbox = self._outboxes[node_id] = Outbox(
                self._client, self._reactor, inbox_topic(self._settings, node_id)
            )
        try:
            outbox.send(message)
        except StorageError as error:
            log.debug("message to node %d dropped: %s", node_id, error)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes.clear()
