"""Parsing of consumer protocol subscriptions and assignments, including malformed bytes."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from gateway.groups.classic.subscription import (
    MAX_ELEMENTS,
    encode_assignment,
    parse_assignment,
    parse_subscription,
    subscribed_topics,
)

PARTITIONS = {"orders": frozenset({0, 2}), "größe": frozenset({1})}


@pytest.mark.parametrize("version", range(4))
def test_subscribed_topics_of_all_members_in_any_version(version):
    metadata = [
        bytes(
            ConsumerProtocolSubscription(version=version, topics=topics, user_data=b"x").encode(
                version=version
            )
        )
        for topics in (["orders", "bills"], ["bills", "größe"], [])
    ]
    assert subscribed_topics(metadata) == {"orders", "bills", "größe"}


def test_subscribed_topics_of_other_format_are_unknown():
    assert subscribed_topics([b"\0\0\0\0\0\0", b"not a subscription"]) is None


def test_subscribed_topics_of_no_members_are_empty():
    assert subscribed_topics([]) == frozenset()


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda rest: b"\0\1\0\0\0\2" + rest))
def test_subscribed_topics_of_any_bytes_do_not_raise(metadata):
    topics = subscribed_topics([metadata])
    assert topics is None or all(isinstance(topic, str) for topic in topics)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xff\xff\0\0\0\0",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\x7f\xffab",
        b"\0\0\0\0\0\1\0\1\xff",
    ],
)
def test_array_length_beyond_message_is_malformed(metadata):
    assert subscribed_topics([metadata]) is None


@pytest.mark.parametrize("version", range(4))
def test_subscription_has_topics_owned_partitions_and_rack(version):
    row = ConsumerProtocolSubscription.TopicPartition
    owned = [row(topic=topic, partitions=sorted(indexes)) for topic, indexes in PARTITIONS.items()]
    said = ConsumerProtocolSubscription(
        version=version,
        topics=["orders"],
        user_data=b"x",
        owned_partitions=owned,
        generation_id=7,
        rack_id="r1",
    )
    read = parse_subscription(bytes(said.encode(version=version)))
    assert read.topics == {"orders"}
    assert read.owned == (PARTITIONS if version >= 1 else {})
    assert read.rack_id == ("r1" if version >= 3 else None)


def test_newer_subscription_version_is_parsed_as_newest_known():
    said = ConsumerProtocolSubscription(
        version=3,
        topics=["orders"],
        user_data=None,
        owned_partitions=[],
        generation_id=-1,
        rack_id=None,
    )
    later = b"\0\x09" + bytes(said.encode(version=3))[2:] + b"more"
    assert parse_subscription(later).topics == {"orders"}


def test_missing_trailing_fields_are_unset():
    said = ConsumerProtocolSubscription(version=0, topics=["orders"], user_data=b"x")
    assert parse_subscription(b"\0\1" + bytes(said.encode(version=0))[2:]).owned == {}


@pytest.mark.parametrize("version", range(4))
def test_encoded_assignment_equals_codec_output(version):
    row = ConsumerProtocolAssignment.TopicPartition
    rows = [
        row(topic=topic, partitions=sorted(indexes))
        for topic, indexes in sorted(PARTITIONS.items())
    ]
    codec = ConsumerProtocolAssignment(version=version, assigned_partitions=rows, user_data=None)
    on_stored = encode_assignment(PARTITIONS, version.to_bytes(2, "big") + b"the rest of it")
    assert on_stored == bytes(codec.encode(version=version))
    assert parse_assignment(on_stored) == (PARTITIONS, b"")


def test_user_data_of_assignment_is_returned():
    codec = ConsumerProtocolAssignment(version=1, assigned_partitions=[], user_data=b"notes")
    assert parse_assignment(bytes(codec.encode(version=1))) == ({}, b"notes")


def test_empty_assignment_has_no_partitions():
    assert parse_assignment(b"") == ({}, b"")


@given(
    st.binary(max_size=80) | st.binary(max_size=40).map(lambda rest: b"\0\1\0\0\0\1\0\1a" + rest)
)
def test_any_bytes_are_parsed_or_raise_value_error(message):
    for read in (parse_subscription, parse_assignment):
        try:
            read(message)
        except ValueError:
            continue


def naming(topics: int, tag: str = "") -> bytes:
    names = [f"{tag}{number:x}".encode() for number in range(topics)]
    return (
        pack(">hi", 0, topics)
        + b"".join(pack(">h", len(name)) + name for name in names)
        + pack(">i", -1)
    )


def test_subscribed_topics_beyond_limit_are_unknown():
    half = MAX_ELEMENTS // 2
    assert len(subscribed_topics([naming(half, "a"), naming(half, "b")]) or ()) == MAX_ELEMENTS
    assert subscribed_topics([naming(half, "a"), naming(half, "b"), naming(1)]) is None
    assert len(parse_subscription(naming(MAX_ELEMENTS)).topics) == MAX_ELEMENTS
    with pytest.raises(ValueError, match="too many"):
        parse_subscription(naming(MAX_ELEMENTS + 1))
