"""Fetch: records from an offset on.

v4: isolation level, record batches v2.
v5-6: log start offset.
v7-8: fetch sessions (KIP-227).
v9: current leader epoch is checked (KIP-320).
v10-11: zstd (KIP-110), then rack id.
v12: flexible encoding, diverging epoch.
v13-14: topic ids instead of names (KIP-516).
v15-18: fields for replicas (KIP-903, KIP-853, KIP-1166), and endpoints of other leaders (KIP-951).

v0-3 are in `gateway.handlers.old`. The wait of a long poll is at most max_wait_ms;
`gateway.protocol.long_poll` describes when it ends earlier.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from gateway.coroutines import SLICE_ROWS, TimeSlices, Waiter
from gateway.fetch.fetch_reader import FetchPass, FetchReader
from gateway.fetch.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    CachedPartition,
    FetchSession,
    next_epoch,
)
from gateway.protocol.caller import Caller
from gateway.protocol.current_leader import endpoints_of
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import (
    FetchRequest,
    FetchResponse,
    PartitionFetched,
    fetch_response_size,
    write_fetch_response,
)
from gateway.security.quota_usage import RequestUsage

#: Most partitions of a request, and of its session before it, that are read without a pause, 0.3
#: ms each.
MAX_READ_AT_ONCE = 4

#: A handler returns the response, or a coroutine if something has to be awaited before.
FetchReply = FetchResponse | Coroutine[Any, Any, FetchResponse]

TopicRows = dict[str | bytes, list[PartitionFetched]]


@serves(ApiKey.FETCH, 4, 18)
def fetch(request: FetchRequest, caller: Caller) -> FetchReply:
    """Return records in format 2; zstd only from v10 on (`FetchReader`)."""
    return fetch_format_2(request, caller)


def fetch_records(request: FetchRequest, caller: Caller, *, magic: int | None) -> FetchReply:
    """Return records in message format `magic` (0 or 1) or lower; None is format 2.

    It is the reference of `FetchWork.serve` in `gateway/fetch/_reading.pyx`, for format 2.
    """
    try:
        current = _find_session(request, caller)
    except KafkaError as failure:
        return _refused(request, caller, failure)
    reader = FetchReader(caller, request, magic, TimeSlices(caller.broker.clock))
    reading = None
    is_released = True
    try:
        if _is_small(current, request) and caller.usage is None:
            # The common case: the next records of a few partitions are in memory.
            for wanted_topic in request.topics:
                for wanted in wanted_topic.partitions:
                    current.update((wanted_topic.topic, wanted.index), wanted)
            if len(current.partitions) != current.counted_partitions:
                _check_room(current, request, caller)
            reading = reader.read_at_once(list(current.pending))
        if reading is None or not _is_sufficient(reading, request):
            is_released = False
            return _fetch(current, request, caller, reader, reading)
        rows: TopicRows = {}
        is_full = _is_full(request)
        for cached, row in reading.rows.items():
            _add_row(rows, current, cached, row, is_full=is_full)
        reply = FetchResponse(list(rows.items()), session_id=current.session_id)
        caller.traffic.fetched(request, reply)
        return reply
    except KafkaError as failure:
        return _refused(request, caller, failure)
    finally:
        if is_released:
            _release(current)


async def _fetch(
    current: FetchSession,
    request: FetchRequest,
    caller: Caller,
    reader: FetchReader,
    reading: FetchPass | None,
) -> FetchResponse:
    """Return the response. `reading` is the first pass if the partitions have been read already."""
    slices = reader.slices
    try:
        if reading is None:
            await _update_session(current, request, slices)
            _check_room(current, request, caller)
            reading = await reader.read(list(current.pending))
        if (
            current.partitions
            and not _is_sufficient(reading, request)
            and not caller.long_poll.should_end
        ):
            await _wait_for_data(current, reading, request, caller)
            again = await reader.read(list(current.pending))
            # Partitions without new data were not read again, but a full response must include
            # them.
            reading.rows.update(again.rows)
            reading.has_unknown_topics = reading.has_unknown_topics or again.has_unknown_topics
        _drop_session_of_unknown(current, reading, request, caller)
        if caller.usage is not None and caller.usage.count_fetch(
            _reply_bytes(reading, request, caller.usage)
        ):
            return _throttled_response(current, reading, request, caller, caller.usage.throttle_ms)
        reply = await _response(current, reading, slices, caller, is_full=_is_full(request))
        caller.traffic.fetched(request, reply)
        if len(reading.rows) <= SLICE_ROWS:
            return reply
        made: FetchResponse = await encode_if_large(reply, slices, caller, write_fetch_response)
        return made
    except KafkaError as failure:
        return _refused(request, caller, failure)
    finally:
        _release(current)


def _refused(request: FetchRequest, caller: Caller, failure: KafkaError) -> FetchResponse:
    refused = FetchResponse((), error_code=failure.code)
    caller.traffic.fetched(request, refused)
    return refused


def _release(current: FetchSession) -> None:
    """The request no longer uses its session."""
    current.is_in_use = False
    if current.session_id == NO_SESSION or current.is_closed:
        current.close()


def _is_full(request: FetchRequest) -> bool:
    """Whether the request and its response list all partitions."""
    return request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH)


def _is_small(current: FetchSession, request: FetchRequest) -> bool:
    """Whether so few partitions are to be read that no pause is due."""
    topics = request.topics
    if (
        len(current.pending) > MAX_READ_AT_ONCE
        or len(topics) > MAX_READ_AT_ONCE
        or request.forgotten
    ):
        return False
    count = 0
    for wanted in topics:
        count += len(wanted.partitions)
    return count <= MAX_READ_AT_ONCE


def _find_session(request: FetchRequest, caller: Caller) -> FetchSession:
    """Return the session of this request, or a new one (FetchManager.newContext).

    Raises KafkaError if the session is unknown, in use or at another epoch.
    """
    broker, principal = caller.broker, caller.session.principal
    sessions, now, is_full = broker.fetch_sessions, broker.now(), _is_full(request)
    found = None
    if request.session_id != NO_SESSION:
        found = sessions.get(request.session_id, now)
        # Comparing principals takes longer than comparing references.
        if found is not None and found.owner is not principal and found.owner != principal:
            found = None
    if is_full:
        if found is not None:
            sessions.remove(request.session_id)
        is_small = sum(len(topic.partitions) for topic in request.topics) <= sessions.max_partitions
        current = (
            sessions.create(now)
            if request.session_epoch == INITIAL_EPOCH and is_small
            else FetchSession()
        )
    else:
        if found is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.is_in_use or found.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if found.uses_topic_ids != (request.version >= 13):
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        current = found
    current.owner = principal
    current.uses_topic_ids = request.version >= 13
    current.epoch = next_epoch(current.epoch)
    current.is_in_use = True
    return current


async def _update_session(current: FetchSession, request: FetchRequest, slices: TimeSlices) -> None:
    """Apply the request's partitions to its session."""
    for topic, indexes in request.forgotten:
        for index in indexes:
            current.forget((topic, index))
    for wanted_topic in request.topics:
        for wanted in wanted_topic.partitions:
            current.update((wanted_topic.topic, wanted.index), wanted)
            if slices.count():
                await slices.pause()


