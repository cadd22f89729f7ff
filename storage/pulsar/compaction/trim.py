"""Trims the beginning of a partition's topic by lowering its retention for a moment.

Pulsar has no call to trim a topic up to a position. It deletes closed ledgers that retention does
not keep and that every subscription has passed. Steps:

1. Write to the metadata log, and then in a topic property, that a trim is in progress. After a
   crash the next controller restores the retention and removes the subscription.
2. Create a protective subscription in each partition of the topic, at the first position still
   needed.
3. Set the topic's retention to nothing, trim the partition, and restore the retention.
4. When every broker has applied the retention, remove the subscription. Otherwise it would keep
   data that the topic's own retention expires.

So for a few seconds the data depend only on a subscription, which an operator, a time to live, a
backlog quota or an expiration could remove.

The topic's partitions have leaders in several gateways, but its retention and subscription are
common to them. So only the controller trims, one trim per topic at a time, on behalf of the leader
that computed the position to keep. What can change meanwhile:

- The leader. It stored the partition's row, which says that nothing before the position is needed,
  before it asked. Later leaders read that row and never lower the trim offset, so a request that is
  answered late, twice, or after the leader lost the partition deletes nothing that is needed. A
  leader that lost the partition earlier could not store the row. A request for a deleted topic does
  not affect a new one of the same name: ledgers of the new one have greater ids.
- The controller. Writing to the metadata log confirms that this process is the controller, and is
  done before anything is changed in Pulsar. If another process becomes it afterwards, that process
  finds the topic in the log, restores its retention at once, and removes the subscription after
  `settling_seconds`, when Pulsar still has that retention. The former controller gives up
  `lowered_seconds` after it began, long before. Until then both rely on the same subscription: a
  new trim only moves it to an earlier position in the other partitions. A process that is suspended
  during a trim gives up when it continues.
- The topic. It cannot be deleted or altered meanwhile, because its lock is held.

If a gateway uses its store alone, it is the controller, and confirms the store's lock instead.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

from storage.bridge import clock_seconds
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
"""A policy takes effect some milliseconds after it was set.

If a broker needs more than five seconds, the trim is repeated with the next round of compaction.
"""

log = logging.getLogger(__name__)


class RetentionTrimmer:
    """Trims topics of one cluster.

    All methods raise StorageFailed if a broker fails or does not answer.
    """

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
        """Time when a topic's retention was restored, while it still has the subscription."""

    async def refusal(self, found: PulsarTopic) -> str:
        """Why the topic's retention must not be lowered, and what to do; empty if it may be."""
        namespace = found.full_name.removeprefix(PREFIX).rpartition("/")[0]
        try:
            if await self._admin.get(f"/namespaces/{quote(namespace)}/subscriptionExpirationTime"):
                return (
                    "its namespace deletes idle subscriptions: "
                    "`pulsar-admin namespaces remove-subscription-expiration-time`"
                )
            if await self._admin.get(f"{found.path}/{TIME_TO_LIVE}"):
                return "it has a time to live: `pulsar-admin topicPolicies remove-message-ttl`"
            for quota in (await self._admin.get(f"{found.path}/backlogQuotaMap") or {}).values():
                if not NO_QUOTA.items() <= quota.items():
                    return (
                        "it has a backlog quota: `pulsar-admin topicPolicies remove-backlog-quota`"
                    )
        except Forbidden as failure:
            return str(failure)
        return ""

    async def plan(self, found: PulsarTopic) -> PulsarTopic:
        """The topic with the property that says that a trim is in progress, and which policies it
        will set.
        """
        if found.is_retention_lowered:
            return found
        policies = (
            []
            if await self._admin.get(f"{found.path}/{TIME_TO_LIVE}") is not None
            else [TIME_TO_LIVE]
        )
        quotas = await self._admin.get(f"{found.path}/backlogQuotaMap") or {}
        policies += [kind for kind in QUOTAS if kind not in quotas]
        return replace(found, retention=" ".join([LOWERED, *policies]))

    async def begin(self, planned: PulsarTopic) -> None:
        """Set the property of a planned trim, which the metadata log has already."""
        self._restored_at.pop(planned.full_name, None)
        await self._admin.put(f"{planned.path}/properties", {RETENTION: planned.retention})

    async def protect(self, found: PulsarTopic, topic: str, keep: Position) -> None:
        """Protect the topic's partitions while its retention is lowered.

        In `topic`, the partition to trim, nothing from `keep` on is deleted; in the others nothing
        at all.
        """
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
        """Move the subscription before `keep`, or to the beginning, and check that it is there."""
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
                f"{topic}: the subscription {CURSOR} is not at the position it was set to", 0, ""
            )

    def check_time(self, since: float) -> None:
        """Raise StorageFailed after `lowered_seconds`: the subscription may have been removed."""
        if clock_seconds() - since > self._settings.lowered_seconds:
            raise StorageFailed(
                f"trim aborted: lowering the retention took longer than "
                f"{self._settings.lowered_seconds:g} s (lowered_seconds)"
            )

    async def trim(self, topic: str, keep: Position, since: float) -> None:
        """Let Pulsar delete the ledgers before `keep`."""
        stats = await self._admin.internal_stats(topic)
        before = stats.total_size
        for _ in range(TRIM_ATTEMPTS):
            self.check_time(since)
            if not mark_delete_position(stats, CURSOR) < keep:
                raise StorageFailed(f"{topic}: the subscription {CURSOR} was removed or moved")
            await self._admin.post(f"{path_of(topic)}/trim")
            stats = await self._admin.internal_stats(topic)
            if not has_whole_ledgers(stats, keep):
                log.info(
                    "topic trimmed topic=%s freed=%d of=%d",
                    topic,
                    before - stats.total_size,
                    before,
                )
                return
            await self._pause(TRIM_RETRY_SECONDS)
        log.warning("topic not trimmed yet, retrying with the next compaction topic=%s", topic)

    def is_restored(self, found: PulsarTopic) -> bool:
        """Whether this process restored the topic's retention, so that it may be lowered again."""
        return found.full_name in self._restored_at

    def forget(self, found: PulsarTopic) -> None:
        """Forget a deleted topic."""
        self._restored_at.pop(found.full_name, None)

    async def end(self, found: PulsarTopic, retention: Retention) -> bool:
        """Remove the protection, `settling_seconds` after the retention was restored.

        Returns whether it was removed.
        """
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
    """Whether a ledger is entirely before `keep` and was passed by every subscription."""
    others = [
        mark_delete_position(stats, name)
        for name in stats.cursors
        if name != CURSOR and not name.startswith(_READER_PREFIX)
    ]
    return any(ledger.ledger_id < min([keep, *others]).ledger_id for ledger in stats.ledgers)


def mark_delete_position(stats: InternalStats, subscription: str) -> Position:
    """The subscription's mark-delete position; after everything if it does not exist."""
    cursor = stats.cursors.get(subscription)
    ledger, _, entry = (
        cursor["markDeletePosition"].partition(":") if cursor else (str(1 << 63), "", "0")
    )
    return Position(int(ledger), int(entry))


_READER_PREFIX = "reader"
"""Prefix of the cursors of readers, which do not keep messages."""


def _partition_topics(found: PulsarTopic) -> list[str]:
    if not found.is_partitioned:
        return [found.full_name]
    return [partition_name(found.full_name, index) for index in range(found.topic.partitions)]


def _protective_policies(found: PulsarTopic) -> list[str]:
    """The policies that `protect` sets, according to the topic's property."""
    return (found.retention or "").split()[1:]
