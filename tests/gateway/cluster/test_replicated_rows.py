"""Rows of the whole cluster that another gateway wrote take effect here."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import pytest

from auth.mechanism import Principal
from gateway.coroutines import TimeSlices
from gateway.security.acls import (
    AclBinding,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
)
from gateway.security.authorizer import AclAuthorizer
from gateway.security.scram_credentials import Deletion, Upsertion
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import MemoryTable

READ_ORDERS = AclBinding(
    AclResource.TOPIC,
    "orders",
    AclPattern.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermission.ALLOW,
)
TABLES = ["acls", "scram-credentials", "client-quotas", "broker-configs", "group-configs"]


class Pair:
    """A gateway that writes rows, and one that applies them."""

    def __init__(self) -> None:
        options: dict[str, Any] = {"authorizer": "acls", "super_users": "User:admin", "node_id": 1}
        self.writer, self.follower = (open_environment(**options) for _ in range(2))

    def replay(self) -> None:
        """Apply all changes of the writer's tables to the follower."""
        for name in TABLES:
            source: dict[bytes, bytes] = self.writer.store.medium.tables.get(name, {})
            known = self.follower.store.medium.tables.get(name, {})
            rows: dict[bytes, bytes | None] = dict.fromkeys(known)
            rows.update(source)
            ended(self.follower.store.table(name)).outside(rows)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    assert made.writer.bugs == made.follower.bugs == []


def authorizer_of(env: BrokerEnvironment) -> AclAuthorizer:
    assert isinstance(env.broker.authorizer, AclAuthorizer)
    return env.broker.authorizer


def may_read(env: BrokerEnvironment) -> bool:
    alice = Principal("User", "alice")
    return authorizer_of(env).authorize(
        alice, "10.0.0.1", AclOperation.READ, AclResource.TOPIC, "orders"
    )


def test_acls_of_another_gateway_decide(pair: Pair) -> None:
    slices = TimeSlices(pair.writer.clock)
    assert not may_read(pair.follower)
    versions = [authorizer_of(pair.follower).version]
    ended(authorizer_of(pair.writer).add([READ_ORDERS], slices))
    pair.replay()
    assert may_read(pair.follower)
    assert authorizer_of(pair.follower).bindings() == [READ_ORDERS]
    versions.append(authorizer_of(pair.follower).version)
    ended(authorizer_of(pair.writer).remove([READ_ORDERS], slices))
    pair.replay()
    assert not may_read(pair.follower)
    assert authorizer_of(pair.follower).bindings() == []
    versions.append(authorizer_of(pair.follower).version)
    assert versions == sorted(set(versions))


def test_acl_of_another_gateway_can_be_removed_here(pair: Pair) -> None:
    slices = TimeSlices(pair.writer.clock)
    ended(authorizer_of(pair.writer).add([READ_ORDERS], slices))
    pair.replay()
    ended(authorizer_of(pair.follower).remove([READ_ORDERS], slices))
    assert not may_read(pair.follower)
    assert pair.follower.store.medium.tables["acls"] == {}


def test_rows_written_here_can_be_deleted_by_another_gateway(pair: Pair) -> None:
    """The controller moved to another gateway."""
    pair.follower.set_quota("producer_byte_rate", 1024, user="alice")
    ended(authorizer_of(pair.follower).add([READ_ORDERS], TimeSlices(pair.writer.clock)))
    assert may_read(pair.follower)
    pair.replay()
    assert not pair.follower.broker.client_quotas.is_active
    assert not may_read(pair.follower)