def _check_room(current: FetchSession, request: FetchRequest, caller: Caller) -> None:
    """Raises KafkaError(FETCH_SESSION_ID_NOT_FOUND) if the session cache has no space for the
    session's partitions.
    """
    if current.session_id == NO_SESSION or caller.broker.fetch_sessions.has_room(
        current, caller.broker.now()
    ):
        return
    if request.session_epoch != INITIAL_EPOCH:
        # The client sends a full request next, which is then served without a session.
        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    current.session_id = NO_SESSION


def _drop_session_of_unknown(
    current: FetchSession, reading: FetchPass, request: FetchRequest, caller: Caller
) -> None:
    """Close the session if it contains a partition that does not exist.

    Otherwise clients could fill the session cache with invented names. Such clients are served
    without a session until the partition exists.
    """
    if current.session_id == NO_SESSION or not reading.has_unknown_topics:
        return
    caller.broker.fetch_sessions.remove(current.session_id)
    if request.session_epoch == INITIAL_EPOCH:
        current.session_id = NO_SESSION


def _is_sufficient(reading: FetchPass, request: FetchRequest) -> bool:
    return (
        reading.size >= reading.sufficient_bytes
        or reading.must_reply_now
        or request.max_wait_ms <= 0
    )


async def _wait_for_data(
    current: FetchSession, reading: FetchPass, request: FetchRequest, caller: Caller
) -> None:
    """Wait until min_bytes are available, a partition needs an immediate reply, another request
    arrives on the connection, or max_wait_ms has passed.
    """
    for cached in reading.rows:
        if not cached.has_unread_records:
            current.pending.pop(cached, None)
    wake, long_poll = Waiter(caller.broker.clock), caller.long_poll

    def look() -> None:
        if _has_sufficient_bytes(current, reading):
            wake.wake_up()

    if _has_sufficient_bytes(current, reading):
        # The data arrived while the other partitions were read.
        return
    current.on_change = look
    long_poll.on_request = wake.wake_up
    long_poll.acknowledge()
    try:
        # max_wait_ms has no upper limit, as in Kafka. A waiting request costs one timer and delays
        # only Fetch requests behind it on the same connection. It ends when the connection closes
        # (TCP keep-alive detects lost peers) and at shutdown.
        if not await caller.broker.interruptible_waits.wait(
            wake, long_poll.wait_seconds(request.max_wait_ms)
        ):
            long_poll.timed_out()
    finally:
        current.on_change = None
        long_poll.on_request = None


