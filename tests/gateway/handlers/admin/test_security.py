from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.acl import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

from auth.mechanism import Principal
from gateway.protocol.caller import Caller
from gateway.protocol.wire import admin_messages
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call

# Codes and messages are those of Kafka 3.9.2 (tests/peers/tools/test_admin_clients.py).
SECURITY_DISABLED, TOKENS_DISABLED, TOKENS_NOT_ALLOWED, NOT_FOUND, DUPLICATE = 54, 61, 64, 91, 92
UNSUPPORTED_MECHANISM, UNSUPPORTED_VERSION, INVALID_REQUEST = 33, 35, 42


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


@pytest.mark.parametrize("version", range(4))
def test_acls_need_an_authorizer(env: BrokerEnvironment, version: int) -> None:
    asked: dict[str, Any] = {"operation": 1, "permission_type": 1}
    found = call(
        env, DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, **asked), version
    )
    assert (found.error_code, found.error_message, list(found.resources)) == (
        SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
        [],
    )
    acl = CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="orders",
        resource_pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    made = call(env, CreateAclsRequest(creations=[acl, acl]), version)
    assert [(row.error_code, row.error_message) for row in made.results] == [
        (SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 2
    chosen = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, **asked
    )
    deleted = call(env, DeleteAclsRequest(filters=[chosen]), version)
    assert [(row.error_code, list(row.matching_acls)) for row in deleted.filter_results] == [
        (SECURITY_DISABLED, [])
    ]


TOKEN_REQUESTS = [
    *(
        (
            version,
            admin_messages.CreateDelegationTokenRequest(
                owner_principal_type=None, owner_principal_name=None, renewers=[]
            ),
        )
        for version in range(4)
    ),
    *(
        (version, admin_messages.RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1))
        for version in range(3)
    ),
    *(
        (version, admin_messages.ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1))
        for version in range(3)
    ),
    *(
        (version, admin_messages.DescribeDelegationTokenRequest(owners=None))
        for version in range(4)
    ),
]


@pytest.mark.parametrize(("version", "request_"), TOKEN_REQUESTS)
def test_delegation_tokens_are_disabled(
    env: BrokerEnvironment, version: int, request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(env, request_, version).error_code == TOKENS_NOT_ALLOWED
    monkeypatch.setattr(Caller, "principal", Principal("User", "alice"))
    assert call(env, request_, version).error_code == TOKENS_DISABLED


def test_users_have_no_scram_credentials(env: BrokerEnvironment) -> None:
    reply = call(env, DescribeUserScramCredentialsRequest(users=None), 0)
    assert (reply.error_code, list(reply.results)) == (0, [])
    user = DescribeUserScramCredentialsRequest.UserName
    rows = call(
        env,
        DescribeUserScramCredentialsRequest(users=[user(name="a"), user(name="b"), user(name="b")]),
        0,
    ).results
    assert [(row.user, row.error_code, row.error_message) for row in rows] == [
        ("a", NOT_FOUND, "Attempt to describe a user credential that does not exist: a"),
        (
            "b",
            DUPLICATE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: b",
        ),
    ]


def test_scram_credentials_cannot_be_altered(env: BrokerEnvironment) -> None:
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    added = [
        upsertion(name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
        for name in ("a", "c")
    ]
    request = AlterUserScramCredentialsRequest(
        deletions=[deletion(name=name, mechanism=1) for name in ("a", "b")], upsertions=added
    )
    rows = {row.user: row.error_code for row in call(env, request, 0).results}
    assert rows == {"a": DUPLICATE, "b": NOT_FOUND, "c": UNSUPPORTED_MECHANISM}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], 0),
        ([("user", 0, "alice"), ("client-id", 1, None), ("ip", 2, None)], 0),
        ([("nonsense", 0, "x")], UNSUPPORTED_VERSION),
        ([("", 0, "x")], INVALID_REQUEST),
        ([("user", 2, None), ("user", 2, None)], INVALID_REQUEST),
        ([("user", 3, None)], INVALID_REQUEST),
        ([("user", 0, None)], INVALID_REQUEST),
        ([("user", 1, "alice")], INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", range(2))
def test_there_are_no_client_quotas(
    env: BrokerEnvironment, version: int, components: list[tuple[str, int, str | None]], code: int
) -> None:
    component = DescribeClientQuotasRequest.ComponentData
    asked = [
        component(entity_type=kind, match_type=how, match=match) for kind, how, match in components
    ]
    reply = call(env, DescribeClientQuotasRequest(components=asked, strict=False), version)
    assert (reply.error_code, reply.entries) == (code, None if code else [])


def test_client_quotas_are_rejected(env: BrokerEnvironment) -> None:
    entry = AlterClientQuotasRequest.EntryData
    entity = [entry.EntityData(entity_type="user", entity_name=None)]
    ops = [entry.OpData(key="producer_byte_rate", value=1.5, remove=False)]
    (row,) = call(
        env,
        AlterClientQuotasRequest(entries=[entry(entity=entity, ops=ops)], validate_only=True),
        1,
    ).entries
    assert (row.error_code, [(part.entity_type, part.entity_name) for part in row.entity]) == (
        INVALID_REQUEST,
        [("user", None)],
    )