def test_own_rows_may_be_reported_before_their_put_ends(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata log reports the puts of its writer, too."""
    put = MemoryTable.put

    def put_and_report(table: MemoryTable, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        table.outside(rows)
        return put(table, rows)

    monkeypatch.setattr(MemoryTable, "put", put_and_report)
    quotas = pair.follower.broker.client_quotas
    for value in (1024, None):
        pair.follower.set_quota("producer_byte_rate", value, user="alice")
        assert quotas.is_active is (value is not None)
    slices = TimeSlices(pair.writer.clock)
    ended(authorizer_of(pair.follower).add([READ_ORDERS], slices))
    assert authorizer_of(pair.follower).bindings() == [READ_ORDERS]
    ended(authorizer_of(pair.follower).remove([READ_ORDERS], slices))
    assert authorizer_of(pair.follower).bindings() == []


def test_scram_credentials_of_another_gateway_are_found(pair: Pair) -> None:
    here, there = pair.follower.broker.scram_credentials, pair.writer.broker.scram_credentials
    added = Upsertion("alice", 1, 8192, b"salt", b"s" * 32)
    ended(there.alter([], [added]))
    pair.replay()
    assert here.find("SCRAM-SHA-256", "alice") == there.find("SCRAM-SHA-256", "alice") is not None
    # The same decoys, because a client could compare those of two gateways.
    assert here.decoy("SCRAM-SHA-256", "bob") == there.decoy("SCRAM-SHA-256", "bob")
    ended(there.alter([Deletion("alice", 1)], []))
    pair.replay()
    assert here.find("SCRAM-SHA-256", "alice") is None
    assert len(here) == 0


def test_quotas_of_another_gateway_apply(pair: Pair) -> None:
    quotas, usage = pair.follower.broker.client_quotas, pair.follower.broker.quota_usage
    client = usage.client("alice", "app")
    assert not client.is_limited
    pair.writer.set_quota("producer_byte_rate", 1024, user="alice")
    pair.replay()
    assert quotas.is_active
    assert quotas.find("producer_byte_rate", "alice", "app") == (1024, ("alice", ""))
    assert usage.version != client.version
    assert usage.client("alice", "app").is_limited
    pair.writer.set_quota("producer_byte_rate", None, user="alice")
    pair.replay()
    assert not quotas.is_active
    assert not usage.client("alice", "app").is_limited


@pytest.mark.parametrize("resource", ["", "1"])
def test_broker_configs_of_another_gateway_are_put_in_force(pair: Pair, resource: str) -> None:
    seen = []
    pair.follower.broker.configs.watch(lambda settings: seen.append(settings.message_max_bytes))
    there = pair.writer.broker.configs
    pair.follower.topic("orders")
    ended(there.alter(resource, lambda _: {"message.max.bytes": "2000"}, validate_only=False))
    pair.replay()
    assert pair.follower.broker.settings.message_max_bytes == 2000
    assert pair.follower.broker.topics.require("orders").config.max_message_bytes == 2000
    ended(there.alter(resource, lambda _: {}, validate_only=False))
    pair.replay()
    assert seen == [2000, 1048588]


def test_configs_of_other_brokers_are_not_put_in_force(pair: Pair) -> None:
    seen: list[Any] = []
    pair.follower.broker.configs.watch(seen.append)
    there = pair.writer.broker.configs
    ended(there.alter("2", lambda _: {"message.max.bytes": "2000"}, validate_only=False))
    pair.replay()
    assert seen == []


def test_group_configs_of_another_gateway_are_put_in_force(pair: Pair) -> None:
    seen: list[str] = []
    here = pair.follower.broker.group_configs
    here.watch(seen.append)
    change = {"consumer.session.timeout.ms": "50000"}
    ended(pair.writer.broker.group_configs.alter("g", lambda _: change, validate_only=False))
    pair.replay()
    assert here.settings_of("g").group_consumer_session_timeout_ms == 50_000
    assert list(here) == seen == ["g"]
    ended(pair.writer.broker.group_configs.alter("g", lambda _: {}, validate_only=False))
    pair.replay()
    assert here.settings_of("g").group_consumer_session_timeout_ms == 45_000
    assert list(here) == []


@pytest.mark.parametrize("name", TABLES)
def test_unreadable_row_is_logged_without_its_content(
    pair: Pair, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended(authorizer_of(pair.writer).add([READ_ORDERS], TimeSlices(pair.writer.clock)))
    pair.replay()
    with caplog.at_level(logging.ERROR):
        # A prefix of a SCRAM key, and not UTF-8.
        ended(pair.follower.store.table(name)).outside({b"\x01\xff": b"\xc1secret"})
    record: Any
    (record,) = caplog.records
    assert record.getMessage() == "row written by another gateway ignored: it cannot be read"
    assert set(record.fields) == {"table", "error"}
    assert record.fields["table"] == name
    assert may_read(pair.follower)
