"""The codec of Heartbeat, the most frequent and smallest request of group members.

Versions: 1 adds throttle time to the reply, 3 static members; 4 is flexible.
"""

from __future__ import annotations

from functools import cache

import msgspec

from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.primitives import (
    INT16,
    INT32,
    read_nullable_string,
    read_string,
    skip_tags,
)

FIRST_FLEXIBLE = 4


class HeartbeatRequest(msgspec.Struct, frozen=True, gc=False):
    """`group_instance_id` is None for a dynamic member."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResponse(msgspec.Struct, frozen=True, gc=False):
    """Only an error code. The throttle time is always 0."""

    error_code: int = ErrorCode.NONE


def read_heartbeat(frame: bytearray, position: int, version: int) -> HeartbeatRequest:
    """Read the request whose body begins at `position`.

    Raises ValueError, IndexError or struct.error if it is malformed.
    """
    compact = version >= FIRST_FLEXIBLE
    group_id, position = read_string(frame, position, compact=compact)
    (generation_id,) = INT32.unpack_from(frame, position)
    member_id, position = read_string(frame, position + 4, compact=compact)
    group_instance_id = None
    if version >= 3:
        group_instance_id, position = read_nullable_string(frame, position, compact=compact)
    if compact:
        skip_tags(frame, position)
    return HeartbeatRequest(group_id, generation_id, member_id, group_instance_id)


def write_heartbeat_response(response: HeartbeatResponse, version: int) -> bytes:
    """Return the body of the reply, without header."""
    return _reply(response.error_code, version)


@cache
def _reply(error_code: int, version: int) -> bytes:
    """Cached: there are only a few different replies."""
    throttle = INT32.pack(0) if version >= 1 else b""
    return throttle + INT16.pack(error_code) + (b"\0" if version >= FIRST_FLEXIBLE else b"")
