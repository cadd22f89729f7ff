"""The codec of the request header.

It is hand-written because every request has one: kafka-python takes four times as long.

v0 (ControlledShutdown only) is not supported. v1 is key, version, correlation id, client id. v2
adds tagged fields. The client id never has a compact length (KIP-511), so that a broker that does
not support the version can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error

import msgspec

from gateway.protocol.errors import Refused
from gateway.protocol.wire import compiled
from gateway.protocol.wire.primitives import skip_tags

_FIXED = Struct(">hhih")
_NEVER = 1 << 15


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """`client_id` is None if the client sent null.

    `body` is the position of the first byte after the header.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def read_header(
    frame: bytes | bytearray, first_flexible_version: Mapping[int, int]
) -> RequestHeader:
    """Read the header at the start of `frame`.

    `first_flexible_version` is by API key. Raises Refused if it is truncated or not valid UTF-8.
    """
    found: RequestHeader | None = compiled.header(frame, first_flexible_version, RequestHeader)
    if found is not None:
        return found
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
        position = 10
        client_id: str | None = None
        if length >= 0:
            position += length
            if position > len(frame):
                raise Refused("the client id is longer than the request")
            client_id = frame[10:position].decode()
        if api_version >= first_flexible_version.get(api_key, _NEVER):
            position = skip_tags(frame, position)
    except (ValueError, IndexError, OverflowError, error) as unreadable:
        raise Refused(f"malformed request header: {unreadable}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)
