"""The messages of KIP-848, byte for byte.

`tests/peers/test_definitions.py` compares the definitions with Kafka's.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import Refused
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
)
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION, REQUESTS, decode, encode
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.flexible import array, int16, int32, text
from tests.gateway.protocol.wire.values import int32s, texts, topic_ids

HEARTBEAT = REQUESTS[ApiKey.CONSUMER_GROUP_HEARTBEAT]
DESCRIBE = REQUESTS[ApiKey.CONSUMER_GROUP_DESCRIBE]
NULL = b"\0"
NO_TAGS = b"\0"

versions = st.integers(0, 1)
maybe_texts = st.none() | texts
#: Partitions by topic id.
owned = st.lists(st.tuples(topic_ids, st.lists(int32s, max_size=4)), max_size=3)


def partitions_of(rows, name=b""):
    return array(
        [
            topic_id.bytes + name + array([int32(index) for index in indexes]) + NO_TAGS
            for topic_id, indexes in rows
        ]
    )


def read(request, body, version):
    return decode(request, bytearray(body), 0, version)


@given(
    version=versions,
    group=texts,
    member=texts,
    epoch=int32s,
    instance=maybe_texts,
    rack=maybe_texts,
    timeout=int32s,
    names=st.none() | st.lists(texts, max_size=3),
    regex=maybe_texts,
    assignor=maybe_texts,
    rows=st.none() | owned,
    unknown=st.dictionaries(st.integers(0, 300), st.binary(max_size=20), max_size=2),
)
def test_heartbeat_layout_matches_kafka(
    version, group, member, epoch, instance, rack, timeout, names, regex, assignor, rows, unknown
):
    body = text(group) + text(member) + int32(epoch) + text(instance) + text(rack) + int32(timeout)
    body += NULL if names is None else array([text(name) for name in names])
    body += text(regex) if version else b""
    body += (
        text(assignor) + (NULL if rows is None else partitions_of(rows)) + flexible.tags(unknown)
    )
    request = read(HEARTBEAT, body, version)
    assert (request.group_id, request.member_id, request.member_epoch) == (group, member, epoch)
    assert (request.instance_id, request.rack_id, request.rebalance_timeout_ms) == (
        instance,
        rack,
        timeout,
    )
    assert (request.subscribed_topic_names, request.server_assignor) == (names, assignor)
    assert request.subscribed_topic_regex == (regex if version else None)
    found = request.topic_partitions
    assert rows == (None if found is None else [(row.topic_id, row.partitions) for row in found])


@given(
    version=versions,
    code=st.integers(-1, 200),
    message=maybe_texts,
    member=maybe_texts,
    epoch=int32s,
    interval=int32s,
    rows=st.none() | owned,
)
def test_heartbeat_response_layout_matches_kafka(
    version, code, message, member, epoch, interval, rows
):
    assignment = ConsumerGroupHeartbeatResponse.Assignment
    reply = ConsumerGroupHeartbeatResponse(
        error_code=code,
        error_message=message,
        member_id=member,
        member_epoch=epoch,
        heartbeat_interval_ms=interval,
        assignment=None
        if rows is None
        else assignment(
            topic_partitions=[
                assignment.TopicPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in rows
            ]
        ),
    )
    body = int32(0) + int16(code) + text(message) + text(member) + int32(epoch) + int32(interval)
    body += b"\xff" if rows is None else b"\x01" + partitions_of(rows) + NO_TAGS
    assert encode(reply, version) == body + NO_TAGS


@given(version=versions, groups=st.lists(texts, max_size=4), operations=st.booleans())
def test_describe_request_layout_matches_kafka(version, groups, operations):
    request = read(
        DESCRIBE, array([text(group) for group in groups]) + bytes([operations]) + NO_TAGS, version
    )
    assert (request.group_ids, request.include_authorized_operations) == (groups, operations)


@pytest.mark.parametrize("version", [0, 1])
@given(name=texts, instance=maybe_texts, regex=maybe_texts, current=owned, target=owned)
def test_describe_response_layout_matches_kafka(version, name, instance, regex, current, target):
    group = ConsumerGroupDescribeResponse.DescribedGroup
    member = group.Member

    def assigned(rows):
        row = member.Assignment.TopicPartitions
        return member.Assignment(
            topic_partitions=[
                row(topic_id=topic_id, topic_name=name, partitions=indexes)
                for topic_id, indexes in rows
            ]
        )

    reply = ConsumerGroupDescribeResponse(
        groups=[
            group(
                error_code=0,
                group_id="orders",
                group_state="Stable",
                group_epoch=7,
                assignment_epoch=6,
                assignor_name="uniform",
                members=[
                    member(
                        member_id="m",
                        instance_id=instance,
                        rack_id=None,
                        member_epoch=5,
                        client_id="c",
                        client_host="/127.0.0.1",
                        subscribed_topic_names=[name],
                        subscribed_topic_regex=regex,
                        assignment=assigned(current),
                        target_assignment=assigned(target),
                        member_type=1,
                    )
                ],
                authorized_operations={3, 6, 8},
            )
        ]
    )
    row = (
        text("m")
        + text(instance)
        + text(None)
        + int32(5)
        + text("c")
        + text("/127.0.0.1")
        + array([text(name)])
        + text(regex)
    )
    row += (
        partitions_of(current, text(name))
        + NO_TAGS
        + partitions_of(target, text(name))
        + NO_TAGS
        + b"\x01" * version
        + NO_TAGS
    )
    head = (
        int16(0)
        + text(None)
        + text("orders")
        + text("Stable")
        + int32(7)
        + int32(6)
        + text("uniform")
    )
    # Operations are bits: 1 << 3 | 1 << 6 | 1 << 8.
    assert (
        encode(reply, version)
        == int32(0) + array([head + array([row]) + int32(328) + NO_TAGS]) + NO_TAGS
    )


def test_row_of_missing_group_needs_only_its_error():
    row = ConsumerGroupDescribeResponse.DescribedGroup(error_code=69, group_id="g")
    expected = (
        int16(69)
        + text(None)
        + text("g")
        + text("")
        + int32(0)
        + int32(0)
        + text("")
        + array([])
        + int32(-(2**31))
        + NO_TAGS
    )
    assert (
        encode(ConsumerGroupDescribeResponse(groups=[row]), 1)
        == int32(0) + array([expected]) + NO_TAGS
    )


@pytest.mark.parametrize(
    "body",
    [
        text(None) + text("m") + int32(0) + NULL * 2 + int32(-1) + NULL * 4 + NO_TAGS,  # no group
        text("g") + text(None) + int32(0) + NULL * 2 + int32(-1) + NULL * 4 + NO_TAGS,
        text("g")
        + text("m")
        + int32(0)
        + NULL * 2
        + int32(-1)
        + array([text(None)])
        + NULL * 3
        + NO_TAGS,  # a topic without a name
        text("g")
        + text("m")
        + int32(0)
        + NULL * 2
        + int32(-1)
        + NULL * 3
        + array([bytes(16) + NULL + NO_TAGS])
        + NO_TAGS,
    ],
)
def test_null_in_non_nullable_field_is_refused(body):
    with pytest.raises(Refused, match="null"):
        read(HEARTBEAT, body, 1)


def test_every_version_is_flexible():
    assert (
        FIRST_FLEXIBLE_VERSION[ApiKey.CONSUMER_GROUP_HEARTBEAT]
        == FIRST_FLEXIBLE_VERSION[ApiKey.CONSUMER_GROUP_DESCRIBE]
        == 0
    )
