"""Reading for a fetch: which records of which partitions go into one reply, and in which format.

The limits are Kafka's: each partition's own and the request's. The first partition with records gives at least one whole batch or message
however large; the others give what fits. Consumers older than a batch get it converted, and are carried past what does not exist for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compat.records import RecordsError, cut
from gateway.broker import Broker
from gateway.errors import ErrorCode, KafkaError
from gateway.fetch_sessions import Interest
from gateway.partition import Partition
from gateway.records import HEADER_BYTES, magic_of
from gateway.wire.fetch import FetchRequest, PartitionFetched
from storage.log import Buffer, Entry

#: A consumer without zstd (Fetch below 10, KIP-110) is told so, as Kafka does.
_FIRST_FETCH_WITH_ZSTD = 10
_ZSTD = 4

#: Entries that an old consumer cannot see are passed over, at most this many reads in one request; the next one goes on from there.
MAX_EMPTY_READS = 64


@dataclass(slots=True)
class Reading:
    """One pass over the pending partitions: rows in the order read, the bytes they hold, and whether any failed."""

    rows: list[tuple[Interest, PartitionFetched]] = field(default_factory=list)
    size: int = 0
    has_error: bool = False


class Reader:
    """Reads for one request. `magic` is the newest format that its consumer reads, None for all of them."""

    __slots__ = ("_aborted", "_broker", "_limit", "_magic", "_request")

    def __init__(self, broker: Broker, request: FetchRequest, magic: int | None) -> None:
        self._broker = broker
        self._request = request
        self._magic = magic
        self._limit = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self._aborted: tuple[()] | None = () if request.isolation_level == 1 else None

    async def read(self, interests: list[Interest]) -> Reading:
        """One pass in this order. Failures are told in their rows."""
        reading = Reading()
        for interest in interests:
            try:
                fetched = await self._read_one(interest, reading.size)
            except KafkaError as failure:
                fetched = PartitionFetched(interest.key[1], failure.code)
                interest.told_high_watermark = -1
                reading.has_error = True
            reading.rows.append((interest, fetched))
            reading.size += sum(map(len, fetched.records))
        return reading

    async def _read_one(self, interest: Interest, size: int) -> PartitionFetched:
        partition = await self._resolve(interest)
        log, wanted = partition.log, interest.wanted
        interest.known_size = log.size
        check_epoch(wanted.current_leader_epoch, log.leader_epoch)
        offset = wanted.fetch_offset
        if not log.start_offset <= offset <= log.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        diverging = None
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
            if epoch < 0:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or end < offset:
                diverging = (epoch, end)
        records: list[Buffer] = []
        limit = min(wanted.max_bytes, self._limit - size)
        if diverging is None and offset < log.end_offset and (limit > 0 or size == 0):
            records = await self._records(interest, partition, limit, is_first=size == 0)
        end_offset = log.end_offset
        return PartitionFetched(wanted.index, 0, end_offset, end_offset, log.start_offset, records, self._aborted, diverging)

    async def _resolve(self, interest: Interest) -> Partition:
        topics = self._broker.topics
        topic, index = interest.key
        partition = topics.opened(topic, index)
        if partition is None:
            interest.release()
            partition = await topics.partition(topic, index)
        if interest.partition is not partition:
            interest.lead(partition, topics.require(topic).topic.topic_id)
        return partition

    async def _records(self, interest: Interest, partition: Partition, limit: int, *, is_first: bool) -> list[Buffer]:
        """At least one whole batch or message where this is the first with records, or where the client is so old that nothing says it
        may be left without (Fetch 0-2)."""
        at_least_one = is_first or self._request.version < 3
        offset = interest.wanted.fetch_offset
        records: list[Buffer] = []
        for _ in range(MAX_EMPTY_READS):
            if offset >= partition.log.end_offset:
                break
            entries = await partition.read(offset, max(limit, 0))
            for entry in entries:
                piece = await self._piece(interest, partition, entry, offset, limit)
                if len(piece) > limit and not (at_least_one and not records):
                    return records
                if len(piece):
                    records.append(piece)
                    limit -= len(piece)
                offset = entry.last_offset + 1
                if limit <= 0:
                    return records
            if records or not entries:
                break
        return records

    async def _piece(self, interest: Interest, partition: Partition, entry: Entry, offset: int, limit: int) -> Buffer:
        payload = entry.payload
        if self._magic is None:
            if magic_of(payload) >= 2:
                if self._request.version < _FIRST_FETCH_WITH_ZSTD and len(payload) >= HEADER_BYTES and payload[22] & 7 == _ZSTD:
                    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
                return payload
        elif magic_of(payload) > self._magic:
            if not partition.config.may_downconvert:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            payload = await self._broker.converter.convert(interest.topic_id, partition.index, entry, self._magic)
        if len(payload) > limit or offset > entry.base_offset:
            return _cut(payload, offset, limit)
        return payload


def _cut(payload: Buffer, offset: int, limit: int) -> Buffer:
    """The whole messages from the one that holds `offset` on, as many as fit, at least one; empty where there is none."""
    if not len(payload):
        return payload
    try:
        return cut(payload, offset, max(limit, 0))
    except RecordsError as failure:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(failure)) from failure


def check_epoch(asked: int, current: int) -> None:
    """The leader epoch that a client knows (-1: none) against the current one (KIP-320). Raises KafkaError."""
    if asked < 0 or asked == current:
        return
    raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH)
