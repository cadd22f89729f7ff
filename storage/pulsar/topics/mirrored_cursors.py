"""Committed offsets of Kafka groups, shown to Pulsar as subscriptions of the same name, so that its figures of backlog speak of them.

Off the road of commits: the newest offset of each group and partition waits here, and at intervals the cursors are moved by the admin API, no faster than
so many calls a second. Nothing waits for it and nothing is lost without it: the gateway reads committed offsets from its own table. A subscription of
a group's name that somebody else made is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol
from urllib.parse import quote

from twisted.internet.defer import Deferred

from storage.bridge import Reactor, ScheduledCall
from storage.log import StorageError
from storage.pulsar.admin.admin_api import Conflict, NotFound
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX

log = logging.getLogger(__name__)

OWNER_PROPERTY = "kopgate"
"""The property that marks a subscription as made here; its value says what for."""


class CursorPosition(NamedTuple):
    """The partition's topic as the admin API has it in paths (`persistent/tenant/namespace/name`), and the entry from which the group reads on."""

    path: str
    ledger_id: int
    entry_id: int


class CursorApi(Protocol):
    """What is needed of the admin API."""

    async def get(self, path: str) -> object: ...
    async def put(self, path: str, body: object = None) -> object: ...
    async def post(self, path: str, body: object = None) -> object: ...


Commit = tuple[str, str, int]


class CursorMirror:
    """`place(topic, partition, offset)` finds the entry; None where the partition is not open here or the offset not there."""

    def __init__(
        self,
        calls: CursorApi,
        place: Callable[[str, int, int], Awaitable[CursorPosition | None]],
        reactor: Reactor,
        settings: PulsarSettings,
    ) -> None:
        self._api = calls
        self._find_position = place
        self._reactor = reactor
        self._settings = settings
        self._waiting: dict[Commit, int] = {}
        self._is_ours_cache: dict[Commit, bool] = {}
        """Whether the subscription is ours, of those that were looked at."""
        self._timer: ScheduledCall | None = None
        self._is_stopped = False
        self._dropped = self._failed = 0

    def note(self, group: str, topic: str, partition: int, offset: int) -> None:
        """The group has committed; only the newest offset of a partition is of interest. Beyond `mirror_waiting` it waits for its next commit."""
        if group.startswith(INTERNAL_PREFIX):
            # Such subscriptions the gateway has for itself.
            return
        if group in (".", ".."):
            # In the path of the admin API these name something else, however they are escaped.
            return
        key = group, topic, partition
        if key not in self._waiting and len(self._waiting) >= self._settings.mirror_waiting:
            self._dropped += 1
            return
        self._waiting[key] = offset

    def start(self) -> None:
        """Move cursors every `mirror_seconds`, the first time after as long."""
        self._timer = self._reactor.callLater(self._settings.mirror_seconds, self._start_moving)

    def stop(self) -> None:
        """Move nothing any more; the call that is under way ends by itself."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_moving(self) -> None:
        self._timer = None
        Deferred.fromCoroutine(self._move_all()).addErrback(
            lambda failure: log.error("cursors could not be moved: %s", failure.value)
        )

    async def _move_all(self) -> None:
        try:
            waiting, self._waiting = self._waiting, {}
            for key, offset in waiting.items():
                if self._is_stopped:
                    return
                await self._move(key, offset)
                await self._pause()
            self._log_failures()
        finally:
            if not self._is_stopped:
                self.start()

    async def _pause(self) -> None:
        """So long that there are no more than `mirror_moves_per_second`."""
        over: Deferred[None] = Deferred()
        self._reactor.callLater(1 / self._settings.mirror_moves_per_second, over.callback, None)
        await over

    async def _move(self, key: Commit, offset: int) -> None:
        group, topic, partition = key
        try:
            place = await self._find_position(topic, partition, offset)
            if place is None:
                return
            subscription = f"{place.path}/subscription/{quote(group, safe='')}"
            at = {
                "ledgerId": place.ledger_id,
                "entryId": place.entry_id,
                "partitionIndex": -1,
                "batchIndex": -1,
            }
            if not await self._is_ours(key, subscription, at):
                return
            try:
                await self._api.post(f"{subscription}/resetcursor", at)
            except NotFound:
                # Somebody deleted it, or the whole topic: the next commit makes it anew if it can.
                self._is_ours_cache.pop(key, None)
        except StorageError as failure:
            self._failed += 1
            log.debug(
                "the cursor of group %s in %s-%d was not moved: %s",
                group,
                topic,
                partition,
                failure,
            )

    async def _is_ours(self, key: Commit, subscription: str, at: dict[str, int]) -> bool:
        known = self._is_ours_cache.get(key)
        if known is not None:
            return known
        try:
            await self._api.put(subscription, {**at, "properties": {OWNER_PROPERTY: "group"}})
            is_ours = True
        except Conflict:
            properties = await self._api.get(f"{subscription}/properties")
            is_ours = isinstance(properties, dict) and OWNER_PROPERTY in properties
            if not is_ours:
                group, topic, partition = key
                log.warning(
                    "subscription %s of %s-%d is not a Kafka group's: it is left alone",
                    group,
                    topic,
                    partition,
                )
        if len(self._is_ours_cache) >= self._settings.mirror_waiting:
            # It is only a memory of what can be asked again.
            self._is_ours_cache.clear()
        self._is_ours_cache[key] = is_ours
        return is_ours

    def _log_failures(self) -> None:
        if self._failed or self._dropped:
            log.warning(
                "cursors of Kafka groups in Pulsar: %d not moved, %d offsets not noted (mirror_waiting=%d); committed offsets are safe all the same",
                self._failed,
                self._dropped,
                self._settings.mirror_waiting,
            )
        self._failed = self._dropped = 0
