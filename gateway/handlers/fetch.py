"""Fetch: records from an offset on, now or as soon as there are enough of them."""

from __future__ import annotations

from gateway.caller import Caller
from gateway.errors import ErrorCode, KafkaError
from gateway.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, Interest, Round, next_epoch
from gateway.fetching import Reader, Reading
from gateway.routes import serves
from gateway.waiting import Wake
from gateway.wire.api_keys import ApiKey
from gateway.wire.fetch import FetchRequest, FetchResponse, PartitionFetched


@serves(ApiKey.FETCH, 4, 18)
async def fetch(request: FetchRequest, caller: Caller) -> FetchResponse:
    """Records as they are stored. v5 tells log start offsets, v7 has sessions, v9 checks leader epochs, v10 takes zstd, v13 has topic ids."""
    return await answer(request, caller, magic=None)


async def answer(request: FetchRequest, caller: Caller, *, magic: int | None) -> FetchResponse:
    """The reply for a consumer that reads formats up to `magic`, or all of them."""
    try:
        current = _begin(request, caller)
    except KafkaError as failure:
        return FetchResponse((), error_code=failure.code)
    current.is_in_use = True
    try:
        reader = Reader(caller.broker, request, magic)
        reading = await reader.read(list(current.pending))
        if not _is_enough(reading, request):
            await _wait(current, reading, request, caller)
            reading = await reader.read(list(current.pending))
        return _reply(current, reading, is_full=request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH))
    finally:
        current.is_in_use = False
        if current.session_id == NO_SESSION:
            current.close()


def _begin(request: FetchRequest, caller: Caller) -> Round:
    """The round that this request asks for (FetchManager.newContext). Raises KafkaError for a session that is not known or out of step."""
    sessions, now = caller.broker.fetch_sessions, caller.broker.now()
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.remove(request.session_id)
        current = sessions.create(now) if request.session_epoch == INITIAL_EPOCH else Round()
    else:
        found = sessions.get(request.session_id, now)
        if found is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.is_in_use or found.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if found.names_by_id != (request.version >= 13):
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        current = found
    current.names_by_id = request.version >= 13
    current.epoch = next_epoch(current.epoch)
    for topic, indexes in request.forgotten:
        for index in indexes:
            current.forget((topic, index))
    for wanted_topic in request.topics:
        for wanted in wanted_topic.partitions:
            current.follow((wanted_topic.topic, wanted.index), wanted)
    return current


def _is_enough(reading: Reading, request: FetchRequest) -> bool:
    return reading.size >= request.min_bytes or reading.has_error or request.max_wait_ms <= 0


async def _wait(current: Round, reading: Reading, request: FetchRequest, caller: Caller) -> None:
    """Until enough bytes are there, something failed or moved that the consumer should know of at once, or its time is up."""
    for interest, _ in reading.rows:
        if interest.partition is not None and not interest.is_behind:
            current.pending.pop(interest, None)
    wake = Wake(caller.broker.clock)
    clock = caller.broker.clock
    deadline = clock.seconds() + request.max_wait_ms / 1000

    def look() -> None:
        grown = reading.size
        for interest in current.pending:
            partition = interest.partition
            if partition is None or partition.log.start_offset > interest.wanted.fetch_offset:
                grown = request.min_bytes
                break
            grown += max(partition.log.size - interest.known_size, 0)
        if grown >= request.min_bytes:
            wake.fire()

    current.on_change = look
    try:
        while (left := deadline - clock.seconds()) > 0:
            if await caller.broker.waits.wait(wake, left):
                return
    finally:
        current.on_change = None


def _reply(current: Round, reading: Reading, *, is_full: bool) -> FetchResponse:
    """All rows, or in a session that goes on only those that say something new."""
    topics: dict[str | bytes, list[PartitionFetched]] = {}
    for interest, row in reading.rows:
        if is_full or _is_news(interest, row):
            topics.setdefault(interest.key[0], []).append(row)
        interest.told_high_watermark = row.high_watermark
        interest.told_start_offset = row.log_start_offset
        if current.session_id == NO_SESSION:
            continue
        if row.records or row.error_code:
            # Those that were served go to the back of the queue, so that one busy partition does not starve the others.
            current.pending[interest] = None
            current.pending.move_to_end(interest)
        elif not interest.is_behind:
            current.pending.pop(interest, None)
    return FetchResponse(list(topics.items()), session_id=current.session_id)


def _is_news(interest: Interest, row: PartitionFetched) -> bool:
    return bool(
        row.records
        or row.error_code
        or row.diverging
        or row.high_watermark != interest.told_high_watermark
        or row.log_start_offset != interest.told_start_offset
    )
