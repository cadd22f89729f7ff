"""How long Pulsar itself keeps a topic's messages: Kafka's retention in Pulsar's policy.

The gateway hides what is too old from its clients by itself; this is what frees the disks, also of topics that nobody has opened. Pulsar deletes whole
ledgers, some time after they are closed, and never more than its policy says.
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
"""Minutes and megabytes are Java's int there; what is more is for ever."""

log = logging.getLogger(__name__)


class Retention(msgspec.Struct, frozen=True, gc=False):
    """Pulsar's retention policy; -1 is no limit. Both 0 would keep nothing that is not awaited by a subscription."""

    retentionTimeInMinutes: int
    retentionSizeInMB: int

    def __str__(self) -> str:
        return f"{self.retentionTimeInMinutes} {self.retentionSizeInMB}"


KEEP_ALL = Retention(UNLIMITED, UNLIMITED)
KEEP_NOTHING = Retention(0, 0)


def retention_of(configs: Mapping[str, str], settings: PulsarSettings) -> Retention:
    """What Pulsar must keep of a topic with these configs: never less than they say, so both limits are rounded up."""
    if "delete" not in cleanup_of(configs, settings):
        return KEEP_ALL
    milliseconds = _number(configs.get("retention.ms"), settings.retention_ms)
    size = _number(configs.get("retention.bytes"), settings.retention_bytes)
    return Retention(_units(milliseconds, MINUTE_MS), _units(size, MIB))


def cleanup_of(configs: Mapping[str, str], settings: PulsarSettings) -> list[str]:
    """`compact`, `delete` or both."""
    return configs.get("cleanup.policy", settings.cleanup_policy).replace(" ", "").split(",")


def _number(text: str | None, default: int) -> int:
    """A config that others wrote may be no number."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default


def _units(amount: int, unit: int) -> int:
    """At least one: a 0 would mean something else to Pulsar."""
    units = max(1, -(-amount // unit))
    return UNLIMITED if amount < 0 or units > LARGEST else units


class RetentionPolicies:
    """Sets the retention of topics. What Pulsar will not take is said once per reason, and not tried again by this process."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin
        self._logged_statuses: set[int] = set()
        self._refused: set[tuple[str, Retention]] = set()

    async def retain(self, full_name: str, retention: Retention) -> bool:
        """Whether Pulsar has it now. Raises Missing, and StorageFailed where it may be tried again."""
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
        """The topic is gone; one of the same name may be allowed another retention."""
        self._refused = {one for one in self._refused if one[0] != full_name}

    def _refuse(self, full_name: str, retention: Retention, status: int, reason: str) -> None:
        self._refused.add((full_name, retention))
        if status not in self._logged_statuses:
            self._logged_statuses.add(status)
            log.warning(
                "Pulsar does not take the retention of %s (%s minutes, %s MB): %s. Clients see what the topic's configs say all the same, but %s. "
                "Not said again of other topics.",
                full_name,
                retention.retentionTimeInMinutes,
                retention.retentionSizeInMB,
                reason,
                _REFUSALS[status],
            )


_REFUSALS = {
    403: "the disks are freed by the namespace's retention alone; a tenant's administrator may set that, or let this gateway's role set policies",
    405: "the disks are freed by the namespace's retention alone; topicLevelPoliciesEnabled=true in the brokers' configuration allows it",
    412: "what is older stays on Pulsar's disks; a retention must be above the backlog quota: `pulsar-admin namespaces set-backlog-quota`, "
    "or backlogQuotaDefaultLimitBytes in the brokers' configuration, makes that smaller",
}
