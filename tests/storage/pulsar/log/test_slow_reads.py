"""Reads while messages arrive slowly: an empty result always means the end of the partition.

The replay that recovers idempotent producers takes an empty result for the end. If it ended early,
the next batch of each producer would be out of order, a fatal error for librdkafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pulsar
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred, fail, succeed

from storage.log import StorageError, StorageFailed
from storage.pulsar.client.bulk_readers import ReceivedMessage
from storage.pulsar.client.reader_cache import ReaderCache
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_reader import MAX_SKIPPING_STEPS, PartitionReader
from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.partition_topics import header

SETTINGS = PulsarSettings("pulsar://nowhere", "http://nowhere")
#: One message per offset, before this one.
END = 10
#: A message cannot be read in time, nor can the broker say whether there is one.
SLOW = None


class SlowReader:
    """A `BulkReader` that answers with the messages of these offsets, or is slow."""

    def __init__(self, *answers: int | None) -> None:
        self._answers = list(answers)
        self.is_closed = False

    def topic(self) -> str:
        return "t"

    def read(self, room: int, end: int, wait_ms: int, most: int) -> list[ReceivedMessage]:
        if not self._answers or self._answers[0] is SLOW:
            raise pulsar.Timeout
        offset = self._answers.pop(0)
        assert offset is not None
        return [(header(offset), 0, offset, b"x")]

    def has_message_available(self) -> bool:
        if self._answers:
            self._answers.pop(0)
            raise pulsar.Timeout
        return False

    def close(self) -> None:
        self.is_closed = True


class SlowClient:
    """Opens these readers in turn. Calls end at once."""

    settings = SETTINGS

    def __init__(self, *readers: SlowReader) -> None:
        self._readers = list(readers)

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        try:
            return succeed(call())
        except (StorageError, pulsar.PulsarException) as failure:
            return fail(failure)

    def bulk_reader(self, topic: str, start: Position | None, queue: int) -> SlowReader:
        return self._readers.pop(0)


async def read(*readers: SlowReader, offset: int) -> list[int]:
    """The offsets of the messages that are read from `offset` on. The index knows the others."""
    client = cast(Any, SlowClient(*readers))
    cache = ReaderCache(client, SETTINGS.readers)
    partition = PartitionReader(client, cast(Any, None), cache, "t", SETTINGS)
    for number in range(END):
        partition.appended(header(number), Position(0, number))
    found = await partition.read(offset, END, 0)
    return [one.header.base_offset for one in found]


@ensureDeferred
async def test_read_continues_after_a_step_that_only_skipped_messages():
    assert await read(SlowReader(0, 1, SLOW, 2, 3, SLOW, 4, 5), offset=5) == [5]


@ensureDeferred
async def test_read_that_does_not_arrive_at_its_offset_in_time_fails():
    skipped = [answer for number in range(MAX_SKIPPING_STEPS) for answer in (number, SLOW)]
    with pytest.raises(StorageFailed, match="read_timeout_seconds"):
        await read(SlowReader(*skipped, END - 1), offset=END - 1)


@ensureDeferred
async def test_read_is_empty_if_no_message_is_left():
    """Everything from the offset on was trimmed or compacted."""
    assert await read(SlowReader(0, 1), offset=5) == []
