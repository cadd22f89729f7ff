"""Of what consumers say to each other, the topics are read, and whatever else it is, it does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from gateway.groups.subscription import subscribed_topics


@pytest.mark.parametrize("version", range(4))
def test_the_topics_of_all_members_are_read_whatever_the_version(version):
    metadata = [
        bytes(ConsumerProtocolSubscription(version=version, topics=topics, user_data=b"x").encode(version=version))
        for topics in (["orders", "bills"], ["bills", "größe"], [])
    ]
    assert subscribed_topics(metadata) == {"orders", "bills", "größe"}


def test_members_of_another_layout_cannot_be_told():
    assert subscribed_topics([b"\0\0\0\0\0\0", b"not a subscription"]) is None


def test_nobody_subscribes_to_nothing():
    assert subscribed_topics([]) == frozenset()


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda rest: b"\0\1\0\0\0\2" + rest))
def test_any_bytes_are_topics_or_nothing(metadata):
    topics = subscribed_topics([metadata])
    assert topics is None or all(isinstance(topic, str) for topic in topics)


@pytest.mark.parametrize(
    "metadata", [b"", b"\xff\xff\0\0\0\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\x7f\xffab", b"\0\0\0\0\0\1\0\1\xff"]
)
def test_what_claims_more_than_is_there_is_no_subscription(metadata):
    assert subscribed_topics([metadata]) is None
