from __future__ import annotations

from typing import Any

import pytest

from auth.mechanism import Principal
from gateway.protocol.caller import Caller
from gateway.protocol.wire import admin_messages
from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call

# Codes are those of Kafka 3.9.2 (tests/peers/tools/test_admin_clients.py).
TOKENS_DISABLED, TOKENS_NOT_ALLOWED = 61, 64

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
    version: int, request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = open_environment()
    assert call(env, request_, version).error_code == TOKENS_NOT_ALLOWED
    monkeypatch.setattr(Caller, "principal", Principal("User", "alice"))
    assert call(env, request_, version).error_code == TOKENS_DISABLED
