"""The cluster as clients and handlers see it: nodes, the controller and the leader of each shard.

The view may be out of date: a former leader refuses requests itself (`shard_leadership`).

`ReplayProgress` is how far the nodes have replayed the metadata log, which the controller knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.shards import name_shard

#: An unknown node or leader epoch.
UNKNOWN = -1

#: Advertised (host, port) by listener name.
Addresses = Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Node:
    """One gateway as clients of one listener see it."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeReplay:
    """How far a node has replayed the metadata log, by its last heartbeat.

    `revision` is the last revision that it had replayed, `end` the last revision of the log at that
    time; both UNKNOWN before the first heartbeat. `heard` is the time of the heartbeat, `caught_up`
    the last time at which the node had replayed the whole log, both in seconds of the controller's
    clock, None if unknown.
    """

    node_id: int
    revision: int = UNKNOWN
    end: int = UNKNOWN
    heard: float | None = None
    caught_up: float | None = None


class ReplayProgress:
    """How far the nodes have replayed the metadata log, at the controller."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeReplay] = {}

    def of(self, node_id: int) -> NodeReplay:
        return self._nodes.get(node_id) or NodeReplay(node_id)

    def heard(self, node_id: int, revision: int, end: int, now: float) -> None:
        """Record a heartbeat. `end` is the last revision of the log at the time `now`.

        If the node has replayed up to the end that the log had at the previous heartbeat, it counts
        as caught up at the time of that heartbeat (LeaderState.ReplicaState of Kafka).
        """
        last = self.of(node_id)
        caught_up = last.caught_up
        if revision >= end:
            caught_up = now
        elif last.heard is not None and revision >= last.end:
            caught_up = last.heard
        self._nodes[node_id] = NodeReplay(node_id, revision, end, now, caught_up)

    def clear(self) -> None:
        self._nodes.clear()


class ClusterView:
    """`node_id` is this gateway. `cluster_id` is Kafka's, 22 characters of base64.

    `version` increases with each change; caches compare it.
    """

    def __init__(self, node_id: int, cluster_id: str, shard_count: int) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.shard_count = shard_count
        self.controller_id = UNKNOWN
        self.version = 0
        self._is_cut_off = False
        self._addresses: dict[int, Addresses] = {}
        self._nodes: dict[str, dict[int, Node]] = {}
        self._leaders = [UNKNOWN] * shard_count
        self._epochs = [UNKNOWN] * shard_count

    @property
    def advertised(self) -> Addresses:
        """The addresses of this gateway."""
        return self._addresses[self.node_id]

    @property
    def has_others(self) -> bool:
        """Whether there are live gateways beside this one."""
        return len(self._addresses) > 1

    @property
    def is_cut_off(self) -> bool:
        """Whether this gateway is cut off from the cluster, so that leaders may be out of date."""
        return self._is_cut_off

    def nodes(self, listener: str) -> list[Node]:
        """Every live gateway that has this listener, with its address there, sorted by id.

        Empty if this gateway is cut off: it does not know which are alive.
        """
        return list(self._nodes_of(listener).values())

    def last_known_others(self, listener: str) -> list[Node]:
        """The other gateways that have this listener, also if this one is cut off: some of them
        may not be alive.
        """
        return [
            Node(node_id, *addresses[listener])
            for node_id, addresses in sorted(self._addresses.items())
            if listener in addresses and node_id != self.node_id
        ]

    def find_node(self, node_id: int, listener: str) -> Node | None:
        """A live gateway, None if it is not alive, has no such listener, or this one is cut off."""
        return self._nodes_of(listener).get(node_id)

    def _nodes_of(self, listener: str) -> dict[int, Node]:
        nodes = self._nodes.get(listener)
        if nodes is None:
            nodes = self._nodes[listener] = {
                node_id: Node(node_id, *addresses[listener])
                for node_id, addresses in sorted(self._addresses.items())
                if listener in addresses and not self._is_cut_off
            }
        return nodes

    def leader_of(self, shard: int) -> int:
        """The id of the node that leads this shard, UNKNOWN if there is none."""
        return self._leaders[shard]

    def epoch_of(self, shard: int) -> int:
        """The epoch of a shard's leader, UNKNOWN if it has never had one.

        While the shard moves, leader and epoch are those that come next.
        """
        return self._epochs[shard]

    def coordinator_of(self, name: str) -> int:
        """The id of the node that coordinates a group or transactional id, or UNKNOWN."""
        return self._leaders[name_shard(name, self.shard_count)]

    def set_nodes(self, addresses: Mapping[int, Addresses]) -> None:
        """Replace all nodes."""
        self._addresses = dict(addresses)
        self._nodes.clear()
        self.version += 1

    def set_cut_off(self, is_cut_off: bool) -> None:
        """Set whether this gateway is cut off from the cluster; if so, `nodes` is empty."""
        self._is_cut_off = is_cut_off
        self._nodes.clear()
        self.version += 1

    def set_controller(self, node_id: int) -> None:
        self.controller_id = node_id
        self.version += 1

    def set_leader(self, shard: int, node_id: int, epoch: int) -> None:
        """Set the leader of a shard, UNKNOWN if it has none, and its leader epoch."""
        self._leaders[shard] = node_id
        self._epochs[shard] = epoch
        self.version += 1
