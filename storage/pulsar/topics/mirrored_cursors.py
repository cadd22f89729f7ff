"""Shows committed offsets of Kafka groups in Pulsar, as subscriptions with the group's name.

Pulsar's backlog metrics then include Kafka groups. This is not on the commit path: the newest
offset of each group and partition is kept here, and cursors are moved periodically through the
admin API at a limited rate. Commits do not wait for it, and no offset is lost without it: the
gateway reads committed offsets from its own table. An existing subscription of the same name that
the gateway did not create is not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from twisted.internet.defer import Deferred

from storage.bridge import DelayedCall, Reactor, sleep
from storage.log import StorageError
from storage.pulsar.admin.admin_api import Conflict, NotFound
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX

log = logging.getLogger(__name__)

OWNER_PROPERTY = "kopgate"
"""Property of subscriptions that the gateway creates; the value is their purpose."""


class CursorPosition(NamedTuple):
    """The partition's topic as an admin API path (`persistent/tenant/namespace/name`), and the
    entry at which the group continues reading.
    """

    path: str
    ledger_id: int
    entry_id: int


class CursorApi(Protocol):
    """The part of the admin API that is used here."""

    async def get(self, path: str) -> object: ...
    async def put(self, path: str, body: object = None) -> object: ...
    async def post(self, path: str, body: object = None) -> object: ...


Commit = tuple[str, str, int]


class CursorMirror:
    """Mirrors committed offsets.

    `place(topic, partition, offset)` finds the entry; None if the partition is not open here or has
    no such offset.
    """

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
        """Whether the gateway created the subscription, for those already checked."""
        self._timer: DelayedCall | None = None
        self._is_stopped = False
        self._dropped = self._failed = 0

    def note(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Record a group's commit; only the newest offset of a partition is kept.

        If `mirror_waiting` partitions are already recorded, the offset is dropped until the group's
        next commit.
        """
        if group.startswith(INTERNAL_PREFIX):
            # The gateway uses such subscription names itself.
            return
        if group in (".", ".."):
            # Paths of the admin API cannot contain these names, even escaped.
            return
        key = group, topic, partition
        if key not in self._waiting and len(self._waiting) >= self._settings.mirror_waiting:
            self._dropped += 1
            return
        self._waiting[key] = offset

    def start(self) -> None:
        """Move cursors every `mirror_seconds`, first after one interval."""
        self._timer = self._reactor.callLater(self._settings.mirror_seconds, self._start_moving)

    def stop(self) -> None:
        """Stop moving cursors; a call in progress completes."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_moving(self) -> None:
        self._timer = None
        Deferred.fromCoroutine(self._move_all()).addErrback(_log_bug)

    async def _move_all(self) -> None:
        try:
            waiting, self._waiting = self._waiting, {}
            for key, offset in waiting.items():
                if self._is_stopped:
                    return
                await self._move(key, offset)
                # Keep to the limit on moves per second.
                await sleep(self._reactor, 1 / self._settings.mirror_moves_per_second)
            self._log_failures()
        finally:
            if not self._is_stopped:
                self.start()

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
                # The subscription or its topic was deleted: the next commit recreates it if
                # possible.
                self._is_ours_cache.pop(key, None)
        except StorageError as failure:
            self._failed += 1
            log.debug(
                "subscription of group %s in %s-%d not moved: %s",
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
                    "subscription %s of %s-%d does not belong to a Kafka group, not moving it",
                    group,
                    topic,
                    partition,
                )
        if len(self._is_ours_cache) >= self._settings.mirror_waiting:
            # A cache only: the values can be read again.
            self._is_ours_cache.clear()
        self._is_ours_cache[key] = is_ours
        return is_ours

    def _log_failures(self) -> None:
        if self._failed or self._dropped:
            log.warning(
                "Pulsar subscriptions of Kafka groups are behind: %d moves failed, %d were dropped "
                "(mirror_waiting=%d); committed offsets are not affected",
                self._failed,
                self._dropped,
                self._settings.mirror_waiting,
            )
        self._failed = self._dropped = 0


def _log_bug(failure: Any) -> None:
    log.error(
        "bug: moving the subscriptions that mirror committed offsets failed, retrying",
        exc_info=(failure.type, failure.value, failure.getTracebackObject()),
    )
