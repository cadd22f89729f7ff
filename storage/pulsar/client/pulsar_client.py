"""The connection to the cluster: one pulsar-client client, threads for its blocking calls, its
errors as StorageErrors.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import pulsar
from twisted.internet.defer import Deferred

from storage.bridge import (
    Reactor,
    ReactorCallQueue,
    SharedResult,
    WatchingReactor,
    WorkerPool,
    sleep,
)
from storage.log import (
    EntryTooLarge,
    Fenced,
    LogClosed,
    NotAllowed,
    NotReady,
    StorageError,
    StorageFailed,
    UnknownTopic,
)
from storage.pulsar.admin.token_file import TokenFile
from storage.pulsar.client import bulk_client
from storage.pulsar.client.bulk_client import BulkClient, ResponseDispatcher
from storage.pulsar.client.bulk_readers import BulkReader, SingleReader
from storage.pulsar.client.client_log import client_logger
from storage.pulsar.client.partition_producers import (
    BrokerDisconnected,
    PartitionProducer,
    SingleProducer,
)
from storage.pulsar.client.unraised_results import check_created, has_message_available
from storage.pulsar.log.offset_index import Position
from storage.pulsar.settings import PulsarSettings

T = TypeVar("T")
Listener = Callable[[pulsar.Reader, pulsar.Message], None]
log = logging.getLogger(__name__)

STORAGE_ERRORS: dict[type[Exception], tuple[type[StorageError], str]] = {
    pulsar.ProducerFenced: (Fenced, "another producer has taken over the topic"),
    pulsar.TopicNotFound: (UnknownTopic, "there is no such topic in Pulsar"),
    pulsar.TopicTerminated: (
        LogClosed,
        "the topic was terminated in Pulsar: it accepts no more messages",
    ),
    pulsar.MessageTooBig: (EntryTooLarge, "the message is larger than the brokers accept"),
    pulsar.BrokerPersistenceError: (
        NotReady,
        "the broker cannot store messages now; see its log and the bookies' logs",
    ),
    pulsar.BrokerMetadataError: (
        NotReady,
        "the broker cannot reach its metadata store now; see its log",
    ),
    BrokerDisconnected: (NotReady, "the connection to the broker was lost during the request"),
    pulsar.ServiceUnitNotReady: (NotReady, "the topic is moving from one broker to another"),
    pulsar.AuthorizationError: (
        NotAllowed,
        "the gateway's role lacks permission; grant it produce and consume there",
    ),
    pulsar.AuthenticationError: (
        StorageFailed,
        "the broker rejected the gateway's credentials",
    ),
    # A broker also leaves requests with a missing, invalid or expired token unanswered.
    pulsar.Timeout: (
        StorageFailed,
        "timed out; the cluster cannot be reached, or it does not accept the token",
    ),
}


def to_storage_error(error: Exception) -> StorageError:
    """Translate an error of the client library; a `StorageError` is returned unchanged."""
    if isinstance(error, StorageError):
        return error
    name = type(error).__name__
    kind, meaning = STORAGE_ERRORS.get(type(error), (StorageFailed, ""))
    return kind(f"{meaning} ({name})" if meaning else f"Pulsar's client failed: {name}: {error}")


def token_of(settings: PulsarSettings) -> TokenFile | None:
    return TokenFile(settings.token_file) if settings.token_file else None


def authentication(
    settings: PulsarSettings, token: TokenFile | None
) -> pulsar.Authentication | None:
    """Authentication of the client: the token, else the certificate, else none."""
    if token is not None:
        return pulsar.AuthenticationToken(token)
    if settings.tls_certificate_file and settings.tls_key_file:
        return pulsar.AuthenticationTLS(
            str(settings.tls_certificate_file), str(settings.tls_key_file)
        )
    return None


def operation_timeout(settings: PulsarSettings) -> int:
    """The library's timeout of an operation, in whole seconds."""
    return max(1, round(settings.operation_timeout_seconds))


def connect(settings: PulsarSettings, token: TokenFile | None) -> pulsar.Client:
    """Create a client; it connects on first use."""
    trusted = trust_file(settings)
    return pulsar.Client(
        settings.service_url,
        authentication=authentication(settings, token),
        operation_timeout_seconds=operation_timeout(settings),
        connection_timeout_ms=max(1, round(settings.connection_timeout_seconds * 1000)),
        io_threads=1,
        message_listener_threads=1,
        stats_interval_in_seconds=0,
        tls_trust_certs_file_path=trusted,
        tls_validate_hostname=True,
        tls_certificate_file_path=str(settings.tls_certificate_file)
        if settings.tls_certificate_file
        else None,
        tls_private_key_file_path=str(settings.tls_key_file) if settings.tls_key_file else None,
        logger=client_logger(),
    )


