"""Partitions that the former leader of a shard wrote to are opened with the shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from gateway.cluster.shard_leadership import ShardState
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.partition_reopener import MAX_OF_SHARD, MAX_REOPENING, PartitionReopener

TOPIC = bytes(16)


class Reopened:
    """A gateway that leads no shard yet; nothing waits for a request.

    `written` has the partitions of each shard, `asked` those that are opened, in order. Their
    openings end when `finish` is called.
    """

    def __init__(self) -> None:
        self.written: dict[int, list[int]] = {}
        self.open: set[int] = set()
        self.asked: list[int] = []
        self.under_way: list[Deferred[Any]] = []
        self.has_lease = True
        self._calls: list[Any] = []
        PartitionReopener(self, self, self._partition, self._start)  # type: ignore[arg-type]

    def written_partitions(self, shard: int) -> Sequence[tuple[bytes, int]]:
        return [(TOPIC, index) for index in self.written[shard]]

    def watch(self, call: Any) -> None:
        self._calls.append(call)

    def watch_serving(self, call: Any) -> None:
        self.change_serving = call

    def may_serve(self) -> bool:
        return self.has_lease

    def is_open(self, shard: int) -> bool:
        return shard in self.open

    def change(self, shard: int, state: ShardState) -> None:
        (self.open.add if state is ShardState.OPEN else self.open.discard)(shard)
        for call in self._calls:
            call(shard, state)

    async def _partition(self, topic: bytes, index: int) -> Any:
        assert topic == TOPIC
        self.asked.append(index)
        self.under_way.append(Deferred())
        await self.under_way[-1]

    def _start(self, work: Any) -> None:
        Deferred.fromCoroutine(work)

    def finish(self, failure: Exception | None = None) -> None:
        """End the oldest opening."""
        if failure is None:
            self.under_way.pop(0).callback(None)
        else:
            self.under_way.pop(0).errback(failure)


@pytest.fixture
def gateway() -> Reopened:
    return Reopened()


def test_written_partitions_are_opened_without_a_request_some_at_a_time(gateway):
    gateway.written = {0: list(range(10)), 1: [10, 11]}
    gateway.change(0, ShardState.OPEN)
    assert gateway.asked == list(range(MAX_REOPENING))
    gateway.change(1, ShardState.OPEN)
    for ended_count in range(1, 13):
        gateway.finish()
        assert gateway.asked == list(range(min(MAX_REOPENING + ended_count, 12)))
    assert not gateway.under_way


def test_partitions_of_a_shard_that_is_not_open_are_left_out(gateway):
    gateway.written = {0: list(range(6)), 1: [6]}
    gateway.change(0, ShardState.OPENING)
    assert gateway.asked == []
    gateway.change(0, ShardState.OPEN)
    gateway.change(0, ShardState.CLOSING)
    gateway.change(1, ShardState.OPEN)
    for _ in range(MAX_REOPENING):
        gateway.finish()
    assert gateway.asked == [*range(MAX_REOPENING), 6]


def test_number_of_partitions_of_a_shard_is_limited(gateway):
    gateway.written = {0: list(range(MAX_OF_SHARD + 1)), 1: [99]}
    gateway.change(0, ShardState.OPEN)
    gateway.change(1, ShardState.OPEN)
    while gateway.under_way:
        gateway.finish()
    assert gateway.asked == [*range(MAX_OF_SHARD), 99]


def test_partition_that_cannot_be_opened_does_not_stop_the_others(gateway):
    gateway.written = {0: list(range(2 * MAX_REOPENING))}
    gateway.change(0, ShardState.OPEN)
    for _ in range(MAX_REOPENING):
        gateway.finish(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert gateway.asked == list(range(2 * MAX_REOPENING))


def test_partitions_are_opened_once_the_gateway_is_no_longer_cut_off(gateway):
    gateway.written = {0: list(range(6)), 1: [6]}
    gateway.change(0, ShardState.OPEN)
    gateway.has_lease = False
    for _ in range(MAX_REOPENING):
        gateway.finish(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    gateway.change(1, ShardState.OPEN)
    assert not gateway.under_way
    gateway.asked.clear()
    gateway.has_lease = True
    gateway.change_serving(True)
    while gateway.under_way:
        gateway.finish()
    assert sorted(gateway.asked) == list(range(7))


def test_partitions_of_a_shard_that_is_opened_again_are_queued_once(gateway):
    gateway.written = {0: [0, 1], 1: [2]}
    gateway.has_lease = False
    for shard in (0, 1, 0):
        gateway.change(shard, ShardState.OPEN)
    gateway.has_lease = True
    gateway.change_serving(True)
    assert sorted(gateway.asked) == [0, 1, 2]
