"""The space of a state table's topic: old versions of rows are compacted away, and what was compacted is not kept.

Pulsar deletes a ledger when every cursor has passed it and retention does not keep it. Compaction has a cursor of its own, `__compaction`, which moves
when what lies before it is in the compacted ledger. It is made together with the topic, before the first row is written: from then on no row can be lost
to any retention or time to live, and only then is the topic's own retention set to nothing, which frees what compaction has read.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec
from twisted.internet.defer import Deferred

from storage.bridge import Reactor, ScheduledCall
from storage.log import StorageError
from storage.pulsar.admin.admin_api import AdminFailed, Conflict, NotFound, PulsarAdmin
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table_loader import topic_space
from storage.pulsar.topics.pulsar_names import path_of

CURSOR = "__compaction"
"""The subscription of Pulsar's own compaction (COMPACTION_SUBSCRIPTION)."""

EARLIEST = {"ledgerId": -1, "entryId": -1}
NO_RETENTION = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
NO_QUOTA = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
QUOTAS = ("destination_storage", "message_age")

log = logging.getLogger(__name__)


class CompactionStatus(msgspec.Struct, frozen=True, rename="camel"):
    """NOT_RUN, RUNNING, SUCCESS or ERROR, of the last one since the broker has the topic."""

    status: str
    last_error: str = ""


async def ensure_topic(admin: PulsarAdmin, topic: str) -> None:
    """The topic, where it is missing, without partitions. Raises StorageFailed."""
    try:
        await topic_space(admin, topic)
    except NotFound:
        with suppress(Conflict):
            await admin.put(path_of(topic))


async def clear_retention(admin: PulsarAdmin, topic: str) -> None:
    """Keep nothing in the topic that no cursor needs; where the topic's policies cannot be set, what the namespace says holds.

    A backlog quota of the namespace could move compaction's cursor over rows that it has not read (`consumer_backlog_eviction`), so there is none here.
    """
    path = path_of(topic)
    try:
        quotas = await admin.get(f"{path}/backlogQuotaMap") or {}
        for kind in QUOTAS:
            if not NO_QUOTA.items() <= quotas.get(kind, {}).items():
                await admin.post(f"{path}/backlogQuota?backlogQuotaType={kind}", NO_QUOTA)
        if await admin.get(f"{path}/retention") != NO_RETENTION:
            await admin.post(f"{path}/retention", NO_RETENTION)
    except AdminFailed as error:
        log.warning(
            "the space of %s is freed only as far as the retention of its namespace allows: %s",
            topic,
            error,
        )


class TableCompactor:
    """Of one table's topic."""

    def __init__(
        self, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor, topic: str
    ) -> None:
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self._topic = topic
        self._path = path_of(topic)
        self._written = 0
        """Bytes since the last compaction began, and all of the topic where that is not known."""
        self._requested = 0
        """Bytes before the compaction that was asked for, until it is known how it ended."""
        self._ledger_before = -1
        """The ledger of the compaction before that one."""
        self._timer: ScheduledCall | None = None
        self._is_stopped = False
        self._is_failing = False

    async def prepare(self) -> None:
        """Make the topic and compaction's cursor in it, before any row is written. Raises StorageFailed."""
        await ensure_topic(self._admin, self._topic)
        space = await topic_space(self._admin, self._topic)
        if CURSOR not in space.cursors:
            with suppress(Conflict):
                await self._admin.put(f"{self._path}/subscription/{CURSOR}", EARLIEST)
        await clear_retention(self._admin, self._topic)
        self._written = space.total_size

    def start(self) -> None:
        """Look after it from now on."""
        self._schedule()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def add_written(self, size: int) -> None:
        self._written += size

    async def compact_if_due(self) -> None:
        """Compact the topic if that is worth while by now. Raises StorageFailed."""
        compaction: CompactionStatus = await self._admin.get(
            f"{self._path}/compaction", CompactionStatus
        )
        if compaction.status == "RUNNING":
            return
        space = await topic_space(self._admin, self._topic)
        if (
            compaction.status == "NOT_RUN"
            and space.compacted_ledger.ledger_id == self._ledger_before
        ):
            # The topic moved, or its broker was killed, in the midst of it: the broker that has it now knows of none.
            self._written += self._requested
        self._requested = 0
        if compaction.status == "ERROR":
            self._log_failure(f"compaction failed: {compaction.last_error}")
            self._written = space.total_size
        elif self._is_failing:
            self._is_failing = False
            log.warning("%s is compacted again", self._topic)
        if self._written >= max(self._settings.table_compaction_bytes, space.compacted_ledger.size):
            written = self._written
            with suppress(Conflict):
                await self._admin.put(f"{self._path}/compaction")
            self._written -= written
            self._requested, self._ledger_before = written, space.compacted_ledger.ledger_id

    def _schedule(self) -> None:
        if not self._is_stopped:
            self._timer = self._reactor.callLater(
                self._settings.table_upkeep_seconds, self._on_timer
            )

    def _on_timer(self) -> None:
        self._timer = None
        Deferred.fromCoroutine(self._run_once()).addBoth(lambda _: self._schedule())

    async def _run_once(self) -> None:
        try:
            await self.compact_if_due()
        except StorageError as error:
            self._log_failure(str(error))
        except Exception:
            log.exception("looking after %s failed, which is a bug", self._topic)

    def _log_failure(self, reason: str) -> None:
        """Once, until it works again."""
        if not self._is_failing:
            self._is_failing = True
            log.error("%s grows until it is compacted again: %s", self._topic, reason)
