"""Appends rows to the traffic topic if another gateway leads its partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import error

from gateway.cluster.calls import CallError, CallFailed, CallRefused, Calls
from gateway.cluster.view import ClusterView
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.registry import Topics
from gateway.topics.topic_names import TRAFFIC_TOPIC
from gateway.topics.topic_state import TopicState
from records import read_header

APPEND_ROWS = "append-traffic-rows"

#: Timeout of one attempt, in seconds.
CALL_SECONDS = 10.0


class TrafficForwarding:
    """Sends batches of rows to the node that leads the traffic topic's only partition."""

    def __init__(self, calls: Calls, cluster: ClusterView) -> None:
        self._calls = calls
        self._cluster = cluster

    def is_needed(self, topic: TopicState) -> bool:
        """Whether another node leads the partition, or none does."""
        return self._leader_of(topic) != self._cluster.node_id

    def _leader_of(self, topic: TopicState) -> int:
        return self._cluster.leader_of(topic.shard_of(0, self._cluster.shard_count))

    async def append(self, topic: TopicState, batch: bytes) -> None:
        """Append an encoded record batch at the leader.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER if a later attempt may succeed. The batch may have
        been appended in spite of an error.
        """
        try:
            await self._calls.call(self._leader_of(topic), APPEND_ROWS, batch, CALL_SECONDS)
        except CallFailed as failure:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)) from failure
        except CallError as failure:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(failure)) from failure


def serve_traffic_rows(calls: Calls, topics: Topics, now: Callable[[], int]) -> None:
    """Append batches that other gateways send. `now()` returns milliseconds since 1970."""
    calls.serve(APPEND_ROWS, partial(_append, topics, now))


async def _append(topics: Topics, now: Callable[[], int], batch: bytes) -> bytes:
    rows = bytearray(batch)
    try:
        partition = await topics.partition(TRAFFIC_TOPIC, 0)
        await partition.append_batch(memoryview(rows), read_header(rows), now())
    except KafkaError as failure:
        reason = failure.message or failure.code.name
        if failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            raise CallRefused(reason) from failure
        raise CallFailed(reason) from failure
    except error as failure:
        raise CallFailed(f"not a batch: {failure}") from failure
    return b""
