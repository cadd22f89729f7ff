"""The compiled functions for what producers and consumers nearly always send, if they are compiled.

The end of the module has the state of connections that compiled code uses.

Each function may return None, and always does if it is not compiled. The caller then runs the
Python implementation, which handles all cases and all errors. `total` always returns its result.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from storage.log import Buffer

KERNEL = "python"
"""The implementation in use: "cython" or "python"."""

_INTERFACE = 11
"""The version of the functions' signatures. It must equal INTERFACE of the compiled module (1 if
it has none), and changes with any of them."""


def _unavailable(*_: object, **__: object) -> None:
    return


def _total(buffers: Iterable[Buffer]) -> int:
    return sum(map(len, buffers))


batch: Callable[..., Any] = _unavailable
batch_metadata: Any = None
fetch_reply: Callable[..., Any] = _unavailable
fetch_request: Callable[..., Any] = _unavailable
frames: Callable[..., Any] = _unavailable
header: Callable[..., Any] = _unavailable
in_flight_append: Callable[..., Any] = _unavailable
plain_context: Callable[..., Any] = _unavailable
plain_produce: Callable[..., Any] = _unavailable
plain_work: Callable[..., Any] = _unavailable
producer_state_entry: Any = None
repeated_work: Callable[..., Any] = _unavailable
reply: Callable[..., Any] = _unavailable
request: Callable[..., Any] = _unavailable
stamp: Callable[..., Any] = _unavailable

total: Callable[[Iterable[Buffer]], int] = _total
"""The number of bytes in all buffers, also if it is not compiled. A reply can have thousands."""

# The state of a connection that `_dispatch.pxi` reads and changes for each plain request: fields of
# compiled classes. Those here have the same attributes, for Python without the compiled module.
# The methods are in the subclass that each docstring names.


class BudgetState:
    """`gateway.net.flow_control.MemoryBudget`."""

    __slots__ = ("limit", "partial_bytes", "request_bytes", "unblocked")

    limit: int
    partial_bytes: int
    request_bytes: int
    unblocked: Any


class FlowState:
    """`gateway.net.flow_control.ConnectionFlow`."""

    __slots__ = (
        "_bytes",
        "_max_bytes",
        "_max_requests",
        "_requests",
        "_waiting_size",
        "budget",
        "is_paused",
        "partial_bytes",
    )

    budget: Any
    _bytes: int
    _max_bytes: int
    _max_requests: int
    _requests: int
    _waiting_size: int | None
    is_paused: bool
    partial_bytes: int


class OutgoingState:
    """`gateway.net.flow_control.OutgoingBytes`."""

    __slots__ = ("limit", "reserved", "unsent")

    limit: int
    reserved: int
    unsent: int


class SessionState:
    """`gateway.protocol.session.LoginSession`."""

    __slots__ = ("expires_at", "is_closed", "is_ready", "scope")

    expires_at: float | None
    is_closed: bool
    is_ready: bool
    scope: Any


class LongPollState:
    """`gateway.protocol.long_poll.LongPoll`."""

    __slots__ = ("_has_partial_request", "_limit", "_overlaps")

    _has_partial_request: bool
    _limit: float | None
    _overlaps: bool


class ProducersState:
    """`gateway.partitions.producer_state.ProducerStateManager`."""

    __slots__ = ("_producers",)

    _producers: dict[int, Any]


class OpenPartitionState:
    """`gateway.partitions.partition.Partition`."""

    __slots__ = (
        "_queued_appends",
        "in_flight",
        "keeps_timestamps",
        "log",
        "plain_bytes",
        "producers",
        "recovery",
        "unsaved_batches",
        "unsaved_bytes",
    )

    _queued_appends: deque[Any]
    in_flight: dict[int, Any]
    keeps_timestamps: bool
    log: Any
    plain_bytes: int
    producers: Any
    recovery: Any
    unsaved_batches: int
    unsaved_bytes: int


class DispatchState:
    """`gateway.protocol.dispatch.Dispatch`."""

    __slots__ = (
        "_expires_at",
        "_expiry",
        "_flow",
        "_in_flight",
        "_is_advancing",
        "_is_closed",
        "_is_continuation_scheduled",
        "_is_recorded",
        "_is_serving",
        "_is_turn_over",
        "_is_writing_held",
        "_long_poll",
        "_mute",
        "_plain_context",
        "_queued_frames",
        "_ready_bytes",
        "_session",
        "_ticks",
        "_traffic",
        "_transport",
        "_turn_began",
        "_unanswered",
    )

    _expires_at: float
    _expiry: Any
    _flow: Any
    _in_flight: list[Any]
    _is_advancing: bool
    _is_closed: bool
    _is_continuation_scheduled: bool
    _is_recorded: bool
    _is_serving: bool
    _is_turn_over: bool
    _is_writing_held: bool
    _long_poll: Any
    _mute: Any
    _plain_context: Any
    _queued_frames: list[bytearray]
    _ready_bytes: int
    _session: Any
    _ticks: Callable[[], int] | None
    _traffic: Any
    _transport: Any
    _turn_began: float
    _unanswered: int

    def serve_chunk(self, chunk: memoryview) -> int:
        """Start the requests at the start of `chunk` that are like the last one.

        Returns how many bytes they take: 0 if there is none. The others are for
        `Dispatch.frames_received`.
        """
        return 0

    def start_again(self, frame: bytearray) -> bool:
        """Start a request like the last one. Returns False, and has started nothing, for others."""
        return False


class ConnectionState:
    """`gateway.net.connection.KafkaConnection`."""

    __slots__ = (
        "_dispatch",
        "_has_partial_frame",
        "_is_closing",
        "_is_logging_in",
        "last_active",
        "transport",
    )

    _dispatch: Any
    _has_partial_frame: bool
    _is_closing: bool
    _is_logging_in: bool
    last_active: float
    # Twisted types its transports by zope interfaces, which mypy does not support.
    transport: Any


class SocketState:
    """`gateway.net.transport.TcpConnection`.

    The compiled class also has fields for attributes of Twisted's class: connected, disconnecting,
    _aborting, producerPaused.
    """

    __slots__ = ("_is_waiting_to_write", "_receive", "_unsent", "last_sent")

    _is_waiting_to_write: bool
    _receive: Callable[[memoryview], object] | None
    _unsent: deque[Buffer] | None
    last_sent: float

    def use_protocol(self, protocol: Any, descriptor: int, seconds: Callable[[], float]) -> None:
        """Pass what is received to `protocol`. `seconds` is the reactor's clock."""

    def doRead(self) -> Any:
        """Receive bytes. The compiled method serves plain requests itself."""
        return self._read()

    def _read(self) -> Any:
        raise NotImplementedError


