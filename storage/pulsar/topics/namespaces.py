"""What holds in a namespace: how long it keeps messages, whether it makes topics unasked or deletes them. From its own policies, else the brokers' defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from storage.pulsar.admin.admin_api import Forbidden, PulsarAdmin
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.retention_policies import UNLIMITED, Retention

BrokerConfig = Mapping[str, Any]
"""The configuration that the brokers run with, values as text."""


class AutoTopicCreation(msgspec.Struct, frozen=True):
    """The policy of a namespace; the field bears Pulsar's name."""

    allowAutoTopicCreation: bool


class InactiveTopics(msgspec.Struct, frozen=True):
    """The policy of a namespace or topic; the fields bear Pulsar's names."""

    deleteWhileInactive: bool
    inactiveTopicDeleteMode: str = "delete_when_no_subscriptions"
    maxInactiveDurationSeconds: int = 60


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """None where this role may not know."""

    retention: Retention | None = None
    auto_creates_topics: bool | None = None
    deletes_inactive_topics: bool | None = None


def path_of_namespace(namespace: str) -> str:
    return f"/namespaces/{quote(namespace)}"


def own_namespaces(settings: PulsarSettings) -> tuple[str, ...]:
    """Those that the gateway needs; they may be one."""
    own = (
        f"{settings.tenant}/{settings.namespace}",
        f"{settings.metadata_tenant}/{settings.metadata_namespace}",
    )
    return tuple(dict.fromkeys(own))


def retains_at_least(retention: Retention, wanted: Retention) -> bool:
    """Whether nothing goes that `wanted` keeps."""
    pairs = (
        (retention.retentionTimeInMinutes, wanted.retentionTimeInMinutes),
        (retention.retentionSizeInMB, wanted.retentionSizeInMB),
    )
    return all(kept == UNLIMITED or UNLIMITED != asked <= kept for kept, asked in pairs)


async def broker_config(admin: PulsarAdmin) -> BrokerConfig | None:
    """The brokers' configuration; None where only others may know. Raises StorageFailed."""
    try:
        runtime: BrokerConfig = await admin.get("/brokers/configuration/runtime", dict[str, Any])
    except Forbidden:
        return None
    return runtime


async def largest_message(admin: PulsarAdmin) -> int | None:
    """The brokers' maxMessageSize in bytes; None where this role may not know. Raises StorageFailed."""
    runtime = await broker_config(admin)
    try:
        return int(runtime["maxMessageSize"]) if runtime else None
    except (LookupError, TypeError, ValueError):
        return None


async def policies_of(
    admin: PulsarAdmin, namespace: str, runtime: BrokerConfig | None
) -> NamespacePolicies:
    """Raises Missing, StorageFailed."""
    path = path_of_namespace(namespace)
    try:
        retention: Retention | None = await admin.get(f"{path}/retention", Retention | None)
        creation: AutoTopicCreation | None = await admin.get(
            f"{path}/autoTopicCreation", AutoTopicCreation | None
        )
        inactive: InactiveTopics | None = await admin.get(
            f"{path}/inactiveTopicPolicies", InactiveTopics | None
        )
    except Forbidden:
        # What the brokers do by default says nothing as long as the namespace may say otherwise.
        return NamespacePolicies()
    default = _defaults(runtime) if runtime else NamespacePolicies()
    return NamespacePolicies(
        retention or default.retention,
        creation.allowAutoTopicCreation if creation else default.auto_creates_topics,
        inactive.deleteWhileInactive if inactive else default.deletes_inactive_topics,
    )


def _defaults(runtime: BrokerConfig) -> NamespacePolicies:
    try:
        retention = Retention(
            int(runtime["defaultRetentionTimeInMinutes"]), int(runtime["defaultRetentionSizeInMB"])
        )
    except (LookupError, TypeError, ValueError):
        retention = None
    return NamespacePolicies(
        retention,
        _flag(runtime.get("allowAutoTopicCreation")),
        _flag(runtime.get("brokerDeleteInactiveTopicsEnabled")),
    )


def _flag(text: object) -> bool | None:
    return {"true": True, "false": False}.get(str(text))
