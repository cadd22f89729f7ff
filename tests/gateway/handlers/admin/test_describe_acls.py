from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.acl import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call

# Codes and messages are those of Kafka 3.9.2 (tests/peers/tools/test_admin_clients.py).
SECURITY_DISABLED = 54


@pytest.mark.parametrize("version", range(4))
def test_acls_need_an_authorizer(version: int) -> None:
    env = open_environment()
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
