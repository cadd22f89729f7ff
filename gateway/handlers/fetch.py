"""Fetch: records from an offset on, now or as soon as there are enough of them.

max_wait_ms is an upper bound; `gateway.protocol.long_poll` says when the wait is shorter.
"""

from __future__ import annotations

from gateway.coroutines import Waiter
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
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import SLICE_ROWS, TimeSlices, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import (
    FetchRequest,
    FetchResponse,
    PartitionFetched,
    write_fetch_response,
)


@serves(ApiKey.FETCH, 4, 18)
async def fetch(request: FetchRequest, caller: Caller) -> FetchResponse:
    """Records as they are stored. v5 tells log start offsets, v7 has sessions, v9 checks leader epochs, v10 takes zstd, v13 has topic ids."""
    return await fetch_records(request, caller, magic=None)


async def fetch_records(
    request: FetchRequest, caller: Caller, *, magic: int | None
) -> FetchResponse:
    """The reply for a consumer that reads formats up to `magic`, or all of them."""
    try:
        current = _find_session(request, caller)
    except KafkaError as failure:
        refused = FetchResponse((), error_code=failure.code)
        caller.traffic.fetched(request, refused)
        return refused
    slices = TimeSlices(caller.broker.clock)
    try:
        await _update_session(current, request, caller, slices)
        reader = FetchReader(caller, request, magic, slices)
        reading = await reader.read(list(current.pending))
        if (
            current.partitions
            and not _is_sufficient(reading, request)
            and not caller.long_poll.should_end
        ):
            await _wait_for_data(current, reading, request, caller)
            again = await reader.read(list(current.pending))
            # Those that have nothing new were not read again, but a full reply must name them all the same.
            reading.rows.update(again.rows)
            reading.has_unknown_topics = reading.has_unknown_topics or again.has_unknown_topics
        _drop_session_of_unknown(current, reading, request, caller)
        reply = await _response(
            current, reading, slices, is_full=request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH)
        )
        caller.traffic.fetched(request, reply)
        if len(reading.rows) <= SLICE_ROWS:
            return reply
        made: FetchResponse = await encode_if_large(reply, slices, caller, write_fetch_response)
        return made
    except KafkaError as failure:
        refused = FetchResponse((), error_code=failure.code)
        caller.traffic.fetched(request, refused)
        return refused
    finally:
        current.is_in_use = False
        if current.session_id == NO_SESSION or current.is_closed:
            current.close()


def _find_session(request: FetchRequest, caller: Caller) -> FetchSession:
    """The round that this request asks for (FetchManager.newContext). Raises KafkaError for a session that is not known or out of step."""
    sessions, now = caller.broker.fetch_sessions, caller.broker.now()
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.remove(request.session_id)
        is_small = sum(len(topic.partitions) for topic in request.topics) <= sessions.max_partitions
        current = (
            sessions.create(now)
            if request.session_epoch == INITIAL_EPOCH and is_small
            else FetchSession()
        )
    else:
        found = sessions.get(request.session_id, now)
        if found is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.is_in_use or found.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if found.uses_topic_ids != (request.version >= 13):
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        current = found
    current.uses_topic_ids = request.version >= 13
    current.epoch = next_epoch(current.epoch)
    current.is_in_use = True
    return current


async def _update_session(
    current: FetchSession, request: FetchRequest, caller: Caller, slices: TimeSlices
) -> None:
    """Take the request's partitions into its round. Raises KafkaError for a session that has no room for them."""
    sessions = caller.broker.fetch_sessions
    for topic, indexes in request.forgotten:
        for index in indexes:
            current.forget((topic, index))
    for wanted_topic in request.topics:
        for wanted in wanted_topic.partitions:
            current.update((wanted_topic.topic, wanted.index), wanted)
            if slices.count():
                await slices.pause()
    if current.session_id != NO_SESSION and not sessions.has_room(current, caller.broker.now()):
        if request.session_epoch != INITIAL_EPOCH:
            # It begins again with a full request, which then does without a session.
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        current.session_id = NO_SESSION


def _drop_session_of_unknown(
    current: FetchSession, reading: FetchPass, request: FetchRequest, caller: Caller
) -> None:
    """A session keeps no partitions that never existed, or a client could make them up. Their consumer does without a session until they exist."""
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
    """Until enough bytes are there, something failed or moved that the consumer should know of at once, another request is behind this one,
    or its time is up."""
    for cached in reading.rows:
        if not cached.has_unread_records:
            current.pending.pop(cached, None)
    wake, long_poll = Waiter(caller.broker.clock), caller.long_poll

    def look() -> None:
        if _has_sufficient_bytes(current, reading):
            wake.wake_up()

    if _has_sufficient_bytes(current, reading):
        # It came while the other partitions were read.
        return
    current.on_change = look
    long_poll.on_request = wake.wake_up
    try:
        # As long as the consumer likes, as in Kafka: it costs a timer, ends with the connection (which TCP's keep-alive tells of a peer that is
        # gone without a word) and with a shutdown, and holds up nothing but Fetch requests behind it on the same connection.
        if not await caller.broker.interruptible_waits.wait(
            wake, long_poll.wait_seconds(request.max_wait_ms)
        ):
            long_poll.timed_out()
    finally:
        current.on_change = None
        long_poll.on_request = None


def _has_sufficient_bytes(current: FetchSession, reading: FetchPass) -> bool:
    """Whether the bytes read, with those that have come since, are enough, or there is something that cannot wait."""
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
            # A log that has shrunk does not tell how much of it is new.
            size += grown if grown >= 0 else reading.sufficient_bytes
    return size >= reading.sufficient_bytes


async def _response(
    current: FetchSession, reading: FetchPass, slices: TimeSlices, *, is_full: bool
) -> FetchResponse:
    """All rows, or in a session that goes on only those that say something new."""
    topics: dict[str | bytes, list[PartitionFetched]] = {}
    for cached, row in reading.rows.items():
        if slices.count():
            await slices.pause()
        if is_full or _has_changed(cached, row):
            topics.setdefault(cached.key[0], []).append(row)
        cached.sent_high_watermark = row.high_watermark
        cached.sent_start_offset = row.log_start_offset
        if current.session_id == NO_SESSION:
            continue
        if row.records or row.error_code:
            # Those that were served go to the back of the queue, so that one busy partition does not starve the others.
            current.pending[cached] = None
            current.pending.move_to_end(cached)
        elif not cached.has_unread_records:
            current.pending.pop(cached, None)
    return FetchResponse(list(topics.items()), session_id=current.session_id)


def _has_changed(cached: CachedPartition, row: PartitionFetched) -> bool:
    return bool(
        row.records
        or row.error_code
        or row.diverging
        or row.high_watermark != cached.sent_high_watermark
        or row.log_start_offset != cached.sent_start_offset
    )
