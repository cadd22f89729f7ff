"""What topics may be called. A store may know a topic by several names; the last part of each, after any slash, follows Kafka's rules."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import Store

MAX_NAME_LENGTH = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")

CONSUMER_OFFSETS = "__consumer_offsets"

#: Kafka's internal topics, with the configs that Kafka gives them. Clients find them in Metadata and cannot read them: the gateway keeps committed
#: offsets in a table of its own (decision 011).
INTERNAL_TOPICS: Mapping[str, Mapping[str, str]] = {
    CONSUMER_OFFSETS: {
        "compression.type": "producer",
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
    },
    "__transaction_state": {
        "compression.type": "uncompressed",
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
    },
}

#: Partitions of an internal topic: Kafka's default of offsets.topic.num.partitions and transaction.state.log.num.partitions.
INTERNAL_PARTITIONS = 50

TRAFFIC_TOPIC = "__kopgate_traffic"

#: No client produces into these, nor are they made because one names them. The log of the traffic is no internal topic: Spark's Kafka source reads none of
#: those, even by its name (ConsumerStrategy).
RESERVED_TOPICS = frozenset({*INTERNAL_TOPICS, TRAFFIC_TOPIC})


class TopicNames:
    """The names that a store takes for its topics."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def canonical(self, name: str) -> str:
        """The name that the topic has in the registry, of those that it may be called by. Raises KafkaError(INVALID_TOPIC_EXCEPTION)."""
        last = name.rpartition("/")[2]
        try:
            canonical = self._store.canonical(name)
        except ValueError as failure:
            # In Kafka's words where Kafka would refuse it, too.
            check_name(name)
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {failure}"
            ) from failure
        check_name(last)
        return canonical


def check_name(name: str) -> None:
    """Raises KafkaError(INVALID_TOPIC_EXCEPTION), in Kafka's words, for a name that Kafka would refuse (org.apache.kafka.common.internals.Topic)."""
    if _NAME.match(name) and name not in (".", ".."):
        return
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        why = f"the length of '{name[:MAX_NAME_LENGTH]}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    else:
        why = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def unify_collision_chars(name: str) -> str:
    """What two names have in common that would collide in the names of metrics, where '.' and '_' are the same (Topic.unifyCollisionChars)."""
    return name.replace(".", "_")
