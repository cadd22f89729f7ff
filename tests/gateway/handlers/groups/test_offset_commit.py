"""OffsetCommit, OffsetFetch and OffsetDelete with the replies of Kafka 3.9."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)

from gateway.groups.classic.classic_member import MemberJoin, MemberSync
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.gateway.handlers.handler_calls import call, start_call

CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
CommitPartition = CommitTopic.OffsetCommitRequestPartition
FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic
FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
FetchGroupTopic = FetchGroup.OffsetFetchRequestTopics
DeleteTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic

UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
NO_MEMBER = uuid.UUID(int=7)


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 2)
    env.topic("bills", 1)
    return env


def id_of(env: BrokerEnvironment, topic: str) -> uuid.UUID:
    live = env.broker.topics.get(topic)
    return NO_MEMBER if live is None else uuid.UUID(bytes=live.topic.topic_id)


def commit_request(
    env: BrokerEnvironment,
    *rows: tuple[str, int, int],
    version: int = 9,
    group: str = "g",
    member: tuple[str, int, str | None] = ("", -1, None),
    metadata: str | None = "",
    epoch: int = -1,
    **more: Any,
) -> Any:
    """A request.

    Rows are topic, partition and offset; `member` is member id, generation and instance id.
    """
    topics = [
        CommitTopic(
            name=topic,
            topic_id=id_of(env, topic),
            partitions=[
                CommitPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=epoch,
                    committed_metadata=metadata,
                )
            ],
        )
        for topic, partition, offset in rows
    ]
    member_id, generation, instance_id = member
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id if version >= 7 else None,
        topics=topics,
        **more,
    )


def commit(
    env: BrokerEnvironment, *rows: tuple[str, int, int], version: int = 9, **more: Any
) -> list[int]:
    """The error code of each row."""
    reply = call(env, commit_request(env, *rows, version=version, **more), version)
    codes = {
        (topic.topic_id if version >= 10 else topic.name, row.partition_index): row.error_code
        for topic in reply.topics
        for row in topic.partitions
    }
    assert len(codes) == sum(len(topic.partitions) for topic in reply.topics), (
        "a partition is answered twice"
    )
    return [
        codes[id_of(env, topic) if version >= 10 else topic, partition]
        for topic, partition, _ in rows
    ]


def fetch(
    env: BrokerEnvironment,
    *wanted: tuple[str, int],
    version: int = 7,
    group: str = "g",
    everything: bool = False,
) -> list[tuple[Any, ...]]:
    """Topic, partition, offset, metadata and error of each row, for a group reply without error."""
    if version < 8:
        topics = (
            None
            if everything
            else [FetchTopic(name=topic, partition_indexes=[index]) for topic, index in wanted]
        )
        reply = call(
            env, OffsetFetchRequest(group_id=group, topics=topics, require_stable=False), version
        )
        assert version < 2 or reply.error_code == 0
        found = reply.topics
    else:
        by_id = [
            FetchGroupTopic(name=topic, topic_id=id_of(env, topic), partition_indexes=[index])
            for topic, index in wanted
        ]
        asking = FetchGroup(
            group_id=group, member_id=None, member_epoch=-1, topics=None if everything else by_id
        )
        reply = call(env, OffsetFetchRequest(groups=[asking], require_stable=False), version)
        ((found, code),) = [(one.topics, one.error_code) for one in reply.groups]
        assert code == 0
    names = {uuid.UUID(bytes=live.topic.topic_id): live.name for live in env.broker.topics}
    return [
        (
            names.get(topic.topic_id, "?") if version >= 10 else topic.name,
            row.partition_index,
            row.committed_offset,
            row.metadata,
            row.error_code,
        )
        for topic in found
        for row in topic.partitions
    ]


def stored(
    env: BrokerEnvironment, topic: str = "orders", partition: int = 0, group: str = "g"
) -> CommittedOffset | None:
    return env.broker.offsets.get(group, topic, partition)


# OffsetCommit


@pytest.mark.parametrize("version", range(5, 11))
def test_commit_returns_error_per_partition(env, version):
    assert commit(
        env, ("orders", 0, 5), ("orders", 1, 6), ("bills", 0, 7), version=version, metadata="mine"
    ) == [0, 0, 0]
    assert stored(env) == CommittedOffset(5, -1, "mine", NOW, None)
    assert {place: row.offset for place, row in env.broker.offsets.of_group("g").items()} == {
        ("orders", 0): 5,
        ("orders", 1): 6,
        ("bills", 0): 7,
    }


@pytest.mark.parametrize("version", range(6, 11))
def test_committed_leader_epoch_is_stored(env, version):
    commit(env, ("orders", 0, 5), version=version, epoch=3)
    assert stored(env).leader_epoch == 3


@pytest.mark.parametrize(
    ("version", "code"),
    [(5, UNKNOWN_TOPIC_OR_PARTITION), (9, UNKNOWN_TOPIC_OR_PARTITION), (10, UNKNOWN_TOPIC_ID)],
)
def test_missing_partitions_are_refused_and_others_committed(env, version, code):
    rows = [
        ("orders", 0, 1),
        ("nowhere", 0, 1),
        ("orders", 2, 1),
        ("orders", -1, 1),
        ("bills", 0, 1),
    ]
    assert commit(env, *rows, version=version) == [
        0,
        code,
        UNKNOWN_TOPIC_OR_PARTITION,
        UNKNOWN_TOPIC_OR_PARTITION,
        0,
    ]
    assert sorted(env.broker.offsets.of_group("g")) == [("bills", 0), ("orders", 0)]


def test_commit_without_existing_partitions_creates_no_group(env):
    assert commit(env, ("nowhere", 0, 1)) == [UNKNOWN_TOPIC_OR_PARTITION]
    assert commit(env) == []
    assert list(env.broker.offsets.groups()) == []


def test_commit_metadata_length_is_limited_in_characters(env):
    assert commit(env, ("orders", 0, 1), metadata="ü" * 4096) == [0]
    assert commit(env, ("orders", 0, 2), metadata="u" * 4097) == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE
    ]
    assert stored(env).offset == 1


def test_null_metadata_becomes_empty(env):
    commit(env, ("orders", 0, 1), metadata=None)
    assert stored(env).metadata == ""


def test_repeated_partition_commits_the_last_offset(env):
    assert commit(env, ("orders", 0, 1), ("orders", 0, 2)) == [0, 0]
    assert stored(env).offset == 2


def test_too_long_group_id_is_an_error_per_partition(env):
    rows = [("orders", 0, 1), ("nowhere", 0, 1)]
    assert commit(env, *rows, group="g" * 461) == [
        ErrorCode.INVALID_GROUP_ID,
        UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_empty_group_id_is_accepted_for_old_clients(env):
    assert commit(env, ("orders", 0, 3), version=5, group="") == [0]
    assert fetch(env, ("orders", 0), version=1, group="") == [("orders", 0, 3, "", 0)]


def test_store_failure_is_retriable(env):
    env.store.refuse_writes = True
    assert commit(env, ("orders", 0, 1)) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert stored(env) is None


def test_commit_reply_waits_until_durable(env):
    env.store.hold()
    waiting = start_call(env, commit_request(env, ("orders", 0, 1)), 9)
    assert not waiting.is_done
    assert fetch(env, ("orders", 0)) == [("orders", 0, -1, "", 0)]
    env.store.release()
    assert waiting.is_done
    assert fetch(env, ("orders", 0)) == [("orders", 0, 1, "", 0)]


def test_commit_to_deleted_topic_id_is_refused_after_recreation(env):
    old = id_of(env, "orders")
    commit(env, ("orders", 0, 5))
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    env.topic("orders", 2)
    request = commit_request(env, ("orders", 1, 1), version=10)
    request.topics[0].topic_id = old
    assert [row.error_code for row in call(env, request, 10).topics[0].partitions] == [
        UNKNOWN_TOPIC_ID
    ]
    assert fetch(env, ("orders", 0), ("orders", 1)) == [
        ("orders", 0, -1, "", 0),
        ("orders", 1, -1, "", 0),
    ]


# Members


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription v0."""
    named = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + named + b"\xff\xff\xff\xff"


