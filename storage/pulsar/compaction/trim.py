"""The beginning of a partition's topic, deleted: its retention is set aside for a moment.

Pulsar has no call for it. It deletes closed ledgers that retention does not keep and that every subscription has passed. So a subscription of ours is
made in each partition of the topic, which stands where the partition is still needed; retention is lowered to nothing, the partition is trimmed, and
retention is raised again. When every broker knows of that the subscription goes: it would keep what the topic's own retention lets go. Before anything
else a property of the topic says that this is under way: after a crash whoever has the store next raises retention and takes the subscription away.

So data depend for seconds only on a subscription which an operator, a time to live, a backlog quota or an expiration could take away.

A process that is stopped in the middle of it, and goes on when another has the store and has taken the subscription away, must do no harm: it was made
sure when it began that nobody else had the store, and all is given up long before anybody else could take the subscription away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import (
    AdminFailed,
    Conflict,
    Forbidden,
    InternalStats,
    NotFound,
    PulsarAdmin,
)
from storage.pulsar.log.offset_index import Position
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table_compaction import EARLIEST, NO_QUOTA, QUOTAS
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX, partition_name, path_of
from storage.pulsar.topics.retention_policies import Retention
from storage.pulsar.topics.topic_listing import LOWERED, RETENTION, PulsarTopic, for_each

CURSOR = f"{INTERNAL_PREFIX}_compaction"
TIME_TO_LIVE = "messageTTL"

TRIM_ATTEMPTS = 25
TRIM_RETRY_SECONDS = 0.2
"""A policy is in force some milliseconds after it was set; a broker that takes longer than five seconds is tried again with the next round."""

log = logging.getLogger(__name__)


class RetentionTrimmer:
    """Of topics in one cluster. Everything raises StorageFailed where a broker does not answer or does not do it."""

    def __init__(
        self,
        admin: PulsarAdmin,
        pause: Callable[[float], Awaitable[None]],
        settings: PulsarSettings,
    ) -> None:
        self._admin = admin
        self._pause = pause
        self._settings = settings
        self._restored_at: dict[str, float] = {}
        """When a topic's retention was raised again, of those that have the subscription still."""

    async def refusal(self, found: PulsarTopic) -> str:
        """Why the topic's retention must not be lowered, with what would help; empty where it may."""
        namespace = found.full_name.removeprefix(PREFIX).rpartition("/")[0]
        try:
            if await self._admin.get(f"/namespaces/{quote(namespace)}/subscriptionExpirationTime"):
                return "its namespace deletes subscriptions that are idle: `pulsar-admin namespaces remove-subscription-expiration-time`"
            if await self._admin.get(f"{found.path}/{TIME_TO_LIVE}"):
                return "it has a time to live: `pulsar-admin topicPolicies remove-message-ttl`"
            for quota in (await self._admin.get(f"{found.path}/backlogQuotaMap") or {}).values():
                if not NO_QUOTA.items() <= quota.items():
                    return "it has a backlog quota of its own: `pulsar-admin topicPolicies remove-backlog-quota`"
        except Forbidden as failure:
            return str(failure)
        return ""

    async def begin(self, found: PulsarTopic) -> PulsarTopic:
        """Say that it is under way, and which policies will be set."""
        self._restored_at.pop(found.full_name, None)
        if found.is_retention_lowered:
            return found
        policies = (
            []
            if await self._admin.get(f"{found.path}/{TIME_TO_LIVE}") is not None
            else [TIME_TO_LIVE]
        )
        quotas = await self._admin.get(f"{found.path}/backlogQuotaMap") or {}
        policies += [kind for kind in QUOTAS if kind not in quotas]
        lowered = " ".join([LOWERED, *policies])
        await self._admin.put(f"{found.path}/properties", {RETENTION: lowered})
        return replace(found, retention=lowered)

    async def protect(self, found: PulsarTopic, topic: str, keep: Position) -> None:
        """From here on nothing goes of `topic`, a partition, from `keep` on, and of the others nothing at all, whatever the retention."""
        for policy in _protective_policies(found):
            if policy == TIME_TO_LIVE:
                await self._admin.post(f"{found.path}/{TIME_TO_LIVE}?messageTTL=0")
            else:
                await self._admin.post(
                    f"{found.path}/backlogQuota?backlogQuotaType={policy}", NO_QUOTA
                )
        with suppress(Conflict):
            await self._admin.put(f"{found.path}/subscription/{CURSOR}", EARLIEST)

        async def move_subscription(partition: str) -> None:
            await self._move_subscription(partition, keep if partition == topic else None)

        await for_each(
            _partition_topics(found), move_subscription, self._settings.admin_connections
        )

    async def _move_subscription(self, topic: str, keep: Position | None) -> None:
        """The subscription stands before `keep`, or before everything; it is looked at whether it does."""
        subscription = f"{path_of(topic)}/subscription/{CURSOR}"
        with suppress(Conflict):
            await self._admin.put(subscription, EARLIEST)
        at = {"ledgerId": keep.ledger_id, "entryId": keep.entry_id} if keep else EARLIEST
        await self._admin.post(
            f"{subscription}/resetcursor", {**at, "partitionIndex": -1, "batchIndex": -1}
        )
        stats = await self._admin.internal_stats(topic)
        first = min((ledger.ledger_id for ledger in stats.ledgers), default=0)
        if not mark_delete_position(stats, CURSOR) < (keep or Position(first, 0)):
            raise AdminFailed(
                f"{topic}: the subscription {CURSOR} does not stand where it was put", 0, ""
            )

    def check_time(self, since: float) -> None:
        """Raises StorageFailed where so much time has passed since then that the subscription may be gone."""
        if clock_seconds() - since > self._settings.lowered_seconds:
            raise StorageFailed(
                f"it took longer than {self._settings.lowered_seconds:g} s to lower a retention, so it was given up"
            )

    async def trim(self, topic: str, keep: Position, since: float) -> None:
        """Let Pulsar delete what it may."""
        stats = await self._admin.internal_stats(topic)
        before = stats.total_size
        for _ in range(TRIM_ATTEMPTS):
            self.check_time(since)
            if not mark_delete_position(stats, CURSOR) < keep:
                raise StorageFailed(f"{topic}: somebody has taken the subscription {CURSOR} away")
            await self._admin.post(f"{path_of(topic)}/trim")
            stats = await self._admin.internal_stats(topic)
            if not has_whole_ledgers(stats, keep):
                log.info("%s: %d of %d bytes were freed", topic, before - stats.total_size, before)
                return
            await self._pause(TRIM_RETRY_SECONDS)
        log.warning("%s: Pulsar keeps ledgers that nobody needs; it is tried again", topic)

    def is_restored(self, found: PulsarTopic) -> bool:
        """Whether this process has given it its retention again, and it may be lowered once more."""
        return found.full_name in self._restored_at

    def forget(self, found: PulsarTopic) -> None:
        """The topic is gone."""
        self._restored_at.pop(found.full_name, None)

    async def end(self, found: PulsarTopic, retention: Retention) -> bool:
        """The topic was given that retention again: take away what has protected it meanwhile, if it is time. Whether that is done."""
        since = self._restored_at.setdefault(found.full_name, clock_seconds())
        if clock_seconds() - since < self._settings.settling_seconds:
            return False
        if await self._admin.get(f"{found.path}/retention", Retention) != retention:
            self._restored_at[found.full_name] = clock_seconds()
            return False
        with suppress(NotFound):
            await self._admin.delete(f"{found.path}/subscription/{CURSOR}")
        for policy in _protective_policies(found):
            name = (
                TIME_TO_LIVE
                if policy == TIME_TO_LIVE
                else f"backlogQuota?backlogQuotaType={policy}"
            )
            await self._admin.delete(f"{found.path}/{name}")
        self.forget(found)
        return True


def has_whole_ledgers(stats: InternalStats, keep: Position) -> bool:
    """Whether a ledger lies before `keep` and before what every subscription waits for."""
    others = [
        mark_delete_position(stats, name)
        for name in stats.cursors
        if name != CURSOR and not name.startswith(_READER_PREFIX)
    ]
    return any(ledger.ledger_id < min([keep, *others]).ledger_id for ledger in stats.ledgers)


def mark_delete_position(stats: InternalStats, subscription: str) -> Position:
    """What the subscription has acknowledged up to; behind everything where it is not there."""
    cursor = stats.cursors.get(subscription)
    ledger, _, entry = (
        cursor["markDeletePosition"].partition(":") if cursor else (str(1 << 63), "", "0")
    )
    return Position(int(ledger), int(entry))


def clock_seconds() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_READER_PREFIX = "reader"
"""Begins the names of readers' cursors, which keep nothing."""


def _partition_topics(found: PulsarTopic) -> list[str]:
    if not found.is_partitioned:
        return [found.full_name]
    return [partition_name(found.full_name, index) for index in range(found.topic.partitions)]


def _protective_policies(found: PulsarTopic) -> list[str]:
    """Those that were set because retention was lowered."""
    return (found.retention or "").split()[1:]
