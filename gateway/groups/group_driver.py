"""Drives groups: does what they want done, stores what must outlive a restart, lets time pass for them, and minds how much room they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast

from msgspec import structs

from gateway import logs
from gateway.coroutines import Cancel, Clock, Shared, unbroken_within
from gateway.groups.classic import classic_rows
from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.classic.rebalance import NEVER
from gateway.groups.consumer import consumer_rows
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.groups.consumer.topology import Topology
from gateway.groups.group_effects import Effect, LogEvent, Reply, StoreClassicGroup, StoreRows
from gateway.groups.group_loader import load_groups
from gateway.groups.group_timers import GroupTimers
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from storage.log import StateTable, StorageError, StorageFailed

_log = logs.part(__name__)

#: To look at what time has brought costs about 1 us for each member, and thousands may be due one millisecond after the other. So the next look comes
#: a millisecond later for each so many members.
MEMBERS_PER_MS = 50

#: Members that find no room come again and again, thousands of them: the log says so no more often.
REFUSAL_LOG_INTERVAL_MS = 1000

#: A group of the classic protocol, or of KIP-848's.
AnyGroup = ClassicGroup | ConsumerGroup


class GroupDriver:
    """`open` it before use. `now` is the time in ms since 1970, for rows alone; groups live by `clock`, which must not step; `new_id` makes what no other member's id ends in,
    and `start` runs a coroutine in the background. `settings_of` gives the settings of a consumer group, where some have their own."""

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
        self._alarms = GroupTimers(clock)
        self._wall_ms = now
        self._new_id = new_id
        self._start = start
        self._groups: dict[str, AnyGroup] = {}
        self._timers: dict[str, tuple[float, Cancel]] = {}
        self._to_do: deque[tuple[AnyGroup, Effect]] = deque()
        self._is_acting = False
        self._is_over = False
        self._bytes = 0
        self._refused = 0
        self._told_at = -NEVER
        self._storing = 0
        """Bytes of classic groups on their way to the disk."""

    async def open(self) -> None:
        """Go on with the groups that the store has. Raises StorageError."""
        for group in await load_groups(
            self._table, self._topology, self._settings, self._now(), self._settings_of
        ):
            group.changed_at += self._now() - self._wall_ms()
            self._groups[group.group_id] = group
            self._act(group)

    def _now(self) -> int:
        """Milliseconds by the clock that deadlines go by."""
        return int(self._clock.seconds() * 1000)

    def _since_1970(self, time: float) -> int:
        """A time of `_now` as rows have it."""
        return int(time) - self._now() + self._wall_ms()

    def end(self) -> None:
        """Nothing waits any more: its clients are told to look for their coordinator again, as when Kafka's goes down."""
        self._is_over = True
        for group in list(self._groups.values()):
            group.let_go_of_all(ErrorCode.NOT_COORDINATOR)
            self._act(group)
        for _, cancel in self._timers.values():
            cancel()
        self._timers.clear()

    # What groups want done

    def _act(self, group: AnyGroup) -> None:
        """Do what `group` wants, in order. An answer may bring the next request of its connection; what that leads to comes after."""
        self._to_do.extend((group, effect) for effect in group.take())
        if (
            isinstance(group, ConsumerGroup)
            and group.successor is not None
            and self._groups.get(group.group_id) is group
        ):
            self._drop(group)
            group = self._groups[group.group_id] = group.successor
            self._to_do.extend((group, effect) for effect in group.take())
        if group.is_blank:
            self._drop(group)
        else:
            self._count(group)
            self._arm(group)
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while self._to_do:
                self._do(*self._to_do.popleft())
        finally:
            self._is_acting = False

    def _do(self, group: AnyGroup, effect: Effect) -> None:
        match effect:
            case Reply(handle, reply):
                cast("Shared[JoinResult | SyncResult | HeartbeatResult]", handle).succeed(reply)
            case StoreClassicGroup():
                self._start(self._save(cast("ClassicGroup", group), effect))
            case StoreRows():
                self._start(self._write(cast("ConsumerGroup", group), effect))
            case LogEvent(event, reason, member_id):
                told = {
                    name: value
                    for name, value in (("member", member_id), ("reason", reason))
                    if value
                }
                _log.info(
                    event,
                    group=group.group_id,
                    generation=group.generation,
                    members=len(group.roster),
                    **told,
                )

    async def _save(self, group: ClassicGroup, save: StoreClassicGroup) -> None:
        stored = classic_rows.encode(
            structs.replace(save.row, changed_at=self._since_1970(save.row.changed_at))
        )
        self._storing += len(stored)
        try:
            await self._put(
                {**dict.fromkeys(save.drops), classic_rows.row_key(group.group_id): stored}
            )
        except StorageError as failure:
            _log.error(
                "group not stored",
                group=group.group_id,
                generation=save.row.generation,
                reason=str(failure),
            )
            group.save_failed(save, self._now())
        else:
            group.saved(save, self._now())
        finally:
            self._storing -= len(stored)
        self._act(group)

    async def _write(self, group: ConsumerGroup, write: StoreRows) -> None:
        stored = {
            key: None if row is None else consumer_rows.encode(self._as_stored(row))
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
            group.write_failed(write, self._now())
        else:
            group.written(write)
        self._act(group)

    def _as_stored(
        self, row: ConsumerGroupRow | ConsumerGroupMember
    ) -> ConsumerGroupRow | ConsumerGroupMember:
        if isinstance(row, ConsumerGroupRow):
            return structs.replace(row, changed_at=self._since_1970(row.changed_at))
        return row

    async def _put(self, stored: Mapping[bytes, bytes | None]) -> None:
        """Raises StorageError, also where it takes too long: then it may be stored all the same, but never after what is put later."""
        milliseconds = self._settings.offsets_commit_timeout_ms
        try:
            await unbroken_within(
                self._clock, milliseconds / 1000, _stored(self._table.put(stored))
            )
        except TimeoutError:
            raise StorageFailed(
                f"not stored within offsets_commit_timeout_ms={milliseconds}"
            ) from None

    # Time and room

    def _arm(self, group: AnyGroup) -> None:
        """One timer a group, for the first thing that may come to its time: heartbeats do not touch it."""
        if self._is_over or self._groups.get(group.group_id) is not group:
            return
        armed = self._timers.get(group.group_id)
        if group.due == NEVER or (armed is not None and armed[0] <= group.due):
            return
        if armed is not None:
            armed[1]()
        delay_ms = max(group.due - self._now(), group.heads // MEMBERS_PER_MS)
        self._timers[group.group_id] = (
            group.due,
            self._alarms.later(delay_ms / 1000, partial(self._expire, group)),
        )

    def _expire(self, group: AnyGroup) -> None:
        self._timers.pop(group.group_id, None)
        group.expire(self._now())
        self._act(group)

    def _check_room(self, group_id: str, size: int) -> None:
        """Raises KafkaError(COORDINATOR_NOT_AVAILABLE) where so many bytes more would be too many."""
        if size > 0 and self._bytes + size > self._settings.max_group_bytes:
            self._tell_refusal(group_id)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _tell_refusal(self, group_id: str) -> None:
        self._refused += 1
        now = self._now()
        if not 0 <= now - self._told_at < REFUSAL_LOG_INTERVAL_MS:
            words = "member refused: all groups together take max_group_bytes"
            _log.warning(words, group=group_id, bytes=self._bytes, refused=self._refused)
            self._refused, self._told_at = 0, now

    def _count(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is group:
            self._bytes += group.size - group.counted
            group.counted = group.size

    def _drop(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        del self._groups[group.group_id]
        self._bytes -= group.counted
        armed = self._timers.pop(group.group_id, None)
        if armed is not None:
            armed[1]()


async def _stored(put: Awaitable[None]) -> None:
    await put
