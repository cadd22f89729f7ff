"""Committed offsets of groups that another gateway coordinates, for OffsetFetch 0 and 1.

These versions have an error code for each partition, but none for the group. librdkafka 0.9 to 1.5
ignores the codes (`rd_kafka_handle_OffsetFetch`) and applies `auto.offset.reset`: the consumer
reads all records again, or skips some. So a gateway that is not the coordinator asks the
coordinator for the offsets. If none answers, the connection is closed instead of NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from gateway.cluster.calls import CallFailed, CallRefused, Calls, CallUnanswered
from gateway.cluster.view import UNKNOWN, ClusterView
from gateway.coroutines import Clock
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import KafkaError

FETCH_OFFSETS = "fetch-offsets"

#: Partitions of one call. The coordinator looks them up in one reactor turn.
MAX_PARTITIONS = 500

#: Calls of one request. More partitions are not asked for.
MAX_CALLS_OF_REQUEST = 20

#: Calls in progress, to all gateways. They share the limits of `Calls` with other methods.
MAX_CALLS = 20

#: Timeout of all calls of a request in seconds.
CALLS_SECONDS = 5.0

#: Returns the committed offset of a topic and partition.
FindOffset = Callable[[str, int], CommittedOffset | None]


class AskedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """The offsets of a group that are asked for: names of topics with a partition."""

    group_id: str
    partitions: Sequence[tuple[str, int]]


_DECODER = msgspec.msgpack.Decoder(AskedOffsets)
_REPLY_DECODER = msgspec.msgpack.Decoder(list[tuple[str, int, CommittedOffset]])
_ENCODER = msgspec.msgpack.Encoder()


class RemoteOffsets:
    """Asks the coordinators of groups for committed offsets."""

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
            rows = await self._call(group_id, partitions[start : start + MAX_PARTITIONS], until)
            if rows is None:
                return None
            found.update(((topic, index), committed) for topic, index, committed in rows)
        return lambda topic, index: found.get((topic, index))

    async def _call(
        self, group_id: str, partitions: Sequence[tuple[str, int]], until: float
    ) -> list[tuple[str, int, CommittedOffset]] | None:
        node_id = self._view.coordinator_of(group_id)
        if node_id in (UNKNOWN, self._view.node_id) or self._calls_in_progress >= MAX_CALLS:
            return None
        asked = _ENCODER.encode(AskedOffsets(group_id, partitions))
        self._calls_in_progress += 1
        try:
            left = until - self._clock.seconds()
            reply = await self._calls.call(node_id, FETCH_OFFSETS, asked, left)
        except (CallRefused, CallUnanswered):
            return None
        finally:
            self._calls_in_progress -= 1
        return _REPLY_DECODER.decode(reply)


def serve_offsets(
    calls: Calls, confirm_coordinator: Callable[[str], Awaitable[int]], offsets: CommittedOffsets
) -> None:
    """Answer other gateways. `confirm_coordinator` raises KafkaError, as `Broker`'s does."""
    calls.serve(FETCH_OFFSETS, partial(_answer, confirm_coordinator, offsets))


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
