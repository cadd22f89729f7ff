"""Several gateways on one store in Pulsar, each with its node id, address and log."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from tests.peers.chaos.servers import GatewayDied, RetryingGateway
from tests.testkit.gateway import Peer

#: Seconds until all partitions must have leaders again. The timeouts of a cluster add up to about
#: 10 s; a busy machine may take longer.
LED_SECONDS = 300.0
LATEST = -1
#: Partition N of this topic has the leader of shard N.
CONSUMER_OFFSETS = "__consumer_offsets"


class Gateways:
    """`store` are the arguments for the store, `settings` are passed with --set.

    The nodes have the ids 1 to `count`, or free ones if `node_id` in the settings is None. `stores`
    has, by node id, other arguments for the store, for example a proxy.
    """

    def __init__(
        self,
        folder: Path,
        store: Sequence[str],
        count: int,
        settings: Mapping[str, object],
        stores: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        for number in range(1, count + 1):
            # The log of a gateway that is not started yet.
            (folder / f"gateway-{number}.log").touch()
        self.nodes = {
            number: RetryingGateway(
                folder,
                stores.get(number, store),
                {
                    key: value
                    for key, value in {"node_id": number, **settings}.items()
                    if value is not None
                },
                name=f"gateway-{number}",
            )
            for number in range(1, count + 1)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def launch(self) -> None:
        """Start all gateways at once, and wait until they are ready."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            for started in [threads.submit(node.launch) for node in self.nodes.values()]:
                started.result()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def end(self) -> None:
        """Stop one gateway after the other with SIGTERM."""
        for node in self.nodes.values():
            node.end()

    def controller(self) -> int:
        """Node id of the controller, as reported by the first gateway that runs."""
        return self.until(lambda: describe_cluster(self.peer()).controller_id, lambda it: it > 0)

    def peer(self, seconds: float = 60.0) -> Peer:
        """Connect to the first gateway that runs. Raises OSError."""
        for node in self.nodes.values():
            if node.is_running():
                return node.peer(seconds)
        raise ConnectionRefusedError("no gateway runs")

    def until(
        self,
        look: Callable[[], Any],
        is_enough: Callable[[Any], bool],
        seconds: float = LED_SECONDS,
    ) -> Any:
        """Call `look` until `is_enough(result)`; return the result. Failed connections are retried.

        Raises GatewayDied after `seconds`.
        """
        end, found = time.monotonic() + seconds, None
        while time.monotonic() < end:
            try:
                found = look()
                if is_enough(found):
                    return found
            except (OSError, AssertionError) as failure:
                found = failure
            time.sleep(0.05)
        raise GatewayDied(f"not within {seconds:.0f} s: {found!r}\n{self.log()}")

    def wait_until_led(self, topic: str, nodes: Sequence[int] | None = None) -> dict[int, int]:
        """Wait until all partitions are served by leaders on which all nodes agree.

        With `nodes`, wait until exactly these nodes lead partitions. Returns the leaders.
        """
        running = [number for number, node in self.nodes.items() if node.is_running()]
        return self.until(
            lambda: self._served(topic, running),
            lambda found: bool(found) and (nodes is None or set(found.values()) == set(nodes)),
        )

    def wait_until_led_without(self, topic: str, node: int) -> None:
        """Wait until nodes other than this one, which may be suspended, serve all partitions."""
        others = [number for number, one in self.nodes.items() if one.is_running()]
        others = [number for number in others if number != node]
        self.until(lambda: self._served(topic, others), bool)

    def wait_until_settled(self, topic: str) -> None:
        """Wait until all running nodes lead an equal share of the shards and agree on it, and the
        leaders serve all partitions of the topic.
        """
        running = [number for number, node in self.nodes.items() if node.is_running()]
        self.until(lambda: self._shares(running), bool)
        self.wait_until_led(topic)

    def _shares(self, nodes: Sequence[int]) -> list[int]:
        """The numbers of shards that these nodes lead; empty while they differ by more than one, or
        the nodes disagree.
        """
        views = []
        for number in nodes:
            with self.nodes[number].peer() as peer:
                # The topic exists once it, or a coordinator, has been asked for.
                coordinator(peer, "any")
                views.append(leaders(peer, CONSUMER_OFFSETS))
        if any(view != views[0] for view in views):
            return []
        shares = [list(views[0].values()).count(number) for number in nodes]
        is_equal = sum(shares) == len(views[0]) and max(shares) - min(shares) <= 1
        return shares if is_equal and min(shares) else []

    def _served(self, topic: str, nodes: Sequence[int]) -> dict[int, int]:
        """The leaders of all partitions; empty while these nodes disagree or do not serve all."""
        views = []
        for number in nodes:
            with self.nodes[number].peer() as peer:
                views.append(leaders(peer, topic))
        if not views[0] or any(view != views[0] for view in views):
            return {}
        for leader in set(views[0].values()):
            if leader not in nodes:
                return {}
            with self.nodes[leader].peer() as peer:
                led = [index for index, one in views[0].items() if one == leader]
                if any(end_offset(peer, topic, index)[0] for index in led):
                    return {}
        return views[0]

    def assert_running(self) -> None:
        for node in self.nodes.values():
            node.assert_running()

    def log(self) -> str:
        return "\n".join(f"node {number}:\n{node.log()}" for number, node in self.nodes.items())

    def unexpected_errors(self) -> list[str]:
        return [
            f"node {number}: {line}"
            for number, node in self.nodes.items()
            for line in node.unexpected_errors()
        ]

    def __enter__(self) -> Gateways:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def metadata(peer: Peer, *topics: str, may_create: bool = False) -> Any:
    """The Metadata reply, of all topics if none is given."""
    rows = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    asked = MetadataRequest(version=7, topics=rows or None, allow_auto_topic_creation=may_create)
    return peer.request(asked, MetadataResponse, 7)