def _has_sufficient_bytes(current: FetchSession, reading: FetchPass) -> bool:
    """Whether enough bytes have been read or appended since, or a partition needs a reply now."""
    size = reading.size
    for cached in current.pending:
        partition = cached.partition
        if (
            partition is None
            or partition.log.start_offset > cached.requested.fetch_offset
            or partition.is_closed
        ):
            return True
        if cached.has_unread_records:
            grown = partition.log.size - cached.log_size
            # The size of a log that has shrunk does not tell how many bytes are new.
            size += grown if grown >= 0 else reading.sufficient_bytes
    return size >= reading.sufficient_bytes


def _reply_bytes(reading: FetchPass, request: FetchRequest, usage: RequestUsage) -> int:
    """Return the size of the reply, as Kafka counts it (FetchResponse.sizeOf).

    It is 0 if no quota limits it.
    """
    if not usage.limits_fetched_bytes:
        return 0
    is_full = _is_full(request)
    topics: dict[str | bytes, list[PartitionFetched]] = {}
    for cached, row in reading.rows.items():
        if is_full or _has_changed(cached, row):
            topics.setdefault(cached.key[0], []).append(row)
    return 4 + fetch_response_size(list(topics.items()), request.version)


def _throttled_response(
    current: FetchSession,
    reading: FetchPass,
    request: FetchRequest,
    caller: Caller,
    milliseconds: int,
) -> FetchResponse:
    """Return the empty reply to a client over its quota, which fetches the same again.

    A session that the request would begin is not created (FetchContext.getThrottledResponse).
    """
    if request.session_epoch == INITIAL_EPOCH and current.session_id != NO_SESSION:
        caller.broker.fetch_sessions.remove(current.session_id)
        current.session_id = NO_SESSION
    # What was read is not sent, so it is read again.
    current.pending.update(dict.fromkeys(reading.rows))
    reply = FetchResponse((), session_id=current.session_id, throttle_time_ms=milliseconds)
    caller.traffic.fetched(request, reply)
    return reply


async def _response(
    current: FetchSession, reading: FetchPass, slices: TimeSlices, caller: Caller, *, is_full: bool
) -> FetchResponse:
    """Return all rows; in an incremental response only those that changed."""
    leaders = [row.current_leader for row in reading.rows.values() if row.current_leader]
    topics: TopicRows = {}
    for cached, row in reading.rows.items():
        if slices.count():
            await slices.pause()
        _add_row(topics, current, cached, row, is_full=is_full)
    return FetchResponse(
        list(topics.items()),
        session_id=current.session_id,
        node_endpoints=endpoints_of(leaders, caller) if leaders else (),
    )


def _add_row(
    topics: TopicRows,
    current: FetchSession,
    cached: CachedPartition,
    row: PartitionFetched,
    *,
    is_full: bool,
) -> None:
    """Add a row to the response, unless it is incremental and the row has not changed."""
    if is_full or row.records or _has_changed(cached, row):
        topics.setdefault(cached.key[0], []).append(row)
    cached.sent_high_watermark = row.high_watermark
    cached.sent_start_offset = row.log_start_offset
    if current.session_id == NO_SESSION:
        return
    if row.records or row.error_code:
        # Served partitions move to the end of the queue, so that one busy partition does not
        # starve the others.
        current.pending[cached] = None
        current.pending.move_to_end(cached)
    elif not cached.has_unread_records:
        current.pending.pop(cached, None)


def _has_changed(cached: CachedPartition, row: PartitionFetched) -> bool:
    return bool(
        row.records
        or row.error_code
        or row.diverging
        or row.high_watermark != cached.sent_high_watermark
        or row.log_start_offset != cached.sent_start_offset
    )


fetch_format_2: Callable[[FetchRequest, Caller], FetchReply] = partial(fetch_records, magic=None)
"""`fetch_records` for format 2, or the same compiled."""

_INTERFACE = 1
"""Expected INTERFACE of the compiled module; incremented when what either calls changes."""

compiled: Any = None
"""The compiled module, if it is available."""

if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import gateway.fetch._reading as _reading
    except ImportError:
        pass
    else:
        if _reading.INTERFACE == _INTERFACE:
            compiled = _reading
            fetch_format_2 = compiled.FetchWork(
                _find_session, _check_room, _fetch, _refused, MAX_READ_AT_ONCE
            ).serve
