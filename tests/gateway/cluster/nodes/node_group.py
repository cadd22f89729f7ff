"""Processes that join a cluster by `open_cluster` on one fake medium, driven by a clock.

group = NodeGroup()
one, two = group.join(1), group.join(2)
group.run(5)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any

from twisted.internet.task import Clock

from gateway.cluster.cluster_start import ClusterMembership, NodeIdentity, open_cluster
from gateway.cluster.session_timing import SessionTiming
from gateway.cluster.shard_leadership import ShardLeadership
from gateway.coroutines import sleep, start
from storage.log import StorageFailed
from storage.pulsar.cluster.metadata_table import MetadataTable
from tests.fakes.broker import Started
from tests.fakes.cluster_medium import MemoryProcess, SharedMedium

SHARDS = 8
TIMING = SessionTiming.of(3.0)


class SharedShards:
    """A `SharedStore` without topics.

    `owners` has the last process that opened each shard, and its epoch.
    """

    is_shared = True
    first_epoch = 5
    controller_methods: Sequence[str] = ()

    def __init__(self, group: NodeGroup, medium: MemoryProcess) -> None:
        self.medium = medium
        self.may_write: Callable[[], bool] | None = None
        self.is_leading = False
        self.refuse_shards = False
        self.opening_since: int | None = None
        """Revision when the opening of a deleted topic's log began; None: no such log."""
        self._group = group
        self._on_lost: Callable[[int, str], None] = lambda shard, reason: None

    @property
    def shard_count(self) -> int:
        return SHARDS if b"layout\0shards" in self.medium.log.rows else 0

    async def prepare(self, *, list_topics: bool) -> None:
        if not self.shard_count:
            await self.medium.log.put({b"layout\0shards": b"8"})
        if list_topics:
            self.is_leading = True
            await sleep(self._group.clock, self._group.listing_seconds)

    def lead(self, all_replayed: Callable[[], Awaitable[None]]) -> None:
        self.is_leading = True

    def follow(self) -> None:
        self.is_leading = False

    def ask_controller(self, call: Any) -> None:
        pass

    @property
    def applied_revision(self) -> int:
        replayed = self.medium.log.revision
        return replayed if self.opening_since is None else self.opening_since

    async def table(self, name: str) -> MetadataTable:
        return MetadataTable(self.medium.log, name, lambda: None)

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        await self.medium.answer()
        if self.refuse_shards:
            raise StorageFailed("refused by the test")
        assert self.may_write is not None
        assert self.may_write()
        before = self._group.owners.get(shard)
        self._group.owners[shard] = self
        self._group.opened.append((shard, leader_epoch))
        if before is not None and before is not self:
            before.lose_shard(shard)

    async def close_shard(self, shard: int) -> None:
        await self.medium.answer()
        if self._group.owners.get(shard) is self:
            del self._group.owners[shard]

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        self._on_lost = call

    def lose_shard(self, shard: int) -> None:
        """Another process has fenced the shard."""
        self.medium.later(lambda: self._on_lost(shard, "fenced"))


class NodeProcess:
    """One gateway. `joining` is its start; `failures` has the reasons passed to `failed`."""

    def __init__(self, group: NodeGroup, name: str) -> None:
        self.group = group
        self.medium = group.medium.process(name)
        self.store = SharedShards(group, self.medium)
        self.failures: list[str] = []
        self.joining: Started | None = None

    def join(self, node_id: int | None) -> None:
        self.joining = Started(self._join(node_id))

    async def _join(self, node_id: int | None) -> ClusterMembership:
        group = self.group
        await self.medium.log.open()
        membership = await open_cluster(
            self.store,  # type: ignore[arg-type]
            NodeIdentity(node_id, {"PLAINTEXT": (self.medium.name, 9092)}, "1.0"),
            TIMING,
            group.clock,
            lambda: ShardLeadership(self.store, group.clock, group.background),
            lambda: "A" * 22,
            self.failures.append,
            group.random.getrandbits,
        )
        await membership.start()
        return membership

    @property
    def membership(self) -> ClusterMembership:
        assert self.joining is not None
        membership: ClusterMembership = self.joining.result
        return membership

    @property
    def node(self) -> Any:
        return self.membership.node

    @property
    def open_shards(self) -> set[int]:
        leadership = self.membership.leadership
        return {shard for shard in range(SHARDS) if leadership.is_open(shard)}

    def stop(self) -> None:
        """As after SIGTERM: leave the cluster, then end."""
        leaving = Started(self.membership.leave(10))
        self.group.run(5)
        assert leaving.is_done
        self.kill()

    def kill(self) -> None:
        self.medium.kill()
        self.membership.close()
        for shard, owner in list(self.group.owners.items()):
            if owner is self.store:
                del self.group.owners[shard]


class NodeGroup:
    """`opened` has the shards that any process opened, with their epochs.

    Listing all topics takes `listing_seconds`.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.random = Random(7)
        self.medium = SharedMedium(self.clock)
        self.owners: dict[int, SharedShards] = {}
        self.opened: list[tuple[int, int]] = []
        self.bugs: list[BaseException] = []
        self.listing_seconds = 0.0

    def join(self, node_id: int | None, name: str | None = None, seconds: float = 5) -> NodeProcess:
        process = NodeProcess(self, name or f"host-{node_id}")
        process.join(node_id)
        self.run(seconds)
        return process

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.clock.advance(0.01)
        assert self.bugs == []

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        start(work, lambda _: None, self.bugs.append)
