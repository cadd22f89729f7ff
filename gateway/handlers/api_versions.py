"""ApiVersions: the API keys and versions that the gateway serves.

v0: error code and version ranges.
v1-2: throttle time in the response.
v3: client software name and version in the request (KIP-511), features in the response: none here.
v4: features may start at version 0; no difference without features.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kafka.protocol.metadata.api_versions import ApiVersionsResponse

from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import (
    UNSUPPORTED_VERSION_REPLIES,
    EncodedReply,
    serves,
    supported_versions,
)
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import encode
from storage.log import Buffer

FIRST_VERSION_WITH_SOFTWARE_NAME = 3


@serves(ApiKey.API_VERSIONS, 0, 4)
async def api_versions(request: Any, caller: Caller) -> Any:
    """Return the served version ranges; record the client software for the traffic log."""
    if caller.api_version >= FIRST_VERSION_WITH_SOFTWARE_NAME:
        caller.traffic.software_announced(
            request.client_software_name, request.client_software_version
        )
    if caller.usage is not None:
        # In an encoded reply the throttle time can be set only at the beginning
        # (`encode_throttled`); here it is behind the ranges.
        return _response()
    return EncodedReply([_encoded(caller.api_version)])


def _response() -> Any:
    return ApiVersionsResponse(
        error_code=0, api_keys=_ranges(), supported_features=[], finalized_features=[]
    )


@cache
def _encoded(version: int) -> bytes:
    return encode(_response(), version)


@cache
def _ranges() -> list[Any]:
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in supported_versions().items()
    ]


@cache
def unsupported_version_response() -> tuple[Buffer, ...]:
    """Reply to an unsupported ApiVersions version.

    It is encoded as v0 and lists the served ranges, so that the client can retry (KIP-511).
    """
    return (
        encode(
            ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ranges()), 0
        ),
    )


UNSUPPORTED_VERSION_REPLIES[ApiKey.API_VERSIONS] = unsupported_version_response
