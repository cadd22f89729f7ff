"""Each API asks the authorizer what `gateway.protocol.policy` declares, and refuses without it."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from gateway.coroutines import TimeSlices
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from gateway.protocol.policy import POLICY
from gateway.protocol.routes import supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import uuid_of
from gateway.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
)
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.handler_calls import decode_response, start_call
from tests.gateway.security.requests_by_api import error_codes, request_of

REFUSALS = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
Check = tuple[AclOperation, AclResource]

#: Requests beside the plausible one that ask for something else.
VARIANTS: dict[ApiKey, list[dict[str, Any]]] = {
    ApiKey.PRODUCE: [{"transactional_id": "payments"}],
    ApiKey.METADATA: [{"name": "missing", "allow_auto_topic_creation": True}],
    ApiKey.FIND_COORDINATOR: [{"key_type": 1}],
    ApiKey.CREATE_TOPICS: [
        {"name": "new", "num_partitions": 1, "assignments": [], "configs": []},
    ],
    ApiKey.DESCRIBE_CONFIGS: [{"resource_type": 4, "resource_name": "0"}, {"resource_type": 32}],
    ApiKey.ALTER_CONFIGS: [{"resource_type": 4, "resource_name": "0"}, {"resource_type": 32}],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [
        {"resource_type": 4, "resource_name": "0"},
        {"resource_type": 32},
    ],
    ApiKey.DESCRIBE_TRANSACTIONS: [{"transactional_ids": ["payments"]}],
}

#: Replies without an error: they leave out what the caller may not see.
FILTERED = {(ApiKey.LIST_GROUPS, 0), (ApiKey.LIST_GROUPS, 5), (ApiKey.DESCRIBE_LOG_DIRS, 0)}

#: Topics are given by name or by id; their requests here use the name.
BY_NAME_OR_ID = {ApiKey.METADATA, ApiKey.DELETE_TOPICS}

#: Always returns the operations on a topic that are allowed, for which it asks for all.
RETURNS_OPERATIONS = {ApiKey.DESCRIBE_TOPIC_PARTITIONS}

#: Asked only with members in the group.
WITH_MEMBERS = {ApiKey.CONSUMER_GROUP_DESCRIBE: {(AclOperation.DESCRIBE, AclResource.TOPIC)}}

VERSIONS = [
    (key, version)
    for key, bounds in supported_versions().items()
    for version in sorted(set(bounds))
]
CHECKED = [(key, version) for key, version in VERSIONS if POLICY[key]]


def environment(*rights: Check) -> BrokerEnvironment:
    env = open_environment(authorizer="acls", super_users="User:admin")
    env.topic("orders")
    ended(env.broker.offsets.commit("readers", {("orders", 0): CommittedOffset(1, 0, "", 0)}, None))
    authorizer = env.broker.authorizer
    assert authorizer is not None
    ended(authorizer.add([allowed(*right) for right in rights], TimeSlices(Clock())))
    return env


def allowed(operation: AclOperation, resource: AclResource) -> AclBinding:
    name = CLUSTER_NAME if resource is AclResource.CLUSTER else "*"
    return AclBinding(
        resource, name, AclPattern.LITERAL, "User:*", "*", operation, AclPermission.ALLOW
    )


def recorded(env: BrokerEnvironment) -> set[Check]:
    """The checks that the handlers ask for from now on."""
    asked: set[Check] = set()
    authorizer: Any = env.broker.authorizer
    original = authorizer.authorize

    def authorize(principal: Any, host: str, operation: Any, resource: Any, name: str) -> bool:
        asked.add((operation, resource))
        return bool(original(principal, host, operation, resource, name))

    authorizer.authorize = authorize
    return asked


def codes(env: BrokerEnvironment, key: ApiKey, version: int, **values: Any) -> set[int]:
    if key not in BY_NAME_OR_ID:
        topic = env.broker.topics.require("orders").topic
        values = {"topic_id": uuid_of(topic.topic_id), **values}
    request = request_of(key, version, **values)
    waiting = start_call(env, request, version)
    # Longer than a rebalance and a long poll.
    env.clock.advance(3600)
    return error_codes(decode_response(request, waiting.result, version))


@pytest.mark.parametrize(("key", "version"), CHECKED)
def test_request_without_rights_is_refused(key: ApiKey, version: int) -> None:
    found = codes(environment(), key, version) - {ErrorCode.NONE}
    refusals = {REFUSALS[resource] for _, resource in POLICY[key]}
    assert found <= refusals
    assert found or (key, version) in FILTERED


@pytest.mark.parametrize(("key", "version"), CHECKED)
def test_request_with_declared_rights_is_not_refused(key: ApiKey, version: int) -> None:
    assert not codes(environment(*POLICY[key]), key, version) & set(REFUSALS.values())


@pytest.mark.parametrize("key", sorted({key for key, _ in VERSIONS}))
def test_api_asks_for_what_the_policy_declares(key: ApiKey) -> None:
    asked: set[Check] = set()
    _, version = supported_versions()[key]
    for values in ({}, *VARIANTS.get(key, ())):
        for rights in (
            (),
            POLICY[key],
            [one for one in POLICY[key] if one[1] is not AclResource.CLUSTER],
        ):
            env = environment(*rights)
            checks = recorded(env)
            codes(env, key, version, **values)
            asked |= checks
    asked |= WITH_MEMBERS.get(key, set())
    assert asked >= POLICY[key] if key in RETURNS_OPERATIONS else asked == POLICY[key]


@pytest.mark.parametrize(("key", "version"), CHECKED)
def test_refusal_is_in_the_audit_log(
    key: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environment()
    rows: list[tuple[Any, ...]] = []
    monkeypatch.setattr(type(env.broker.audit), "refused", lambda _, *row: rows.append(row))
    codes(env, key, version)
    if key is not ApiKey.LIST_GROUPS:
        declared = {(operation.name, resource.name) for operation, resource in POLICY[key]}
        assert {(row[4], row[5].partition(":")[0]) for row in rows} <= declared
        assert rows
