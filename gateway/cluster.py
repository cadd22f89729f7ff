"""Who is alive and who leads what. One gateway for now: it leads everything."""

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
    """`advertised` gives (host, port) by listener name; `cluster_id` is Kafka's, 22 characters of base64."""

    def __init__(
        self, node_id: int, cluster_id: str, advertised: Mapping[str, tuple[str, int]]
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.advertised = dict(advertised)

    def nodes(self, listener: str) -> list[Node]:
        """Every live gateway, at the address that it advertises on the listener of that name."""
        host, port = self.advertised[listener]
        return [Node(self.node_id, host, port)]

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads this partition."""
        return self.node_id
