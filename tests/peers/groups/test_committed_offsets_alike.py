"""The gateway replies to requests about committed offsets field by field as Apache Kafka 3.9.2
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.consumer.group import (
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from tests.peers.comparison import ComparedBrokers
from tests.peers.groups.group_comparison import wait_for_coordinator
from tests.peers.groups.group_setups import create_topic
from tests.testkit.gateway import Peer

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("committed offsets")]

#: Versions supported by Kafka 3.9.2.
COMMITS, FETCHES = range(1, 10), range(1, 10)

Commit = OffsetCommitRequest.OffsetCommitRequestTopic
Fetch = OffsetFetchRequest.OffsetFetchRequestTopic
Group = OffsetFetchRequest.OffsetFetchRequestGroup
Delete = OffsetDeleteRequest.OffsetDeleteRequestTopic


def in_order(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply with all partitions in one list sorted by topic and index.

    Kafka groups partitions by topic and puts refused ones first.
    """
    groups = [in_order(group) for group in reply.get("groups", [])]
    rows = (
        [(topic["name"], *row.values()) for topic in reply["topics"] for row in topic["partitions"]]
        if "topics" in reply
        else []
    )
    return {**reply, "groups": groups, "topics": sorted(rows)}


class BothBrokers:
    """A connection to each broker; their replies must be equal."""

    def __init__(self, ours: Peer, theirs: Peer) -> None:
        self.peers = (ours, theirs)

    def ask(self, request: Any, response: Any, version: int) -> dict[str, Any]:
        ours, theirs = (
            in_order(peer.request(request, response, version).to_dict()) for peer in self.peers
        )
        assert ours == theirs, f"{type(request).__name__} v{version}"
        return theirs

    def commit(
        self,
        rows: list[tuple[str, int, int]],
        version: int = 9,
        group: str = "g",
        metadata: str | None = "",
        **more: Any,
    ) -> Any:
        topics = [
            Commit(
                name=topic,
                partitions=[
                    Commit.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for topic, index, offset in rows
        ]
        return self.ask(
            OffsetCommitRequest(group_id=group, topics=topics, **more),
            OffsetCommitResponse,
            version,
        )

    def fetch(
        self, wanted: list[tuple[str, list[int]]] | None, version: int = 7, group: str = "g"
    ) -> Any:
        if version < 8:
            topics = (
                None
                if wanted is None
                else [Fetch(name=topic, partition_indexes=indexes) for topic, indexes in wanted]
            )
            return self.ask(
                OffsetFetchRequest(group_id=group, topics=topics, require_stable=False),
                OffsetFetchResponse,
                version,
            )
        kind = Group.OffsetFetchRequestTopics
        asked = (
            None
            if wanted is None
            else [kind(name=topic, partition_indexes=indexes) for topic, indexes in wanted]
        )
        groups = [Group(group_id=group, member_id=None, member_epoch=-1, topics=asked)]
        return self.ask(
            OffsetFetchRequest(groups=groups, require_stable=True), OffsetFetchResponse, version
        )

    def delete(self, wanted: list[tuple[str, int]], group: str = "g") -> Any:
        topics = [
            Delete(
                name=topic, partitions=[Delete.OffsetDeleteRequestPartition(partition_index=index)]
            )
            for topic, index in wanted
        ]
        return self.ask(OffsetDeleteRequest(group_id=group, topics=topics), OffsetDeleteResponse, 0)


@pytest.fixture(scope="module")
def addresses(compared_brokers: ComparedBrokers) -> tuple[str, str]:
    both = (compared_brokers.gateway, compared_brokers.kafka)
    for at in both:
        create_topic(at, "orders", 0, 0)
        create_topic(at, "bills", 0)
    return both


@pytest.fixture
def both(addresses: tuple[str, str]) -> Iterator[BothBrokers]:
    with _peer(addresses[0]) as ours, _peer(addresses[1]) as theirs:
        for peer in (ours, theirs):
            wait_for_coordinator(peer)
        yield BothBrokers(ours, theirs)


def _peer(address: str) -> Peer:
    host, _, port = address.partition(":")
    return Peer((host, int(port)))


@pytest.mark.parametrize("version", COMMITS)
def test_offset_commit_replies_equal_kafka_in_every_version(
    both: BothBrokers, version: int
) -> None:
    rows = [
        ("orders", 0, 5),
        ("nowhere", 0, 1),
        ("orders", 7, 1),
        ("orders", 1, 6),
        ("bills", 0, 7),
    ]
    both.commit(rows, version, group=f"commit-{version}", metadata="mine")
    both.commit([("orders", 0, -1)], version, group=f"commit-{version}", metadata=None)
    both.commit([("orders", 0, 1), ("orders", 0, 2)], version, group=f"commit-{version}")
    both.commit([], version, group="unknown")
    both.commit([("nowhere", 0, 1)], version, group="unknown")
    for fetch_version in FETCHES:
        both.fetch(
            [("orders", [0, 1]), ("bills", [0]), ("nowhere", [0])],
            fetch_version,
            group=f"commit-{version}",
        )


@pytest.mark.parametrize("version", FETCHES)
def test_offset_fetch_replies_equal_kafka_in_every_version(both: BothBrokers, version: int) -> None:
    both.commit([("bills", 0, 7)], group=f"fetch-{version}", metadata="mine")
    both.fetch(
        [("bills", [0]), ("orders", [1, 0]), ("orders", [9]), ("nowhere", [0])],
        version,
        group=f"fetch-{version}",
    )
    both.fetch([], version, group=f"fetch-{version}")
    both.fetch([("orders", [0])], version, group="unknown")
    both.fetch([("orders", [0])], version, group="")
    if version >= 2:
        both.fetch(None, version, group=f"fetch-{version}")
        both.fetch(None, version, group="unknown")


def test_leader_epoch_and_retention_time_are_handled_as_in_kafka(both: BothBrokers) -> None:
    both.commit([("orders", 0, 5)], 2, group="times", retention_time_ms=60_000)
    topics = [
        Commit(
            name="orders",
            partitions=[
                Commit.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=5, committed_leader_epoch=0
                )
            ],
        )
    ]
    both.ask(OffsetCommitRequest(group_id="times", topics=topics), OffsetCommitResponse, 8)
    both.fetch([("orders", [0, 1])], 6, group="times")


@pytest.mark.parametrize(
    "metadata",
    ["x" * 4096, "x" * 4097, "ü" * 4096, "ü" * 4097],
    ids=["most", "more", "most-wide", "more-wide"],
)
def test_metadata_size_limit_equals_kafka(both: BothBrokers, metadata: str) -> None:
    both.commit([("orders", 0, 1)], group="metadata", metadata=metadata)


def test_missing_and_unnamed_groups_get_same_errors(both: BothBrokers) -> None:
    both.commit([("orders", 0, 1)], group="")
    both.fetch([("orders", [0])], group="")
    # Since version 9, Kafka 3.9 replies as Kafka 4 does only if consumer groups are enabled.
    both.commit(
        [("orders", 0, 1)], 8, group="not there", generation_id_or_member_epoch=3, member_id="me"
    )
    both.commit(
        [("orders", 0, 1)], group="not there", generation_id_or_member_epoch=-1, member_id="me"
    )
    for group in ("", "never there"):
        both.delete([("orders", 0)], group=group)
        both.delete([("nowhere", 0)], group=group)
        both.delete([], group=group)


def test_offset_delete_replies_equal_kafka(both: BothBrokers) -> None:
    both.commit([("orders", 0, 1), ("orders", 1, 2), ("bills", 0, 3)], group="deletes")
    both.delete([("orders", 0), ("nowhere", 0), ("orders", 9), ("bills", 0)], group="deletes")
    both.fetch(None, group="deletes")
    both.delete([("orders", 0)], group="deletes")


def test_commits_of_members_get_same_replies(both: BothBrokers) -> None:
    members = [_join(peer) for peer in both.peers]
    assert {generation for _, generation in members} == {1}
    rows = [("orders", 0, 4), ("nowhere", 0, 1), ("bills", 0, 5)]
    for known, generation, instance in (
        (True, 1, None),
        (True, 2, None),
        (True, 0, None),
        (False, 1, None),
        (True, 1, "static"),
        (False, -1, None),
    ):
        replies = []
        for peer, (member_id, _) in zip(both.peers, members, strict=True):
            one = BothBrokers(peer, peer)
            said = {
                "member_id": member_id if known else "unknown",
                "generation_id_or_member_epoch": generation,
                "group_instance_id": instance,
            }
            replies.append(one.commit(rows, group="members", **said))
        assert replies[0] == replies[1], (known, generation, instance)
    both.commit(rows, group="members")
    both.delete([("orders", 0), ("bills", 0)], group="members")
    both.fetch(None, group="members")


def _join(peer: Peer) -> tuple[str, int]:
    """Member id and generation of the only member of a consumer group subscribed to `orders`."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="range", metadata=b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"
    )
    asked = JoinGroupRequest(
        group_id="members",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = peer.request(asked, JoinGroupResponse, 3)
    assert joined.error_code == 0
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    brought = SyncGroupRequest(
        group_id="members",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[kind(member_id=joined.member_id, assignment=b"")],
    )
    assert peer.request(brought, SyncGroupResponse, 2).error_code == 0
    return joined.member_id, joined.generation_id