def member_of(
    env: BrokerEnvironment,
    *topics: str,
    kind: str = "consumer",
    instance: str | None = None,
    metadata: bytes | None = None,
) -> tuple[str, int]:
    """Id and generation of the only member of group g, which has its assignment."""
    told = subscription(*topics) if metadata is None else metadata
    joining = MemberJoin(
        "", instance, "test", "/127.0.0.1", kind, (("range", told),), 10_000, 10_000
    )
    waiting = Started(env.broker.groups.join("g", joining))
    env.clock.advance(env.broker.settings.group_initial_rebalance_delay_ms / 1000)
    joined = waiting.result
    syncing = MemberSync(
        joined.member_id, instance, joined.generation, assignments=((joined.member_id, b""),)
    )
    assert Started(env.broker.groups.sync("g", syncing)).result.code == 0
    return joined.member_id, joined.generation


@pytest.mark.parametrize("version", [1, 2, 5, 7, 10])
def test_commit_requires_current_generation(env, version):
    member_id, generation = member_of(env, "orders")
    assert commit(env, ("orders", 0, 1), member=(member_id, generation, None), version=version) == [
        0
    ]


def test_commit_restarts_session(env):
    member_id, generation = member_of(env, "orders")
    for offset in range(4):
        env.clock.advance(9)
        assert commit(env, ("orders", 0, offset), member=(member_id, generation, None)) == [0]
    env.clock.advance(10.5)
    assert commit(env, ("orders", 0, 9), member=(member_id, generation, None)) == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ]
    assert stored(env).offset == 3


