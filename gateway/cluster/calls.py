"""Calls between gateways: request and response over an inbox that may lose or repeat messages.

A call is executed at most once. The caller repeats an unanswered request until its deadline, with
the same id and for the same incarnation (process) of the target. The target keeps running calls and
recent replies. It answers a repeated request with the kept reply, and does not execute it again.

Ids increase, so the target recognizes a repeated request even after it has discarded the reply, and
drops the request: `_floors` holds the greatest id of the discarded replies of each caller.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec

from gateway import logs
from gateway.coroutines import Cancel, CancelledError, Clock, SharedResult, start
from storage.cluster import MAX_CALL_BYTES

_log = logs.get_logger(__name__)

#: Most unanswered calls of this gateway: to one target, and to all targets.
MAX_CALLS_TO_TARGET, MAX_CALLS = 100, 1000

#: Most bytes in the payloads of unanswered calls to one target. Heartbeats use the same inbox,
#: which drops messages if too many bytes wait. This is half of what may wait on Pulsar.
MAX_BYTES_TO_TARGET = 2 * MAX_CALL_BYTES

#: Most calls of other gateways that this gateway executes at the same time.
MAX_RUNNING = 1000

#: Most replies of a method that are kept to answer repeated requests, and their total bytes. Each
#: method has its own: appends that are passed on may come by the thousand a second, and must not
#: evict the replies of calls that are repeated after seconds.
MAX_REPLIES, MAX_REPLY_BYTES = 2000, 16 << 20

#: Most callers in `_KeptReplies.floors`; each takes about 200 bytes.
MAX_CALLERS = 1000

#: Most bytes in the payload of a request or a reply, and in the message of an error. The rest of
#: MAX_CALL_BYTES is for the other fields.
MAX_PAYLOAD_BYTES, MAX_ERROR_BYTES = MAX_CALL_BYTES - (64 << 10), 1000

#: Seconds until an unanswered request is sent again. Doubles each time, because requests may be
#: large.
RESEND_SECONDS = 1.0

#: Executes a call: takes the payload of the request, returns the payload of the reply. May raise
#: CallRefused and CallFailed.
CallHandler = Callable[[bytes], Coroutine[Any, Any, bytes]]


class CallError(Exception):
    """The call has no result."""


class CallRefused(CallError):
    """The call was not executed. It can be repeated, also at another gateway."""


class CallFailed(CallError):
    """The call failed at the target, or its payload is too large. Repeating it does not help."""


class CallUnanswered(CallError):
    """It is unknown whether the call was executed: the target ended or did not answer in time."""


class _Status(IntEnum):
    DONE = 0
    REFUSED = 1
    FAILED = 2
    UNANSWERED = 3


_ERRORS: dict[_Status, type[CallError]] = {
    _Status.REFUSED: CallRefused,
    _Status.FAILED: CallFailed,
    _Status.UNANSWERED: CallUnanswered,
}


class _Request(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """`seconds` is the time between the sending of this request and the caller's deadline."""

    call_id: int
    sender: int
    incarnation: int
    target_incarnation: int
    seconds: float
    method: str
    payload: bytes


