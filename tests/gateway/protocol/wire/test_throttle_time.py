from __future__ import annotations

import importlib
from typing import Any

import pytest

from gateway import handlers as handlers  # registers their routes
from gateway.protocol.routes import ROUTES, EncodedReply
from gateway.protocol.wire import messages
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchResponse
from gateway.protocol.wire.heartbeat_codec import HeartbeatResponse
from gateway.protocol.wire.offset_commit_codec import OffsetCommitResponse
from gateway.protocol.wire.produce_codec import PartitionProduced, ProduceResponse
from gateway.protocol.wire.throttle_time import encode_throttled

ALL = sorted(ROUTES)

#: APIs whose handlers never return an encoded reply.
NEVER_ENCODED = {
    ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
}  # fmt: skip


def response_class(api_key: int) -> Any:
    request = messages.REQUESTS[ApiKey(api_key)]
    module = importlib.import_module(request.__module__)
    return getattr(module, request.__name__.removesuffix("Request") + "Response")


def written_reply(api_key: int, version: int) -> Any:
    """A reply of an API with a hand-written codec, None for others."""
    if api_key == ApiKey.PRODUCE:
        topic = "orders" if version < 13 else bytes(range(16))
        return ProduceResponse([(topic, [PartitionProduced(0)])])
    if api_key == ApiKey.FETCH:
        return FetchResponse(())
    if api_key == ApiKey.OFFSET_COMMIT:
        return OffsetCommitResponse({"orders" if version < 10 else bytes(range(16)): {0: 0}})
    return HeartbeatResponse() if api_key == ApiKey.HEARTBEAT else None


def empty_reply(api_key: int, version: int) -> Any:
    """A reply with no rows; without a hand-written codec from the schema."""
    written = written_reply(api_key, version)
    if written is not None:
        return written
    kind = response_class(api_key)
    values = {}
    for field in kind._struct.untagged_fields(version):
        if field.is_array():
            values[field.name] = []
        elif not field.is_struct() and field.type_str in ("string", "bytes"):
            values[field.name] = "" if field.type_str == "string" else b""
    return kind(**values)


def has_field(api_key: int, version: int) -> bool:
    fields = response_class(api_key)._struct.untagged_fields(version)
    return "throttle_time_ms" in [field.name for field in fields]


@pytest.mark.parametrize(("api_key", "version"), ALL)
def test_reply_has_the_throttle_time_in_versions_with_the_field(api_key: int, version: int) -> None:
    route = ROUTES[api_key, version]
    reply = empty_reply(api_key, version)
    body = b"".join(map(bytes, encode_throttled(reply, 1234, route.api_key, version, route.encode)))
    decoded = response_class(api_key).decode(body, version=version)
    if has_field(api_key, version):
        assert decoded.throttle_time_ms == 1234
    assert body.count((1234).to_bytes(4, "big")) == has_field(api_key, version)


@pytest.mark.parametrize(
    ("api_key", "version"), [one for one in ALL if one[0] not in NEVER_ENCODED]
)
def test_encoded_reply_has_the_throttle_time(api_key: int, version: int) -> None:
    route = ROUTES[api_key, version]
    reply = empty_reply(api_key, version)
    buffers = route.encode(reply, version)
    before = b"".join(map(bytes, buffers))
    body = b"".join(
        map(
            bytes,
            encode_throttled(
                EncodedReply(buffers), 1234, route.api_key, version, lambda one, _: one.buffers
            ),
        )
    )
    expected = encode_throttled(reply, 1234, route.api_key, version, route.encode)
    assert body == b"".join(map(bytes, expected))
    # The buffers may be cached, and are shared then.
    assert b"".join(map(bytes, buffers)) == before