def leaders(peer: Peer, topic: str) -> dict[int, int]:
    """The leader of each partition.

    Empty if a partition has none, if the topic is unknown, or if the gateway is cut off.
    """
    topics = metadata(peer, topic).topics
    if not topics:
        return {}
    (found,) = topics
    rows = found.partitions
    if found.error_code or any(row.error_code or row.leader_id < 0 for row in rows):
        return {}
    return {row.partition_index: row.leader_id for row in rows}


def leader_epochs(peer: Peer, topic: str) -> dict[int, int]:
    (found,) = metadata(peer, topic).topics
    return {row.partition_index: row.leader_epoch for row in found.partitions}


def describe_cluster(peer: Peer) -> Any:
    with peer:
        return peer.request(
            DescribeClusterRequest(version=0, include_cluster_authorized_operations=False),
            DescribeClusterResponse,
            0,
        )


def coordinator(peer: Peer, group: str) -> int:
    reply = peer.request(FindCoordinatorRequest(key=group, key_type=0), FindCoordinatorResponse, 1)
    assert reply.error_code == 0
    return reply.node_id


def end_offset(peer: Peer, topic: str, index: int) -> tuple[int, int]:
    """Error code and log end offset."""
    partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=index, timestamp=LATEST
    )
    rows = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])]
    reply = peer.request(ListOffsetsRequest(replica_id=-1, topics=rows), ListOffsetsResponse, 1)
    row = reply.topics[0].partitions[0]
    return row.error_code, row.offset


def batch_epochs(records: bytes) -> Iterator[tuple[int, int]]:
    """Last offset and leader epoch of each complete batch in a reply to Fetch."""
    at = 0
    while len(records) >= at + 27:
        base, size, epoch = struct.unpack_from(">qii", records, at)
        if len(records) < at + 12 + size:
            return
        yield base + struct.unpack_from(">i", records, at + 23)[0], epoch
        at += 12 + size