def test_member_error_is_repeated_for_valid_partitions(env):
    member_id, generation = member_of(env, "orders", instance="static")
    rows = [("orders", 0, 1), ("nowhere", 0, 1), ("orders", 1, 1)]

    def codes(*member: Any) -> list[int]:
        return commit(env, *rows, member=member)

    def each(code: ErrorCode) -> list[int]:
        return [code, UNKNOWN_TOPIC_OR_PARTITION, code]

    assert codes("unknown", generation, None) == each(ErrorCode.UNKNOWN_MEMBER_ID)
    assert codes("", -1, None) == each(ErrorCode.UNKNOWN_MEMBER_ID)
    assert codes(member_id, generation + 1, "static") == each(ErrorCode.ILLEGAL_GENERATION)
    assert codes("unknown", generation, "static") == each(ErrorCode.FENCED_INSTANCE_ID)
    assert stored(env) is None
    assert codes(member_id, generation, "static") == each(ErrorCode.NONE)


@pytest.mark.parametrize("version", [0, 1, 2, 9])
def test_commit_without_member_is_refused_if_group_has_members(env, version):
    member_of(env, "orders")
    assert commit(env, ("orders", 0, 1), version=version) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert stored(env) is None


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (2, ErrorCode.ILLEGAL_GENERATION),
        (8, ErrorCode.ILLEGAL_GENERATION),
        (9, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_commit_to_missing_group_depends_on_version(env, version, code):
    assert commit(env, ("orders", 0, 1), member=("me", 3, None), version=version) == [code]


@pytest.mark.parametrize("version", [1, 2, 8, 9, 10])
@pytest.mark.parametrize("instance", [None, "static"])
def test_member_of_group_with_offsets_only_is_unknown(env, version, instance):
    """Kafka's OffsetMetadataManager finds such a group and its validateOffsetCommit no member."""
    commit(env, ("orders", 0, 1))
    assert commit(env, ("orders", 0, 2), member=("me", 3, instance), version=version) == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ]
    assert stored(env).offset == 1


# OffsetFetch


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_returns_offset_in_all_versions(env, version):
    commit(env, ("orders", 1, 6), metadata="mine")
    assert fetch(env, ("orders", 1), ("orders", 0), version=version) == [
        ("orders", 1, 6, "mine", 0),
        ("orders", 0, -1, "", 0),
    ]


@pytest.mark.parametrize("version", range(2, 11))
def test_null_topics_return_all_offsets(env, version):
    commit(env, ("orders", 1, 6), ("orders", 0, 5), ("bills", 0, 7))
    commit(env, ("orders", 0, 9), group="other")
    assert fetch(env, everything=True, version=version) == [
        ("bills", 0, 7, "", 0),
        ("orders", 0, 5, "", 0),
        ("orders", 1, 6, "", 0),
    ]


@pytest.mark.parametrize("version", range(2, 11))
def test_empty_topic_list_returns_nothing(env, version):
    commit(env, ("orders", 1, 6))
    assert fetch(env, version=version) == []


@pytest.mark.parametrize("version", range(1, 10))
def test_missing_partition_has_no_offset_and_no_error(env, version):
    """The same applies to unknown groups: Kafka only looks into its offsets."""
    assert fetch(env, ("nowhere", 3), ("orders", 7), version=version, group="unknown") == [
        ("nowhere", 3, -1, "", 0),
        ("orders", 7, -1, "", 0),
    ]


def test_unknown_topic_id_is_an_error(env):
    assert fetch(env, ("nowhere", 3), version=10) == [("?", 3, -1, "", UNKNOWN_TOPIC_ID)]


@pytest.mark.parametrize("version", range(5, 8))
def test_fetch_returns_leader_epoch(env, version):
    commit(env, ("orders", 0, 6), epoch=4)
    request = OffsetFetchRequest(
        group_id="g",
        topics=[FetchTopic(name="orders", partition_indexes=[0, 1])],
        require_stable=True,
    )
    assert [
        row.committed_leader_epoch for row in call(env, request, version).topics[0].partitions
    ] == [4, -1]


