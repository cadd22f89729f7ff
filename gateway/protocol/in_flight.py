"""Requests between their arrival in dispatch and the bytes of their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from time import perf_counter_ns
from typing import Any, Protocol

import msgspec

from gateway.coroutines import Cancel
from gateway.protocol.request_time import RequestStopwatch
from gateway.protocol.routes import Route
from gateway.protocol.wire import compiled
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.throttle_time import encode_throttled
from gateway.security.quota_usage import RequestUsage
from storage.log import Buffer

_PLAIN_HEADER = Struct(">ii")
_TAGGED_HEADER = Struct(">iiB")

#: Requests whose time is not limited, as in Kafka: those between brokers, and those of the log-in.
TIME_EXEMPT = frozenset({
    ApiKey.WRITE_TXN_MARKERS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
})  # fmt: skip


class ReplyTransport(Protocol):
    """The sending side of the connection."""

    def write(self, buffers: list[Buffer]) -> None:
        """Send these buffers, in order, after all earlier ones."""
        ...

    def acknowledge(self) -> None:
        """Send the TCP acknowledgement of the bytes received so far, if it is still due."""
        ...

    def request_close(
        self, delay_ms: int = 0, last: Sequence[Buffer] = (), *, linger_seconds: float = 0
    ) -> None:
        """Stop reading, and `delay_ms` from now send `last` and close the connection.

        Everything written before is sent first. The connection stays open for `linger_seconds`
        after `last`.
        """
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class InFlightRequest(msgspec.Struct, eq=False):
    """A request that is not answered yet.

    `reply` is None until the request is answered, and empty if it has no reply. `usage` is None if
    its client has no quota. `on_timeout` returns the reply at `deadline`, in the clock's seconds;
    it is None if there is no time limit, or no longer one. The compiled `PlainProduce` has the same
    attributes.
    """

    size: int
    began: int = 0
    api_key: int = -1
    version: int = -1
    correlation_id: int = 0
    route: Route | None = None
    reply: list[Buffer] | None = None
    cancel: Cancel | None = None
    is_appending: bool = False
    deadline: float = 0.0
    on_timeout: Callable[[], Any] | None = None
    usage: RequestUsage | None = None
    stopwatch: RequestStopwatch | None = None
    throttle_ms: int = 0


def count_usage(request: InFlightRequest, usage: RequestUsage, reply: Any) -> int:
    """Count a request towards its client's quotas. Returns the throttle time in ms."""
    if request.api_key == ApiKey.PRODUCE:
        return usage.count_produce(has_reply=reply is not None)
    return usage.count_request(is_exempt=request.api_key in TIME_EXEMPT)


def encode_counted(
    route: Route, request: InFlightRequest, usage: RequestUsage, reply: Any
) -> list[Buffer]:
    """Return the body of the reply, with the throttle time."""
    began = 0 if usage.spent is None else perf_counter_ns()
    body = (
        encode_throttled(reply, request.throttle_ms, route.api_key, request.version, route.encode)
        if request.throttle_ms
        else route.encode(reply, request.version)
    )
    if usage.spent is not None:
        usage.count_later_time(perf_counter_ns() - began)
    return body


def with_header(body: list[Buffer], correlation_id: int, has_tagged_header: bool) -> list[Buffer]:
    """Return a reply with its length and header."""
    size = compiled.total(body)
    if has_tagged_header:
        return [_TAGGED_HEADER.pack(size + 5, correlation_id, 0), *body]
    return [_PLAIN_HEADER.pack(size + 4, correlation_id), *body]
