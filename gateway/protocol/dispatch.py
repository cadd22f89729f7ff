"""Serves the requests of one connection: started and answered in the order of arrival.

Produce requests may overlap, because their handler queues every append before it first waits. All
other requests are served one at a time. Queued and unanswered requests are bounded: over the limits
the socket is not read.

Finished replies are written before another request starts. A Fetch that waits for data is notified
of requests behind it (`gateway.protocol.long_poll`).

A client over one of its quotas is answered at once, with the throttle time if the version has that
field, and its connection is muted (`gateway.protocol.mute`).

The module is long because queuing, starting, answering and sending change the same state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from functools import partial
from struct import Struct
from types import CoroutineType
from typing import Any

from auth.mechanism import AuthenticationBusy, AuthenticationFailed
from gateway import logs
from gateway.broker import Broker
from gateway.coroutines import (
    CancelledError,
    DelayedCall,
    SharedResult,
    after_calls,
    start,
)
from gateway.net.flow_control import ConnectionFlow
from gateway.protocol.caller import Caller
from gateway.protocol.errors import Refused
from gateway.protocol.forwarded import LARGE_BODY_BYTES, decode, forward
from gateway.protocol.in_flight import (
    InFlightRequest,
    ReplyTransport,
    count_usage,
    encode_counted,
    with_header,
)
from gateway.protocol.long_poll import LongPoll
from gateway.protocol.mute import Mute
from gateway.protocol.request_time import RequestStopwatch
from gateway.protocol.routes import ROUTES, UNSUPPORTED_VERSION_REPLIES, DelayedReply, Route
from gateway.protocol.session import LoginSession, log_in
from gateway.protocol.tenant_messages import reply_to_client
from gateway.protocol.wire import compiled
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.compiled import DispatchState
from gateway.protocol.wire.fetch_codec import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from gateway.protocol.wire.header import RequestHeader, read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.security.quota_usage import MAX_KEPT_CHARS, ClientUsage, RequestUsage
from gateway.topics.tenant_scope import TenantScope
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from storage.log import Buffer

_log = logs.get_logger(__name__)

#: Time between the reply to a failed log-in and the close. Some clients, for example kafka-python
#: 3, lose a reply that arrives together with the end of the connection, and try again.
LAST_REPLY_SECONDS = 0.5

_SIZE = Struct(">i")

_PRODUCE = ApiKey.PRODUCE.to_bytes(2, "big")
_FETCH = ApiKey.FETCH.to_bytes(2, "big")

#: Bytes of finished replies that are sent in one write. Between writes the transport can report
#: that the peer reads slowly.
MAX_BUFFERED_REPLY_BYTES = 256 << 10

#: Limits on the requests that one connection starts in one reactor turn: number and seconds. One
#: read can bring ten thousand requests, and other connections wait meanwhile. The last request of a
#: turn is always finished.
MAX_REQUESTS_PER_TURN = 100
MAX_TURN_SECONDS = 0.005

#: What compiled code needs for a Fetch like the last one.
_REPEATED = compiled.repeated_work(
    decode,
    InFlightRequest,
    LARGE_BODY_BYTES,
    (FetchRequest, FetchTopic, FetchPartition, FetchResponse),
)

#: Largest request header that a connection keeps to compare the next one with it.
MAX_KEPT_HEADER_BYTES = 1024


class Dispatch(DispatchState):
    """Serves the frames of one connection.

    `flow` holds its limits and pauses reading; `traffic` records requests and replies.
    """

    _session: LoginSession
    _transport: ReplyTransport
    _flow: ConnectionFlow
    _traffic: Recorder
    _long_poll: LongPoll
    _in_flight: list[InFlightRequest]
    _mute: Mute | None
    _expiry: DelayedCall | None

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
        self._is_recorded = traffic is not NULL_RECORDER
        self._ticks = traffic.ticks
        # Lists, because most connections are idle, and an empty deque takes 760 bytes. The next
        # frame is the last one.
        self._queued_frames = []
        self._long_poll = LongPoll(transport.acknowledge)
        self._in_flight = []
        self._unanswered = 0
        self._ready_bytes = 0
        self._is_serving = False
        self._is_writing_held = False
        self._is_closed = False
        self._is_advancing = False
        self._is_continuation_scheduled = False
        self._is_turn_over = False
        self._is_close_requested = False
        self._is_waiting_reported = False
        self._turn_began = 0.0
        self._client_usage: ClientUsage | None = None
        self._last_caller: Caller | None = None
        self._plain_context = None
        # None until the first throttle time.
        self._mute = None
        # One timer for all requests: it is not cancelled for each of them. `_expires_at` is its
        # time, in the clock's seconds.
        self._expiry = None
        self._expires_at = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued or unanswered."""
        return not self._in_flight and not self._queued_frames

    @property
    def is_appending(self) -> bool:
        """Whether the outcome of an append is not known yet."""
        return any(request.is_appending for request in self._in_flight)

    @property
    def is_producing(self) -> bool:
        """Whether a Produce request is queued or unanswered."""
        return any(request.api_key == ApiKey.PRODUCE for request in self._in_flight) or any(
            frame.startswith(_PRODUCE) for frame in self._queued_frames
        )

    @property
    def muted_until(self) -> float:
        """The end of the last throttle time in the clock's seconds."""
        return 0.0 if self._mute is None else self._mute.until

    def frames_received(self, frames: list[bytearray]) -> None:
        """Queue these frames, and start the requests that may start now."""
        self._flow.requests_arrived(sum(map(len, frames)), len(frames))
        self._queued_frames[:0] = frames[::-1]
        others = 0
        for frame in frames:
            if not frame.startswith(_FETCH):
                others += 1
        self._long_poll.requests_arrived(others)
        if self._is_turn_over:
            # `serve_chunk` has started as many requests as one turn may start.
            self._is_turn_over = False
            self._continue_later()
        else:
            self._advance()

    def partial_frame_received(self, beginning: bytes) -> None:
        """Note that part of a frame was received.

        `beginning` holds its first two bytes, or fewer if not all of them arrived.
        """
        if len(beginning) == 2 and beginning != _FETCH:
            self._long_poll.partial_request_arrived()

    def pause_writing(self, held: bool) -> None:
        """Pause (`held`) or resume starting requests.

        The transport calls this when its send buffer fills and empties, so that replies do not
        accumulate while the peer reads slowly.
        """
        self._is_writing_held = held
        if not held:
            self._advance()

    def close(self) -> None:
        """Cancel waiting requests after the connection is closed.

        The bytes of running appends count against the limits until the appends end.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._mute is not None:
            self._mute.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        # A caller refers to the connection, in a way that the garbage collector does not see.
        self._last_caller = self._plain_context = None
        self._session.end()
        in_flight, self._in_flight = self._in_flight, []
        queued, self._queued_frames = self._queued_frames, []
        for request in in_flight:
            if request.cancel is not None:
                request.cancel()
            if request.reply is None:
                self._traffic.request_abandoned(request)
        ended = [request.size for request in in_flight if not request.is_appending]
        self._flow.requests_finished(sum(map(len, queued)) + sum(ended), len(queued) + len(ended))

    def _advance(self) -> None:
        """Send finished replies and start requests, as far as both are possible now.

        Not re-entrant: a request that ends at once only leaves its reply here.
        """
        if self._is_advancing:
            return
        self._is_advancing = True
        queued, seconds = self._queued_frames, self._broker.clock.seconds
        try:
            if self._ready_bytes:
                self._send()
            self._turn_began = began = seconds() if queued else 0.0
            for _ in range(MAX_REQUESTS_PER_TURN):
                if not queued or not self._may_start(queued[-1]):
                    break
                frame = queued.pop()
                if frame.startswith(_PRODUCE):
                    self._long_poll.request_started(is_produce=True)
                elif not frame.startswith(_FETCH):
                    self._long_poll.request_started(is_produce=False)
                elif self._ready_bytes:
                    # A Fetch may read for long before it waits.
                    self._send()
                self._start(frame)
                if self._ready_bytes >= MAX_BUFFERED_REPLY_BYTES:
                    self._send()
                if queued and seconds() > began + MAX_TURN_SECONDS:
                    self._continue_later()
                    break
            else:
                self._continue_later()
        finally:
            self._is_advancing = False
        in_flight = self._in_flight
        if self._session.is_closed or (in_flight and in_flight[0].reply is not None):
            self._send()

    def _continue_later(self) -> None:
        if not self._is_continuation_scheduled:
            self._is_continuation_scheduled = True
            self._broker.clock.callLater(0, self._continue)

    def _send_later(self) -> None:
        """Send finished replies once the store has completed the appends of its burst.

        They are sent together, in one write.
        """
        if self._is_advancing or self._is_continuation_scheduled:
            return
        if after_calls(self._continue):
            self._is_continuation_scheduled = True
        else:
            self._continue_later()

    def _continue(self) -> None:
        self._is_continuation_scheduled = False
        if self._queued_frames or self._is_advancing:
            self._advance()
        else:
            # Often there are only replies to send.
            self._send()

    def _may_start(self, frame: bytearray) -> bool:
        """The compiled `may_start_plain` does the same for plain requests."""
        if (
            self._is_serving
            or self._is_closed
            or self._is_writing_held
            or (self._mute is not None and self._mute.is_on)
            or self._session.is_closed
        ):
            return False
        if not self._unanswered:
            return True
        # Only appends are running. Another Produce may start; any other request waits for them.
        return frame.startswith(_PRODUCE) and self._session.is_ready

    def _start(self, frame: bytearray) -> None:
        if self._plain_context is not None and self.start_again(frame):
            return
        request = InFlightRequest(len(frame), 0 if self._ticks is None else self._ticks())
        self._in_flight.append(request)
        self._unanswered += 1
        self._is_serving = True
        work: Any
        if self._broker.client_quotas.limits_time:
            work = request.stopwatch = RequestStopwatch(self._serve(frame, request))
        elif not self._session.is_ready:
            work = self._serve(frame, request)
        else:
            refusal = None
            try:
                work = self._handle(frame, request)
            except Exception as failure:  # noqa: BLE001 - as of a coroutine
                refusal = failure
            if refusal is not None:
                # The failure's traceback refers to this frame, which must not refer back to it.
                try:
                    self._failed(request, refusal)
                finally:
                    del refusal
                return
            if type(work) is not CoroutineType:
                # The common case of Produce and Fetch: there was nothing to await.
                self._served(request, work)
                return
        self._run(request, work)

    def _run(self, request: InFlightRequest, work: Coroutine[Any, Any, Any]) -> None:
        """Run the coroutine of a request's handler."""
        request.cancel = start(
            work,
            partial(self._served, request),
            partial(self._failed, request),
        )
        if request.cancel is not None and request.api_key != ApiKey.PRODUCE:
            self._is_waiting_reported = True
            self._flow.set_waiting(request.size)
            if request.api_key != ApiKey.FETCH:
                self._transport.acknowledge()

    def _fail_unstarted(
        self,
        frame: bytearray,
        header: RequestHeader,
        route: Route,
        began: int,
        failure: Exception,
    ) -> None:
        """A request like the last one, which arrived at the time `began`, could not be started."""
        request = InFlightRequest(len(frame), began)
        request.route = route
        request.api_key, request.version = header.api_key, header.api_version
        self._in_flight.append(request)
        self._unanswered += 1
        self._traffic.request_started(request, header)
        self._failed(request, failure)

    async def _serve(self, frame: bytearray, request: InFlightRequest) -> Any:
        """Return the reply or a `DelayedReply`.

        `request.route` encodes the reply. If it is None, the reply consists of buffers already.
        """
        session = self._session
        if not session.is_ready:
            if session.is_gssapi_token(frame):
                self._traffic.bare_gssapi_received()
                if not session.offers_gssapi:
                    self._traffic.closing("error:mechanism")
                session.begin_gssapi()
            if session.expects_token():
                answer, _ = await log_in(
                    session,
                    bytes(frame),
                    self._traffic,
                    self._broker.audit,
                    self._peer,
                    self._listener,
                )
                return [] if answer is None else [_SIZE.pack(len(answer)), answer]
        return await self._handle(frame, request)

    def _handle(self, frame: bytearray, request: InFlightRequest) -> Awaitable[Any]:
        """Pass a request to its handler. Returns what the handler returns."""
        session = self._session
        is_ready = session.is_ready
        header = read_header(frame, FIRST_FLEXIBLE_VERSION)
        request.api_key, request.version, request.correlation_id = (
            header.api_key,
            header.api_version,
            header.correlation_id,
        )
        request.route = route = ROUTES.get((header.api_key, header.api_version))
        self._traffic.request_started(request, header)
        if not is_ready or session.expires_at is not None:
            session.check_allowed(header.api_key)
        if route is None:
            unsupported = UNSUPPORTED_VERSION_REPLIES.get(header.api_key)
            if unsupported is not None:
                return _encoded(with_header([*unsupported()], header.correlation_id, False))
            raise Refused("unsupported API or version")
        if is_ready and self._broker.client_quotas.is_active:
            request.usage = self._usage(header, len(frame), request.stopwatch)
        caller = self._caller(header, request)
        if route.refuse_items is not None and not self._broker.controller.is_local:
            return forward(route, header, frame, caller)
        if route.at_once is not None and session.scope is None:
            served = route.at_once(frame, header.body, caller)
            if served is not None:
                if route.plain is not None:
                    self._keep_header(frame, header, route, caller, route.plain, request.usage)
                return served
        if route.api_key is ApiKey.FETCH:
            # Produce gains more, so a connection that is used for both keeps its header.
            known = self._plain_context
            if known is None or (
                known.route is route
                and (
                    known.caller is not caller
                    or known.usage_version != self._broker.quota_usage.version
                )
            ):
                self._keep_header(frame, header, route, caller, _REPEATED)
        if len(frame) < LARGE_BODY_BYTES or route.api_key is ApiKey.PRODUCE:
            return route.handler(decode(route, frame, header, session.scope), caller)
        return _decode_elsewhere(route, frame, header, session.scope, caller)

    def _keep_header(
        self,
        frame: bytearray,
        header: RequestHeader,
        route: Route,
        caller: Caller,
        work: Any,
        usage: RequestUsage | None = None,
    ) -> None:
        """Let compiled code serve the next requests with the header of this one.

        `usage` is that of this request, if its client has quotas.
        """
        if (
            caller is self._last_caller
            and work is not None
            and header.body <= MAX_KEPT_HEADER_BYTES
        ):
            encoded = bytes(memoryview(frame)[: header.body])
            self._plain_context = compiled.plain_context(
                encoded,
                header,
                route,
                caller,
                self._is_recorded,
                work,
                None if usage is None else usage.of_same_client,
            )

    def _caller(self, header: RequestHeader, request: InFlightRequest) -> Caller:
        """Return the context of a request; that of the last request if it is the same."""
        # The handler of Produce does not use it.
        usage = None if header.api_key == ApiKey.PRODUCE else request.usage
        is_kept = usage is None and request.stopwatch is None
        last = self._last_caller
        if (
            is_kept
            and last is not None
            and last.api_key == header.api_key
            and last.api_version == header.api_version
            and last.client_id == header.client_id
        ):
            return last
        caller = Caller(
            self._broker,
            self._session,
            self._peer,
            self._listener,
            header.api_version,
            header.client_id,
            self._long_poll,
            self._traffic,
            header.api_key,
            usage,
            request.stopwatch,
        )
        # A client id may have 32 KiB.
        if is_kept and len(header.client_id or "") <= MAX_KEPT_CHARS:
            self._last_caller = caller
        return caller

    def _usage(
        self, header: RequestHeader, size: int, stopwatch: RequestStopwatch | None
    ) -> RequestUsage | None:
        """Return the usage of a request by a client with quotas."""
        of_all, client = self._broker.quota_usage, self._client_usage
        user = self._session.principal.name
        if (
            client is None
            or client.version != of_all.version
            or client.client_id != header.client_id
            or client.user != user
        ):
            client = of_all.client(user, header.client_id)
            # A client id may have 32 KiB.
            is_kept = len(header.client_id or "") <= MAX_KEPT_CHARS
            self._client_usage = client if is_kept else None
        if not client.is_limited:
            return None
        return RequestUsage(of_all, client, size, None if client.time is None else stopwatch)

    def _served(self, request: InFlightRequest, reply: Any) -> None:
        self._is_serving = False
        if self._is_waiting_reported:
            self._is_waiting_reported = False
            self._flow.set_waiting(None)
        if not isinstance(reply, DelayedReply):
            self._answered(request, reply)
            return
        # Queued appends are stored even if the peer disconnects, so this wait is never cancelled.
        request.cancel = None
        request.is_appending = not self._is_closed
        # A coroutine, or an object with the methods of SharedResult.
        later: Any = reply.reply
        if isinstance(later, CoroutineType):
            start(later, partial(self._answered_later, request), partial(self._failed, request))
        else:
            later.when_done(partial(self._appended, request, later))
        # A request that has failed at once has no reply, and has ended the session.
        is_pending = request.reply is None and not self._session.is_closed
        if reply.timeout_seconds is not None and is_pending:
            request.on_timeout = reply.on_timeout
            request.deadline = deadline = self._broker.clock.seconds() + reply.timeout_seconds
            if self._expiry is None or deadline < self._expires_at:
                self._expire_at(deadline)
        if not self._is_advancing:
            self._advance()

    def _answered(self, request: InFlightRequest, reply: Any) -> None:
        if self._complete(request, reply):
            self._advance()

    def _appended(self, request: InFlightRequest, reply: SharedResult[Any]) -> None:
        outcome = reply.outcome(None)
        if isinstance(outcome, BaseException):
            self._failed(request, outcome)
            return
        try:
            self._answered_later(request, outcome)
        except Exception as bug:  # noqa: BLE001 - the client would wait until its timeout
            self._failed(request, bug)

    def _answered_later(self, request: InFlightRequest, reply: Any) -> None:
        """Record a delayed reply."""
        if self._complete(request, reply):
            self._send_later()

    def _expire_at(self, deadline: float) -> None:
        if self._is_closed:
            return
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = deadline
        self._expiry = self._broker.deadlines.callLater(
            deadline - self._broker.clock.seconds(), self._expire
        )

    def _expire(self) -> None:
        """Answer the requests whose time is over."""
        self._expiry = None
        now = self._broker.clock.seconds()
        left = []
        for request in tuple(self._in_flight):
            on_timeout = request.on_timeout
            if on_timeout is None:
                continue
            if request.deadline > now:
                left.append(request.deadline)
                continue
            try:
                reply = on_timeout()
            except Exception as failure:  # noqa: BLE001 - other connections' deadlines follow
                self._failed(request, failure)
            else:
                self._answered_later(request, reply)
        if left:
            self._expire_at(min(left))

    def _complete(self, request: InFlightRequest, reply: Any) -> bool:
        """Record the reply. Returns whether it is to be sent."""
        request.cancel = None
        if request.reply is not None:
            # The timeout reply has been sent.
            return False
        request.on_timeout = None
        if request.usage is not None:
            # Also after a disconnection, which would otherwise be a way around the quota.
            request.throttle_ms = count_usage(request, request.usage, reply)
        if self._is_closed:
            self._release_after_close(request)
            return False
        request.is_appending = False
        if request.throttle_ms:
            self._mute_or_new().extend(request.throttle_ms)
        route = request.route
        if route is None:
            request.reply = reply
        elif reply is None:
            request.reply = []
        else:
            try:
                if self._session.scope is not None:
                    reply = reply_to_client(reply, request.version, self._session.scope)
                body = (
                    route.encode(reply, request.version)
                    if request.usage is None
                    else encode_counted(route, request, request.usage, reply)
                )
            except Exception as failure:  # noqa: BLE001 - a reply that cannot be encoded is a bug
                request.usage = None
                self._failed(request, failure)
                return False
            request.reply = with_header(body, request.correlation_id, route.has_tagged_header)
        self._unanswered -= 1
        size = compiled.total(request.reply)
        self._ready_bytes += size
        self._traffic.request_answered(request, reply, size)
        return True

    def _mute_or_new(self) -> Mute:
        if self._mute is None:
            self._mute = Mute(self._broker.clock, self._flow, self._advance)
        return self._mute

    def end_throttling(self) -> None:
        """Serve what is queued without further throttling: the gateway shuts down."""
        self._mute_or_new().disable()

    def _send(self) -> None:
        """Send all finished replies, in the order of their requests, in one write.

        The compiled `send_plain` does the same for plain requests.
        """
        buffers: list[Buffer] = []
        reply: list[Buffer] | None = None
        freed = answered = 0
        in_flight = self._in_flight
        for request in in_flight:
            reply = request.reply
            if reply is None:
                break
            freed += request.size
            answered += 1
            buffers += reply
        del in_flight[:answered]
        self._ready_bytes = 0
        if (
            self._session.is_closed
            and not self._in_flight
            and not self._is_closed
            and not self._is_close_requested
        ):
            # As in Kafka, a failed log-in is answered after the delay.
            self._is_close_requested = True
            self._transport.request_close(
                self._broker.settings.connection_failed_authentication_delay_ms,
                buffers,
                linger_seconds=LAST_REPLY_SECONDS if reply else 0,
            )
        elif buffers and not self._is_closed:
            self._transport.write(buffers)
        if answered:
            self._flow.requests_finished(freed, answered)

    def _failed(self, request: InFlightRequest, failure: BaseException) -> None:
        self._is_serving = False
        request.cancel = None
        request.on_timeout = None
        if request.usage is not None and request.reply is None:
            # A disconnection, or a malformed request, would otherwise be a way around the quota.
            count_usage(request, request.usage, failure)
        if self._is_closed:
            self._release_after_close(request)
            if not isinstance(
                failure, CancelledError | Refused | AuthenticationFailed | AuthenticationBusy
            ):
                _log.bug(
                    "request failed after its connection closed",
                    failure,
                    peer=self._peer,
                    api_key=request.api_key,
                    version=request.version,
                )
            return
        request.is_appending = False
        if isinstance(failure, AuthenticationFailed):
            # Bare SASL tokens have no error reply: closing the connection is the only signal.
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
        try:
            if self._ready_bytes:
                # Replies to requests before this one, which may have arrived in one chunk with it.
                # A reply to this request is not sent: there may be one if the failure is a bug.
                request.reply = None
                self._send()
        finally:
            # Do not start the queued requests.
            self._session.end()
            self._transport.abort()

    def _release_after_close(self, request: InFlightRequest) -> None:
        """Release the bytes of an append that outlived its connection."""
        if request.is_appending:
            request.is_appending = False
            self._flow.requests_finished(request.size, 1)

    def log_refusal(self, reason: str, api_key: int = -1, version: int = -1) -> None:
        """Log why this connection is closed."""
        _log.warning(
            "refused",
            peer=self._peer,
            listener=self._listener,
            api_key=api_key,
            version=version,
            reason=reason,
        )


async def _encoded(reply: list[Buffer]) -> list[Buffer]:
    return reply


async def _decode_elsewhere(
    route: Route,
    frame: bytearray,
    header: RequestHeader,
    scope: TenantScope | None,
    caller: Caller,
) -> Any:
    """Handle a request with a large body, which another thread decodes."""
    return await route.handler(await caller.run(decode, route, frame, header, scope), caller)
