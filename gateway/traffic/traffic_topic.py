"""Writes the rows of the traffic log to a topic, for consumers that read them as they arrive.

All gateways of a cluster write to its only partition, through the gateway that leads it. If that
gateway fails, rows may be stored twice; both have the same `process` and `sequence`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import accumulate, groupby
from typing import Any

from msgspec.structs import replace

from gateway.coroutines import Clock, SharedResult, sleep
from gateway.partitions.record_format import V2BatchFormat
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.registry import Topics
from gateway.topics.topic_names import TRAFFIC_TOPIC
from gateway.topics.topic_state import TopicState
from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.traffic_forwarding import TrafficForwarding
from records import HEADER_BYTES, Codec, build_batch, read_header
from records.codecs import compress
from storage.plain_records import PlainBatch, PlainRecord

#: Uncompressed bytes of rows in one batch. Compressed it is about a tenth, far below any limit on
#: batches.
BATCH_BYTES = 256 << 10

#: Seconds for which the append of a batch is retried while the partition moves to another gateway,
#: and seconds between two attempts.
MOVE_SECONDS, RETRY_SECONDS = 30.0, 0.5

#: Errors while the partition moves to another gateway, or while there is no controller.
_MOVING = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)


class TopicSink:
    """Appends rows in order, one batch at a time; at most `max_bytes` wait.

    `run` runs a function on another thread, `start` a coroutine in the background. The topic is
    created with `configs` when it is first written to. `forwarding` is for a cluster of gateways.
    """

    def __init__(
        self,
        topics: Topics,
        configs: dict[str, str],
        dropped: DroppedLines,
        *,
        max_bytes: int,
        now: Callable[[], int],
        clock: Clock,
        run: Callable[..., Awaitable[Any]],
        start: Callable[[Coroutine[Any, Any, None]], None],
        forwarding: TrafficForwarding | None = None,
    ) -> None:
        self._topics = topics
        self._forwarding = forwarding
        self._configs = configs
        self._dropped = dropped
        self._max_bytes = max_bytes
        self._now = now
        self._clock = clock
        self._run = run
        self._start = start
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._appending: SharedResult[None] | None = None

    def put(self, block: bytes, lines: int) -> None:
        """Queue a block of `lines` whole lines, or drop it if too many bytes wait."""
        if self._bytes + len(block) > self._max_bytes:
            self._dropped.add(lines, f"{TRAFFIC_TOPIC}: the store is too slow")
            return
        self._waiting.append((block, lines))
        self._bytes += len(block)
        if self._appending is None:
            self._appending = SharedResult()
            self._start(self._append_all())

    async def stop(self, seconds: float) -> None:
        """Append the queued rows, for at most `seconds`. Rows still queued count as dropped."""
        if self._appending is None:
            return
        try:
            await self._appending.with_timeout(self._clock, seconds)
        except TimeoutError:
            self._dropped.add(
                sum(lines for _, lines in self._waiting), f"{TRAFFIC_TOPIC}: the store is too slow"
            )

    async def _append_all(self) -> None:
        appending = self._appending
        try:
            while self._waiting:
                taken, self._waiting = list(self._waiting), deque()
                try:
                    await self._append(b"".join(block for block, _ in taken))
                finally:
                    self._bytes -= sum(len(block) for block, _ in taken)
        finally:
            self._appending = None
            if appending is not None:
                appending.succeed(None)

    async def _append(self, lines: bytes) -> None:
        now = self._now()
        for batch, count in await self._run(_batches, lines, now):
            try:
                await self._append_while_moving(batch, now)
            except KafkaError as failure:
                self._dropped.add(count, f"{TRAFFIC_TOPIC}: {failure.message or failure.code.name}")

    async def _append_while_moving(self, batch: bytearray, now: int) -> None:
        """Append a batch. Retries while the partition moves to another gateway."""
        until = self._clock.seconds() + MOVE_SECONDS
        while True:
            try:
                await self._append_batch(batch, now)
                return
            except KafkaError as failure:
                is_moving = self._forwarding is not None and failure.code in _MOVING
                if not is_moving or self._clock.seconds() >= until:
                    raise
            await sleep(self._clock, RETRY_SECONDS)

    async def _append_batch(self, batch: bytearray, now: int) -> None:
        topic = await self._topic()
        if self._forwarding is not None and self._forwarding.is_needed(topic):
            await self._forwarding.append(topic, bytes(batch))
            return
        partition = await self._topics.partition(TRAFFIC_TOPIC, 0)
        await partition.append_batch(memoryview(batch), read_header(batch), now)

    async def _topic(self) -> TopicState:
        if self._topics.get(TRAFFIC_TOPIC) is None:
            try:
                await self._topics.create(TRAFFIC_TOPIC, 1, self._configs)
            except KafkaError as failure:
                if failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        return self._topics.require(TRAFFIC_TOPIC)


def _batches(lines: bytes, now: int) -> list[tuple[bytearray, int]]:
    """Return the lines as compressed batches, each with its number of lines."""
    found = lines.splitlines()
    numbers = (end // BATCH_BYTES for end in accumulate(map(len, found)))
    parts = groupby(zip(numbers, found, strict=True), lambda numbered: numbered[0])
    return [_batch([line for _, line in part], now) for _, part in parts]


def _batch(lines: list[bytes], now: int) -> tuple[bytearray, int]:
    plain = V2BatchFormat().pack(PlainBatch([PlainRecord(None, line, (), now) for line in lines]))
    header = replace(read_header(plain), attributes=int(Codec.GZIP))
    return bytearray(
        build_batch(header, compress(Codec.GZIP, memoryview(plain)[HEADER_BYTES:]))
    ), len(lines)
