"""Routes each API version to its handler.

`@serves` is the only statement of support; the ApiVersions reply is derived from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from gateway.coroutines import SharedResult
from gateway.protocol.errors import KafkaError
from gateway.protocol.policy import POLICY
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
    """A reply that is sent later. The next Produce of the connection may start meanwhile.

    A handler that has nothing to await before its reply returns this instead of a coroutine;
    awaiting it returns it at once.

    After `timeout_seconds` (None: no limit) the reply is the result of `on_timeout`, while the work
    continues.

    The garbage collector must track this class: the coroutine refers to its variables, and an
    exception among them may refer back to this object.
    """

    reply: Coroutine[Any, Any, T] | SharedResult[T]
    timeout_seconds: float | None = None
    on_timeout: Callable[[], T] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class EncodedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply that is encoded already, in the version of the request.

    `errors` is the number of errors in it by code, None if unknown.
    """

    buffers: list[Buffer]
    errors: Mapping[int, int] | None = None


#: A handler returns the reply, or None for no reply (Produce with acks=0), as a coroutine if it has
#: anything to await.
Handler = Callable[[Any, "Caller"], Awaitable[Any]]

#: Returns the reply that has this error for each item of the request.
ItemRefusal = Callable[[Any, KafkaError, "Caller"], Coroutine[Any, Any, Any]]


#: Serves a request, given as frame and position of its body. Or returns None, and has changed
#: nothing: then `Handler` serves it.
AtOnce = Callable[[bytearray, int, "Caller"], "DelayedReply[Any] | None"]


class Route(msgspec.Struct, frozen=True, gc=False):
    """How to serve one version of an API.

    `decode(frame, position, version)` returns the request, `encode(reply, version)` the buffers of
    the body. `has_tagged_header` says whether the response header ends with tagged fields.
    `refuse_items` is None unless the API runs at the controller. `at_once` is None unless the API
    has a common case that is served without decoding the request; then `plain` is what compiled
    code needs to serve the next request with the same header (`wire/_dispatch.pxi`), if there is
    any.
    """

    api_key: ApiKey
    handler: Handler
    decode: Callable[[bytearray, int, int], Any]
    encode: Callable[[Any, int], list[Buffer]]
    has_tagged_header: bool
    refuse_items: ItemRefusal | None = None
    at_once: AtOnce | None = None
    plain: Any = None


ROUTES: dict[tuple[int, int], Route] = {}

#: The reply to a version that has no route, by API key. Without one, the connection is closed.
UNSUPPORTED_VERSION_REPLIES: dict[int, Callable[[], tuple[Buffer, ...]]] = {}


def serves(
    api_key: ApiKey,
    first: int,
    last: int,
    *,
    at_controller: ItemRefusal | None = None,
    at_once: AtOnce | None = None,
    plain: Any = None,
) -> Callable[[Handler], Handler]:
    """Route versions `first` to `last` of `api_key` to the decorated handler.

    `at_controller` is given for APIs that change the state of the whole cluster, or that only the
    controller can answer: it executes their requests, whichever gateway was asked
    (`gateway.protocol.forwarded`). `at_controller` returns the reply to a request that the
    controller did not execute.

    `at_once` and `plain` are for the common case of these versions, see `Route`.

    Raises ValueError if one of them has a handler already, or the API has no entry in
    `gateway.protocol.policy`.
    """
    if api_key not in POLICY:
        raise ValueError(f"{api_key.name} has no entry in gateway.protocol.policy")

    def register(handler: Handler) -> Handler:
        for version in range(first, last + 1):
            if (api_key, version) in ROUTES:
                raise ValueError(f"{api_key.name} v{version} already has a handler")
            ROUTES[api_key, version] = _route(
                api_key, version, handler, at_controller, at_once, plain
            )
        return handler

    return register


def supported_versions() -> dict[ApiKey, tuple[int, int]]:
    """Return (lowest, highest) served version by API key.

    Raises ValueError if a version between them is missing: ApiVersions cannot express that.
    """
    versions: dict[ApiKey, list[int]] = {}
    for key, version in ROUTES:
        versions.setdefault(ApiKey(key), []).append(version)
    for key, served in versions.items():
        if len(served) != max(served) - min(served) + 1:
            raise ValueError(
                f"{key.name} v{min(served)} to v{max(served)}: a version has no handler"
            )
    return {key: (min(served), max(served)) for key, served in sorted(versions.items())}


def _route(
    api_key: ApiKey,
    version: int,
    handler: Handler,
    refuse_items: ItemRefusal | None,
    at_once: AtOnce | None,
    plain: Any,
) -> Route:
    decode, encode = _HAND_WRITTEN_CODECS.get(api_key) or (
        partial(messages.decode, messages.REQUESTS[api_key]),
        _encode,
    )
    # KIP-511: the header of an ApiVersions reply never has tagged fields, because the client must
    # be able to read it before it knows the supported versions.
    flexible = (
        api_key is not ApiKey.API_VERSIONS and version >= messages.FIRST_FLEXIBLE_VERSION[api_key]
    )
    return Route(api_key, handler, decode, encode, flexible, refuse_items, at_once, plain)


def _encode(reply: Any, version: int) -> list[Buffer]:
    return reply.buffers if isinstance(reply, EncodedReply) else [messages.encode(reply, version)]


def _encode_produce(reply: Any, version: int) -> list[Buffer]:
    if isinstance(reply, produce_codec.ProduceResponse):
        return [produce_codec.write_produce_response(reply, version)]
    return [reply.body()]


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
    "UNSUPPORTED_VERSION_REPLIES",
    "DelayedReply",
    "EncodedReply",
    "Handler",
    "ItemRefusal",
    "Route",
    "serves",
    "supported_versions",
]
