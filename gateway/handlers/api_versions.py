"""What a connection may ask before it is known: ApiVersions, SaslHandshake, SaslAuthenticate."""

from __future__ import annotations

from functools import cache
from typing import Any

from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from auth.mechanism import AuthenticationFailed
from gateway import logs
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import serves, supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import encode
from storage.log import Buffer

_log = logs.part(__name__)

FIRST_WITH_NAMES = 3


@serves(ApiKey.API_VERSIONS, 0, 4)
async def api_versions(request: Any, caller: Caller) -> Any:
    """What is served. v3 carries the client's name and version (KIP-511)."""
    if caller.api_version >= FIRST_WITH_NAMES:
        caller.traffic.introduced(request.client_software_name, request.client_software_version)
    return ApiVersionsResponse(
        error_code=0, api_keys=_ranges(), supported_features=[], finalized_features=[]
    )


@cache
def _ranges() -> list[Any]:
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in supported_versions().items()
    ]


@cache
def unsupported_api_versions() -> tuple[Buffer, ...]:
    """The answer to an ApiVersions version that is too new: in version 0's layout, with what is served, so that the client can ask again."""
    return (
        encode(
            ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ranges()), 0
        ),
    )


@serves(ApiKey.SASL_HANDSHAKE, 0, 1)
async def sasl_handshake(request: Any, caller: Caller) -> Any:
    """The client's choice of mechanism: bare tokens follow v0, SaslAuthenticate requests v1."""
    code = ErrorCode.NONE
    caller.traffic.shook_hands(request.mechanism, caller.api_version)
    try:
        caller.session.handshake(request.mechanism, caller.api_version)
    except KafkaError as failure:
        code = failure.code
        caller.traffic.ends("error:mechanism")
    return SaslHandshakeResponse(error_code=code, mechanisms=caller.session.mechanisms)


@serves(ApiKey.SASL_AUTHENTICATE, 0, 2)
async def sasl_authenticate(request: Any, caller: Caller) -> Any:
    """One token of the exchange. v1 tells how long the session lives (KIP-368)."""
    try:
        token, lifetime_ms = await caller.session.token(bytes(request.auth_bytes))
        if caller.session.is_ready:
            caller.traffic.authenticated()
    except AuthenticationFailed as failure:
        _log.warning(
            "login failed",
            peer=caller.peer,
            listener=caller.listener,
            mechanism=caller.session.mechanism,
            reason=failure.reason,
        )
        caller.traffic.ends("error:login")
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
        error_code=0, error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms
    )
