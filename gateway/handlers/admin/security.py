"""Delegation tokens and client quotas; none of them are supported.

CreateDelegationToken, DescribeDelegationToken, RenewDelegationToken, ExpireDelegationToken (KIP-48)
v0-3: DELEGATION_TOKEN_AUTH_DISABLED.

DescribeClientQuotas, AlterClientQuotas (KIP-546)
v0-1: there are no quotas, and none can be added.

The answers are those of a Kafka broker without `delegation.token.secret.key` and quotas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.protocol.admin.client_quotas import (
    AlterClientQuotasResponse,
    DescribeClientQuotasResponse,
)

from auth.mechanism import ANONYMOUS
from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.admin_messages import (
    CreateDelegationTokenResponse,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation

#: Match types of DescribeClientQuotas: 0 exact name, 1 default, 2 any name.
EXACT, ANY = 0, 2
QUOTA_ENTITIES = ("client-id", "user", "ip")

_Quota = AlterClientQuotasResponse.EntryData


def _token_error(caller: Caller) -> ErrorCode:
    """Return the error of all token requests.

    Anonymous clients may not send them at all (KafkaApis.allowTokenRequests).
    """
    is_anonymous = caller.principal == ANONYMOUS
    return (
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        if is_anonymous
        else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    )


@serves(ApiKey.CREATE_DELEGATION_TOKEN, 0, 3)
async def create_delegation_token(request: Any, caller: Caller) -> Any:
    """Reject the request: tokens are disabled."""
    principal = caller.principal
    return CreateDelegationTokenResponse(
        error_code=_token_error(caller),
        principal_type=principal.kind,
        principal_name=principal.name,
        token_requester_principal_type=principal.kind,
        token_requester_principal_name=principal.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )


@serves(ApiKey.RENEW_DELEGATION_TOKEN, 0, 2)
async def renew_delegation_token(request: Any, caller: Caller) -> Any:
    """Reject the request: tokens are disabled."""
    return RenewDelegationTokenResponse(error_code=_token_error(caller), expiry_timestamp_ms=-1)


@serves(ApiKey.EXPIRE_DELEGATION_TOKEN, 0, 2)
async def expire_delegation_token(request: Any, caller: Caller) -> Any:
    """Reject the request: tokens are disabled."""
    return ExpireDelegationTokenResponse(error_code=_token_error(caller), expiry_timestamp_ms=-1)


@serves(ApiKey.DESCRIBE_DELEGATION_TOKEN, 0, 3)
async def describe_delegation_token(request: Any, caller: Caller) -> Any:
    """Reject the request: tokens are disabled."""
    return DescribeDelegationTokenResponse(error_code=_token_error(caller), tokens=[])


@serves(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1)
async def describe_client_quotas(request: Any, caller: Caller) -> Any:
    """Return no quotas. Invalid filters are rejected as in ClientQuotaCache."""
    try:
        caller.require_cluster(AclOperation.DESCRIBE_CONFIGS)
    except KafkaError as refusal:
        return DescribeClientQuotasResponse(
            error_code=refusal.code, error_message=refusal.message, entries=None
        )
    code, message = _filter_error(request.components)
    entries: list[Any] | None = [] if code is ErrorCode.NONE else None
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=entries)


def _filter_error(components: Iterable[Any]) -> tuple[ErrorCode, str | None]:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            return ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type"
        if kind not in QUOTA_ENTITIES:
            return ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:100]}"
        if kind in seen:
            return (
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind} cannot appear more than once in the filter",
            )
        seen.add(kind)
        if not EXACT <= component.match_type <= ANY:
            return ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}"
        if (component.match is None) is (component.match_type == EXACT):
            return (
                ErrorCode.INVALID_REQUEST,
                f"Match type {component.match_type} does not allow this match value",
            )
    return ErrorCode.NONE, None


@serves(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1)
async def alter_client_quotas(request: Any, caller: Caller) -> Any:
    """Reject each change, also removals: there is nothing to remove."""
    answer = KafkaError(ErrorCode.INVALID_REQUEST, "Client quotas are not supported")
    try:
        caller.require_cluster(AclOperation.ALTER_CONFIGS)
    except KafkaError as refusal:
        answer = refusal
    slices = TimeSlices(caller.broker.clock)
    rows = []
    for entry in request.entries:
        entity = []
        for part in entry.entity:
            entity.append(
                _Quota.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            )
            await slices.take()
        rows.append(
            _Quota(
                error_code=answer.code,
                error_message=answer.message,
                entity=entity,
            )
        )
        await slices.take()
    return await encode_if_large(AlterClientQuotasResponse(entries=rows), slices, caller)
