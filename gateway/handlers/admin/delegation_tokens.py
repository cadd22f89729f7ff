"""Delegation tokens, which are not supported.

CreateDelegationToken, DescribeDelegationToken, RenewDelegationToken, ExpireDelegationToken (KIP-48)
v0-3: DELEGATION_TOKEN_AUTH_DISABLED.

The answers are those of a Kafka broker without `delegation.token.secret.key`.
"""

from __future__ import annotations

from typing import Any

from auth.mechanism import ANONYMOUS
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import serves
from gateway.protocol.wire.admin_messages import (
    CreateDelegationTokenResponse,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from gateway.protocol.wire.api_keys import ApiKey


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