def connect_in_bulk(settings: PulsarSettings, token: TokenFile | None) -> BulkClient | None:
    """Create a client of the C API with the same settings; None without the compiled module.

    `connect` must have accepted the settings: an invalid URL ends the process here.
    """
    if bulk_client.compiled is None:
        log.info(
            "the compiled module for Pulsar's messages is not used: %s", bulk_client.BINDING_REASON
        )
        return None
    return BulkClient(
        settings.service_url,
        operation_timeout(settings),
        token,
        trust_file(settings),
        str(settings.tls_certificate_file) if settings.tls_certificate_file else None,
        str(settings.tls_key_file) if settings.tls_key_file else None,
    )


def trust_file(settings: PulsarSettings) -> str | None:
    trusted = settings.tls_trust_file or ssl.get_default_verify_paths().cafile
    return str(trusted) if trusted else None


def message_id_of(position: Position | None) -> Any:
    """The library's message id of a reader's start; None is the beginning of the topic."""
    return pulsar.MessageId(-1, *position, -1) if position else pulsar.MessageId.earliest


class PulsarClient:
    """The clients of pulsar-client and their threads, for the thread of `reactor`.

    Blocking calls are made through `run`.
    """

    def __init__(self, settings: PulsarSettings, reactor: Reactor) -> None:
        self.settings = settings
        self.message_bytes = settings.message_bytes
        """The largest message that the brokers accept, as far as known."""
        self.reactor_calls = ReactorCallQueue(reactor)
        self._reactor = reactor
        self._send_timeout_ms = max(1, round(settings.send_timeout_seconds * 1000))
        self._client: pulsar.Client | None = None
        self._bulk: BulkClient | None = None
        self._responses: ResponseDispatcher | None = None
        self._threads: WorkerPool | None = None
        self._table_threads: WorkerPool | None = None

    async def open(self) -> None:
        """Start the threads; nothing is sent yet.

        Raises StorageFailed for an invalid address or file.
        """
        threads = WorkerPool(
            self.reactor_calls, self.settings.threads, self.settings.calls_waiting, "pulsar"
        )
        token = token_of(self.settings)
        try:
            # The binding's client first: it raises an exception if the URL is invalid. In the C API
            # the same C++ exception would end the process.
            self._client, self._bulk = await threads.run(
                lambda: (connect(self.settings, token), connect_in_bulk(self.settings, token))
            )
        except Exception as error:
            threads.stop(lambda: None)
            raise StorageFailed(
                f"cannot create a client for {self.settings.service_url}: {error}"
            ) from error
        self._threads = threads
        if self._bulk is not None and isinstance(self._reactor, WatchingReactor):
            self._responses = self._bulk.dispatch_responses(self._reactor, self.reactor_calls)
        self._table_threads = WorkerPool(
            self.reactor_calls,
            self.settings.table_threads,
            self.settings.calls_waiting,
            "pulsar-table",
        )

    def run(self, call: Callable[[], T]) -> Deferred[T]:
        """Run the blocking `call` in a thread; library errors become `StorageError`s.

        Raises LogClosed if the client is closed.
        """
        if self._threads is None:
            raise LogClosed("the store is closed")

        def translating() -> T:
            try:
                return call()
            except (pulsar.PulsarException, StorageError) as error:
                raise to_storage_error(error) from error

        return self._threads.run(translating)

    def run_flush(self, call: Callable[[], T]) -> Deferred[T]:
        """Run a call that waits until rows of a table are stored, in one of the tables' threads.

        Its errors are not translated. Raises LogClosed if the client is closed.
        """
        if self._table_threads is None:
            raise LogClosed("the store is closed")
        return self._table_threads.run(call)

    def pause(self, seconds: float) -> Deferred[None]:
        """Fires after `seconds`."""
        return sleep(self._reactor, seconds)

    def producer(
        self,
        topic: str,
        access: pulsar.ProducerAccessMode,
        *,
        batching: bool = False,
        pending_messages: int | None = None,
        batch_messages: int = 1000,
        batch_bytes: int = 128 << 10,
        batch_delay_ms: int = 10,
        name: str | None = None,
        compression: pulsar.CompressionType = pulsar.CompressionType.NONE,
    ) -> pulsar.Producer:
        """Create a producer of `topic`. Blocks: call it within `run`.

        With 0 `pending_messages` the number of messages in flight is unlimited.
        """
        created = self._open_client().create_producer(
            topic,
            producer_name=name,
            # Without an initial sequence id, the library restarts its numbering when it reconnects
            # before the first acknowledgement. A producer name used before continues where the
            # broker remembers it.
            initial_sequence_id=None if name else 1,
            access_mode=access,
            send_timeout_millis=self._send_timeout_ms,
            max_pending_messages=self.settings.queue_operations
            if pending_messages is None
            else pending_messages,
            batching_enabled=batching,
            batching_max_messages=batch_messages,
            batching_max_allowed_size_in_bytes=batch_bytes,
            batching_max_publish_delay_ms=batch_delay_ms,
            compression_type=compression,
        )
        check_created(created)
        return created

    def partition_producer(self, topic: str) -> PartitionProducer:
        """Create the exclusive producer of a partition's topic; it fences the one before.

        Blocks: call it within `run`.
        """
        bulk = self._bulk
        self._open_client()
        if bulk is not None and self._responses is not None:
            return bulk.producer(topic, self._send_timeout_ms, self.settings.queue_operations)
        return SingleProducer(
            self.producer(topic, pulsar.ProducerAccessMode.ExclusiveWithFencing),
            self.reactor_calls,
        )

    def reader(
        self,
        topic: str,
        start: Any,
        *,
        compacted: bool = False,
        queue: int | None = None,
        listener: Listener | None = None,
    ) -> pulsar.Reader:
        """Create a reader of `topic` that starts at the message id `start`, inclusive.

        Blocks: call it within `run`. A `listener` gets the messages in the library's single
        listener thread and must not raise.
        """
        created = self._open_client().create_reader(
            topic,
            start,
            reader_listener=listener,
            receiver_queue_size=queue or self.settings.reader_queue_messages,
            is_read_compacted=compacted,
            start_message_id_inclusive=True,
        )
        check_created(created)
        created.has_message_available = partial(
            has_message_available, created._reader, operation_timeout(self.settings)
        )
        return created

    def bulk_reader(self, topic: str, start: Position | None, queue: int) -> BulkReader:
        """Create a reader for many messages, which starts at the position or at the beginning.

        Blocks: call it within `run`.
        """
        bulk = self._bulk
        self._open_client()
        if bulk is not None:
            return bulk.reader(topic, start, queue)
        return SingleReader(self.reader(topic, message_id_of(start), queue=queue))

    def last_json(self, topic: str, kind: type[T]) -> T | None:
        """The topic's last message, decoded from JSON.

        None if there is none, if it has been deleted or cannot be decoded. Blocks: call it within
        `run`.
        """
        reader = self.reader(topic, pulsar.MessageId.latest)
        try:
            if not reader.has_message_available():
                return None
            message = reader.read_next(round(self.settings.operation_timeout_seconds * 1000))
            return msgspec.json.decode(message.data(), type=kind)
        except msgspec.DecodeError:
            return None
        finally:
            reader.close()

    async def close(self) -> None:
        """Close the client, within `close_timeout_seconds`. A client that does not close is shut
        down.
        """
        client, threads, table_threads = self._client, self._threads, self._table_threads
        if client is None or threads is None or table_threads is None:
            return
        bulk, self._bulk = self._bulk, None
        responses, self._responses = self._responses, None
        self._client = self._threads = self._table_threads = None
        bulk_closed = Deferred.fromCoroutine(self._closed_in_time(bulk.close)) if bulk else None
        if not await self._closed_in_time(client.close):
            log.warning(
                "Pulsar's client did not close within %s s, shutting it down",
                self.settings.close_timeout_seconds,
            )
            await self._closed_in_time(client.shutdown)
        if bulk_closed is not None and not await bulk_closed:
            # The C API cannot shut down a client that does not close. Its thread keeps it.
            log.warning(
                "Pulsar's client of the C API did not close within %s s",
                self.settings.close_timeout_seconds,
            )
        if responses is not None:
            responses.close()
        # The threads end when their calls do, soon after the client is closed; no need to wait.
        threads.stop(lambda: None)
        table_threads.stop(lambda: None)

    async def _closed_in_time(self, call: Callable[[], object]) -> bool:
        """Run `call` in a separate thread; return whether it finished within the timeout."""
        done: SharedResult[bool] = SharedResult()

        def work() -> None:
            try:
                call()
            except pulsar.PulsarException as error:
                log.warning("closing Pulsar's client failed: %s", type(error).__name__)
            self.reactor_calls.post(lambda: done.succeed(True))

        threading.Thread(target=work, name="pulsar-close", daemon=True).start()
        try:
            return await done.with_timeout(self._reactor, self.settings.close_timeout_seconds)
        except TimeoutError:
            return False

    def _open_client(self) -> pulsar.Client:
        if self._client is None:
            raise LogClosed("the store is closed")
        return self._client
