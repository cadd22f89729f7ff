"""Large requests are processed in slices, between which others are served."""

from __future__ import annotations

import pytest
from kafka.protocol.admin.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafka.protocol.consumer.group import (
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

from gateway.coroutines import CALL_ROWS, MAX_CONCURRENT_CALLS, SLICE_ROWS, TimeSlices
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.handlers.groups import join_group, offset_commit
from gateway.protocol import large_requests as turns_of_requests
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.group_messages import ConsumerGroupDescribeRequest
from tests.fakes.broker import Started, ended, open_environment
from tests.gateway.handlers.groups.group_requests import join_request
from tests.gateway.handlers.handler_calls import decode_response, start_call

NAMES = [f"g{number}" for number in range(3 * SLICE_ROWS + 1)]


def test_many_rows_are_returned_in_several_slices():
    env = open_environment()
    members = [
        LeaveGroupRequest.MemberIdentity(member_id=name, group_instance_id=None, reason=None)
        for name in NAMES
    ]
    for request, version, rows in (
        (DescribeGroupsRequest(groups=NAMES, include_authorized_operations=False), 6, "groups"),
        (
            ConsumerGroupDescribeRequest(group_ids=NAMES, include_authorized_operations=False),
            1,
            "groups",
        ),
        (DeleteGroupsRequest(groups_names=NAMES), 2, "results"),
        (LeaveGroupRequest(group_id="g", members=members), 5, "members"),
    ):
        started = start_call(env, request, version)
        assert not started.is_done
        env.clock.advance(0)
        assert len(getattr(decode_response(request, started.result, version), rows)) == len(NAMES)


def test_all_committed_offsets_are_returned_in_slices():
    env = open_environment()
    for name in ("a", "b", "c"):
        env.topic(name, SLICE_ROWS)
    rows = {
        (name, index): CommittedOffset(1, -1, "", 5)
        for name in ("b", "c", "a")
        for index in reversed(range(SLICE_ROWS))
    }
    ended(env.broker.offsets.commit("g", rows))
    started = start_call(env, OffsetFetchRequest(group_id="g", topics=None), 5)
    assert not started.is_done
    # Offsets deleted meanwhile are not returned.
    topic = env.broker.topics.require("b")
    ended(env.broker.topics.delete(topic))
    ended(env.broker.offsets.delete_topic(topic.topic))
    env.clock.advance(0)
    told = decode_response(OffsetFetchRequest(), started.result, 5).topics
    assert [(topic.name, [row.partition_index for row in topic.partitions]) for topic in told] == [
        ("a", list(range(SLICE_ROWS))),
        ("c", list(range(SLICE_ROWS))),
    ]


def test_few_rows_are_returned_at_once():
    env = open_environment()
    assert start_call(env, DeleteGroupsRequest(groups_names=NAMES[:50]), 2).is_done
    assert start_call(env, ListGroupsRequest(states_filter=[], types_filter=[]), 5).is_done


def test_calls_of_one_request_are_limited_in_concurrency():
    async def work(n):
        begun.append(n)
        return n

    env, begun = open_environment(), []
    pauses = pauses_of(env)
    count = 10 * MAX_CONCURRENT_CALLS + 1
    assert ended_in_turns(env, TimeSlices(env.clock).gather(work(n) for n in range(count))) == list(
        range(count)
    )
    assert len(pauses) == count * CALL_ROWS // SLICE_ROWS
    assert begun == list(range(count))


def pauses_of(env):
    """The clock's calls without a delay: each one yields to the reactor."""
    pauses = []
    call_later = env.clock.callLater

    def noted(delay, call, *arguments):
        if not delay:
            pauses.append(call)
        return call_later(delay, call, *arguments)

    env.clock.callLater = noted
    return pauses


def ended_in_turns(env, work):
    started = Started(work)
    env.clock.advance(0)
    return started.result


def altered(names, kind=IncrementalAlterConfigsRequest, **more):
    resource = kind.AlterConfigsResource
    configs = [resource.AlterableConfig(name="retention.ms", value="1", **more)]
    return kind(
        resources=[
            resource(resource_type=2, resource_name=name, configs=configs) for name in names
        ],
        validate_only=False,
    )


#: Requests that change or describe many topics: request, version, field of the reply.
ABOUT_TOPICS = {
    "incremental": lambda names: (altered(names, config_operation=0), 1, "responses"),
    "alter": lambda names: (altered(names, AlterConfigsRequest), 2, "responses"),
    "create": lambda names: (
        CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
                )
                for name in names
            ],
            timeout_ms=1,
            validate_only=True,
        ),
        7,
        "topics",
    ),
    "delete": lambda names: (
        DeleteTopicsRequest(
            topics=[
                DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None) for name in names
            ],
            timeout_ms=1,
        ),
        6,
        "responses",
    ),
    "partitions": lambda names: (
        CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None)
                for name in names
            ],
            timeout_ms=1,
            validate_only=False,
        ),
        3,
        "results",
    ),
    "describe": lambda names: (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name=name, configuration_keys=None
                )
                for name in names
            ],
            include_synonyms=False,
            include_documentation=False,
        ),
        4,
        "results",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("request_of", ABOUT_TOPICS.values(), ids=ABOUT_TOPICS.keys())
