"""The shards that this gateway leads, and their states.

`lead` and `resign` set the wanted state; each shard then changes its state step by step. Requests
for a shard that is being opened are held, because old clients fail on COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Protocol

from gateway import logs
from gateway.coroutines import Cancel, Clock, SharedResult, TimeSlices, call_later
from storage.log import StorageError

_log = logs.get_logger(__name__)


class ShardState(Enum):
    """The state of a shard in this gateway."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


TRANSITIONS = {
    # state              may become
    ShardState.CLOSED: {ShardState.OPENING},
    ShardState.OPENING: {ShardState.OPEN, ShardState.CLOSING},
    ShardState.OPEN: {ShardState.CLOSING},
    ShardState.CLOSING: {ShardState.CLOSED},
}

#: Shards opened at a time. Those that requests wait for come first. An opening mostly waits for the
#: store, and after the loss of a node its partitions wait for it.
MAX_OPENING = 8

#: Seconds before a shard that failed to open is tried again. Doubles up to the second value.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0

#: Rows loaded per reactor turn, about 5 ms.
ROWS_PER_TURN = 1_000


class NotLeader(Exception):
    """This gateway does not lead the shard, or could not open it in time."""


class ShardStore(Protocol):
    """The part of a `Store` that opens and closes shards."""

    @property
    def shard_count(self) -> int: ...
    async def open_shard(self, shard: int, leader_epoch: int) -> None: ...
    async def close_shard(self, shard: int) -> None: ...
    def when_shard_lost(self, call: Callable[[int, str], None]) -> None: ...


class ShardPart(Protocol):
    """A part of the gateway that has state for each open shard, for example its groups."""

    async def open_shard(self, shard: int, slices: TimeSlices) -> None:
        """Load the shard, which is open in the store already. Raises StorageError.

        `slices` limits the rows that are loaded in one reactor turn.
        """
        ...

    async def close_shard(self, shard: int) -> None:
        """Discard the shard, also if it is only partly loaded. Its requests fail from now on.

        No effect if the shard is not loaded.
        """
        ...


@dataclass(slots=True)
class _Shard:
    """`epoch` is the leader epoch of the last opening, -1 before the first.

    `wanted` is the epoch to lead with, None not to lead. `is_expected` is set while another gateway
    hands the shard over to this one, `is_busy` while a coroutine opens or closes it, `is_awaited`
    from the first request that waits for it until it is open. `opened` and `closed` fire at the
    next change to that state.
    """

    number: int
    state: ShardState = ShardState.CLOSED
    epoch: int = -1
    wanted: int | None = None
    is_expected: bool = False
    is_busy: bool = False
    is_awaited: bool = False
    failures: int = 0
    retry: Cancel | None = None
    opened: SharedResult[None] = field(default_factory=SharedResult)
    closed: SharedResult[None] = field(default_factory=SharedResult)


def _always() -> bool:
    return True


