"""Checks at startup whether a Pulsar cluster provides what the gateway needs, with remedies."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import pulsar
from twisted.internet.defer import Deferred, gatherResults

from storage.log import NotReady, StorageError, StorageFailed
from storage.pulsar.admin.admin_api import (
    AdminFailed,
    Forbidden,
    NotFound,
    PulsarAdmin,
    Unauthorized,
)
from storage.pulsar.admin.cluster_problems import ClusterProblem, Remedies
from storage.pulsar.admin.cluster_setup import set_up
from storage.pulsar.admin.namespace_probe import ProbeResult, probe
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import MAX_MESSAGE_OVERHEAD
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.namespaces import (
    NamespacePolicies,
    broker_config,
    own_namespaces,
    policies_of,
    retains_at_least,
)
from storage.pulsar.topics.pulsar_names import PulsarNames
from storage.pulsar.topics.retention_policies import Retention, retention_of

log = logging.getLogger(__name__)

NOTHING = Retention(0, 0)
PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
SEND_LARGE_MESSAGES, SEND_TABLE_ROWS = "send large messages", "send rows of tables"


async def prepare(settings: PulsarSettings, admin: PulsarAdmin, client: PulsarClient) -> None:
    """Set up the cluster if `settings.setup`, then check it. Warnings are logged.

    Raises StorageFailed with the fatal problems, one per line; NotReady if all of them are
    transient.
    """
    if settings.setup:
        try:
            for line in await set_up(settings, admin):
                log.warning("set up in Pulsar: %s", line)
        except NotReady:
            raise
        except StorageFailed as failure:
            log.warning(
                "setting up Pulsar (pulsar_setup) failed: %s; checking the cluster as it is",
                failure,
            )
    problems = await check(settings, admin, client)
    for problem in problems:
        if not problem.is_fatal:
            log.warning("%s", problem)
    stopping = [problem for problem in problems if problem.is_fatal]
    if stopping:
        kind = NotReady if all(problem.is_transient for problem in stopping) else StorageFailed
        raise kind("\n".join(map(str, stopping)))


async def check(
    settings: PulsarSettings, admin: PulsarAdmin, client: PulsarClient
) -> list[ClusterProblem]:
    """All problems of the cluster.

    If the cluster cannot be reached or a namespace is missing, problems that follow from this are
    omitted.
    """
    both = gatherResults(
        [
            Deferred.fromCoroutine(_reach_admin(settings, admin)),
            Deferred.fromCoroutine(_reach_brokers(settings, client)),
        ]
    )
    problems = [problem for problem in await both if problem]
    if problems:
        return problems
    return await ClusterChecks(settings, admin, client).all()


async def _reach_admin(settings: PulsarSettings, admin: PulsarAdmin) -> ClusterProblem | None:
    try:
        await admin.get("/clusters", list[str])
    except Unauthorized as failure:
        remedy = (
            "make sure that pulsar_token_file contains a token that `pulsar tokens validate` "
            "accepts, or that pulsar_tls_certificate_file contains a certificate"
        )
        return ClusterProblem(
            True,
            f"the admin API at {settings.admin_url} rejected the gateway's credentials "
            f"({failure.reason})",
            remedy,
        )
    except AdminFailed:
        return None
    except StorageFailed as failure:
        remedy = (
            "set pulsar_admin to the brokers' webServicePort, http://HOST:8080 or https://HOST:8443"
        )
        return ClusterProblem(
            True, str(failure), remedy, is_transient=isinstance(failure, NotReady)
        )
    return None


async def _reach_brokers(settings: PulsarSettings, client: PulsarClient) -> ClusterProblem | None:
    reason = await client.run(
        lambda: connect_error(settings.service_url, settings.operation_timeout_seconds)
    )
    if reason is None:
        return None
    remedy = (
        "set store to the brokers' brokerServicePort, pulsar://HOST:6650 or pulsar+ssl://HOST:6651"
    )
    return ClusterProblem(
        True, f"no broker at {settings.service_url} accepts connections: {reason}", remedy
    )


def addresses(service_url: str) -> list[tuple[str, int]]:
    """`pulsar://a:6650,b` -> [("a", 6650), ("b", 6650)]."""
    scheme, _, hosts = service_url.partition("://")
    parts = [urlsplit(f"//{host}") for host in hosts.rstrip("/").split(",")]
    return [(part.hostname or "", part.port or PORTS.get(scheme, 6650)) for part in parts]


def connect_error(service_url: str, seconds: float) -> str | None:
    """Why no broker accepts a connection; None if one does. Blocks."""
    reasons = []
    for host, port in addresses(service_url):
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as failure:
            reasons.append(f"{host}:{port}: {failure.strerror or failure}")
        else:
            return None
    return ", ".join(reasons)


class ClusterChecks:
    """Checks of a reachable cluster. `_unknown` collects what this role may not read."""

    def __init__(self, settings: PulsarSettings, admin: PulsarAdmin, client: PulsarClient) -> None:
        self._settings = settings
        self._admin = admin
        self._client = client
        self._remedies = Remedies(settings)
        self._found: list[ClusterProblem] = []
        self._unknown: list[str] = []

    async def all(self) -> list[ClusterProblem]:
        runtime = await broker_config(self._admin)
        own = own_namespaces(self._settings)
        served = PulsarNames(self._settings).namespaces
        for namespace in dict.fromkeys((*own, *served)):
            if not await self._check_exists(namespace):
                continue
            rules = await policies_of(self._admin, namespace, runtime)
            if namespace in own:
                rules = await self._probe(namespace, rules)
            if namespace in served:
                # The state tables free their own space and are not affected by retention.
                self._check_retention(namespace, rules.retention, is_own=namespace in own)
            self._check_topic_lifecycle(namespace, rules, is_own=namespace in own)
        if self._unknown:
            text = (
                "could not be checked, since only superusers may read the brokers' configuration: "
                + "; ".join(self._unknown)
            )
            self._add(
                False,
                text,
                "set these policies of the namespaces, or ask a superuser for the defaults",
            )
        return self._found

    def _add(self, is_fatal: bool, text: str, remedy: str) -> None:
        self._found.append(ClusterProblem(is_fatal, text, remedy))

    async def _check_exists(self, namespace: str) -> bool:
        """Whether the namespace exists and its topics may be listed; adds a problem if not."""
        try:
            await self._admin.get(f"/persistent/{quote(namespace)}", Any)
        except Forbidden as failure:
            self._add(
                True,
                f"the topics of {namespace} may not be listed ({failure.reason})",
                self._remedies.grant(namespace),
            )
        except NotFound:
            tenant = namespace.partition("/")[0]
            try:
                with suppress(Forbidden):
                    await self._admin.get(f"/namespaces/{quote(tenant)}", Any)
            except NotFound:
                self._add(
                    True, f"there is no tenant {tenant}", self._remedies.create_tenant(namespace)
                )
            else:
                self._add(
                    True,
                    f"there is no namespace {namespace}",
                    self._remedies.create_namespace(namespace),
                )
        else:
            return True
        return False

    async def _probe(self, namespace: str, rules: NamespacePolicies) -> NamespacePolicies:
        """Test the operations that the gateway needs; return the policies, completed by the
        results.
        """
        metadata = f"{self._settings.metadata_tenant}/{self._settings.metadata_namespace}"
        sizes = (
            {SEND_LARGE_MESSAGES: self._settings.message_max_bytes}
            if namespace in PulsarNames(self._settings).namespaces
            else {}
        )
        if namespace == metadata:
            sizes[SEND_TABLE_ROWS] = self._settings.table_burst_bytes
        result = await probe(self._admin, self._client, namespace, sizes)
        self._note_message_size(result)
        for what, failure in result.refused.items():
            self._add_refusal(namespace, what, failure, is_needed=namespace == metadata)
        if result.has_entry_index is False and namespace != metadata:
            self._add_unnumbered_entries()
        deletes = (
            result.deletes_inactive_topics
            if rules.deletes_inactive_topics is None
            else rules.deletes_inactive_topics
        )
        return NamespacePolicies(
            rules.retention or result.retention, rules.auto_creates_topics, deletes
        )

    def _note_message_size(self, result: ProbeResult) -> None:
        """Set the message size limit from the probe; only a superuser can read it."""
        largest = result.accepted_bytes + MAX_MESSAGE_OVERHEAD
        is_all = not result.refused.keys() & {SEND_LARGE_MESSAGES, SEND_TABLE_ROWS}
        self._client.message_bytes = max(largest, self._client.message_bytes) if is_all else largest

    def _add_refusal(
        self, namespace: str, what: str, failure: StorageError, is_needed: bool
    ) -> None:
        reason = failure.reason if isinstance(failure, AdminFailed) else str(failure)
        # Tables are required for groups. If topics cannot be created, existing ones are served.
        is_fatal = what in ("produce", "consume") or (is_needed and what == "create topics")
        text = f"the gateway may not {what} in {namespace}: {reason}"
        if isinstance(failure, NotReady):
            text = f"no client can {what} in {namespace} now: {reason}"
            remedy = "check the logs of the brokers and the bookies"
            self._found.append(ClusterProblem(is_fatal, text, remedy, is_transient=True))
        elif isinstance(failure.__cause__, pulsar.Timeout):
            remedy = (
                "make sure that the address the brokers advertise (advertisedAddress, "
                "advertisedListeners) can be reached from here, "
                "that both sides use TLS or neither does, and that the brokers accept the token"
            )
            self._add(is_fatal, text, remedy)
        elif what in ("produce", "consume"):
            self._add(is_fatal, text, self._remedies.grant(namespace))
        elif what in (SEND_LARGE_MESSAGES, SEND_TABLE_ROWS):
            self._add_refused_size(what, reason)
        elif (
            what == "set policies of topics"
            and isinstance(failure, AdminFailed)
            and failure.status == 405
        ):
            self._add_missing_topic_policies(namespace, reason)
        else:
            self._add(is_fatal, text, self._remedies.administer(namespace))

    def _add_refused_size(self, what: str, reason: str) -> None:
        if what == SEND_TABLE_ROWS:
            limit = self._settings.table_burst_bytes
            text = (
                f"the gateway's tables store up to {limit} bytes in one message, which the "
                f"brokers refuse: {reason}"
            )
            self._add(True, text, self._remedies.raise_message_size(limit + MAX_MESSAGE_OVERHEAD))
            return
        limit = self._settings.message_max_bytes
        text = (
            f"batches of up to message_max_bytes={limit} are accepted, but the brokers refuse "
            f"the largest of them: {reason}"
        )
        remedy = self._remedies.raise_message_size(limit + MAX_MESSAGE_OVERHEAD)
        self._add(False, text, f"set message_max_bytes to less, or {remedy}")

    def _add_missing_topic_policies(self, namespace: str, reason: str) -> None:
        if namespace not in PulsarNames(self._settings).namespaces:
            return
        text = (
            f"topics of {namespace} cannot have topic-level policies ({reason}): "
            "retention.ms and retention.bytes free no space in Pulsar"
        )
        remedy = (
            "set topicLevelPoliciesEnabled=true and systemTopicEnabled=true in the "
            "brokers' configuration"
        )
        self._add(False, text, remedy)

    def _add_unnumbered_entries(self) -> None:
        is_fatal = self._settings.entry_format == "pulsar"
        text = (
            "the brokers do not number their entries, so topics of the entry format `pulsar` "
            "cannot be served"
        )
        interceptor = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
        self._add(
            is_fatal,
            text,
            f"set brokerEntryMetadataInterceptors={interceptor} in the brokers' configuration, "
            "if that format is needed",
        )

    def _check_retention(self, namespace: str, retention: Retention | None, is_own: bool) -> None:
        wanted = retention_of({}, self._settings)
        if retention is None:
            self._unknown.append(f"how long {namespace} keeps messages")
        elif retention == NOTHING:
            text = (
                f"{namespace} keeps only messages that a subscription has not acknowledged, so "
                "Kafka consumers lose unread messages"
            )
            self._add(is_own, text, self._remedies.retain(namespace))
        elif not retains_at_least(retention, wanted):
            text = (
                f"{namespace} keeps messages for less (minutes, MB: {retention}) than topics "
                f"without configs need ({wanted})"
            )
            self._add(False, text, self._remedies.retain(namespace))

    def _check_topic_lifecycle(
        self, namespace: str, rules: NamespacePolicies, is_own: bool
    ) -> None:
        """Check that the brokers neither create nor delete topics by themselves."""
        if rules.auto_creates_topics is None:
            self._unknown.append(f"whether {namespace} creates topics automatically")
        elif rules.auto_creates_topics:
            text = (
                f"topics are created automatically in {namespace}: a deleted topic reappears as "
                "soon as another client uses its name"
            )
            self._add(False, text, self._remedies.disable_auto_creation(namespace))
        if rules.deletes_inactive_topics is None:
            self._unknown.append(f"whether {namespace} deletes inactive topics")
        elif rules.deletes_inactive_topics:
            text = f"inactive topics of {namespace} are deleted with their data"
            self._add(is_own, text, self._remedies.disable_inactive_deletion(namespace))
