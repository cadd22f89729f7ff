"""Opens the partitions that the former leader of a shard wrote to, as soon as the shard is open.

Without this, a partition is opened when it is first requested. After the loss of a gateway, clients
request its partitions only when they have found the new leader, and many have a request for each
partition, which a connection serves one after the other.

While the gateway may not serve, because it is cut off from Pulsar, the partitions stay queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from gateway.cluster.shard_leadership import ShardLeadership, ShardState
from gateway.partitions.partition import Partition
from gateway.protocol.errors import KafkaError

#: Partitions that are opened at a time. Those that are requested are opened beside them.
MAX_REOPENING = 4

#: Partitions of a shard, at most. With 32 shards, a single gateway opens 2,000 after its start.
MAX_OF_SHARD = 64


class WrittenPartitions(Protocol):
    """The part of a `SharedStore` that knows which partitions were in use."""

    def written_partitions(self, shard: int) -> Sequence[tuple[bytes, int]]: ...


class OpenPartition(Protocol):
    """`Topics.partition`. Raises KafkaError."""

    def __call__(self, topic: bytes, index: int) -> Coroutine[Any, Any, Partition]: ...


class PartitionReopener:
    """Watches the shards of this gateway. `start` runs a coroutine in the background."""

    def __init__(
        self,
        store: WrittenPartitions,
        leadership: ShardLeadership,
        open_partition: OpenPartition,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._open_partition = open_partition
        self._start = start
        #: Shard, topic id and index of the partitions to open.
        self._queue: deque[tuple[int, bytes, int]] = deque()
        self._workers = 0
        leadership.watch(self._on_shard)
        leadership.watch_serving(lambda _: self._start_workers())

    def _on_shard(self, shard: int, state: ShardState) -> None:
        if state is not ShardState.OPEN:
            return
        # The shard may have been opened before, in another epoch.
        others = [one for one in self._queue if one[0] != shard]
        written = self._store.written_partitions(shard)[:MAX_OF_SHARD]
        self._queue = deque([*others, *((shard, *one) for one in written)])
        self._start_workers()

    def _start_workers(self) -> None:
        while self._queue and self._workers < MAX_REOPENING and self._leadership.may_serve():
            self._workers += 1
            self._start(self._work())

    async def _work(self) -> None:
        try:
            while self._queue and self._leadership.may_serve():
                shard, topic_id, index = self._queue.popleft()
                if not self._leadership.is_open(shard):
                    continue
                try:
                    await self._open_partition(topic_id, index)
                except KafkaError:
                    # The next request for the partition meets the same error, unless the gateway
                    # was cut off.
                    if not self._leadership.may_serve():
                        self._queue.appendleft((shard, topic_id, index))
        finally:
            self._workers -= 1