class ShardLeadership:
    """`start` runs a coroutine in the background.

    `parts` are opened in their order, after the shard is open in the store, and closed in the
    reverse order. They are added before the first `lead`.
    """

    def __init__(
        self,
        store: ShardStore,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.parts: Sequence[ShardPart] = ()
        self.may_serve: Callable[[], bool] = _always
        """Whether this gateway may serve at this moment as the leader of its open shards."""
        self._serving: SharedResult[None] | None = None
        """Fires when held requests must check again; None unless suspended."""
        self._suspended_at = 0.0
        """When `suspend` was called."""
        self._is_refusing = False
        self._store = store
        self._clock = clock
        self._start = start
        self._shards = [_Shard(number) for number in range(store.shard_count)]
        #: Shards to open, the next one first.
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._opening_count = 0
        self._is_starting = False
        self._watchers: list[Callable[[int, ShardState], None]] = []
        self._serving_watchers: list[Callable[[bool], None]] = []
        store.when_shard_lost(self._lost)

    @property
    def always_serves(self) -> bool:
        """Whether `may_serve` is always true, as without a cluster."""
        return self.may_serve is _always

    def watch(self, call: Callable[[int, ShardState], None]) -> None:
        """Call `call` with a shard and its new state after each change of a state."""
        self._watchers.append(call)

    def watch_serving(self, call: Callable[[bool], None]) -> None:
        """Call `call` with False when this gateway is suspended, and with True when it may serve
        again; also if it still may.
        """
        self._serving_watchers.append(call)

    def state_of(self, shard: int) -> ShardState:
        return self._shards[shard].state

    def epoch_of(self, shard: int) -> int:
        """The leader epoch with which the shard was last opened, -1 if it never was."""
        return self._shards[shard].epoch

    def is_open(self, shard: int) -> bool:
        return self._shards[shard].state is ShardState.OPEN

    @property
    def open_count(self) -> int:
        """Number of open shards."""
        return sum(one.state is ShardState.OPEN for one in self._shards)

    def leads(self, shard: int) -> bool:
        """Whether this gateway leads the shard, open or not."""
        return self._shards[shard].wanted is not None

    def suspend(self) -> None:
        """Hold requests for open shards until `resume`, because `may_serve` is false."""
        if self._serving is None:
            self._serving = SharedResult()
            self._suspended_at = self._clock.seconds()
            for call in self._serving_watchers:
                call(False)

    def refuse(self) -> None:
        """Refuse requests instead of holding them, until `resume`.

        Other gateways lead these shards by now.
        """
        self._is_refusing = True
        self._recheck_held()
        for one in self._shards:
            if one.state is not ShardState.OPEN:
                self._refuse_waiting(one, "this gateway is cut off from the cluster")

    @property
    def is_refusing(self) -> bool:
        """Whether this gateway is cut off, and refuses requests."""
        return self._is_refusing

    def resume(self) -> None:
        """Serve again."""
        self._is_refusing = False
        serving, self._serving = self._serving, None
        # Before the held requests continue, because one of them may suspend this again.
        for call in self._serving_watchers:
            call(True)
        if serving is not None:
            serving.succeed(None)

    def require(self, shard: int) -> bool:
        """Return whether the shard may be served now; False if it will be, so that `wait` helps.

        Raises NotLeader.
        """
        one = self._shards[shard]
        if one.wanted is None:
            if one.is_expected:
                return False
            raise NotLeader(f"this gateway does not lead shard {shard}")
        return one.state is ShardState.OPEN and self.may_serve()

    async def wait(self, shard: int, seconds: float) -> None:
        """Return once the shard is open and may be served.

        Raises NotLeader, at the latest after `seconds`; at once if the gateway has already been
        suspended for `seconds`, because held requests take memory that other requests need.
        """
        deadline = self._clock.seconds() + seconds
        while not self.require(shard):
            one = self._shards[shard]
            left = min(deadline - self._clock.seconds(), self._left_to_hold(seconds))
            try:
                if self._is_refusing:
                    raise NotLeader("this gateway is cut off from the cluster")
                if one.state is ShardState.OPEN:
                    await self._wait_until_serving(left)
                else:
                    await self._wait_until_open(one, left)
            except TimeoutError:
                raise NotLeader(f"shard {shard} is not ready yet") from None

    async def wait_until_serving(self, seconds: float) -> None:
        """Return once this gateway may serve as leader. Raises TimeoutError after `seconds`."""
        deadline = self._clock.seconds() + seconds
        while not self.may_serve():
            await self._wait_until_serving(deadline - self._clock.seconds())

    async def _wait_until_serving(self, seconds: float) -> None:
        if self._serving is None:
            # The lease has ended, but the node has not called `suspend` yet. It calls it soon, or
            # calls `resume` if its next lease begins before that.
            self.suspend()
        assert self._serving
        await self._serving.with_timeout(self._clock, seconds)

    def _left_to_hold(self, seconds: float) -> float:
        """Seconds until held requests are refused: `seconds` after the gateway was suspended."""
        now = self._clock.seconds()
        return seconds if self._serving is None else self._suspended_at + seconds - now

    async def _wait_until_open(self, one: _Shard, seconds: float) -> None:
        one.is_awaited = True
        if one.number in self._queue:
            self._queue.move_to_end(one.number, last=False)
        await one.opened.with_timeout(self._clock, seconds)

    async def wait_for_all(self, deadline: float) -> None:
        """Return once all shards that this gateway leads are open.

        Raises NotLeader, at the latest at `deadline`, a time of the clock in seconds.
        """
        for one in self._shards:
            if one.wanted is not None:
                await self.wait(one.number, deadline - self._clock.seconds())

    def lead(self, shard: int, epoch: int) -> None:
        """Lead a shard with this leader epoch. If it is open in another epoch, it is reopened."""
        self._want(self._shards[shard], epoch)

    def expect(self, shards: Container[int], given: Container[int] = ()) -> None:
        """Hold requests for these shards, which other gateways hand over to this one.

        `given` are the shards that this gateway leads by the log, although it may not have called
        `lead` yet. Requests held for other shards that are no longer expected are refused: their
        leader has ended before the handover, and another gateway leads them.
        """
        for one in self._shards:
            was_expected, one.is_expected = one.is_expected, one.number in shards
            if was_expected and not one.is_expected and one.number not in given:
                self._refuse_waiting(one, f"another gateway leads shard {one.number}")

    def resign(self, shard: int) -> None:
        """Stop leading a shard: refuse its requests at once, then close it."""
        self._want(self._shards[shard], None)

    async def close(self) -> None:
        """Resign all shards, and return once they are closed."""
        for one in self._shards:
            self._want(one, None)
        for one in self._shards:
            if one.state is not ShardState.CLOSED:
                await one.closed

    def _lost(self, shard: int, reason: str) -> None:
        """Another process has fenced a shard. The store has closed it."""
        _log.warning("shard fenced, closing it", shard=shard, reason=reason)
        self._want(self._shards[shard], None)

    def _want(self, one: _Shard, epoch: int | None) -> None:
        if one.wanted == epoch:
            return
        if epoch is None or one.state is ShardState.OPEN:
            self._refuse_waiting(one, f"this gateway no longer leads shard {one.number}")
        one.wanted = epoch
        if epoch is None:
            self._recheck_held()
        self._proceed(one)

    def _refuse_waiting(self, one: _Shard, reason: str) -> None:
        """Refuse the requests that wait until a shard is open."""
        waiting, one.opened = one.opened, SharedResult()
        waiting.fail(NotLeader(reason))

    def _recheck_held(self) -> None:
        """Let held requests check again whether this gateway leads their shard."""
        if self._serving is not None:
            waiting, self._serving = self._serving, SharedResult()
            waiting.succeed(None)

    def _move(self, one: _Shard, state: ShardState) -> None:
        if state not in TRANSITIONS[one.state]:
            raise ValueError(f"shard {one.number} cannot be {state.value} after {one.state.value}")
        one.state = state
        if state is ShardState.OPEN:
            one.failures, one.is_awaited = 0, False
            one.opened.succeed(None)
        elif state is ShardState.CLOSED:
            closed, one.closed = one.closed, SharedResult()
            closed.succeed(None)
        for call in self._watchers:
            call(one.number, state)

    def _proceed(self, one: _Shard) -> None:
        """Begin the next step towards the wanted state. A running step calls this at its end."""
        if one.is_busy:
            return
        if one.state is ShardState.CLOSED:
            if one.wanted is not None:
                one.epoch = one.wanted
                self._move(one, ShardState.OPENING)
                self._enqueue(one)
        elif one.wanted != one.epoch:
            self._queue.pop(one.number, None)
            if one.retry is not None:
                one.retry()
            one.is_busy = True
            self._move(one, ShardState.CLOSING)
            self._start(self._close(one))

    def _enqueue(self, one: _Shard) -> None:
        self._queue[one.number] = None
        if one.is_awaited:
            self._queue.move_to_end(one.number, last=False)
        self._open_queued()

    def _open_queued(self) -> None:
        if self._is_starting:
            # The loop below continues.
            return
        self._is_starting = True
        try:
            while self._queue and self._opening_count < MAX_OPENING:
                number, _ = self._queue.popitem(last=False)
                self._opening_count += 1
                self._shards[number].is_busy = True
                self._start(self._open(self._shards[number]))
        finally:
            self._is_starting = False

    async def _open(self, one: _Shard) -> None:
        is_open = False
        try:
            await self._store.open_shard(one.number, one.epoch)
            for part in self.parts:
                await part.open_shard(one.number, TimeSlices(self._clock, ROWS_PER_TURN))
            is_open = True
        except StorageError as failure:
            if one.wanted == one.epoch and self.may_serve():
                _log.warning(
                    "opening a shard failed, retrying", shard=one.number, reason=str(failure)
                )
        finally:
            if not is_open and one.wanted == one.epoch:
                await self._release(one.number)
            self._opening_count -= 1
            one.is_busy = False
            self._opened(one, is_open=is_open)
            self._open_queued()

    def _opened(self, one: _Shard, *, is_open: bool) -> None:
        if one.wanted != one.epoch:
            self._proceed(one)
        elif is_open:
            self._move(one, ShardState.OPEN)
        else:
            # Bound the exponent: opening may fail for weeks.
            seconds = min(MIN_RETRY_SECONDS * 2 ** min(one.failures, 20), MAX_RETRY_SECONDS)
            one.failures += 1
            one.retry = call_later(self._clock, seconds, partial(self._enqueue, one))

    async def _close(self, one: _Shard) -> None:
        try:
            await self._release(one.number)
        finally:
            one.is_busy = False
            self._move(one, ShardState.CLOSED)
            self._proceed(one)

    async def _release(self, shard: int) -> None:
        for part in reversed(self.parts):
            await part.close_shard(shard)
        try:
            await self._store.close_shard(shard)
        except StorageError as failure:
            _log.warning("closing a shard in the store failed", shard=shard, reason=str(failure))
