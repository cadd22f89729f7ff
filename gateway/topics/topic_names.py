"""Topic names: Kafka's rules, internal and reserved topics.

A store may accept several names for a topic. The last part of each, after any slash, follows
Kafka's rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import Store

MAX_NAME_LENGTH = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")

CONSUMER_OFFSETS = "__consumer_offsets"

#: Kafka's internal topics and their configs in Kafka. Metadata lists them, but they cannot be read:
#: the gateway keeps committed offsets in a table of its store (decision 011).
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

TRAFFIC_TOPIC = "__kopgate_traffic"

#: Topics that clients cannot produce to and that are not created automatically. The traffic topic
#: is not internal: Spark's Kafka source skips internal topics, even if they are named explicitly
#: (ConsumerStrategy).
RESERVED_TOPICS = frozenset({*INTERNAL_TOPICS, TRAFFIC_TOPIC})


class TopicNames:
    """Topic names as the store accepts them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def canonical(self, name: str) -> str:
        """Return the registry's name of the topic.

        Raises KafkaError(INVALID_TOPIC_EXCEPTION).
        """
        last = name.rpartition("/")[2]
        try:
            canonical = self._store.canonical(name)
        except ValueError as failure:
            # Use Kafka's message if Kafka would also refuse the name.
            check_name(name)
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {failure}"
            ) from failure
        check_name(last)
        return canonical


def check_name(name: str) -> None:
    """Refuse an invalid topic name with Kafka's message (org.apache.kafka.common.internals.Topic).

    Raises KafkaError(INVALID_TOPIC_EXCEPTION).
    """
    if _NAME.match(name) and name not in (".", ".."):
        return
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        why = (
            f"the length of '{name[:MAX_NAME_LENGTH]}' is longer than the max allowed length "
            f"{MAX_NAME_LENGTH}"
        )
    else:
        why = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def unify_collision_chars(name: str) -> str:
    """Replace '.' by '_', as in metric names, where both are the same (Topic.unifyCollisionChars).

    Topics with equal results collide. A namespace before the name is unchanged.
    """
    namespace, slash, local = name.rpartition("/")
    return namespace + slash + local.replace(".", "_")