class _Reply(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """`payload` is the result if `status` is DONE, otherwise the error message in UTF-8."""

    call_id: int
    sender: int
    incarnation: int
    target_incarnation: int
    status: _Status
    payload: bytes


_DECODER: msgspec.msgpack.Decoder[_Request | _Reply] = msgspec.msgpack.Decoder(_Request | _Reply)
_ENCODER = msgspec.msgpack.Encoder()


class _Pending:
    __slots__ = ("incarnation", "node_id", "result")

    def __init__(self, node_id: int, incarnation: int) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.result: SharedResult[bytes] = SharedResult()


#: Identifies a call at its target: sender, its incarnation, call id.
_CallKey = tuple[int, int, int]


class _KeptReplies:
    """The last replies of one method.

    `floors` has the largest id of a forgotten reply, by caller: its sender and incarnation.
    """

    __slots__ = ("floors", "replies", "size")

    def __init__(self) -> None:
        self.replies: OrderedDict[_CallKey, bytes] = OrderedDict()
        self.size = 0
        self.floors: OrderedDict[tuple[int, int], int] = OrderedDict()

    def is_forgotten(self, key: _CallKey) -> bool:
        """Whether the call may have been executed before. It must not be executed again."""
        sender, incarnation, call_id = key
        return call_id <= self.floors.get((sender, incarnation), 0)

    def add(self, key: _CallKey, reply: bytes) -> None:
        self.replies[key] = reply
        self.size += len(reply)
        while len(self.replies) > MAX_REPLIES or self.size > MAX_REPLY_BYTES:
            (sender, incarnation, call_id), forgotten = self.replies.popitem(last=False)
            self.size -= len(forgotten)
            self._raise_floor((sender, incarnation), call_id)

    def _raise_floor(self, caller: tuple[int, int], call_id: int) -> None:
        self.floors[caller] = max(call_id, self.floors.get(caller, 0))
        self.floors.move_to_end(caller)
        if len(self.floors) > MAX_CALLERS:
            self.floors.popitem(last=False)


class Calls:
    """Makes calls to other gateways and executes theirs.

    `send(node_id, message)` sends a message to another gateway's inbox without waiting. The owner
    passes each message of this gateway's inbox to `on_message`. `incarnation` identifies this
    process. `incarnation_of(node_id)` returns the incarnation of another gateway, None if that
    gateway is not registered.
    """

    def __init__(
        self,
        send: Callable[[int, bytes], None],
        clock: Clock,
        node_id: int,
        incarnation: int,
        incarnation_of: Callable[[int], int | None],
    ) -> None:
        self._send = send
        self._clock = clock
        self._node_id = node_id
        self._incarnation = incarnation
        self._incarnation_of = incarnation_of
        self._last_id = 0
        self._pending: dict[int, _Pending] = {}
        self._pending_by_target: Counter[int] = Counter()
        self._bytes_by_target: Counter[int] = Counter()
        self._handlers: dict[str, CallHandler] = {}
        self._running: dict[_CallKey, Cancel | None] = {}
        self._kept: dict[str, _KeptReplies] = {}
        self._is_closed = False

    def serve(self, method: str, handler: CallHandler) -> None:
        """Execute calls of `method` with `handler`. Raises ValueError if it has one already."""
        if method in self._handlers:
            raise ValueError(f"method {method} already has a handler")
        self._handlers[method] = handler
        self._kept[method] = _KeptReplies()

    async def call(self, node_id: int, method: str, payload: bytes, timeout: float) -> bytes:
        """Return the payload of the reply. Waits for at most `timeout` seconds.

        A call that is cancelled may still be executed. Raises CallRefused, CallFailed and
        CallUnanswered.
        """
        incarnation = self._incarnation_of(node_id)
        self._check_call(node_id, incarnation, payload)
        self._last_id += 1
        call_id, until = self._last_id, self._clock.seconds() + timeout
        pending = self._pending[call_id] = _Pending(node_id, incarnation or 0)
        self._pending_by_target[node_id] += 1
        self._bytes_by_target[node_id] += len(payload)
        pause = RESEND_SECONDS
        try:
            while (left := until - self._clock.seconds()) > 0:
                request = _Request(
                    call_id,
                    self._node_id,
                    self._incarnation,
                    pending.incarnation,
                    left,
                    method,
                    payload,
                )
                self._send(node_id, _ENCODER.encode(request))
                try:
                    return await pending.result.with_timeout(self._clock, min(pause, left))
                except TimeoutError:
                    pause *= 2
            raise CallUnanswered(f"gateway {node_id} did not answer {method} in {timeout:g} s")
        finally:
            del self._pending[call_id]
            self._pending_by_target[node_id] -= 1
            self._bytes_by_target[node_id] -= len(payload)
            if not self._pending_by_target[node_id]:
                del self._pending_by_target[node_id], self._bytes_by_target[node_id]

    def _check_call(self, node_id: int, incarnation: int | None, payload: bytes) -> None:
        if self._is_closed:
            raise CallRefused("this gateway is closing")
        if incarnation is None:
            raise CallRefused(f"gateway {node_id} is not registered")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise CallFailed(
                f"the payload has {len(payload)} bytes, the limit is {MAX_PAYLOAD_BYTES}"
            )
        if (
            len(self._pending) >= MAX_CALLS
            or self._pending_by_target[node_id] >= MAX_CALLS_TO_TARGET
            or self._bytes_by_target[node_id] + len(payload) > MAX_BYTES_TO_TARGET
        ):
            raise CallRefused(f"too many unanswered calls to gateway {node_id}")

    def node_gone(self, node_id: int, incarnation: int) -> None:
        """Fail the pending calls to a gateway whose process has ended."""
        for pending in list(self._pending.values()):
            if (pending.node_id, pending.incarnation) == (node_id, incarnation):
                pending.result.fail(CallUnanswered(f"gateway {node_id} has ended"))

    def close(self) -> None:
        """Fail the pending calls and cancel the running ones. Later calls are refused."""
        self._is_closed = True
        for pending in list(self._pending.values()):
            pending.result.fail(CallUnanswered("this gateway is closing"))
        running, self._running = self._running, {}
        for cancel in running.values():
            if cancel is not None:
                cancel()

    def on_message(self, message: bytes) -> None:
        """Process a message of this gateway's inbox. Never raises."""
        try:
            received = _DECODER.decode(message)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as unreadable:
            _log.warning("unreadable call ignored", error=str(unreadable), bytes=len(message))
            return
        if self._is_closed:
            return
        if isinstance(received, _Request):
            self._on_request(received)
        else:
            self._on_reply(received)

    # The caller's side

    def _on_reply(self, reply: _Reply) -> None:
        pending = self._pending.get(reply.call_id)
        if (
            pending is None
            or reply.target_incarnation != self._incarnation
            or reply.sender != pending.node_id
        ):
            # The second reply to a repeated request, or a reply to a former process with this id.
            return
        if reply.status is _Status.DONE:
            if reply.incarnation == pending.incarnation:
                _settle(pending.result, reply.payload)
            return
        if reply.incarnation == pending.incarnation or reply.status is _Status.UNANSWERED:
            error = _ERRORS[reply.status]
            _settle(pending.result, error(reply.payload.decode(errors="replace")))

    # The target's side

    def _on_request(self, request: _Request) -> None:
        if request.target_incarnation != self._incarnation:
            # The former process with this id may have executed the call.
            self._answer(request, _Status.UNANSWERED, "the gateway has restarted")
            return
        if request.method not in self._handlers:
            self._answer(request, _Status.FAILED, f"unknown method {request.method}")
            return
        kept = self._kept[request.method]
        key = request.sender, request.incarnation, request.call_id
        reply = kept.replies.get(key)
        if reply is not None:
            self._send(request.sender, reply)
        elif key not in self._running and request.seconds > 0 and not kept.is_forgotten(key):
            self._execute(request, key)

    def _execute(self, request: _Request, key: _CallKey) -> None:
        if len(self._running) >= MAX_RUNNING:
            # Kept, because the request may arrive again when fewer calls run.
            text = b"the gateway executes too many calls"
            self._remember(request, key, _Status.REFUSED, text)
            return
        self._running[key] = None
        cancel = start(
            self._handlers[request.method](request.payload),
            partial(self._executed, request, key),
            partial(self._raised, request, key),
        )
        if cancel is not None:
            self._running[key] = cancel

    def _executed(self, request: _Request, key: _CallKey, result: bytes) -> None:
        if len(result) > MAX_PAYLOAD_BYTES:
            self._finish(request, key, _Status.FAILED, b"the reply is too large")
        else:
            self._finish(request, key, _Status.DONE, result)

    def _raised(self, request: _Request, key: _CallKey, failure: BaseException) -> None:
        if isinstance(failure, CallError):
            status = next(one for one, kind in _ERRORS.items() if isinstance(failure, kind))
            self._finish(request, key, status, str(failure).encode())
            return
        if not isinstance(failure, CancelledError):
            _log.bug(
                "call of another gateway failed",
                failure,
                method=request.method,
                node=request.sender,
            )
        self._finish(request, key, _Status.FAILED, type(failure).__name__.encode())

    def _finish(self, request: _Request, key: _CallKey, status: _Status, payload: bytes) -> None:
        if self._is_closed:
            return
        del self._running[key]
        self._remember(request, key, status, payload)

    def _remember(self, request: _Request, key: _CallKey, status: _Status, payload: bytes) -> None:
        """Send the reply, and keep it to answer repeated requests."""
        reply = self._encode(request, status, payload)
        self._kept[request.method].add(key, reply)
        self._send(request.sender, reply)

    def _answer(self, request: _Request, status: _Status, text: str) -> None:
        self._send(request.sender, self._encode(request, status, text.encode()))

    def _encode(self, request: _Request, status: _Status, payload: bytes) -> bytes:
        if status is not _Status.DONE:
            payload = payload[:MAX_ERROR_BYTES]
        return _ENCODER.encode(
            _Reply(
                request.call_id,
                self._node_id,
                self._incarnation,
                request.incarnation,
                status,
                payload,
            )
        )


def _settle(result: SharedResult[bytes], outcome: bytes | CallError) -> None:
    if isinstance(outcome, CallError):
        result.fail(outcome)
    else:
        result.succeed(outcome)