def groups_of(
    env: BrokerEnvironment, *groups: Any, version: int = 8
) -> list[tuple[str, int, list[tuple[str, int]]]]:
    reply = call(env, OffsetFetchRequest(groups=list(groups), require_stable=True), version)
    return [
        (
            one.group_id,
            one.error_code,
            [
                (topic.name, row.committed_offset)
                for topic in one.topics
                for row in topic.partitions
            ],
        )
        for one in reply.groups
    ]


@pytest.mark.parametrize("version", [8, 9])
def test_fetch_returns_offsets_of_several_groups_in_request_order(env, version):
    commit(env, ("orders", 0, 1), group="a")
    commit(env, ("bills", 0, 2), group="b")
    some = [FetchGroupTopic(name="bills", partition_indexes=[0])]
    asking = [
        FetchGroup(group_id=name, topics=topics)
        for name, topics in (("b", None), ("a", some), ("c", None), ("a" * 500, None))
    ]
    assert groups_of(env, *asking, version=version) == [
        ("b", 0, [("bills", 2)]),
        ("a", 0, [("bills", -1)]),
        ("c", 0, []),
        ("a" * 500, 0, []),
    ]


def test_repeated_group_is_refused(env):
    commit(env, ("orders", 0, 1), group="a")
    asking = [FetchGroup(group_id=name, topics=None) for name in ("a", "b", "a")]
    assert groups_of(env, *asking) == [
        ("a", ErrorCode.INVALID_REQUEST, []),
        ("b", 0, []),
        ("a", ErrorCode.INVALID_REQUEST, []),
    ]


def test_repeated_partitions_are_returned_once(env):
    commit(env, ("orders", 0, 1), metadata="m" * 4096)
    topics = [FetchTopic(name="orders", partition_indexes=[0] * 1000)] * 10
    request = OffsetFetchRequest(group_id="g", topics=topics, require_stable=False)
    assert sum(len(topic.partitions) for topic in call(env, request, 7).topics) == 1


# OffsetDelete


def delete(
    env: BrokerEnvironment, *wanted: tuple[str, int], group: str = "g"
) -> tuple[int, list[tuple[str, int, int]]]:
    rows = [
        DeleteTopic(
            name=topic, partitions=[DeleteTopic.OffsetDeleteRequestPartition(partition_index=index)]
        )
        for topic, index in wanted
    ]
    reply = call(env, OffsetDeleteRequest(group_id=group, topics=rows), 0)
    return reply.error_code, [
        (topic.name, row.partition_index, row.error_code)
        for topic in reply.topics
        for row in topic.partitions
    ]


def test_delete_single_partitions(env):
    commit(env, ("orders", 0, 1), ("orders", 1, 1))
    assert delete(env, ("orders", 0), ("bills", 0), ("nowhere", 0)) == (
        0,
        [("orders", 0, 0), ("bills", 0, 0), ("nowhere", 0, UNKNOWN_TOPIC_OR_PARTITION)],
    )
    assert list(env.broker.offsets.of_group("g")) == [("orders", 1)]


def test_offsets_of_subscribed_topic_are_not_deleted(env):
    member_id, generation = member_of(env, "orders")
    commit(env, ("orders", 0, 1), ("bills", 0, 1), member=(member_id, generation, None))
    assert delete(env, ("orders", 0), ("bills", 0)) == (
        0,
        [("orders", 0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("bills", 0, 0)],
    )
    assert list(env.broker.offsets.of_group("g")) == [("orders", 0)]


def test_offsets_of_group_with_other_protocol_type_are_not_deleted(env):
    member_id, generation = member_of(env, kind="connect", metadata=b"what Connect says")
    commit(env, ("orders", 0, 1), member=(member_id, generation, None))
    assert delete(env, ("orders", 0)) == (ErrorCode.NON_EMPTY_GROUP, [])
    assert stored(env) is not None


def test_empty_group_allows_all_deletions(env):
    member_id, generation = member_of(env, "orders")
    commit(env, ("orders", 0, 1), member=(member_id, generation, None))
    env.broker.groups.leave("g", member_id, None, "")
    assert delete(env, ("orders", 0)) == (0, [("orders", 0, 0)])
    # The group still exists, without offsets.
    assert delete(env, ("orders", 0)) == (0, [("orders", 0, 0)])
    assert stored(env) is None


def test_delete_in_unknown_group_is_an_error(env):
    assert delete(env, ("orders", 0), group="unknown") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete(env, ("orders", 0), group="") == (ErrorCode.INVALID_GROUP_ID, [])


def test_failed_deletion_keeps_offsets(env):
    commit(env, ("orders", 0, 1))
    env.store.refuse_writes = True
    assert delete(env, ("orders", 0)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
    assert stored(env) is not None