def test_large_admin_request_yields_to_reactor(request_of):
    env = open_environment()
    request, version, rows = request_of(NAMES)
    pauses = pauses_of(env)
    started = start_call(env, request, version)
    env.clock.advance(0)
    assert len(pauses) >= len(NAMES) // SLICE_ROWS
    assert [
        row.error_code for row in getattr(decode_response(request, started.result, version), rows)
    ] == [0 if "CreateTopics" in type(request).__name__ else 3] * len(NAMES)


@pytest.mark.parametrize(
    "request_of", [made for name, made in ABOUT_TOPICS.items() if name != "describe"]
)
def test_request_with_too_many_changes_changes_nothing(request_of, monkeypatch):
    monkeypatch.setattr(turns_of_requests, "MAX_CHANGES", 2)
    env = open_environment()
    request, version, rows = request_of(["a", "b", "c"])
    reply = decode_response(request, start_call(env, request, version).result, version)
    assert [row.error_code for row in getattr(reply, rows)] == [44] * 3
    request, version, rows = request_of(["a", "b"])
    assert 44 not in [
        row.error_code
        for row in getattr(
            decode_response(request, start_call(env, request, version).result, version), rows
        )
    ]


def test_commit_with_too_many_offsets_is_refused(monkeypatch):
    monkeypatch.setattr(offset_commit, "MAX_OFFSETS_PER_COMMIT", 2)
    env = open_environment()
    env.topic("orders", 3)

    def commit(partitions):
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        rows = [
            topic.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=1,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            for index in range(partitions)
        ]
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic(name="orders", partitions=rows)],
        )
        reply = decode_response(request, start_call(env, request, 8).result, 8)
        return [row.error_code for row in reply.topics[0].partitions]

    assert commit(3) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 3
    assert len(env.broker.offsets) == 0
    assert commit(2) == [0, 0]


def test_join_with_too_many_protocols_is_refused(monkeypatch):
    monkeypatch.setattr(join_group, "MAX_PROTOCOLS", 1)
    env = open_environment()
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    many = join_request(
        protocols=[protocol(name=name, metadata=b"") for name in ("range", "sticky")]
    )
    for version in (0, 6, 9):
        assert (
            decode_response(many, start_call(env, many, version).result, version).error_code
            == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )


def test_request_with_too_many_configs_is_refused(monkeypatch):
    monkeypatch.setattr(turns_of_requests, "MAX_CONFIGS", 1)
    env = open_environment()
    env.topic("orders")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=name, config_operation=0, value="1")
        for name in ("retention.ms", "retention.bytes")
    ]
    for count, code in ((2, ErrorCode.POLICY_VIOLATION), (1, 0)):
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=2, resource_name="orders", configs=configs[:count])],
            validate_only=False,
        )
        assert (
            decode_response(request, start_call(env, request, 1).result, 1).responses[0].error_code
            == code
        )
        topic = CreateTopicsRequest.CreatableTopic
        rows = [
            topic.CreatableTopicConfig(name=config.name, value=config.value)
            for config in configs[:count]
        ]
        made = topic(
            name=f"new-{count}",
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=rows,
        )
        creation = CreateTopicsRequest(topics=[made], timeout_ms=1, validate_only=False)
        assert (
            decode_response(creation, start_call(env, creation, 7).result, 7).topics[0].error_code
            == code
        )
