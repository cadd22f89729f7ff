"""SaslHandshake and SaslAuthenticate: the SASL exchange of a connection.

SaslHandshake
v0: bare tokens follow, without Kafka headers.
v1: SaslAuthenticate requests follow (KIP-152).

SaslAuthenticate
v0: one token of the exchange.
v1: session lifetime in the response (KIP-368).
v2: flexible encoding (KIP-482).
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from auth.mechanism import AuthenticationFailed
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import serves
from gateway.protocol.session import log_failed_login, log_in
from gateway.protocol.wire.api_keys import ApiKey

#: Characters of a mechanism's name that are logged.
MAX_LOGGED_CHARS = 100


@serves(ApiKey.SASL_HANDSHAKE, 0, 1)
async def sasl_handshake(request: Any, caller: Caller) -> Any:
    """Select the mechanism. The response lists the enabled ones, also after an error."""
    code = ErrorCode.NONE
    caller.traffic.handshake_received(request.mechanism, caller.api_version)
    try:
        caller.session.handshake(request.mechanism, caller.api_version)
    except KafkaError as failure:
        code = failure.code
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            # The connection stays open, as in KafkaApis.handleSaslHandshakeRequest.
            return SaslHandshakeResponse(error_code=code, mechanisms=[])
        caller.traffic.closing("error:mechanism")
        log_failed_login(
            caller.broker.audit,
            caller.peer,
            caller.listener,
            request.mechanism[:MAX_LOGGED_CHARS],
            "the mechanism is not enabled",
        )
    return SaslHandshakeResponse(error_code=code, mechanisms=caller.session.mechanisms)


@serves(ApiKey.SASL_AUTHENTICATE, 0, 2)
async def sasl_authenticate(request: Any, caller: Caller) -> Any:
    """Process one client token and return the server's token."""
    try:
        token, lifetime_ms = await log_in(
            caller.session,
            bytes(request.auth_bytes),
            caller.traffic,
            caller.broker.audit,
            caller.peer,
            caller.listener,
            caller.api_version,
        )
    except AuthenticationFailed as failure:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=f"Authentication failed: {failure.reason}",
            auth_bytes=b"",
        )
    except KafkaError as failure:
        return SaslAuthenticateResponse(
            error_code=failure.code, error_message=failure.message, auth_bytes=b""
        )
    return SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=token or b"", session_lifetime_ms=lifetime_ms
    )
