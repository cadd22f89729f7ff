"""Maps Kafka's retention configs to Pulsar's retention policy of a topic.

The gateway itself hides expired records from its clients. The policy frees disk space, including
that of topics that are not open. Pulsar deletes whole ledgers, some time after they are closed, and
never more than the policy allows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from storage.pulsar.admin.admin_api import AdminFailed, Forbidden, PulsarAdmin, Unauthorized
from storage.pulsar.settings import MIB, PulsarSettings
from storage.pulsar.topics.pulsar_names import path_of

MINUTE_MS = 60_000
UNLIMITED = -1
LARGEST = (1 << 31) - 1
"""Pulsar's minutes and megabytes are Java ints; larger values become unlimited."""

log = logging.getLogger(__name__)


class Retention(msgspec.Struct, frozen=True, gc=False):
    """Pulsar's retention policy; -1 is unlimited.

    With both 0, only messages that a subscription has not acknowledged are kept.
    """

    retentionTimeInMinutes: int
    retentionSizeInMB: int

    def __str__(self) -> str:
        return f"{self.retentionTimeInMinutes} {self.retentionSizeInMB}"


KEEP_ALL = Retention(UNLIMITED, UNLIMITED)
KEEP_NOTHING = Retention(0, 0)


def retention_of(configs: Mapping[str, str], settings: PulsarSettings) -> Retention:
    """What Pulsar must keep of a topic with these configs. Both limits are rounded up."""
    if "delete" not in cleanup_of(configs, settings):
        return KEEP_ALL
    milliseconds = _number(configs.get("retention.ms"), settings.retention_ms)
    size = _number(configs.get("retention.bytes"), settings.retention_bytes)
    return Retention(_units(milliseconds, MINUTE_MS), _units(size, MIB))


def cleanup_of(configs: Mapping[str, str], settings: PulsarSettings) -> list[str]:
    """The cleanup policies: `compact`, `delete` or both."""
    return configs.get("cleanup.policy", settings.cleanup_policy).replace(" ", "").split(",")


def _number(text: str | None, default: int) -> int:
    """Configs written by other programs may not be numbers."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default


def _units(amount: int, unit: int) -> int:
    """At least one, since 0 has another meaning in Pulsar."""
    units = max(1, -(-amount // unit))
    return UNLIMITED if amount < 0 or units > LARGEST else units


class RetentionPolicies:
    """Sets the retention of topics.

    A policy that Pulsar refuses is logged once per reason and not retried by this process.
    """

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin
        self._logged_statuses: set[int] = set()
        self._refused: set[tuple[str, Retention]] = set()

    async def retain(self, full_name: str, retention: Retention) -> bool:
        """Set the policy; return whether Pulsar accepted it.

        Raises NotFound, and StorageFailed if it can be retried.
        """
        try:
            await self._admin.post(f"{path_of(full_name)}/retention", retention)
        except AdminFailed as failure:
            status = 403 if isinstance(failure, Forbidden) else failure.status
            if isinstance(failure, Unauthorized) or status not in _REFUSALS:
                raise
            self._refuse(full_name, retention, status, failure.reason)
        else:
            return True
        return False

    def is_refused(self, full_name: str, retention: Retention) -> bool:
        return (full_name, retention) in self._refused

    def forget(self, full_name: str) -> None:
        """Forget a deleted topic: one of the same name may be allowed another retention."""
        self._refused = {one for one in self._refused if one[0] != full_name}

    def _refuse(self, full_name: str, retention: Retention, status: int, reason: str) -> None:
        self._refused.add((full_name, retention))
        if status not in self._logged_statuses:
            self._logged_statuses.add(status)
            log.warning(
                "Pulsar refused the retention of %s (%s minutes, %s MB): %s. Clients still see "
                "what the topic's configs say, but %s. "
                "Not logged again for other topics.",
                full_name,
                retention.retentionTimeInMinutes,
                retention.retentionSizeInMB,
                reason,
                _REFUSALS[status],
            )


_REFUSALS = {
    403: "disk space is freed by the namespace's retention only; a tenant administrator can set "
    "that, "
    "or allow the gateway's role to set policies",
    405: "disk space is freed by the namespace's retention only; "
    "topicLevelPoliciesEnabled=true in the brokers' configuration allows it",
    412: "older messages stay on Pulsar's disks; a retention must exceed the backlog quota: "
    "`pulsar-admin namespaces set-backlog-quota`, "
    "or backlogQuotaDefaultLimitBytes in the brokers' configuration, lowers that",
}
