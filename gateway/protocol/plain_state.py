"""The state of a connection and its limits that the compiled code of plain requests uses.

A Produce request with the header of the last one is served in compiled code
(`wire/_dispatch.pxi`). That reads and changes the attributes below for each request, so they are
fields of compiled classes. The classes here have the same attributes, for Python without the
compiled module. Methods are in the subclasses that each docstring names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.protocol.wire import compiled

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from gateway.coroutines import DelayedCall
    from gateway.net.flow_control import ConnectionFlow, MemoryBudget
    from gateway.partitions.producer_state import ProducerStateManager
    from gateway.protocol.dispatch import Dispatch
    from gateway.protocol.in_flight import InFlightRequest, ReplyTransport
    from gateway.protocol.long_poll import LongPoll
    from gateway.protocol.mute import Mute
    from gateway.protocol.session import LoginSession
    from gateway.topics.tenant_scope import TenantScope
    from gateway.traffic.recorder import Recorder
    from storage.log import Buffer, PartitionLog


class BudgetState:
    """`gateway.net.flow_control.MemoryBudget`."""

    __slots__ = ("limit", "partial_bytes", "request_bytes", "unblocked")

    limit: int
    partial_bytes: int
    request_bytes: int
    unblocked: ConnectionFlow | None


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

    budget: MemoryBudget
    _bytes: int
    _max_bytes: int
    _max_requests: int
    _requests: int
    _waiting_size: int | None
    is_paused: bool
    partial_bytes: int


class SessionState:
    """`gateway.protocol.session.LoginSession`."""

    __slots__ = ("expires_at", "is_closed", "is_ready", "scope")

    expires_at: float | None
    is_closed: bool
    is_ready: bool
    scope: TenantScope | None


class LongPollState:
    """`gateway.protocol.long_poll.LongPoll`."""

    __slots__ = ("_has_partial_request", "_limit", "_overlaps")

    _has_partial_request: bool
    _limit: float | None
    _overlaps: bool


class PartitionState:
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
    log: PartitionLog
    plain_bytes: int
    producers: ProducerStateManager
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
    _expiry: DelayedCall | None
    _flow: ConnectionFlow
    _in_flight: list[InFlightRequest]
    _is_advancing: bool
    _is_closed: bool
    _is_continuation_scheduled: bool
    _is_recorded: bool
    _is_serving: bool
    _is_turn_over: bool
    _is_writing_held: bool
    _long_poll: LongPoll
    _mute: Mute | None
    _plain_context: Any
    _queued_frames: list[bytearray]
    _ready_bytes: int
    _session: LoginSession
    _ticks: Callable[[], int] | None
    _traffic: Recorder
    _transport: ReplyTransport
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

    _dispatch: Dispatch
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
        """Receive bytes, as `TcpConnection._read`."""
        return self._read()

    def _read(self) -> Any:
        raise NotImplementedError


if not TYPE_CHECKING and compiled.states:
    BudgetState = compiled.states.BudgetState
    FlowState = compiled.states.FlowState
    SessionState = compiled.states.SessionState
    LongPollState = compiled.states.LongPollState
    PartitionState = compiled.states.PartitionState
    DispatchState = compiled.states.DispatchState
    ConnectionState = compiled.states.ConnectionState
    SocketState = compiled.states.SocketState
