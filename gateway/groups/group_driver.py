"""Performs the I/O of groups: replies, writes to the store, timers and the memory limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast

from msgspec import structs

from gateway import logs
from gateway.coroutines import Cancel, Clock, SharedResult, shield_with_timeout
from gateway.groups.classic import classic_rows
from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.consumer import consumer_rows
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.groups.consumer.topology import Topology
from gateway.groups.group_effects import (
    NEVER,
    Effect,
    LogEvent,
    Reply,
    StoreClassicGroup,
    StoreRows,
)
from gateway.groups.group_loader import load_groups
from gateway.groups.group_timers import GroupTimers
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from storage.log import StateTable, StorageError, StorageFailed

_log = logs.get_logger(__name__)

#: Members that may expire per millisecond of timer delay.
#:
#: Expiring a group costs about 1 us per member, and thousands of sessions may end within a few
#: milliseconds. The timer of a large group is delayed so that one pass handles many.
MEMBERS_PER_MS = 50

#: Minimum interval between log lines about refused members, in ms. Thousands of members may retry.
REFUSAL_LOG_INTERVAL_MS = 1000

#: A group of either protocol.
AnyGroup = ClassicGroup | ConsumerGroup


class GroupDriver:
    """Call `open` before use.

    `now` returns ms since 1970 and is used in stored rows only; deadlines use the monotonic
    `clock`. `new_id` returns a unique suffix for member ids, `start` runs a coroutine in the
    background, and `settings_of` returns the settings of a consumer group that overrides the
    defaults.
    """

    def __init__(
        self,
        table: StateTable,
        topology: Topology,
        settings: Settings,
        clock: Clock,
        now: Callable[[], int],
        new_id: Callable[[], str],
        start: Callable[[Coroutine[Any, Any, None]], None],
        settings_of: Callable[[str], Settings] | None = None,
    ) -> None:
        self._table = table
        self._topology = topology
        self._settings = settings
        self._settings_of = settings_of or (lambda _: settings)
        self._clock = clock
        self._group_timers = GroupTimers(clock)
        self._wall_ms = now
        self._new_id = new_id
        self._start = start
        self._groups: dict[str, AnyGroup] = {}
        self._timers: dict[str, tuple[float, Cancel]] = {}
        self._pending_effects: deque[tuple[AnyGroup, Effect]] = deque()
        self._is_applying = False
        self._is_closed = False
        self._bytes = 0
        self._refused_count = 0
        self._refusal_logged_at = -NEVER
        self._bytes_being_stored = 0
        """Size of classic groups whose write is in flight, in bytes."""

    async def open(self) -> None:
        """Load the stored groups. Raises StorageError."""
        for group in await load_groups(
            self._table, self._topology, self._settings, self._now(), self._settings_of
        ):
            group.changed_at += self._now() - self._wall_ms()
            self._groups[group.group_id] = group
            self._apply_effects(group)

    def _now(self) -> int:
        """Milliseconds of the monotonic clock."""
        return int(self._clock.seconds() * 1000)

    def _to_wall_clock(self, time: float) -> int:
        """Convert a time of `_now` to ms since 1970."""
        return int(time) - self._now() + self._wall_ms()

    def close(self) -> None:
        """Answer waiting requests with NOT_COORDINATOR and stop all timers, as Kafka does."""
        self._is_closed = True
        for group in list(self._groups.values()):
            group.refuse_waiting(ErrorCode.NOT_COORDINATOR)
            self._apply_effects(group)
        for _, cancel in self._timers.values():
            cancel()
        self._timers.clear()

    # Effects

    def _apply_effects(self, group: AnyGroup) -> None:
        """Perform the pending effects of `group`, in order.

        A reply may let its connection process the next request at once. Effects of that request are
        queued behind the current ones.
        """
        self._pending_effects.extend((group, effect) for effect in group.take_effects())
        if (
            isinstance(group, ConsumerGroup)
            and group.successor is not None
            and self._groups.get(group.group_id) is group
        ):
            self._remove_group(group)
            group = self._groups[group.group_id] = group.successor
            self._pending_effects.extend((group, effect) for effect in group.take_effects())
        if group.is_unused:
            self._remove_group(group)
        else:
            self._account_size(group)
            self._schedule_expiry(group)
        if self._is_applying:
            return
        self._is_applying = True
        try:
            while self._pending_effects:
                self._apply(*self._pending_effects.popleft())
        finally:
            self._is_applying = False

    def _apply(self, group: AnyGroup, effect: Effect) -> None:
        match effect:
            case Reply(handle, reply):
                cast("SharedResult[JoinResult | SyncResult | HeartbeatResult]", handle).succeed(
                    reply
                )
            case StoreClassicGroup():
                self._start(self._store_group(cast("ClassicGroup", group), effect))
            case StoreRows():
                self._start(self._store_rows(cast("ConsumerGroup", group), effect))
            case LogEvent(event, reason, member_id):
                fields = {
                    name: value
                    for name, value in (("member", member_id), ("reason", reason))
                    if value
                }
                _log.info(
                    event,
                    group=group.group_id,
                    generation=group.generation,
                    members=len(group.roster),
                    **fields,
                )

    async def _store_group(self, group: ClassicGroup, save: StoreClassicGroup) -> None:
        stored = classic_rows.encode(
            structs.replace(save.row, changed_at=self._to_wall_clock(save.row.changed_at))
        )
        self._bytes_being_stored += len(stored)
        try:
            await self._put(
                {**dict.fromkeys(save.deleted_keys), classic_rows.row_key(group.group_id): stored}
            )
        except StorageError as failure:
            _log.error(
                "group not stored",
                group=group.group_id,
                generation=save.row.generation,
                reason=str(failure),
            )
            group.on_store_failed(save, self._now())
        else:
            group.on_stored(save, self._now())
        finally:
            self._bytes_being_stored -= len(stored)
        self._apply_effects(group)

    async def _store_rows(self, group: ConsumerGroup, write: StoreRows) -> None:
        stored = {
            key: None if row is None else consumer_rows.encode(self._with_wall_clock(row))
            for key, row in write.rows.items()
        }
        try:
            await self._put(stored)
        except StorageError as failure:
            _log.error(
                "group not stored",
                group=group.group_id,
                generation=group.generation,
                reason=str(failure),
            )
            group.on_store_failed(write, self._now())
        else:
            group.on_stored(write)
        self._apply_effects(group)

    def _with_wall_clock(
        self, row: ConsumerGroupRow | ConsumerGroupMember
    ) -> ConsumerGroupRow | ConsumerGroupMember:
        if isinstance(row, ConsumerGroupRow):
            return structs.replace(row, changed_at=self._to_wall_clock(row.changed_at))
        return row

    async def _put(self, stored: Mapping[bytes, bytes | None]) -> None:
        """Write rows. Raises StorageError, also on timeout.

        After a timeout the rows may still be written, but never after those of a later call.
        """
        milliseconds = self._settings.offsets_commit_timeout_ms
        try:
            await shield_with_timeout(
                self._clock, milliseconds / 1000, _awaited(self._table.put(stored))
            )
        except TimeoutError:
            raise StorageFailed(
                f"not stored within offsets_commit_timeout_ms={milliseconds}"
            ) from None

    # Timers and memory

    def _schedule_expiry(self, group: AnyGroup) -> None:
        """Set the group's timer to its earliest deadline.

        A heartbeat only moves deadlines back and does not touch the timer.
        """
        if self._is_closed or self._groups.get(group.group_id) is not group:
            return
        scheduled = self._timers.get(group.group_id)
        if group.next_expire_at == NEVER or (
            scheduled is not None and scheduled[0] <= group.next_expire_at
        ):
            return
        if scheduled is not None:
            scheduled[1]()
        delay_ms = max(group.next_expire_at - self._now(), group.member_count // MEMBERS_PER_MS)
        self._timers[group.group_id] = (
            group.next_expire_at,
            self._group_timers.call_later(delay_ms / 1000, partial(self._expire, group)),
        )

    def _expire(self, group: AnyGroup) -> None:
        self._timers.pop(group.group_id, None)
        group.expire(self._now())
        self._apply_effects(group)

    def _check_memory(self, group_id: str, size: int) -> None:
        """Raises KafkaError(COORDINATOR_NOT_AVAILABLE) if `size` bytes exceed max_group_bytes."""
        if size > 0 and self._bytes + size > self._settings.max_group_bytes:
            self._log_refusal(group_id)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _log_refusal(self, group_id: str) -> None:
        self._refused_count += 1
        now = self._now()
        if not 0 <= now - self._refusal_logged_at < REFUSAL_LOG_INTERVAL_MS:
            message = "member refused: max_group_bytes reached"
            _log.warning(message, group=group_id, bytes=self._bytes, refused=self._refused_count)
            self._refused_count, self._refusal_logged_at = 0, now

    def _account_size(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is group:
            self._bytes += group.size - group.accounted_size
            group.accounted_size = group.size

    def _remove_group(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        del self._groups[group.group_id]
        self._bytes -= group.accounted_size
        scheduled = self._timers.pop(group.group_id, None)
        if scheduled is not None:
            scheduled[1]()


async def _awaited(put: Awaitable[None]) -> None:
    await put
