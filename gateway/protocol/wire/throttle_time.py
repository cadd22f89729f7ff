"""Sets throttle_time_ms in replies of all kinds (KIP-219).

Messages have the field; replies that are encoded already are changed in their first buffer, where
the field is at a fixed place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchResponse
from gateway.protocol.wire.primitives import INT32
from gateway.protocol.wire.produce_codec import ProduceResponse
from storage.log import Buffer

_NEVER = 1 << 15

#: First version in which the reply begins with the throttle time, for replies that may be encoded
#: by a handler or by a codec without the field. It is 0 for all other APIs.
_FIRST_VERSION = {
    ApiKey.FETCH: 1,
    ApiKey.LIST_OFFSETS: 2,
    ApiKey.METADATA: 3,
    ApiKey.OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 3,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.JOIN_GROUP: 2,
    ApiKey.HEARTBEAT: 1,
    ApiKey.LEAVE_GROUP: 1,
    ApiKey.SYNC_GROUP: 1,
    ApiKey.DESCRIBE_GROUPS: 1,
    ApiKey.LIST_GROUPS: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.DESCRIBE_QUORUM: _NEVER,
    ApiKey.WRITE_TXN_MARKERS: _NEVER,
}

#: Bytes before the field.
_POSITION = {ApiKey.OFFSET_DELETE: 2}


def encode_throttled(
    reply: Any,
    milliseconds: int,
    api_key: ApiKey,
    version: int,
    encode: Callable[[Any, int], list[Buffer]],
) -> list[Buffer]:
    """Encode a reply with a throttle time, if the version has the field."""
    if isinstance(reply, ProduceResponse | FetchResponse):
        return encode(msgspec.structs.replace(reply, throttle_time_ms=milliseconds), version)
    if not isinstance(reply, msgspec.Struct):
        if hasattr(reply, "throttle_time_ms"):
            reply.throttle_time_ms = milliseconds
        return encode(reply, version)
    buffers = encode(reply, version)
    if version < _FIRST_VERSION.get(api_key, 0):
        return buffers
    position = _POSITION.get(api_key, 0)
    first = memoryview(buffers[0])
    return [
        bytes(first[:position]) + INT32.pack(milliseconds),
        first[position + 4 :],
        *buffers[1:],
    ]
