"""Encoding of the messages between nodes and the controller."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.cluster_messages import (
    HeartbeatReply,
    NodeHeartbeat,
    decode_message,
    encode_message,
)
from gateway.cluster.image import NodeRow

NODE = NodeRow(7, "p1", 5, {"SASL": ("h", 9092)})


@pytest.mark.parametrize(
    "message",
    [NodeHeartbeat(NODE, 3, ((1, 4),), ((2, 9),), True), HeartbeatReply("p1", 3, 2, True, 2.5)],
)
def test_message_is_read_as_written(message):
    assert decode_message(encode_message(message)) == message


def test_message_of_a_newer_version_is_read_without_its_new_fields():
    data = msgspec.msgpack.encode([2, "p1", 3, 2, True, 2.5, "new"])
    assert decode_message(data) == HeartbeatReply("p1", 3, 2, True, 2.5)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_ignored(data):
    message = decode_message(data)
    assert message is None or isinstance(message, NodeHeartbeat | HeartbeatReply)
