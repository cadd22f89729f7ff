"""Committed offsets of groups that another gateway coordinates, for old clients.

OffsetFetch 0 and 1 have an error code for each partition, but none for the group. librdkafka 0.9 to
1.5 ignores the codes (`rd_kafka_handle_OffsetFetch`) and applies `auto.offset.reset`: the consumer
reads all records again, or skips some. So a gateway that is not the coordinator asks the
coordinator for the offsets. If none answers, the connection is closed instead of NOT_COORDINATOR.

Some libraries report NOT_COORDINATOR after OffsetCommit to the application (aiokafka 0.3,
kafka-node, librdkafka before 1.5.2). So a gateway that is not the coordinator passes the commit on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from gateway.cluster.calls import CallFailed, CallRefused, Calls, CallUnanswered
from gateway.cluster.view import UNKNOWN, ClusterView
from gateway.coroutines import Clock, sleep
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.group_commits import GroupCommit
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode, KafkaError

FETCH_OFFSETS, COMMIT_OFFSETS = "fetch-offsets", "commit-offsets"

#: Partitions of one call. The coordinator looks them up in one reactor turn.
MAX_PARTITIONS = 500

#: Calls of one request. More partitions are not asked for.
MAX_CALLS_OF_REQUEST = 20

#: Calls in progress, to all gateways. They share the limits of `Calls` with other methods.
MAX_CALLS = 20

#: Timeout of all calls of a request in seconds, and between two attempts to commit if the
#: coordinator has not yet replayed that it is the coordinator.
CALLS_SECONDS, RETRY_SECONDS = 5.0, 0.05

#: Returns the committed offset of a topic and partition.
FindOffset = Callable[[str, int], CommittedOffset | None]


class AskedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """The offsets of a group that are asked for: names of topics with a partition."""

    group_id: str
    partitions: Sequence[tuple[str, int]]


#: Commits offsets at the coordinator and returns an error code for each row. Raises KafkaError.
CommitOffsets = Callable[[GroupCommit], Awaitable[Sequence[int]]]

_DECODER = msgspec.msgpack.Decoder(AskedOffsets)
_COMMIT_DECODER = msgspec.msgpack.Decoder(GroupCommit)
_CODES_DECODER = msgspec.msgpack.Decoder(list[int])
_REPLY_DECODER = msgspec.msgpack.Decoder(list[tuple[str, int, CommittedOffset]])
_ENCODER = msgspec.msgpack.Encoder()


class RemoteOffsets:
    """Asks the coordinators of groups for committed offsets, and passes commits on to them."""

    def __init__(self, calls: Calls, view: ClusterView, clock: Clock) -> None:
        self._calls = calls
        self._view = view
        self._clock = clock
        self._calls_in_progress = 0

    async def fetch(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> FindOffset | None:
        """Return a function that finds the committed offsets of these partitions.

        None if no other gateway is the coordinator now, if it does not answer, or if MAX_CALLS are
        in progress. Raises CallFailed if repeating this does not help.
        """
        if len(partitions) > MAX_PARTITIONS * MAX_CALLS_OF_REQUEST:
            raise CallFailed(f"{len(partitions)} partitions in one request")
        found: dict[tuple[str, int], CommittedOffset] = {}
        until = self._clock.seconds() + CALLS_SECONDS
        for start in range(0, len(partitions), MAX_PARTITIONS):
            asked = AskedOffsets(group_id, partitions[start : start + MAX_PARTITIONS])
            try:
                reply = await self._call(group_id, FETCH_OFFSETS, _ENCODER.encode(asked), until)
            except (CallRefused, CallUnanswered):
                return None
            rows = _REPLY_DECODER.decode(reply)
            found.update(((topic, index), committed) for topic, index, committed in rows)
        return lambda topic, index: found.get((topic, index))

    async def commit(self, commit: GroupCommit) -> Sequence[int] | None:
        """Commit offsets at the coordinator, and return an error code for each row.

        None if no other gateway is the coordinator, or if none has answered after CALLS_SECONDS;
        the offsets may be committed in this case.
        """
        asked = _ENCODER.encode(commit)
        until = self._clock.seconds() + CALLS_SECONDS
        while self._find_coordinator(commit.group_id) is not None:
            left = until - self._clock.seconds()
            try:
                return _CODES_DECODER.decode(
                    await self._call(commit.group_id, COMMIT_OFFSETS, asked, until)
                )
            except CallRefused:
                if left <= RETRY_SECONDS:
                    return None
                await sleep(self._clock, RETRY_SECONDS)
            except (CallUnanswered, CallFailed):
                return None
        return None

    def _find_coordinator(self, group_id: str) -> int | None:
        """The other gateway that coordinates a group, None if none is known."""
        node_id = self._view.coordinator_of(group_id)
        if node_id in (UNKNOWN, self._view.node_id) or self._view.is_cut_off:
            return None
        return node_id

    async def _call(self, group_id: str, method: str, asked: bytes, until: float) -> bytes:
        """Raises CallRefused also if no other gateway coordinates the group, or at MAX_CALLS."""
        node_id = self._find_coordinator(group_id)
        if node_id is None or self._calls_in_progress >= MAX_CALLS:
            raise CallRefused("no coordinator is known, or too many calls are in progress")
        self._calls_in_progress += 1
        try:
            return await self._calls.call(node_id, method, asked, until - self._clock.seconds())
        finally:
            self._calls_in_progress -= 1


def serve_offsets(
    calls: Calls,
    confirm_coordinator: Callable[[str], Awaitable[int]],
    offsets: CommittedOffsets,
    commit: CommitOffsets,
) -> None:
    """Answer other gateways. `confirm_coordinator` raises KafkaError, as `Broker`'s does."""
    calls.serve(FETCH_OFFSETS, partial(_answer, confirm_coordinator, offsets))
    calls.serve(COMMIT_OFFSETS, partial(_commit, confirm_coordinator, offsets, commit))


async def _answer(
    confirm_coordinator: Callable[[str], Awaitable[int]], offsets: CommittedOffsets, payload: bytes
) -> bytes:
    asked = _DECODER.decode(payload)
    try:
        await confirm_coordinator(asked.group_id)
    except KafkaError as failure:
        raise CallRefused(failure.message or failure.code.name) from failure
    found = [
        (topic, index, committed)
        for topic, index in asked.partitions
        if (committed := offsets.get(asked.group_id, topic, index)) is not None
    ]
    return _ENCODER.encode(found)


async def _commit(
    confirm_coordinator: Callable[[str], Awaitable[int]],
    offsets: CommittedOffsets,
    commit: CommitOffsets,
    payload: bytes,
) -> bytes:
    """Commit what another gateway passes on.

    A message between gateways may be late, and must not replace a newer commit. So a commit that is
    older than the last one, or that lowers an offset, fails. The client then repeats it here.
    """
    asked = _COMMIT_DECODER.decode(payload)
    try:
        await confirm_coordinator(asked.group_id)
        if offsets.is_committing(asked.group_id):
            raise CallRefused("another commit of the group is being stored")
        for topic, index, row in asked.rows:
            last = offsets.get(asked.group_id, topic, index)
            if last is not None and (
                last.offset > row.offset or last.committed_at > row.committed_at
            ):
                raise CallFailed(f"{topic}-{index} has a newer offset, {last.offset}")
        return _ENCODER.encode(await commit(asked))
    except KafkaError as failure:
        if failure.code is ErrorCode.NOT_COORDINATOR:
            raise CallRefused(failure.message) from failure
        return _ENCODER.encode([failure.code] * len(asked.rows))
