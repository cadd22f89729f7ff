"""Live gateways and partition leaders. There is one gateway for now, which leads all partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One gateway as clients of one listener see it."""

    node_id: int
    host: str
    port: int


class Cluster:
    """The cluster as clients see it.

    `advertised` is (host, port) by listener name. `cluster_id` is Kafka's, 22 characters of base64.
    """

    def __init__(
        self, node_id: int, cluster_id: str, advertised: Mapping[str, tuple[str, int]]
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.advertised = dict(advertised)

    def nodes(self, listener: str) -> list[Node]:
        """Every live gateway, with its advertised address for that listener."""
        host, port = self.advertised[listener]
        return [Node(self.node_id, host, port)]

    def leader_of(self, topic: str, partition: int) -> int:
        """The id of the node that leads this partition."""
        return self.node_id
