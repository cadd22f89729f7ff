"""The messages of KIP-848 consumer groups, which kafka-python lacks.

Its codec reads the definitions in `schemas` (docs/decisions/012).
"""

from __future__ import annotations

from typing import Any, ClassVar

from kafka.protocol.api_message import ApiMessage

from gateway.protocol.wire import schemas

_OURS = schemas.__name__


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_OURS):
    """v1 adds the regular expression of a subscription, and member ids chosen by the client
    (KIP-1082).
    """

    TopicPartitions: ClassVar[Any]


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_OURS):
    """`assignment` is None if the member has it already.

    Otherwise its rows are `Assignment.TopicPartitions`.
    """

    Assignment: ClassVar[Any]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_OURS):
    """The same in both versions."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_OURS):
    """v1 adds the type of each member: -1 unknown, 0 classic, 1 consumer (KIP-1099)."""

    DescribedGroup: ClassVar[Any]
