"""One connection's requests: started in the order of arrival, answered in that order, one frame in and at most one reply out.

Produce requests overlap, for their handler puts every append in order before it first waits; all others are served one at a time. What
waits and what is owed is bounded: past the limits the socket is not read.

Replies that are ready are written before another request starts, and a Fetch that waits for data learns of requests behind it
(`gateway.protocol.long_poll`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct, error
from typing import Any, Protocol

from auth.mechanism import AuthenticationBusy, AuthenticationFailed
from gateway import logs
from gateway.broker import Broker
from gateway.coroutines import Cancel, CancelledError, DelayedCall, start
from gateway.handlers.api_versions import unsupported_version_response
from gateway.net.flow_control import ConnectionFlow
from gateway.protocol.caller import Caller
from gateway.protocol.errors import Refused
from gateway.protocol.long_poll import LongPoll
from gateway.protocol.routes import ROUTES, DelayedReply, Route
from gateway.protocol.session import LoginSession
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.header import RequestHeader, read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from storage.log import Buffer

_log = logs.get_logger(__name__)

_PLAIN_HEADER = Struct(">ii")
_TAGGED_HEADER = Struct(">iiB")
_SIZE = Struct(">i")

_PRODUCE = ApiKey.PRODUCE.to_bytes(2, "big")
_FETCH = ApiKey.FETCH.to_bytes(2, "big")

#: From this size on a body is decoded on another thread: the 5,000 elements that it may have take some 10 ms. Those of Produce are mostly
#: records, which are not decoded, and no more than `produce.MAX_PARTITIONS`.
LARGE_BODY_BYTES = 16 << 10

#: Replies are gathered up to this many bytes before they are sent: then the outlet can say that its peer reads slowly.
MAX_BUFFERED_REPLY_BYTES = 256 << 10

#: Requests that one connection may start in one turn of the reactor, and for how many seconds: one read can bring ten thousand, and others wait
#: meanwhile. Some requests take longer than others; the last one of a turn is always finished.
MAX_REQUESTS_PER_TURN = 100
MAX_TURN_SECONDS = 0.005


class ReplyTransport(Protocol):
    """The connection's other half, as the server provides it."""

    def write(self, buffers: list[Buffer]) -> None:
        """Send these bytes, in order, after all earlier ones."""
        ...

    def acknowledge(self) -> None:
        """Send the TCP acknowledgement of the bytes received so far, if it is still due."""
        ...

    def request_close(self, delay_ms: int = 0) -> None:
        """Close once everything written has left, `delay_ms` from now."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class _InFlightRequest:
    """A request that is not answered yet. `reply` is None until it is known, and empty for a request without a reply."""

    __slots__ = (
        "api_key",
        "began",
        "cancel",
        "correlation_id",
        "deadline",
        "is_appending",
        "reply",
        "route",
        "size",
        "version",
    )

    def __init__(self, size: int) -> None:
        self.size = size
        self.began = 0
        self.api_key = -1
        self.version = -1
        self.correlation_id = 0
        self.route: Route | None = None
        self.reply: list[Buffer] | None = None
        self.cancel: Cancel | None = None
        self.is_appending = False
        self.deadline: DelayedCall | None = None


class Dispatch:
    """Serves the frames of one connection. `flow` holds its limits and stops the reading, `traffic` notes what is asked and answered."""

    def __init__(
        self,
        broker: Broker,
        session: LoginSession,
        transport: ReplyTransport,
        flow: ConnectionFlow,
        *,
        peer: str,
        listener: str,
        traffic: Recorder = NULL_RECORDER,
    ) -> None:
        self._broker = broker
        self._session = session
        self._transport = transport
        self._flow = flow
        self._peer = peer
        self._listener = listener
        self._traffic = traffic
        self._queued_frames: deque[bytearray] = deque()
        self._long_poll = LongPoll()
        self._in_flight: deque[_InFlightRequest] = deque()
        self._unanswered = 0
        self._ready_bytes = 0
        self._is_serving = False
        self._is_writing_held = False
        self._is_closed = False
        self._is_advancing = False
        self._is_continuation_scheduled = False
        self._is_close_requested = False
        self._is_waiting_reported = False

    @property
    def is_idle(self) -> bool:
        """Nothing is waiting and nothing is owed."""
        return not self._in_flight and not self._queued_frames

    def frames_received(self, frames: list[bytearray]) -> None:
        """Take these frames; what they allow is started before this returns."""
        self._flow.requests_arrived(sum(map(len, frames)), len(frames))
        self._queued_frames.extend(frames)
        others = 0
        for frame in frames:
            if frame[:2] != _FETCH:
                others += 1
        self._long_poll.requests_arrived(others)
        self._advance()

    def partial_frame_received(self, beginning: bytes) -> None:
        """A frame was received in part; these are its first two bytes, or fewer if not all of them have come."""
        if len(beginning) == 2 and beginning != _FETCH:
            self._long_poll.partial_request_arrived()

    def pause_writing(self, held: bool) -> None:
        """The peer reads slowly (or does again): meanwhile nothing new is started, so that replies do not pile up."""
        self._is_writing_held = held
        if not held:
            self._advance()

    def close(self) -> None:
        """The connection is gone: cancel what waits, forget what is owed. Records that are being stored count until they are."""
        if self._is_closed:
            return
        self._is_closed = True
        self._session.end()
        in_flight, self._in_flight = self._in_flight, deque()
        queued, self._queued_frames = self._queued_frames, deque()
        for request in in_flight:
            if request.cancel is not None:
                request.cancel()
            if request.reply is None:
                self._traffic.request_abandoned(request)
        ended = [request.size for request in in_flight if not request.is_appending]
        self._flow.requests_finished(sum(map(len, queued)) + sum(ended), len(queued) + len(ended))

    def _advance(self) -> None:
        """Send what is ready, start what may be started, and send what that made ready. Not re-entrant: a request that ends at once only
        leaves its reply here."""
        if self._is_advancing:
            return
        self._is_advancing = True
        seconds = self._broker.clock.seconds
        until = seconds() + MAX_TURN_SECONDS
        try:
            if self._ready_bytes:
                self._send()
            for _ in range(MAX_REQUESTS_PER_TURN):
                if not self._queued_frames or not self._may_start(self._queued_frames[0]):
                    break
                frame = self._queued_frames.popleft()
                key = frame[:2]
                if key != _FETCH:
                    self._long_poll.request_started(is_produce=key == _PRODUCE)
                elif self._ready_bytes:
                    # It may read for long before it waits.
                    self._send()
                self._start(frame)
                if self._ready_bytes >= MAX_BUFFERED_REPLY_BYTES:
                    self._send()
                if self._queued_frames and seconds() > until:
                    self._continue_later()
                    break
            else:
                self._continue_later()
        finally:
            self._is_advancing = False
        self._send()

    def _continue_later(self) -> None:
        if not self._is_continuation_scheduled:
            self._is_continuation_scheduled = True
            self._broker.clock.callLater(0, self._continue)

    def _continue(self) -> None:
        self._is_continuation_scheduled = False
        self._advance()

    def _may_start(self, frame: bytearray) -> bool:
        if self._is_serving or self._is_closed or self._is_writing_held or self._session.is_closed:
            return False
        if not self._unanswered:
            return True
        # Only appends are under way; another Produce may join them, anything else waits for them.
        return frame[:2] == _PRODUCE and self._session.is_ready

    def _start(self, frame: bytearray) -> None:
        request = _InFlightRequest(len(frame))
        self._in_flight.append(request)
        self._unanswered += 1
        self._is_serving = True
        request.cancel = start(
            self._serve(frame, request),
            partial(self._served, request),
            partial(self._failed, request),
        )
        if request.cancel is not None and request.api_key != ApiKey.PRODUCE:
            self._is_waiting_reported = True
            self._flow.set_waiting(request.size)
            self._transport.acknowledge()

    async def _serve(self, frame: bytearray, request: _InFlightRequest) -> Any:
        """The reply, or `DelayedReply`. What it becomes on the wire stands in `request.route`; without a route it is buffers already."""
        session = self._session
        is_ready = session.is_ready
        if not is_ready:
            if session.expects_token():
                answer, _ = await session.token(bytes(frame))
                if session.is_ready:
                    self._traffic.authenticated()
                return [_SIZE.pack(len(answer)), answer]
            if session.is_gssapi_token(frame):
                self._traffic.bare_gssapi_received()
                raise Refused(
                    "a raw GSSAPI token (a Kafka 0.9 client?), but GSSAPI is not enabled here"
                )
        header = read_header(frame, FIRST_FLEXIBLE_VERSION)
        request.api_key, request.version, request.correlation_id = (
            header.api_key,
            header.api_version,
            header.correlation_id,
        )
        request.route = route = ROUTES.get((header.api_key, header.api_version))
        self._traffic.request_started(request, header)
        if not is_ready:
            session.check_allowed(header.api_key)
        if route is None:
            if header.api_key == ApiKey.API_VERSIONS:
                return _reply([*unsupported_version_response()], header.correlation_id, False)
            raise Refused("the gateway does not serve this api key and version")
        caller = Caller(
            self._broker,
            session,
            self._peer,
            self._listener,
            header.api_version,
            header.client_id,
            self._long_poll,
            self._traffic,
        )
        if len(frame) < LARGE_BODY_BYTES or route.api_key is ApiKey.PRODUCE:
            return await route.handler(_decode(route, frame, header), caller)
        return await route.handler(await caller.run(_decode, route, frame, header), caller)

    def _served(self, request: _InFlightRequest, reply: Any) -> None:
        self._is_serving = False
        if self._is_waiting_reported:
            self._is_waiting_reported = False
            self._flow.set_waiting(None)
        if not isinstance(reply, DelayedReply):
            self._answered(request, reply)
            return
        # What is queued to be stored is stored: such a wait is never cancelled, its end is only of no interest when the peer is gone.
        request.cancel = None
        request.is_appending = not self._is_closed
        start(reply.reply, partial(self._answered_later, request), partial(self._failed, request))
        if reply.seconds is not None and request.reply is None:
            request.deadline = self._broker.deadlines.callLater(
                reply.seconds, self._timed_out, request, reply.late
            )
        self._advance()

    def _answered(self, request: _InFlightRequest, reply: Any) -> None:
        if self._complete(request, reply):
            self._advance()

    def _answered_later(self, request: _InFlightRequest, reply: Any) -> None:
        """What is stored together is answered together: the store is still telling the others."""
        if self._complete(request, reply) and not self._is_advancing:
            self._continue_later()

    def _timed_out(self, request: _InFlightRequest, late: Callable[[], Any]) -> None:
        if not self._is_closed:
            self._answered_later(request, late())

    def _complete(self, request: _InFlightRequest, reply: Any) -> bool:
        """Whether `reply` is now to be sent in its turn."""
        request.cancel = None
        if request.reply is not None:
            # It came too late, and the client has heard so.
            return False
        if request.deadline is not None:
            request.deadline.cancel()
        if self._is_closed:
            self._release_after_close(request)
            return False
        request.is_appending = False
        route = request.route
        if route is None:
            request.reply = reply
        elif reply is None:
            request.reply = []
        else:
            try:
                body = route.encode(reply, request.version)
            except Exception as failure:  # noqa: BLE001 - a reply that cannot be written is a bug of its handler
                self._failed(request, failure)
                return False
            request.reply = _reply(body, request.correlation_id, route.has_tagged_header)
        self._unanswered -= 1
        size = sum(map(len, request.reply))
        self._ready_bytes += size
        self._traffic.request_answered(request, reply, size)
        return True

    def _send(self) -> None:
        """One write for all replies that are ready, in the order of their requests."""
        buffers: list[Buffer] = []
        freed = answered = 0
        while self._in_flight and (reply := self._in_flight[0].reply) is not None:
            freed += self._in_flight.popleft().size
            answered += 1
            buffers += reply
        self._ready_bytes = 0
        if buffers and not self._is_closed:
            self._transport.write(buffers)
        if (
            self._session.is_closed
            and not self._in_flight
            and not self._is_closed
            and not self._is_close_requested
        ):
            self._is_close_requested = True
            self._transport.request_close(
                self._broker.settings.connection_failed_authentication_delay_ms
            )
        if answered:
            self._flow.requests_finished(freed, answered)

    def _failed(self, request: _InFlightRequest, failure: BaseException) -> None:
        self._is_serving = False
        request.cancel = None
        if request.deadline is not None:
            request.deadline.cancel()
        if self._is_closed:
            self._release_after_close(request)
            if not isinstance(
                failure, CancelledError | Refused | AuthenticationFailed | AuthenticationBusy
            ):
                _log.bug(
                    "request failed after its peer was gone",
                    failure,
                    peer=self._peer,
                    api_key=request.api_key,
                    version=request.version,
                )
            return
        request.is_appending = False
        if isinstance(failure, AuthenticationFailed):
            # A bare token has no form of refusal: the client learns it from the hang-up.
            _log.warning(
                "login failed",
                peer=self._peer,
                listener=self._listener,
                mechanism=self._session.mechanism,
                reason=failure.reason,
            )
            self._traffic.closing("error:login")
            request.reply = []
            self._unanswered -= 1
            self._send()
            return
        if isinstance(failure, Refused | AuthenticationBusy):
            self._traffic.closing("error:refused" if isinstance(failure, Refused) else "error:busy")
            self.log_refusal(str(failure), request.api_key, request.version)
        else:
            self._traffic.closing("error:bug")
            _log.bug(
                "request failed",
                failure,
                peer=self._peer,
                listener=self._listener,
                api_key=request.api_key,
                version=request.version,
            )
        # Nothing that is still waiting is started any more.
        self._session.end()
        self._transport.abort()

    def _release_after_close(self, request: _InFlightRequest) -> None:
        """What a request held that has outlived its connection."""
        if request.is_appending:
            request.is_appending = False
            self._flow.requests_finished(request.size, 1)

    def log_refusal(self, reason: str, api_key: int = -1, version: int = -1) -> None:
        """Say once why this connection is hung up on."""
        _log.warning(
            "refused",
            peer=self._peer,
            listener=self._listener,
            api_key=api_key,
            version=version,
            reason=reason,
        )


def _decode(route: Route, frame: bytearray, header: RequestHeader) -> Any:
    try:
        return route.decode(frame, header.body, header.api_version)
    except Refused:
        raise
    except (ValueError, IndexError, OverflowError, TypeError, error) as unreadable:
        raise Refused(f"an unreadable body: {unreadable}") from None


def _reply(body: list[Buffer], correlation_id: int, has_tagged_header: bool) -> list[Buffer]:
    size = sum(map(len, body))
    if has_tagged_header:
        return [_TAGGED_HEADER.pack(size + 5, correlation_id, 0), *body]
    return [_PLAIN_HEADER.pack(size + 4, correlation_id), *body]
