"""Reads the records of a Fetch response.

Limits are Kafka's: per partition and per request. The first partition with records returns at least
one whole batch or message regardless of its size; the others return what fits. Records are
converted for consumers of older formats, which skip offsets that have no records in their format.
"""

from __future__ import annotations

from operator import add

import msgspec

from gateway.coroutines import TimeSlices
from gateway.fetch import entry_loops
from gateway.fetch.conversion_calls import V2_WITH_ZSTD, V2_WITHOUT_ZSTD
from gateway.fetch.entry_loops import PAYLOAD
from gateway.fetch.fetch_conversions import FetchConversions
from gateway.fetch.fetch_sessions import CachedPartition
from gateway.partitions.partition import Partition
from gateway.partitions.stored_records import cut
from gateway.protocol.caller import Caller
from gateway.protocol.current_leader import current_leader
from gateway.protocol.errors import ErrorCode, KafkaError, code_for_version
from gateway.protocol.large_requests import PARTITION_OPEN_ROWS
from gateway.protocol.wire import compiled
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest, PartitionFetched
from gateway.security.acls import AclOperation
from records import RecordsError
from storage.log import Buffer, Entry, EntryRun

#: Consumers of older versions may not support zstd (KIP-110).
FIRST_WITH_ZSTD = 10

_UNKNOWN_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

#: Limits on scanning entries that an old consumer cannot see: reads per request and bytes per read.
#: The next fetch continues from there.
MAX_EMPTY_READS = 64
EMPTY_READ_BYTES = 64 << 10


#: Bytes and entries that count as a row in time slices, about 10 us.
BYTES_PER_ROW = 32 << 10
ENTRIES_PER_ROW = 64


class FetchPass(msgspec.Struct):
    """The result of one pass over the pending partitions.

    `rows` are in the order read; `size` is their record bytes. `sufficient_bytes` is the size that
    is worth an immediate response: what the consumer requested, at most half of the maximum
    response, since whole batches rarely fill it completely. `must_reply_now` is set if a row cannot
    wait for more bytes: an error, or a log that diverges from the consumer's.
    """

    sufficient_bytes: int

    rows: dict[CachedPartition, PartitionFetched] = msgspec.field(default_factory=dict)
    size: int = 0
    must_reply_now: bool = False
    #: Some rows are of partitions that never existed.
    has_unknown_topics: bool = False


