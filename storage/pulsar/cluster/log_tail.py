"""Reads new messages of the metadata log in a thread.

The reader does not read the compacted topic, because after a reconnection it might then skip
messages (see `tables/table_loader.py`). By the revisions, the follower recognizes bursts that are
missing or delivered again.

The library's single listener thread is not used: a topic with slow consumers blocks it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pulsar

from storage.log import LogClosed, StorageError
from storage.pulsar.client.pulsar_client import PulsarClient, message_id_of, to_storage_error
from storage.pulsar.client.reconnection import READER_GIVE_UP_SECONDS, Reconnection
from storage.pulsar.client.topic_readers import close
from storage.pulsar.cluster.log_entries import BurstReader, LogEvent, MissingRevision, Place
from storage.pulsar.log.offset_index import Position

POLL_MS = 500
"""How long one read waits; after it, the thread checks whether it should end."""

IDLE_POLLS = 4
"""Consecutive empty reads before the broker is asked whether there is a message."""

REOPEN_SECONDS = 0.5

log = logging.getLogger(__name__)


class LogTail:
    """Calls `on_event` in the reactor thread for each event from the entry `start`, inclusive."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        start: Place | None,
        on_event: Callable[[LogEvent], None],
    ) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._on_event = on_event
        self._ended = threading.Event()
        self._reconnection = Reconnection(time.monotonic, READER_GIVE_UP_SECONDS)
        self._is_failing = False
        threading.Thread(target=self._run, name="pulsar-metadata", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon; nothing is delivered after this call."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                reader = self._client.reader(
                    self._topic,
                    message_id_of(Position(*self._start) if self._start else None),
                    queue=self._client.settings.table_reader_messages,
                )
            except LogClosed:
                return
            except (pulsar.PulsarException, StorageError) as error:
                self._failed(error)
                continue
            try:
                self._follow(reader)
            except (pulsar.PulsarException, StorageError) as error:
                self._failed(error)
            finally:
                close(reader)

    def _follow(self, reader: Any) -> None:
        """Deliver messages. Returns if the reader should be replaced."""
        bursts = BurstReader()
        self._reconnection.connected()
        read_next = reader._reader.read_next
        idle = 0
        is_late = False
        while not self._ended.is_set():
            try:
                message = read_next(POLL_MS)
            except pulsar.Timeout:
                idle += 1
                if self._reconnection.has_given_up(reader):
                    return
                # Without a connection, `has_message_available` waits for one and delays the end of
                # the process.
                if idle % IDLE_POLLS == 0 and reader.is_connected():
                    # A reader may miss messages without an error, for example if it starts at the
                    # end of a ledger that was closed.
                    is_available = reader.has_message_available()
                    if is_available and is_late:
                        self._deliver(MissingRevision())
                        return
                    is_late = is_available
                continue
            if self._is_failing:
                self._is_failing = False
                log.warning("reading the metadata log resumed topic=%s", self._topic)
            idle = 0
            is_late = False
            try:
                key = message.partition_key()
            except UnicodeDecodeError:
                continue
            place = message.message_id()
            for event in bursts.add((place.ledger_id(), place.entry_id()), key, message.data()):
                self._deliver(event)
            self._start = bursts.place or self._start

    def _deliver(self, event: LogEvent) -> None:
        self._client.reactor_calls.post(partial(self._pass_on, event))

    def _pass_on(self, event: LogEvent) -> None:
        if not self._ended.is_set():
            self._on_event(event)

    def _failed(self, error: Exception) -> None:
        """Log the first failure of a series, and wait before the next attempt."""
        if not self._is_failing and not self._ended.is_set():
            self._is_failing = True
            log.error(
                "reading the metadata log failed, retrying topic=%s error=%s",
                self._topic,
                to_storage_error(error),
            )
        self._ended.wait(REOPEN_SECONDS)
