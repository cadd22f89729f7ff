"""The group coordinator: serves the requests of group members and of admin clients.

A request changes its group, a state machine without I/O (`classic/`, `consumer/`), and the
coordinator then performs the group's effects in order: replies, writes to the store and log lines.
A group's timer calls `expire` at the time that the group asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

from gateway import logs
from gateway.cluster.shard_tables import ShardedStore
from gateway.coroutines import CancelledError, Clock, SharedResult, TimeSlices, shield
from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.consumer.consumer_group import CommitValidator, ConsumerGroup
from gateway.groups.consumer.consumer_member import JOIN_EPOCH, HeartbeatResult, MemberHeartbeat
from gateway.groups.consumer.topology import Topology, canonical_name
from gateway.groups.group_effects import (
    NEVER,
    Effect,
    LogEvent,
    Reply,
    StoreClassicGroup,
    StoreRows,
)
from gateway.groups.group_migration import check_upgrade, to_consumer_group
from gateway.groups.group_store import GroupStore
from gateway.groups.group_timers import AnyGroup, GroupClock, GroupTimers
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from gateway.topics.tenant_scope import plain_id, printable_id
from storage.log import Fenced, LogClosed, ShardNotOpen, StorageError

_log = logs.get_logger(__name__)

T = TypeVar("T")

#: Characters of the client id or instance id that become the prefix of a generated member id. Keeps
#: member ids below the protocol's limit of 32,767 bytes for strings.
_MAX_PREFIX = 8_000

#: OffsetCommit returns GROUP_ID_NOT_FOUND since this version, as in Kafka 4.
_FIRST_WITH_GROUP_ID_NOT_FOUND = 9

#: Minimum interval between log lines about refused members, in ms. Thousands of members may retry.
REFUSAL_LOG_INTERVAL_MS = 1000


class GroupCoordinator:
    """Groups of the classic and of the consumer protocol (KIP-848), of the open shards.

    A group changes its protocol online when its members do.

    `now` returns ms since 1970 and is used in stored rows only; deadlines use the monotonic
    `clock`. `new_id` returns a unique suffix for member ids, `start` runs a coroutine in the
    background, and `settings_of` returns the settings of a consumer group that overrides the
    defaults.
    """

    def __init__(
        self,
        store: ShardedStore,
        topology: Topology,
        settings: Settings,
        clock: Clock,
        now: Callable[[], int],
        new_id: Callable[[], str],
        start: Callable[[Coroutine[Any, Any, None]], None],
        settings_of: Callable[[str], Settings] | None = None,
    ) -> None:
        self._topology = topology
        self._settings = settings
        self._settings_of = settings_of or (lambda _: settings)
        self._clock = GroupClock(clock, now)
        self._now = self._clock.now
        self._store = GroupStore(store, clock, self._clock, settings)
        self._timers = GroupTimers(clock, self._clock)
        self._new_id = new_id
        self._start = start
        self._groups: dict[str, AnyGroup] = {}
        self._ids_by_shard: dict[int, set[str]] = {}
        self._pending_effects: deque[tuple[AnyGroup, Effect]] = deque()
        self._is_applying = False
        self._is_closed = False
        self._bytes = 0
        self._refused_count = 0
        self._refusal_logged_at = -NEVER

    async def open_shard(self, shard: int, slices: TimeSlices) -> None:
        """Load the stored groups of a shard. Raises StorageError."""
        for group in await self._store.load(shard, self._topology, self._settings_of, slices):
            self._add_group(group)
            self._apply_effects(group)
            await slices.take()

    async def close_shard(self, shard: int) -> None:
        """Forget the groups of a shard, and answer waiting requests with NOT_COORDINATOR."""
        self._store.close_shard(shard)
        for group_id in list(self._ids_by_shard.get(shard, ())):
            group = self._groups.get(group_id)
            if group is None:
                continue
            group.refuse_waiting(ErrorCode.NOT_COORDINATOR)
            if isinstance(group, ConsumerGroup):
                # Discards unstored changes, which are not acknowledged yet.
                group.close()
            self._apply_effects(group)
            self._remove_group(group)

    def set_serving(self, is_serving: bool) -> None:
        """Stop the time of sessions and rebalances while no member can reach its coordinator."""
        self._clock.set_running(is_serving)

    def close(self) -> None:
        """Answer waiting requests with NOT_COORDINATOR and stop all timers, as Kafka does."""
        self._is_closed = True
        for group in list(self._groups.values()):
            group.refuse_waiting(ErrorCode.NOT_COORDINATOR)
            self._apply_effects(group)
        self._timers.cancel_all()

    # Member requests

    async def join(self, group_id: str, request: MemberJoin) -> JoinResult:
        """Handle a JoinGroup. Waits until all members have joined or the rebalance times out.

        A request whose connection closes is cancelled.
        """
        waiting: SharedResult[JoinResult] = SharedResult()
        member_id = (
            request.member_id
            or f"{(request.instance_id or request.client_id)[:_MAX_PREFIX]}-{self._new_id()}"
        )
        try:
            group = self._group_for_join(group_id, request)
            if isinstance(group, ConsumerGroup) and group.is_empty:
                group = self._join_as_classic(group, request, member_id, waiting)
            else:
                group.join(request, member_id, waiting, self._now())
        except KafkaError as refusal:
            return JoinResult(refusal.code, request.member_id)
        self._apply_effects(group)
        return await self._wait(group, member_id, waiting)

    def _join_as_classic(
        self,
        before: ConsumerGroup,
        request: MemberJoin,
        member_id: str,
        waiting: SharedResult[JoinResult],
    ) -> ClassicGroup:
        """Replace an empty consumer group by a classic group, unless the member is refused."""
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = ClassicGroup(before.group_id, self._settings, self._now())
        group.delete_on_store(before.stored_keys())
        group.join(request, member_id, waiting, self._now())
        if not group.is_unused:
            self._remove_group(before)
            before.close()
            self._apply_effects(before)
            self._add_group(group)
        return group

    async def sync(self, group_id: str, request: MemberSync) -> SyncResult:
        """Handle a SyncGroup. Waits until the leader's assignment has arrived and is stored."""
        try:
            group = self._group_of_member(group_id)
            if any(
                len(assignment) > self._settings.group_member_max_bytes
                for _, assignment in request.assignments
            ):
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
            self._check_memory(
                group_id, sum(len(assignment) for _, assignment in request.assignments)
            )
        except KafkaError as refusal:
            return SyncResult(refusal.code)
        waiting: SharedResult[SyncResult] = SharedResult()
        group.sync(request, waiting, self._now())
        self._apply_effects(group)
        return await self._wait(group, request.member_id, waiting)

    async def _wait(self, group: AnyGroup, member_id: str, waiting: SharedResult[T]) -> T:
        try:
            return await waiting
        except CancelledError:
            group.cancel_request(member_id, waiting, self._now())
            self._apply_effects(group)
            raise

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> None:
        """Handle a classic Heartbeat.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS.
        """
        group = self._group_of_member(group_id)
        try:
            group.heartbeat(member_id, generation, instance_id, self._now())
        finally:
            self._schedule_expiry(group)

    def leave(self, group_id: str, member_id: str, instance_id: str | None, reason: str) -> None:
        """Remove a member, at its own or an admin's request.

        Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        group = self._group_of_member(group_id)
        group.leave(member_id, instance_id, reason, self._now())
        self._apply_effects(group)

    async def consumer_heartbeat(self, group_id: str, request: MemberHeartbeat) -> HeartbeatResult:
        """Handle a ConsumerGroupHeartbeat. Returns after the changes it makes are stored.

        A new member without an id is assigned one.
        """
        waiting: SharedResult[HeartbeatResult] = SharedResult()
        try:
            self.check_active(group_id)
            before = self._groups.get(group_id)
            group = self._group_for_heartbeat(group_id, before, request)
            self._check_heartbeat_size(group, request)
        except KafkaError as refusal:
            return HeartbeatResult(refusal.code, refusal.message)
        is_accepted = group.consumer_heartbeat(
            request if request.member_id else replace(request, member_id=self._new_id()),
            waiting,
            self._now(),
        )
        if is_accepted and group is not before:
            self._replace_group(group, before)
        self._apply_effects(group)
        return await waiting

    def _check_heartbeat_size(self, group: ConsumerGroup, request: MemberHeartbeat) -> None:
        if request.text_size > self._settings.group_member_max_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        if request.topics is not None or request.epoch == JOIN_EPOCH:
            existing = group.roster.get(request.member_id)
            self._check_memory(
                group.group_id, request.size - (0 if existing is None else existing.size)
            )

    def _group_for_heartbeat(
        self, group_id: str, before: AnyGroup | None, request: MemberHeartbeat
    ) -> ConsumerGroup:
        """The existing group, or a new one if the member is joining.

        A classic group is converted. Raises KafkaError(GROUP_ID_NOT_FOUND) if the member is not
        joining and there is no consumer group, or if the classic group cannot be converted.
        """
        if isinstance(before, ConsumerGroup):
            return before
        now = self._now()
        if request.epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if before is None:
            return ConsumerGroup(group_id, self._topology, self._settings_of(group_id), now)
        if before.is_empty:
            group = ConsumerGroup(group_id, self._topology, self._settings_of(group_id), now)
        else:
            check_upgrade(before, self._settings)
            settings = self._settings_of(group_id)
            group = ConsumerGroup.restored(
                group_id, to_consumer_group(before, self._topology), self._topology, settings, now
            )
        group.store_all(before.stored_keys())
        return group

    def update_settings(self, group_id: str) -> None:
        """Apply the current settings of a consumer group.

        A new session timeout takes effect at each member's next heartbeat.
        """
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.use_settings(self._settings_of(group_id))

    def _replace_group(self, group: ConsumerGroup, before: AnyGroup | None) -> None:
        """Register `group` under its id, in place of the classic group `before` if there is one."""
        if isinstance(before, ClassicGroup):
            self._remove_group(before)
            # Waiting members rejoin and find the consumer group.
            before.close(ErrorCode.REBALANCE_IN_PROGRESS, self._now())
            self._apply_effects(before)
            _log.info(
                "group converted to the consumer protocol",
                group=printable_id(group.group_id),
                members=len(group.roster),
            )
        self._add_group(group)

    def check_active(self, group_id: str) -> None:
        """Raises KafkaError: INVALID_GROUP_ID, or NOT_COORDINATOR if its shard is not open."""
        size = len(group_id.encode())
        if not plain_id(group_id) or size > self._settings.group_id_max_bytes:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        self._check_open(group_id)

    def _check_open(self, group_id: str) -> None:
        if self._is_closed or not self._store.is_open(group_id):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def _group_of_member(self, group_id: str) -> AnyGroup:
        self.check_active(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _group_for_join(self, group_id: str, request: MemberJoin) -> AnyGroup:
        """The existing group, or a new classic group if the member is new. Raises KafkaError."""
        self.check_active(group_id)
        settings = self._settings
        if (
            not settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.group_max_session_timeout_ms
        ):
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.text_size > settings.group_member_max_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        if (
            request.instance_id is not None
            and not request.member_id
            and self._store.bytes_in_flight > settings.max_bytes_per_group
        ):
            # A rejoining static member causes the whole group to be stored: limit how many such
            # writes are in memory at once.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group = self._group_of_member(group_id) if request.member_id else self._groups.get(group_id)
        existing = None if group is None else group.roster.get(request.member_id)
        self._check_memory(group_id, request.size - (0 if existing is None else existing.size))
        if group is None:
            group = ClassicGroup(group_id, settings, self._now())
            self._add_group(group)
        return group

    # Group state for handlers and offset expiration

    def __iter__(self) -> Iterator[AnyGroup]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> AnyGroup | None:
        """The group, or None if it never had members or has been deleted.

        A group without an entry here may still have committed offsets.
        """
        return self._groups.get(group_id)

    async def delete(self, group_id: str) -> None:
        """Delete an empty group, durably. Does nothing if the group does not exist.

        Raises KafkaError: NON_EMPTY_GROUP, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE if the store
        fails.
        """
        self._check_open(group_id)
        group = self._groups.get(group_id)
        if group is None:
            return
        group.check_empty()
        try:
            await shield(self._delete_rows(group, lambda: group.is_empty))
        except (Fenced, LogClosed, ShardNotOpen) as failure:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(failure)) from failure
        except StorageError as failure:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure

    def validate_offset_commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        version: int,
        *,
        has_offsets: bool = False,
    ) -> CommitValidator | None:
        """Check that this member may commit offsets; for a classic group, also restart its session.

        Returns a check to apply to each partition, or None if all partitions are allowed. A
        generation of -1 stands for a consumer outside of group management. `version` is the
        request's version. `has_offsets` says whether the group has committed offsets: without
        members it is an empty classic group then, as in Kafka.

        Raises KafkaError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH,
        FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION.
        """
        match self._groups.get(group_id):
            case ClassicGroup() as group:
                group.validate_offset_commit(member_id, generation, instance_id, self._now())
                self._schedule_expiry(group)
            case ConsumerGroup() as group:
                return group.validate_offset_commit(member_id, generation, version)
            case None if generation >= 0 and has_offsets:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            case None if generation >= 0:
                raise KafkaError(
                    ErrorCode.GROUP_ID_NOT_FOUND
                    if version >= _FIRST_WITH_GROUP_ID_NOT_FOUND
                    else ErrorCode.ILLEGAL_GENERATION
                )
        return None

    def validate_offset_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raises KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (consumer groups only)."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.validate_offset_fetch(member_id, epoch)

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Canonical names of the topics that members subscribe to, or None if unknown.

        They are unknown if a member's subscription is not in Kafka's consumer protocol.
        """
        group = self._groups.get(group_id)
        subscribed = None if group is None else group.subscribed_topics
        if subscribed is None:
            return None
        if isinstance(group, ClassicGroup):
            subscribed = frozenset(map(self._topology.of_group(group_id).from_client, subscribed))
        return frozenset(canonical_name(name, self._topology) for name in subscribed)

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members or does not exist."""
        group = self._groups.get(group_id)
        return group is None or group.is_empty

    def empty_since(self, group_id: str) -> float | None:
        """When the last member left, in ms since 1970 (KIP-211).

        None if the group has members or never had any.
        """
        group = self._groups.get(group_id)
        return (
            self._clock.to_wall(group.changed_at) if group is not None and group.is_empty else None
        )

    def delete_in_background(self, group_id: str) -> None:
        """Delete a group without members and offsets, unless a member joins meanwhile."""
        group = self._groups.get(group_id)
        if group is not None and group.is_removable:
            self._start(self._delete_in_background(group))

    async def _delete_in_background(self, group: AnyGroup) -> None:
        try:
            await self._delete_rows(group, lambda: group.is_removable)
        except StorageError as failure:
            _log.warning(
                "empty group not deleted, retried by the next check of offsets",
                group=printable_id(group.group_id),
                reason=str(failure),
            )

    async def _delete_rows(self, group: AnyGroup, may_delete: Callable[[], bool]) -> None:
        await self._store.put(group.group_id, dict.fromkeys(group.stored_keys()))
        # If a member has joined meanwhile, the group stays and its next generation is stored.
        if self._groups.get(group.group_id) is group and may_delete():
            group.delete(self._now())
            self._remove_group(group)

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
            group = group.successor
            self._add_group(group)
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
                self._start(self._store_classic_group(cast("ClassicGroup", group), effect))
            case StoreRows():
                self._start(self._store_rows(cast("ConsumerGroup", group), effect))
            case LogEvent(event, reason, member_id):
                given = {"member": member_id, "reason": reason}
                _log.info(
                    event,
                    group=printable_id(group.group_id),
                    generation=group.generation,
                    members=len(group.roster),
                    **{name: value for name, value in given.items() if value},
                )

    async def _store_classic_group(self, group: ClassicGroup, save: StoreClassicGroup) -> None:
        try:
            await self._store.store_classic(group.group_id, save)
        except StorageError as failure:
            _log_failed_write(group, save.row.generation, failure)
            group.on_store_failed(save, self._now())
        else:
            group.on_stored(save, self._now())
        self._apply_effects(group)

    async def _store_rows(self, group: ConsumerGroup, write: StoreRows) -> None:
        try:
            await self._store.store_rows(group.group_id, write)
        except StorageError as failure:
            _log_failed_write(group, group.generation, failure)
            group.on_store_failed(write, self._now())
        else:
            group.on_stored(write)
        self._apply_effects(group)

    # Timers and memory

    def _schedule_expiry(self, group: AnyGroup) -> None:
        if not self._is_closed and self._groups.get(group.group_id) is group:
            self._timers.schedule(group, self._expire)

    def _expire(self, group: AnyGroup) -> None:
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
            _log.warning(
                "members refused since the previous line: max_group_bytes reached, increase it",
                group=printable_id(group_id),
                bytes=self._bytes,
                refused=self._refused_count,
            )
            self._refused_count, self._refusal_logged_at = 0, now

    def _account_size(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is group:
            self._bytes += group.size - group.accounted_size
            group.accounted_size = group.size

    def _add_group(self, group: AnyGroup) -> None:
        self._groups[group.group_id] = group
        shard = self._store.shard_of(group.group_id)
        self._ids_by_shard.setdefault(shard, set()).add(group.group_id)

    def _remove_group(self, group: AnyGroup) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        del self._groups[group.group_id]
        self._ids_by_shard[self._store.shard_of(group.group_id)].discard(group.group_id)
        self._bytes -= group.accounted_size
        self._timers.cancel(group.group_id)


def _log_failed_write(group: AnyGroup, generation: int, failure: StorageError) -> None:
    _log.error(
        "group not stored",
        group=printable_id(group.group_id),
        generation=generation,
        reason=str(failure),
    )