if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import gateway.protocol.wire._plain as _plain
    except ImportError:
        pass
    else:
        if getattr(_plain, "INTERFACE", 1) == _INTERFACE:
            KERNEL = "cython"
            plain_context, plain_work = _plain.PlainContext, _plain.PlainWork
            repeated_work = _plain.RepeatedWork
            batch, fetch_reply, fetch_request, frames = (
                _plain.batch,
                _plain.fetch_reply,
                _plain.fetch_request,
                _plain.frames,
            )
            header, in_flight_append, plain_produce, reply, request, stamp, total = (
                _plain.header,
                _plain.in_flight_append,
                _plain.plain_produce,
                _plain.reply,
                _plain.request,
                _plain.stamp,
                _plain.total,
            )
            if not TYPE_CHECKING:
                BudgetState, FlowState = _plain.BudgetState, _plain.FlowState
                ConnectionState, SocketState = _plain.ConnectionState, _plain.SocketState
                DispatchState, LongPollState = _plain.DispatchState, _plain.LongPollState
                OpenPartitionState, SessionState = _plain.OpenPartitionState, _plain.SessionState
                OutgoingState = _plain.OutgoingState
                ProducersState = _plain.ProducersState
                batch_metadata = _plain.BatchMetadata
                producer_state_entry = _plain.ProducerStateEntry
