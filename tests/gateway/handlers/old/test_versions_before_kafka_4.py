"""Versions that Kafka 4 removed but old clients send.

kafka-python has no schemas for them either. The bytes are hand-written from the message definitions
of Kafka 3.9.
"""

from __future__ import annotations

from struct import pack

import pytest

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.api_keys import ApiKey
from storage.log import Entry
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.handler_calls import append_entries


def text(value: str | None) -> bytes:
    return pack(">h", -1) if value is None else pack(">h", len(value)) + value.encode()


def array(*items: bytes) -> bytes:
    return pack(">i", len(items)) + b"".join(items)


@pytest.fixture
def env() -> BrokerEnvironment:
    """A topic `orders` with offsets 0 and 1 in the first of its two partitions."""
    env = open_environment()
    env.topic("orders", 2, retention_ms="5")
    append_entries(env.partition(), Entry(0, 1, 1000, b"some records"))
    return env


def answer(env: BrokerEnvironment, key: ApiKey, version: int, request: bytes) -> bytes:
    route = ROUTES[key, version]
    assert not route.has_tagged_header
    reply = ended(route.handler(route.decode(bytearray(request), 0, version), env.caller(version)))
    return b"".join(map(bytes, route.encode(reply, version)))


# Name, partitions, replication factor, assignments (partition, brokers), configs (name, value).
NEW = text("new") + pack(">ih", 3, 1) + array() + array(text("retention.ms") + text("7"))
ASSIGNED = (
    text("assigned") + pack(">ih", -1, -1) + array(pack(">i", 0) + array(pack(">i", 0))) + array()
)
BAD = text("bad") + pack(">ih", 0, 1) + array() + array()
WHY = "Number of partitions was set to an invalid non-positive value."


def test_create_topics_v0(env: BrokerEnvironment) -> None:
    request = array(NEW, ASSIGNED, BAD) + pack(">i", 1000)
    expected = array(
        text("new") + pack(">h", 0), text("assigned") + pack(">h", 0), text("bad") + pack(">h", 37)
    )
    assert answer(env, ApiKey.CREATE_TOPICS, 0, request) == expected
    made = env.broker.topics.require("new").topic
    assert (made.partitions, dict(made.configs)) == (3, {"retention.ms": "7"})


def test_create_topics_v1_validates_only_with_message(env: BrokerEnvironment) -> None:
    request = array(NEW, BAD) + pack(">i?", 1000, True)
    expected = array(
        text("new") + pack(">h", 0) + text(None), text("bad") + pack(">h", 37) + text(WHY)
    )
    assert answer(env, ApiKey.CREATE_TOPICS, 1, request) == expected
    assert env.broker.topics.get("new") is None


def test_create_topics_v2_starts_with_throttle_time(env: BrokerEnvironment) -> None:
    expected = pack(">i", 0) + array(text("bad") + pack(">h", 37) + text(WHY))
    assert answer(env, ApiKey.CREATE_TOPICS, 2, array(BAD) + pack(">i?", 1000, False)) == expected


def test_delete_topics_v0(env: BrokerEnvironment) -> None:
    request = array(text("orders")) + pack(">i", 1000)
    assert answer(env, ApiKey.DELETE_TOPICS, 0, request) == array(text("orders") + pack(">h", 0))


def test_describe_configs_v0_has_is_default(env: BrokerEnvironment) -> None:
    keys = array(text("retention.ms"), text("preallocate"))
    expected = array(
        pack(">h", 0)
        + text("")
        + pack(">b", 2)
        + text("orders")
        # Name, value, read-only, is default, sensitive.
        + array(
            text("preallocate") + text("false") + b"\0\1\0",
            text("retention.ms") + text("5") + b"\0\0\0",
        )
    )
    assert (
        answer(env, ApiKey.DESCRIBE_CONFIGS, 0, array(pack(">b", 2) + text("orders") + keys))
        == pack(">i", 0) + expected
    )


