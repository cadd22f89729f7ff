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
from gateway.coroutines import Cancel, CancelledError, Timer, start
from gateway.handlers.api_versions import unsupported_api_versions
from gateway.net.flow_control import Flow
from gateway.protocol.caller import Caller
from gateway.protocol.errors import Refused
from gateway.protocol.long_poll import LongPoll
from gateway.protocol.routes import ROUTES, Later, Route
from gateway.protocol.session import Session
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.header import RequestHeader, read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from storage.log import Buffer

_log = logs.part(__name__)

_PLAIN_HEADER = Struct(">ii")
_TAGGED_HEADER = Struct(">iiB")
_SIZE = Struct(">i")

_PRODUCE = ApiKey.PRODUCE.to_bytes(2, "big")
_FETCH = ApiKey.FETCH.to_bytes(2, "big")

#: From this size on a body is decoded on another thread: the 5,000 elements that it may have take some 10 ms. Those of Produce are mostly
#: records, which are not decoded, and no more than `produce.MAX_PARTITIONS`.
LARGE_BODY = 16 << 10

#: Replies are gathered up to this many bytes before they are sent: then the outlet can say that its peer reads slowly.
SEND_BYTES = 256 << 10

#: Requests that one connection may start in one turn of the reactor, and for how many seconds: one read can bring ten thousand, and others wait
#: meanwhile. Some requests take longer than others; the last one of a turn is always finished.
TURN_REQUESTS = 100
TURN_SECONDS = 0.005


