"""Creates what the gateway needs in Pulsar, if configured: in its own namespaces only."""

from __future__ import annotations

from urllib.parse import quote

from storage.log import NotReady
from storage.pulsar.admin.admin_api import AdminFailed, Conflict, Forbidden, NotFound, PulsarAdmin
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.namespaces import (
    AutoTopicCreation,
    InactiveTopics,
    NamespacePolicies,
    broker_config,
    own_namespaces,
    path_of_namespace,
    policies_of,
    retains_at_least,
)
from storage.pulsar.topics.retention_policies import UNLIMITED, Retention, retention_of


async def set_up(settings: PulsarSettings, admin: PulsarAdmin) -> list[str]:
    """Set up the gateway's namespaces; return what was set and what could not be set.

    Suitable existing settings are not changed. Raises StorageFailed if no broker answers.
    """
    report: list[str] = []
    runtime = await broker_config(admin)
    for namespace in own_namespaces(settings):
        report += await _create(admin, namespace)
        try:
            rules = await policies_of(admin, namespace, runtime)
        except NotFound:
            continue
        report += await _set_policies(settings, admin, namespace, rules)
    return [line for line in report if line]


async def _create(admin: PulsarAdmin, namespace: str) -> list[str]:
    """Create the tenant and the namespace."""
    report, there = [], []
    tenant = namespace.partition("/")[0]
    try:
        there = await admin.get(f"/namespaces/{quote(tenant)}", list[str])
    except NotFound:
        clusters = [
            cluster for cluster in await admin.get("/clusters", list[str]) if cluster != "global"
        ]
        report.append(
            await _put(
                admin,
                f"/tenants/{quote(tenant)}",
                f"tenant {tenant}",
                {"allowedClusters": clusters},
            )
        )
    except Forbidden:
        # A role that may not list namespaces may still create them.
        pass
    if namespace not in there:
        report.append(await _put(admin, path_of_namespace(namespace), f"namespace {namespace}"))
    return report


async def _put(admin: PulsarAdmin, path: str, what: str, body: object = None) -> str:
    """Report the outcome; empty if it already exists."""
    try:
        await admin.put(path, body)
    except Conflict:
        return ""
    except NotReady:
        raise
    except AdminFailed as failure:
        return f"{what} could not be created: {failure.reason}"
    return f"created {what}"


async def _set_policies(
    settings: PulsarSettings, admin: PulsarAdmin, namespace: str, rules: NamespacePolicies
) -> list[str]:
    """Set the policies that are not known to be suitable."""
    path, report = path_of_namespace(namespace), []
    wanted = retention_of({}, settings)
    # The state tables free their own space.
    is_served = namespace == f"{settings.tenant}/{settings.namespace}"
    if is_served and (rules.retention is None or not retains_at_least(rules.retention, wanted)):
        # By time only: a size limit below the backlog quota would be refused.
        minutes = wanted.retentionTimeInMinutes
        what = (
            f"retention of {namespace}: "
            f"{'unlimited' if minutes == UNLIMITED else f'{minutes} minutes'}"
        )
        report.append(await _post(admin, f"{path}/retention", Retention(minutes, UNLIMITED), what))
    if rules.auto_creates_topics is not False:
        report.append(
            await _post(
                admin,
                f"{path}/autoTopicCreation",
                AutoTopicCreation(False),
                f"no automatic topic creation in {namespace}",
            )
        )
    if rules.deletes_inactive_topics is not False:
        what = f"no deletion of inactive topics in {namespace}"
        report.append(
            await _post(admin, f"{path}/inactiveTopicPolicies", InactiveTopics(False), what)
        )
    return report


async def _post(admin: PulsarAdmin, path: str, policy: object, what: str) -> str:
    try:
        await admin.post(path, policy)
    except NotReady:
        raise
    except AdminFailed as failure:
        return f"could not be set: {what}: {failure.reason}"
    return f"set {what}"