class FetchReader:
    """Reads for one request.

    The request version decides the format of the records: the handlers of v0 to v3 pass `magic` 0
    or 1 (`gateway.handlers.old.old_versions`); None is format 2, with zstd from v10 on.
    """

    __slots__ = (
        "_aborted_transactions",
        "_begun",
        "_begun_order",
        "_broker",
        "_caller",
        "_conversions",
        "_error",
        "_magic",
        "_max_reply_bytes",
        "_request",
        "_unused",
        "slices",
    )

    def __init__(
        self, caller: Caller, request: FetchRequest, magic: int | None, slices: TimeSlices
    ) -> None:
        self._caller = caller
        self._broker = caller.broker
        self._request = request
        self.slices = slices
        #: Format of the consumer: 0, 1, or 2 with or without zstd.
        self._magic = _v2_variant(request.version) if magic is None else magic
        self._max_reply_bytes = 0
        #: Conversions of this pass; None until the first one.
        self._conversions: FetchConversions | None = None
        self._aborted_transactions: tuple[()] | None = () if request.isolation_level == 1 else None
        #: What `read_at_once` has found when it returned None: rows, and their order; then entries
        #: of the next partition, None if they are not in memory, or its error.
        self._begun: FetchPass | None = None
        self._begun_order: list[CachedPartition] | None = None
        self._unused: tuple[Partition, list[Entry] | None] | None = None
        self._error: tuple[CachedPartition, KafkaError] | None = None

    def read_at_once(self, partitions: list[CachedPartition]) -> FetchPass | None:
        """As `read`, if nothing has to be awaited and no row has an error.

        Otherwise returns None, and the next `read` continues.
        """
        result = self._begin()
        self._begun = result
        self._begun_order = order = partitions if len(partitions) == 1 else self._order(partitions)
        try:
            for cached in order:
                if self.slices.count():
                    return None
                try:
                    fetched = self._read_one_at_once(cached, result.size)
                except KafkaError as failure:
                    # Not to be found again: a closed partition is opened again.
                    self._error = cached, failure
                    return None
                if fetched is None:
                    return None
                result.rows[cached] = fetched
                result.size += compiled.total(fetched.records)
        finally:
            self._broker.outgoing.release(self._max_reply_bytes)
        self._begun = self._begun_order = None
        result.must_reply_now = self._conversions is not None and self._conversions.has_more
        if order is not partitions:
            result.rows = {cached: result.rows[cached] for cached in partitions}
        return result

    def continue_with(
        self,
        rows: dict[CachedPartition, PartitionFetched],
        size: int,
        order: list[CachedPartition],
        unused: tuple[Partition, list[Entry] | None] | None,
    ) -> None:
        """Let the next `read` continue what compiled code has begun, as after `read_at_once`."""
        self._begun = FetchPass(0, rows, size)
        self._begun_order, self._unused = order, unused

    async def read(self, partitions: list[CachedPartition]) -> FetchPass:
        """Read the partitions in this order. Errors are returned in their rows."""
        result = self._begin()
        begun, self._begun = self._begun, None
        if begun is None:
            self._conversions = None
        else:
            result.rows, result.size = begun.rows, begun.size
        try:
            return await self._read(result, partitions)
        finally:
            self._broker.outgoing.release(self._max_reply_bytes)

    def _begin(self) -> FetchPass:
        """Reserve memory for the records of a pass."""
        wanted = min(self._request.max_bytes, self._broker.settings.fetch_max_bytes)
        if self._caller.usage is not None:
            wanted = min(wanted, self._caller.usage.max_fetch_bytes)
        self._max_reply_bytes = self._broker.outgoing.reserve(wanted)
        return FetchPass(min(self._request.min_bytes, self._max_reply_bytes // 2 + 1))

    async def _read(self, result: FetchPass, partitions: list[CachedPartition]) -> FetchPass:
        for cached in partitions:
            if cached.partition is None and self._caller.may_use_topic(
                AclOperation.READ, cached.key[0]
            ):
                # Open all closed partitions concurrently.
                self._broker.topics.prefetch(*cached.key)
                await self.slices.take(PARTITION_OPEN_ROWS)
        order, self._begun_order = self._begun_order, None
        if order is None:
            order = self._order(partitions)
        else:
            # A partition may have got records meanwhile.
            order = order + [cached for cached in partitions if cached not in order]
        for cached in order:
            if cached in result.rows:
                continue
            if self.slices.count():
                await self.slices.pause()
            error, self._error = self._error, None
            try:
                if error is not None and error[0] is cached:
                    raise error[1]
                fetched = await self._read_one(cached, result.size)
            except KafkaError as failure:
                code = code_for_version(failure.code, ApiKey.FETCH, self._request.version)
                if code in _UNKNOWN_TOPIC and not cached.topic_id:
                    # A deleted topic had an id here and may be recreated under its name.
                    result.has_unknown_topics = True
                leader = current_leader(ApiKey.FETCH, *cached.key, code, self._caller)
                fetched = PartitionFetched(cached.key[1], code, current_leader=leader)
                cached.sent_high_watermark = -1
            result.must_reply_now = result.must_reply_now or bool(
                fetched.error_code or fetched.diverging
            )
            result.rows[cached] = fetched
            result.size += compiled.total(fetched.records)
        if self._conversions is not None and self._conversions.has_more:
            # The next fetch converts the rest, so reply now.
            result.must_reply_now = True
        if order is not partitions:
            result.rows = {cached: result.rows[cached] for cached in partitions}
        return result

    def _order(self, partitions: list[CachedPartition]) -> list[CachedPartition]:
        """Return the partitions in reading order.

        The first partition may use up the conversion budget. From Fetch v3 on, consumers rotate
        their partitions themselves; for older ones each pass starts at another partition.
        """
        if self._request.version >= 3 or len(partitions) < 2:
            return partitions
        first = self._broker.now() % len(partitions)
        return partitions[first:] + partitions[:first]

    def _read_one_at_once(self, cached: CachedPartition, size: int) -> PartitionFetched | None:
        topics, key = self._broker.topics, cached.key
        if not self._caller.may_use_topic(AclOperation.READ, key[0]):
            return None
        partition = topics.get_open_partition(*key)
        if partition is None:
            return None
        if cached.partition is not partition:
            cached.attach(partition, topics.require(key[0]).topic.topic_id)
        if self._diverging(cached, partition) is not None:
            return None
        records: list[Buffer] = []
        requested = cached.requested
        limit = min(requested.max_bytes, self._max_reply_bytes - size)
        offset = requested.fetch_offset
        if offset < partition.log.end_offset and (limit > 0 or size == 0):
            if partition.skip_empty(offset, self._magic) != offset:
                return None
            found, resident = self._read_memory(
                cached,
                partition,
                offset,
                max(limit, 0),
                at_least_one=size == 0 or self._request.version < 3,
            )
            if resident or (not found and resident is None):
                self._unused = partition, resident
                return None
            records = found
        return self._row(cached, partition, records)

    async def _read_one(self, cached: CachedPartition, size: int) -> PartitionFetched:
        self._caller.require_topic(AclOperation.READ, cached.key[0])
        topics, key = self._broker.topics, cached.key
        partition = topics.get_open_partition(*key)
        if partition is None:
            cached.detach()
            partition = await topics.partition(*key)
        if cached.partition is not partition:
            cached.attach(partition, topics.require(key[0]).topic.topic_id)
        diverging = self._diverging(cached, partition)
        records: list[Buffer] = []
        limit = min(cached.requested.max_bytes, self._max_reply_bytes - size)
        if (
            diverging is None
            and cached.requested.fetch_offset < partition.log.end_offset
            and (limit > 0 or size == 0)
        ):
            records = await self._records(cached, partition, limit, is_first=size == 0)
        return self._row(cached, partition, records, diverging)

    def _diverging(self, cached: CachedPartition, partition: Partition) -> tuple[int, int] | None:
        """Return where the log diverges from the consumer's, or None.

        Raises KafkaError if there can be no records at the fetch offset.
        """
        log, requested = partition.log, cached.requested
        cached.log_size = log.size
        if partition.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if requested.current_leader_epoch != log.leader_epoch:
            check_epoch(requested.current_leader_epoch, log.leader_epoch)
        offset = requested.fetch_offset
        if requested.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(requested.last_fetched_epoch)
            if epoch < 0:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < requested.last_fetched_epoch or end < offset:
                return epoch, end
        if not log.start_offset <= offset <= log.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return None

    def _row(
        self,
        cached: CachedPartition,
        partition: Partition,
        records: list[Buffer],
        diverging: tuple[int, int] | None = None,
    ) -> PartitionFetched:
        # The high watermark and the last stable offset (LSO) are the log end offset: stored records
        # are visible at once, and there are no transactions.
        log = partition.log
        end_offset = log.end_offset
        return PartitionFetched(
            cached.requested.index,
            0,
            end_offset,
            end_offset,
            log.start_offset,
            records,
            self._aborted_transactions,
            diverging,
        )

    async def _records(
        self, cached: CachedPartition, partition: Partition, limit: int, *, is_first: bool
    ) -> list[Buffer]:
        """Read records of one partition.

        Returns at least one whole batch or message if this is the first partition with records or
        the consumer is older than Fetch v3, which requires it.
        """
        at_least_one = is_first or self._request.version < 3
        begin = cached.requested.fetch_offset
        offset = partition.skip_empty(begin, self._magic)
        limit = size = max(limit, 0)
        resident: list[Entry] | None = []
        unused, self._unused = self._unused, None
        if unused is not None and unused[0] is partition:
            resident = unused[1]
        elif offset < partition.log.end_offset:
            found, resident = self._read_memory(
                cached, partition, offset, size, at_least_one=at_least_one
            )
            if found:
                return found
        for _ in range(MAX_EMPTY_READS):
            entries = resident
            if entries is None:
                entries = await partition.read(offset, size)
            if entries is not resident:
                ready = self._ready(
                    cached, partition, entries, offset, limit, at_least_one=at_least_one
                )
                if ready:
                    return ready
            if entries and self._magic < V2_WITHOUT_ZSTD:
                ready = await self._needed_conversions().convert_long_run(
                    cached, partition, entries, offset, limit, at_least_one=at_least_one
                )
                if ready:
                    return ready
            records, offset = await self._select_records(
                cached, partition, entries, offset, limit, at_least_one=at_least_one
            )
            if records:
                return records
            if not entries or offset <= entries[-1].last_offset:
                break
            size = max(limit, EMPTY_READ_BYTES)
            # Only one read is made in this thread.
            resident = None if offset < partition.log.end_offset else []
        if offset > begin:
            partition.mark_empty(begin, offset, self._magic)
        return []

    def _read_memory(
        self,
        cached: CachedPartition,
        partition: Partition,
        offset: int,
        limit: int,
        *,
        at_least_one: bool,
    ) -> tuple[list[Buffer], list[Entry] | None]:
        """Read what is in memory.

        Returns the records for the consumer, if they need no conversion or a short one, and then no
        entries; otherwise the entries, which may be none, or None if they are not in memory.
        """
        # Of a batch that does not fit, a consumer of an older format gets the messages that do.
        run = partition.read_run(
            offset, limit, at_least_one=at_least_one or self._magic < V2_WITHOUT_ZSTD
        )
        if run is None:
            entries = partition.read_resident(offset, limit)
            if entries is None:
                return [], None
            ready = self._ready(
                cached, partition, entries, offset, limit, at_least_one=at_least_one
            )
            return ready, [] if ready else entries
        self._count_read(len(run.payload), run.count)
        if self._magic < V2_WITHOUT_ZSTD:
            found = self._needed_conversions().convert_run(
                cached,
                partition,
                [run.payload],
                run.count,
                offset,
                limit,
                at_least_one=at_least_one,
            )
            if found:
                return found, []
        elif self._is_as_stored(run, offset, limit):
            return [run.payload], []
        return [], run.entries()

    def _ready(
        self,
        cached: CachedPartition,
        partition: Partition,
        entries: list[Entry],
        offset: int,
        limit: int,
        *,
        at_least_one: bool,
    ) -> list[Buffer]:
        """Return the records if they need no conversion or a short one, else none.

        The entries have just been read, and are counted.
        """
        if self._magic >= V2_WITHOUT_ZSTD:
            records, size = entry_loops.loops.whole_batches(
                entries, offset, limit, with_zstd=self._magic == V2_WITH_ZSTD
            )
            self._count_read(size, len(entries))
            return records  # type: ignore[no-any-return]
        payloads: list[Buffer] = list(map(PAYLOAD, entries))
        self._count_read(compiled.total(payloads), len(entries))
        return self._needed_conversions().convert_run(
            cached,
            partition,
            payloads,
            len(entries),
            offset,
            limit,
            at_least_one=at_least_one,
        )

    def _needed_conversions(self) -> FetchConversions:
        if self._conversions is None:
            self._conversions = FetchConversions(self._caller, self._request.version, self._magic)
        return self._conversions

    def _count_read(self, size: int, count: int) -> None:
        """Count what was read, which may be more than is returned."""
        # Stores read from memory in this thread.
        self.slices.count(size // BYTES_PER_ROW + count // ENTRIES_PER_ROW)

    def _is_as_stored(self, run: EntryRun, offset: int, limit: int) -> bool:
        """Whether a run is what `entry_loops.whole_batches` returns."""
        return (
            run.count > 0
            and offset <= run.base_offset
            and len(run.payload) <= limit
            and entry_loops.loops.are_batches(
                run.payload, run.count, with_zstd=self._magic == V2_WITH_ZSTD
            )
        )

    async def _select_records(
        self,
        cached: CachedPartition,
        partition: Partition,
        entries: list[Entry],
        offset: int,
        limit: int,
        *,
        at_least_one: bool,
    ) -> tuple[list[Buffer], int]:
        """Select what fits from the entries; return it and the offset of the next unprocessed
        record.
        """
        records: list[Buffer] = []
        # Of the converted entries: their number, records and stored bytes.
        converted = [0, 0, 0]
        payloads = await self._needed_conversions().convert(cached, partition, entries)
        position = 0
        while position < len(payloads):
            entry = entries[position]
            if offset <= entry.base_offset:
                position, whole, size, counts = entry_loops.loops.select_whole(
                    entries, payloads, position, limit
                )
                records += whole
                limit -= size
                converted = list(map(add, converted, counts))
                if position:
                    offset = entries[position - 1].last_offset + 1
                if position == len(payloads):
                    break
                entry = entries[position]
            # An error, or a payload that is not returned as a whole.
            payload = payloads[position]
            position += 1
            if isinstance(payload, KafkaError):
                if records:
                    # Return the records before it; the next fetch starts at this entry and returns
                    # the error.
                    break
                raise payload
            rest = _cut(payload, offset, len(payload)) if offset > entry.base_offset else payload
            does_fit = len(rest) <= limit
            piece = rest if does_fit else _cut(rest, offset, limit)
            if len(piece) and (len(piece) <= limit or (at_least_one and not records)):
                records.append(piece)
                limit -= len(piece)
                if entry_loops.is_converted(payload, entry):
                    converted = list(map(add, converted, _counts_of(entry)))
            if not does_fit:
                # Nothing may follow a truncated entry: the consumer would skip the rest of it.
                break
            offset = entry.last_offset + 1
        if converted[0]:
            self._caller.traffic.converted(
                ApiKey.FETCH,
                self._request.version,
                cached.key[0],
                batches=converted[0],
                records=converted[1],
                size=converted[2],
            )
        return records, offset


def _counts_of(entry: Entry) -> tuple[int, int, int]:
    return 1, entry.last_offset - entry.base_offset + 1, len(entry.payload)


def _v2_variant(version: int) -> int:
    return V2_WITH_ZSTD if version >= FIRST_WITH_ZSTD else V2_WITHOUT_ZSTD


def _cut(payload: Buffer, offset: int, limit: int) -> Buffer:
    """Return the whole messages from `offset` on that fit into `limit`.

    Returns at least one if any exist. Raises KafkaError(CORRUPT_MESSAGE).
    """
    if not len(payload):
        return payload
    try:
        return cut(payload, offset, max(limit, 0))
    except RecordsError as failure:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(failure)) from failure


def check_epoch(asked: int, current: int) -> None:
    """Compare the client's leader epoch (-1: none) with the current one (KIP-320).

    Raises KafkaError.
    """
    if asked < 0 or asked == current:
        return
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    )