def test_describe_configs_v1_has_sources_and_synonyms(env: BrokerEnvironment) -> None:
    request = (
        array(pack(">b", 2) + text("orders") + array(text("retention.ms"), text("retention.bytes")))
        + b"\1"
    )
    # Source 1 is the topic, 5 the default.
    unlimited = (
        text("retention.bytes")
        + text("-1")
        + b"\0\5\0"
        + array(text("log.retention.bytes") + text("-1") + b"\5")
    )
    limited = (
        text("retention.ms")
        + text("5")
        + b"\0\1\0"
        + array(text("retention.ms") + text("5") + b"\1")
    )
    expected = pack(">i", 0) + array(
        pack(">h", 0) + text("") + pack(">b", 2) + text("orders") + array(unlimited, limited)
    )
    assert answer(env, ApiKey.DESCRIBE_CONFIGS, 1, request) == expected


def test_describe_log_dirs_v0(env: BrokerEnvironment) -> None:
    request = array(text("orders") + array(pack(">i", 0)))
    partition = pack(">iqqb", 0, len(b"some records"), 0, 0)
    expected = pack(">i", 0) + array(
        pack(">h", 0) + text("memory") + array(text("orders") + array(partition))
    )
    assert answer(env, ApiKey.DESCRIBE_LOG_DIRS, 0, request) == expected


def test_list_offsets_v0_returns_arrays(env: BrokerEnvironment) -> None:
    # Replica; topic, partition, time, maximum number of offsets.
    request = pack(">i", -1) + array(text("orders") + array(pack(">iqi", 0, -1, 2)))
    expected = array(
        text("orders") + array(pack(">ih", 0, 0) + array(pack(">q", 2), pack(">q", 0)))
    )
    assert answer(env, ApiKey.LIST_OFFSETS, 0, request) == expected


@pytest.mark.parametrize(("version", "epoch"), [(0, b""), (1, pack(">i", 0))])
def test_offset_for_leader_epoch_v0_and_v1(
    env: BrokerEnvironment, version: int, epoch: bytes
) -> None:
    request = array(text("orders") + array(pack(">ii", 0, 0)))
    expected = array(text("orders") + array(pack(">hi", 0, 0) + epoch + pack(">q", 2)))
    assert answer(env, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request) == expected


def test_metadata_v0(env: BrokerEnvironment) -> None:
    broker = pack(">i", 0) + text("127.0.0.1") + pack(">i", 9092)
    partitions = [
        pack(">hii", 0, index, 0) + array(pack(">i", 0)) + array(pack(">i", 0)) for index in (0, 1)
    ]
    expected = array(broker) + array(pack(">h", 0) + text("orders") + array(*partitions))
    assert answer(env, ApiKey.METADATA, 0, array()) == expected


def test_offset_commit_v0_has_no_member(env: BrokerEnvironment) -> None:
    # Group; topic, partition, offset, metadata.
    request = text("g") + array(text("orders") + array(pack(">iq", 1, 7) + text("mine")))
    expected = array(text("orders") + array(pack(">ih", 1, 0)))
    assert answer(env, ApiKey.OFFSET_COMMIT, 0, request) == expected
    assert env.broker.offsets.get("g", "orders", 1) == CommittedOffset(7, -1, "mine", NOW)


def test_offset_commit_v1_has_member_and_timestamps(env: BrokerEnvironment) -> None:
    rows = array(pack(">iqq", 1, 7, 1234) + text(None), pack(">iqq", 2, 7, 1234) + text(None))
    request = text("g") + pack(">i", -1) + text("") + array(text("orders") + rows)
    expected = array(text("orders") + array(pack(">ih", 1, 0), pack(">ih", 2, 3)))
    assert answer(env, ApiKey.OFFSET_COMMIT, 1, request) == expected
    assert env.broker.offsets.get("g", "orders", 1) == CommittedOffset(7, -1, "", 1234)


def test_offset_fetch_v0(env: BrokerEnvironment) -> None:
    answer(
        env,
        ApiKey.OFFSET_COMMIT,
        0,
        text("g") + array(text("orders") + array(pack(">iq", 1, 7) + text("mine"))),
    )
    request = text("g") + array(text("orders") + array(pack(">i", 0), pack(">i", 1)))
    rows = array(
        pack(">iq", 0, -1) + text("") + pack(">h", 3),
        pack(">iq", 1, 7) + text("mine") + pack(">h", 0),
    )
    assert answer(env, ApiKey.OFFSET_FETCH, 0, request) == array(text("orders") + rows)
