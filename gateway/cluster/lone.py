"""A cluster of one gateway, for a store that several gateways cannot share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.cluster.shard_leadership import ShardLeadership
from gateway.cluster.view import Addresses, ClusterView
from storage.log import StateTable

#: Rows of the table `cluster`: the id, and the leader epoch of all shards, 4 bytes.
_CLUSTER_ID, _LEADER_EPOCH = b"cluster.id", b"leader.epoch"


class ClusterStore(Protocol):
    """The part of a `Store` that this module uses."""

    @property
    def shard_count(self) -> int: ...
    @property
    def first_epoch(self) -> int: ...
    async def table(self, name: str) -> StateTable: ...


async def open_lone_cluster(
    store: ClusterStore, node_id: int, advertised: Addresses, new_id: Callable[[], str]
) -> ClusterView:
    """A cluster in which this gateway leads all shards.

    The leader epoch is one greater than at the last start, at the first `store.first_epoch`. Raises
    StorageError.
    """
    table = await store.table("cluster")
    rows = dict(await table.items())
    cluster_id = rows.get(_CLUSTER_ID) or new_id().encode()
    last = rows.get(_LEADER_EPOCH)
    epoch = store.first_epoch if last is None else int.from_bytes(last, "big") + 1
    await table.put({_CLUSTER_ID: cluster_id, _LEADER_EPOCH: epoch.to_bytes(4, "big")})
    view = ClusterView(node_id, cluster_id.decode(), store.shard_count)
    view.set_nodes({node_id: advertised})
    view.set_controller(node_id)
    for shard in range(view.shard_count):
        view.set_leader(shard, node_id, epoch)
    return view


def lead_all(view: ClusterView, leadership: ShardLeadership) -> None:
    """Lead all shards of a lone cluster."""
    for shard in range(view.shard_count):
        leadership.lead(shard, view.epoch_of(shard))
