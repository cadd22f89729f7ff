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

from gateway.cluster.calls import CallError, CallRefused, Calls
from gateway.cluster.view import UNKNOWN, ClusterView
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import KafkaError

FETCH_OFFSETS = "fetch-offsets"

#: Partitions of one call. The coordinator looks them up in one reactor turn, and the largest
#: metadata of these offsets is below the limit of a reply.
MAX_PARTITIONS = 500

#: Timeout of a call in seconds.
CALL_SECONDS = 5.0


#: Returns the committed offset of a topic and partition.
FindOffset = Callable[[str, int], CommittedOffset | None]


class AskedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """The offsets of a group that are asked for: names of topics with partitions."""

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]


_DECODER = msgspec.msgpack.Decoder(AskedOffsets)
_REPLY_DECODER = msgspec.msgpack.Decoder(list[tuple[str, int, CommittedOffset]])
_ENCODER = msgspec.msgpack.Encoder()


class RemoteOffsets:
    """Asks the coordinators of groups for committed offsets."""

    def __init__(self, calls: Calls, view: ClusterView) -> None:
        self._calls = calls
        self._view = view

    async def fetch(self, asked: AskedOffsets) -> FindOffset | None:
        """Return a function that finds the committed offsets.

        None if no other gateway is the coordinator, if it does not answer, or for more than
        MAX_PARTITIONS partitions.
        """
        node_id = self._view.coordinator_of(asked.group_id)
        is_too_large = sum(len(indexes) for _, indexes in asked.topics) > MAX_PARTITIONS
        if node_id in (UNKNOWN, self._view.node_id) or is_too_large:
            return None
        try:
            reply = await self._calls.call(
                node_id, FETCH_OFFSETS, _ENCODER.encode(asked), CALL_SECONDS
            )
        except CallError:
            return None
        committed = {(topic, index): one for topic, index, one in _REPLY_DECODER.decode(reply)}
        return lambda topic, index: committed.get((topic, index))


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
        for topic, indexes in asked.topics
        for index in indexes
        if (committed := offsets.get(asked.group_id, topic, index)) is not None
    ]
    return _ENCODER.encode(found)