class Outlet(Protocol):
    """The connection's other half, as the server provides it."""

    def write(self, buffers: list[Buffer]) -> None:
        """Send these bytes, in order, after all earlier ones."""
        ...

    def hang_up(self, delay_ms: int = 0) -> None:
        """Close once everything written has left, `delay_ms` from now."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class _Owed:
    """A request that is not answered yet. `reply` is None until it is known, and empty for a request without a reply."""

    __slots__ = (
        "api_key",
        "began",
        "cancel",
        "correlation_id",
        "deadline",
        "is_storing",
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
        self.is_storing = False
        self.deadline: Timer | None = None


class Dispatch:
    """Serves the frames of one connection. `flow` holds its limits and stops the reading, `traffic` notes what is asked and answered."""

    def __init__(
        self,
        broker: Broker,
        session: Session,
        outlet: Outlet,
        flow: Flow,
        *,
        peer: str,
        listener: str,
        traffic: Recorder = NULL_RECORDER,
    ) -> None:
        self._broker = broker
        self._session = session
        self._outlet = outlet
        self._flow = flow
        self._peer = peer
        self._listener = listener
        self._traffic = traffic
        self._waiting: deque[bytearray] = deque()
        self._long_poll = LongPoll()
        self._owed: deque[_Owed] = deque()
        self._unanswered = 0
        self._ready_bytes = 0
        self._is_busy = False
        self._is_writing_held = False
        self._is_closed = False
        self._is_advancing = False
        self._is_going_on = False
        self._has_hung_up = False
        self._is_waited_for = False

    @property
    def is_idle(self) -> bool:
        """Nothing is waiting and nothing is owed."""
        return not self._owed and not self._waiting

    def arrived(self, frames: list[bytearray]) -> None:
        """Take these frames; what they allow is started before this returns."""
        self._flow.took(sum(map(len, frames)), len(frames))
        self._waiting.extend(frames)
        others = 0
        for frame in frames:
            if frame[:2] != _FETCH:
                others += 1
        self._long_poll.arrived(others)
        self._advance()

    def arriving(self, beginning: bytes) -> None:
        """A frame was received in part; these are its first two bytes, or fewer if not all of them have come."""
        if len(beginning) == 2 and beginning != _FETCH:
            self._long_poll.arriving()

    def hold_writing(self, held: bool) -> None:
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
        owed, self._owed = self._owed, deque()
        waiting, self._waiting = self._waiting, deque()
        for request in owed:
            if request.cancel is not None:
                request.cancel()
            if request.reply is None:
                self._traffic.request_abandoned(request)
        ended = [request.size for request in owed if not request.is_storing]
        self._flow.gave(sum(map(len, waiting)) + sum(ended), len(waiting) + len(ended))

    def _advance(self) -> None:
        """Send what is ready, start what may be started, and send what that made ready. Not re-entrant: a request that ends at once only
        leaves its reply here."""
        if self._is_advancing:
            return
        self._is_advancing = True
        seconds = self._broker.clock.seconds
        until = seconds() + TURN_SECONDS
        try:
            if self._ready_bytes:
                self._send()
            for _ in range(TURN_REQUESTS):
                if not self._waiting or not self._may_start(self._waiting[0]):
                    break
                frame = self._waiting.popleft()
                key = frame[:2]
                if key != _FETCH:
                    self._long_poll.starts(is_produce=key == _PRODUCE)
                elif self._ready_bytes:
                    # It may read for long before it waits.
                    self._send()
                self._start(frame)
                if self._ready_bytes >= SEND_BYTES:
                    self._send()
                if self._waiting and seconds() > until:
                    self._go_on_later()
                    break
            else:
                self._go_on_later()
        finally:
            self._is_advancing = False
        self._send()

    def _go_on_later(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self._broker.clock.callLater(0, self._go_on)

    def _go_on(self) -> None:
        self._is_going_on = False
        self._advance()

    def _may_start(self, frame: bytearray) -> bool:
        if self._is_busy or self._is_closed or self._is_writing_held or self._session.is_over:
            return False
        if not self._unanswered:
            return True
        # Only appends are under way; another Produce may join them, anything else waits for them.
        return frame[:2] == _PRODUCE and self._session.is_ready

    def _start(self, frame: bytearray) -> None:
        owed = _Owed(len(frame))
        self._owed.append(owed)
        self._unanswered += 1
        self._is_busy = True
        owed.cancel = start(
            self._serve(frame, owed), partial(self._served, owed), partial(self._failed, owed)
        )
        if owed.cancel is not None and owed.api_key != ApiKey.PRODUCE:
            self._is_waited_for = True
            self._flow.waits(owed.size)

    async def _serve(self, frame: bytearray, owed: _Owed) -> Any:
        """The reply, or `Later`. What it becomes on the wire stands in `owed.route`; without a route it is buffers already."""
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
        owed.api_key, owed.version, owed.correlation_id = (
            header.api_key,
            header.api_version,
            header.correlation_id,
        )
        owed.route = route = ROUTES.get((header.api_key, header.api_version))
        self._traffic.request_started(owed, header)
        if not is_ready:
            session.admit(header.api_key)
        if route is None:
            if header.api_key == ApiKey.API_VERSIONS:
                return _reply([*unsupported_api_versions()], header.correlation_id, False)
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
        if len(frame) < LARGE_BODY or route.api_key is ApiKey.PRODUCE:
            return await route.handler(_decode(route, frame, header), caller)
        return await route.handler(await caller.run(_decode, route, frame, header), caller)

    def _served(self, owed: _Owed, reply: Any) -> None:
        self._is_busy = False
        if self._is_waited_for:
            self._is_waited_for = False
            self._flow.waits(None)
        if not isinstance(reply, Later):
            self._answered(owed, reply)
            return
        # What is queued to be stored is stored: such a wait is never cancelled, its end is only of no interest when the peer is gone.
        owed.cancel = None
        owed.is_storing = not self._is_closed
        start(reply.reply, partial(self._answered_later, owed), partial(self._failed, owed))
        if reply.seconds is not None and owed.reply is None:
            owed.deadline = self._broker.deadlines.callLater(
                reply.seconds, self._too_late, owed, reply.late
            )
        self._advance()

    def _answered(self, owed: _Owed, reply: Any) -> None:
        if self._keeps(owed, reply):
            self._advance()

    def _answered_later(self, owed: _Owed, reply: Any) -> None:
        """What is stored together is answered together: the store is still telling the others."""
        if self._keeps(owed, reply) and not self._is_advancing:
            self._go_on_later()

    def _too_late(self, owed: _Owed, late: Callable[[], Any]) -> None:
        if not self._is_closed:
            self._answered_later(owed, late())

    def _keeps(self, owed: _Owed, reply: Any) -> bool:
        """Whether `reply` is now to be sent in its turn."""
        owed.cancel = None
        if owed.reply is not None:
            # It came too late, and the client has heard so.
            return False
        if owed.deadline is not None:
            owed.deadline.cancel()
        if self._is_closed:
            self._give_back(owed)
            return False
        owed.is_storing = False
        route = owed.route
        if route is None:
            owed.reply = reply
        elif reply is None:
            owed.reply = []
        else:
            try:
                body = route.encode(reply, owed.version)
            except Exception as failure:  # noqa: BLE001 - a reply that cannot be written is a bug of its handler
                self._failed(owed, failure)
                return False
            owed.reply = _reply(body, owed.correlation_id, route.has_tagged_header)
        self._unanswered -= 1
        size = sum(map(len, owed.reply))
        self._ready_bytes += size
        self._traffic.request_answered(owed, reply, size)
        return True

    def _send(self) -> None:
        """One write for all replies that are ready, in the order of their requests."""
        buffers: list[Buffer] = []
        freed = answered = 0
        while self._owed and (reply := self._owed[0].reply) is not None:
            freed += self._owed.popleft().size
            answered += 1
            buffers += reply
        self._ready_bytes = 0
        if buffers and not self._is_closed:
            self._outlet.write(buffers)
        if (
            self._session.is_over
            and not self._owed
            and not self._is_closed
            and not self._has_hung_up
        ):
            self._has_hung_up = True
            self._outlet.hang_up(self._broker.settings.connection_failed_authentication_delay_ms)
        if answered:
            self._flow.gave(freed, answered)

    def _failed(self, owed: _Owed, failure: BaseException) -> None:
        self._is_busy = False
        owed.cancel = None
        if owed.deadline is not None:
            owed.deadline.cancel()
        if self._is_closed:
            self._give_back(owed)
            if not isinstance(
                failure, CancelledError | Refused | AuthenticationFailed | AuthenticationBusy
            ):
                _log.bug(
                    "request failed after its peer was gone",
                    failure,
                    peer=self._peer,
                    api_key=owed.api_key,
                    version=owed.version,
                )
            return
        owed.is_storing = False
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
            owed.reply = []
            self._unanswered -= 1
            self._send()
            return
        if isinstance(failure, Refused | AuthenticationBusy):
            self._traffic.closing("error:refused" if isinstance(failure, Refused) else "error:busy")
            self.refuse(str(failure), owed.api_key, owed.version)
        else:
            self._traffic.closing("error:bug")
            _log.bug(
                "request failed",
                failure,
                peer=self._peer,
                listener=self._listener,
                api_key=owed.api_key,
                version=owed.version,
            )
        # Nothing that is still waiting is started any more.
        self._session.end()
        self._outlet.abort()

    def _give_back(self, owed: _Owed) -> None:
        """What a request held that has outlived its connection."""
        if owed.is_storing:
            owed.is_storing = False
            self._flow.gave(owed.size, 1)

    def refuse(self, reason: str, api_key: int = -1, version: int = -1) -> None:
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
