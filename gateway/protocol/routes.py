"""Which handler serves which versions of which request. `@serves` is the only statement of support; ApiVersions is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from gateway.protocol.wire import (
    fetch_codec,
    heartbeat_codec,
    messages,
    offset_commit_codec,
    produce_codec,
)
from gateway.protocol.wire.api_keys import ApiKey
from storage.log import Buffer

if TYPE_CHECKING:
    from gateway.protocol.caller import Caller

T = TypeVar("T")


class DelayedReply(msgspec.Struct, Generic[T], frozen=True):
    """A reply that is still to come, from a handler that has already put its work in order: the next request of the connection may start.

    If it has not come after `seconds` the reply is what `late` gives, and the work goes on; None is no limit. The garbage collector must see through it:
    a coroutine holds whatever its variables do, and an exception among them may hold this.
    """

    reply: Coroutine[Any, Any, T]
    seconds: float | None = None
    late: Callable[[], T] | None = None


class EncodedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply whose body is in bytes already, in the version that was asked in."""

    buffers: list[Buffer]


#: A handler's reply is its return value. None is no reply (Produce with acks=0).
Handler = Callable[[Any, "Caller"], Coroutine[Any, Any, Any]]


class Route(msgspec.Struct, frozen=True, gc=False):
    """`decode(frame, position, version)` and `encode(reply, version)`; `has_tagged_header` says whether the reply's header ends in tags."""

    api_key: ApiKey
    handler: Handler
    decode: Callable[[bytearray, int, int], Any]
    encode: Callable[[Any, int], list[Buffer]]
    has_tagged_header: bool


ROUTES: dict[tuple[int, int], Route] = {}


def serves(api_key: ApiKey, first: int, last: int) -> Callable[[Handler], Handler]:
    """Route versions `first` to `last` of `api_key` to the decorated handler. Raises ValueError where one of them is taken."""

    def register(handler: Handler) -> Handler:
        for version in range(first, last + 1):
            if (api_key, version) in ROUTES:
                raise ValueError(f"{api_key.name} v{version} is served twice")
            ROUTES[api_key, version] = _route(api_key, version, handler)
        return handler

    return register


def supported_versions() -> dict[ApiKey, tuple[int, int]]:
    """Of each key that is served: (lowest, highest) version. Raises ValueError for a range with a hole, which no client could be told of."""
    versions: dict[ApiKey, list[int]] = {}
    for key, version in ROUTES:
        versions.setdefault(ApiKey(key), []).append(version)
    for key, served in versions.items():
        if len(served) != max(served) - min(served) + 1:
            raise ValueError(
                f"{key.name} is not served from {min(served)} to {max(served)} throughout"
            )
    return {key: (min(served), max(served)) for key, served in sorted(versions.items())}


def _route(api_key: ApiKey, version: int, handler: Handler) -> Route:
    decode, encode = _HAND_WRITTEN_CODECS.get(api_key) or (
        partial(messages.decode, messages.REQUESTS[api_key]),
        _encode,
    )
    # KIP-511: an ApiVersions reply must be readable by a client that does not know the version yet, so its header never has tags.
    flexible = (
        api_key is not ApiKey.API_VERSIONS and version >= messages.FIRST_FLEXIBLE_VERSION[api_key]
    )
    return Route(api_key, handler, decode, encode, flexible)


def _encode(reply: Any, version: int) -> list[Buffer]:
    return reply.buffers if isinstance(reply, EncodedReply) else [messages.encode(reply, version)]


def _encode_produce(reply: produce_codec.ProduceResponse, version: int) -> list[Buffer]:
    return [produce_codec.write_produce_response(reply, version)]


def _encode_fetch(reply: Any, version: int) -> list[Buffer]:
    return (
        reply.buffers
        if isinstance(reply, EncodedReply)
        else fetch_codec.write_fetch_response(reply, version)
    )


def _encode_heartbeat(reply: heartbeat_codec.HeartbeatResponse, version: int) -> list[Buffer]:
    return [heartbeat_codec.write_heartbeat_response(reply, version)]


def _encode_offset_commit(reply: Any, version: int) -> list[Buffer]:
    return (
        reply.buffers
        if isinstance(reply, EncodedReply)
        else [offset_commit_codec.write_offset_commit_response(reply, version)]
    )


_HAND_WRITTEN_CODECS: dict[
    ApiKey, tuple[Callable[[bytearray, int, int], Any], Callable[[Any, int], list[Buffer]]]
] = {
    ApiKey.PRODUCE: (produce_codec.read_produce, _encode_produce),
    ApiKey.FETCH: (fetch_codec.read_fetch, _encode_fetch),
    ApiKey.HEARTBEAT: (heartbeat_codec.read_heartbeat, _encode_heartbeat),
    ApiKey.OFFSET_COMMIT: (offset_commit_codec.read_offset_commit, _encode_offset_commit),
}

__all__ = [
    "ROUTES",
    "DelayedReply",
    "EncodedReply",
    "Handler",
    "Route",
    "serves",
    "supported_versions",
]
