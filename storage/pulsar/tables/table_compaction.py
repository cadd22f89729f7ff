"""Compacts the topic of a state table, and lets Pulsar delete what was compacted.

Pulsar deletes a ledger when every cursor has passed it and retention does not keep it. The cursor
`__compaction` moves when the rows before it are in the compacted ledger. It is created with the
topic, before the first row is written, so that no retention or time to live can delete rows. Only
then is the topic's own retention set to nothing, which frees ledgers that were compacted.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec
from twisted.internet.defer import Deferred

from storage.bridge import DelayedCall, Reactor
from storage.log import StorageError
from storage.pulsar.admin.admin_api import (
    AdminFailed,
    Conflict,
    NotFound,
    PreconditionFailed,
    PulsarAdmin,
)
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table_loader import TopicSpace, topic_space
from storage.pulsar.topics.pulsar_names import path_of

CURSOR = "__compaction"
"""The subscription of Pulsar's compaction (COMPACTION_SUBSCRIPTION)."""

EARLIEST = {"ledgerId": -1, "entryId": -1}
NO_RETENTION = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
NO_QUOTA = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
QUOTAS = ("destination_storage", "message_age")

log = logging.getLogger(__name__)


class CompactionStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status of the last compaction since the broker loaded the topic.

    `status` is NOT_RUN, RUNNING, SUCCESS or ERROR.
    """

    status: str
    last_error: str = ""


async def ensure_topic(admin: PulsarAdmin, topic: str) -> None:
    """Create the topic, without partitions, if it is missing. Raises StorageFailed."""
    try:
        await topic_space(admin, topic)
    except NotFound:
        with suppress(Conflict):
            await admin.put(path_of(topic))


async def clear_retention(admin: PulsarAdmin, topic: str, *, is_new: bool = False) -> None:
    """Set the topic's retention to nothing, so that it keeps only what cursors need.

    If topic policies cannot be set, those of the namespace apply. The backlog quota is removed,
    because one of the namespace could move the compaction cursor past rows that it has not read
    (`consumer_backlog_eviction`). A new topic has no policies that could be read.
    """
    path = path_of(topic)
    try:
        quotas = {} if is_new else await admin.get(f"{path}/backlogQuotaMap") or {}
        for kind in QUOTAS:
            if not NO_QUOTA.items() <= quotas.get(kind, {}).items():
                await admin.post(f"{path}/backlogQuota?backlogQuotaType={kind}", NO_QUOTA)
        if is_new or await admin.get(f"{path}/retention") != NO_RETENTION:
            await admin.post(f"{path}/retention", NO_RETENTION)
    except AdminFailed as error:
        log.warning(
            "topic policies not set, the namespace's retention applies topic=%s error=%s",
            topic,
            error,
        )


class TableCompactor:
    """Compacts the topic of one table when enough has been written to it."""

    def __init__(
        self, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor, topic: str
    ) -> None:
        self._admin = admin
        self._settings = settings
        self._reactor = reactor
        self._topic = topic
        self._path = path_of(topic)
        self._written = 0
        """Bytes written since the last compaction began; the whole topic if that is unknown."""
        self._requested = 0
        """Bytes that the requested compaction covers, until its result is known."""
        self._ledger_before = -1
        """The compacted ledger before the requested compaction."""
        self._timer: DelayedCall | None = None
        self._is_stopped = False
        self._is_failing = False
        self._checks_retention = False
        """Whether the next periodic run checks the policies of a topic that existed before."""

    async def prepare(self) -> TopicSpace | None:
        """Create the topic and its compaction cursor, before any row is written.

        Returns the topic's space before, None if it was missing.

        A start opens many tables, so the policies of a topic with a cursor are checked later, by
        the first periodic run. Raises StorageFailed.
        """
        try:
            space = await topic_space(self._admin, self._topic)
        except NotFound:
            space = None
            with suppress(Conflict):
                await self._admin.put(self._path)
        self._checks_retention = space is not None and CURSOR in space.cursors
        if not self._checks_retention:
            await self._create_cursor()
            await clear_retention(self._admin, self._topic, is_new=space is None)
        self._written = space.total_size if space else 0
        return space

    async def _create_cursor(self) -> None:
        """Create the compaction cursor. Another gateway may do so at the same time.

        The broker refuses all but one of concurrent calls, as "Subscription Busy", after creating
        the cursor.
        """
        try:
            await self._admin.put(f"{self._path}/subscription/{CURSOR}", EARLIEST)
        except Conflict:
            pass
        except PreconditionFailed:
            if CURSOR not in (await topic_space(self._admin, self._topic)).cursors:
                raise

    def start(self) -> None:
        """Start the periodic check."""
        self._schedule()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def add_written(self, size: int) -> None:
        self._written += size

    async def compact_if_due(self) -> None:
        """Start a compaction if enough was written since the last one. Raises StorageFailed."""
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
            # The topic moved, or its broker was killed, during the compaction. The new broker has
            # no status of it.
            self._written += self._requested
        self._requested = 0
        if compaction.status == "ERROR":
            self._log_failure(f"{compaction.last_error}")
            self._written = space.total_size
        elif self._is_failing:
            self._is_failing = False
            log.warning("table compaction recovered topic=%s", self._topic)
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
            if self._checks_retention:
                await clear_retention(self._admin, self._topic)
                self._checks_retention = False
            await self.compact_if_due()
        except StorageError as error:
            self._log_failure(str(error))
        except Exception:
            log.exception("bug: compacting %s failed", self._topic)

    def _log_failure(self, reason: str) -> None:
        """Log the first failure of a series."""
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "table compaction failing, the topic grows topic=%s reason=%s", self._topic, reason
            )
