"""Policies of a namespace: retention, automatic topic creation, deletion of inactive topics.

They are the namespace's own policies, else the brokers' defaults.
"""

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
"""The brokers' runtime configuration; all values are text."""


class AutoTopicCreation(msgspec.Struct, frozen=True):
    """A namespace policy, with Pulsar's field name."""

    allowAutoTopicCreation: bool


class InactiveTopics(msgspec.Struct, frozen=True):
    """A namespace or topic policy, with Pulsar's field names."""

    deleteWhileInactive: bool
    inactiveTopicDeleteMode: str = "delete_when_no_subscriptions"
    maxInactiveDurationSeconds: int = 60


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """Policies of a namespace; None if this role may not read them."""

    retention: Retention | None = None
    auto_creates_topics: bool | None = None
    deletes_inactive_topics: bool | None = None


def path_of_namespace(namespace: str) -> str:
    return f"/namespaces/{quote(namespace)}"


def own_namespaces(settings: PulsarSettings) -> tuple[str, ...]:
    """The namespaces that the gateway needs, one or two."""
    own = (
        f"{settings.tenant}/{settings.namespace}",
        f"{settings.metadata_tenant}/{settings.metadata_namespace}",
    )
    return tuple(dict.fromkeys(own))


def retains_at_least(retention: Retention, wanted: Retention) -> bool:
    """Whether `retention` keeps everything that `wanted` keeps."""
    pairs = (
        (retention.retentionTimeInMinutes, wanted.retentionTimeInMinutes),
        (retention.retentionSizeInMB, wanted.retentionSizeInMB),
    )
    return all(kept == UNLIMITED or UNLIMITED != asked <= kept for kept, asked in pairs)


async def broker_config(admin: PulsarAdmin) -> BrokerConfig | None:
    """The brokers' configuration; None if this role may not read it. Raises StorageFailed."""
    try:
        runtime: BrokerConfig = await admin.get("/brokers/configuration/runtime", dict[str, Any])
    except Forbidden:
        return None
    return runtime


async def largest_message(admin: PulsarAdmin) -> int | None:
    """The brokers' maxMessageSize in bytes; None if this role may not read it. Raises
    StorageFailed.
    """
    runtime = await broker_config(admin)
    try:
        return int(runtime["maxMessageSize"]) if runtime else None
    except (LookupError, TypeError, ValueError):
        return None


async def policies_of(
    admin: PulsarAdmin, namespace: str, runtime: BrokerConfig | None
) -> NamespacePolicies:
    """Read the policies of a namespace. Raises NotFound, StorageFailed."""
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
        # The brokers' defaults do not apply if the namespace overrides them.
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
