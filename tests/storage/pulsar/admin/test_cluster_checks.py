"""Cluster checks report missing prerequisites with remedies.

On a fully prepared cluster, and on one with Pulsar's defaults plus TLS, tokens and roles.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import NotReady, StorageFailed
from storage.pulsar.admin.admin_api import BrokerError, PulsarAdmin
from storage.pulsar.admin.cluster_checks import check, prepare
from storage.pulsar.admin.cluster_problems import ClusterProblem
from storage.pulsar.client.partition_producers import BrokerDisconnected
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import MAX_MESSAGE_OVERHEAD
from storage.pulsar.settings import PulsarSettings
from tests.legacy_clients.brokers import are_required
from tests.storage.pulsar.secured_pulsar import SecuredPulsar, expired, secured, token
from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import free_ports
from tests.testkit.pulsar import distribution
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer]

Checking = Callable[[PulsarSettings], Awaitable[list[ClusterProblem]]]


@pytest.fixture
def checking() -> Iterator[Checking]:
    """Runs the checks as a starting store does."""
    used: list[tuple[PulsarAdmin, PulsarClient]] = []

    async def checked(settings: PulsarSettings) -> list[ClusterProblem]:
        used.append((PulsarAdmin(settings, reactor), PulsarClient(settings, reactor)))
        await used[-1][1].open()
        return await check(settings, *used[-1])

    yield checked
    for admin, client in used:
        settle(client.close())
        settle(admin.close())


async def preparing(settings: PulsarSettings) -> None:
    admin, client = PulsarAdmin(settings, reactor), PulsarClient(settings, reactor)
    await client.open()
    try:
        await prepare(settings, admin, client)
    finally:
        await client.close()
        await admin.close()


def only(problems: list[ClusterProblem]) -> ClusterProblem:
    (one,) = problems
    return one


@ensureDeferred
async def test_prepared_cluster_has_no_problems_and_is_not_changed(
    pulsar: Tenant, checking: Checking
) -> None:
    settings = pulsar.settings()
    assert await checking(settings) == []
    for namespace in (settings.namespace, settings.metadata_namespace):
        assert pulsar.admin("GET", f"persistent/{settings.tenant}/{namespace}") == []
        assert pulsar.admin("GET", f"persistent/{settings.tenant}/{namespace}/partitioned") == []


@ensureDeferred
async def test_leftover_probe_topics_are_deleted_after_an_hour(
    pulsar: Tenant, checking: Checking
) -> None:
    settings = pulsar.settings()
    namespace = f"persistent/{settings.tenant}/{settings.namespace}"
    hour_ago, now = (f"__kopgate-check-{int(time.time()) - seconds}-abc" for seconds in (3601, 0))
    for topic in (hour_ago, now):
        pulsar.admin("PUT", f"{namespace}/{topic}/partitions", 1)
    assert await checking(settings) == []
    assert pulsar.admin("GET", f"{namespace}/partitioned") == [
        f"{namespace.replace('/', '://', 1)}/{now}"
    ]


@ensureDeferred
async def test_setup_failure_of_unready_brokers_is_retryable(
    pulsar: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(
        admin: PulsarAdmin, path: str, body: object = None, content_type: str = ""
    ) -> None:
        raise BrokerError("500 no bookies", 500, "no bookies")

    monkeypatch.setattr(PulsarAdmin, "put", fails)
    with pytest.raises(NotReady, match="no bookies"):
        await preparing(pulsar.settings(setup=True, metadata_namespace="n-that-is-not-there"))


@ensureDeferred
async def test_connection_lost_during_a_check_is_retryable(
    pulsar: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses_connection(*_: object) -> None:
        raise BrokerDisconnected

    monkeypatch.setattr(PulsarClient, "producer", loses_connection)
    with pytest.raises(NotReady, match=r"no client can produce .* connection .* was lost"):
        await preparing(pulsar.settings())


@ensureDeferred
async def test_unreachable_admin_api_is_reported_separately(
    pulsar: Tenant, checking: Checking
) -> None:
    (port,) = free_ports(1)
    problem = only(await checking(pulsar.settings(admin_url=f"http://127.0.0.1:{port}")))
    assert problem.is_fatal
    assert f"http://127.0.0.1:{port} cannot be reached" in problem.text
    assert "pulsar_admin" in problem.remedy


@ensureDeferred
async def test_unreachable_brokers_are_reported_separately(
    pulsar: Tenant, checking: Checking
) -> None:
    one, two = free_ports(2)
    problem = only(
        await checking(pulsar.settings(service_url=f"pulsar://127.0.0.1:{one},127.0.0.1:{two}"))
    )
    assert problem.is_fatal
    assert (
        f"127.0.0.1:{one}: Connection refused, 127.0.0.1:{two}: Connection refused" in problem.text
    )
    assert "brokerServicePort" in problem.remedy


@ensureDeferred
async def test_missing_tenant_and_namespace_are_reported_with_commands(
    pulsar: Tenant, checking: Checking
) -> None:
    settings = pulsar.settings(
        namespace="none", metadata_tenant="stranger", allowed_namespaces=(f"{pulsar.name}/neither",)
    )
    own, metadata, allowed = await checking(settings)
    assert own == ClusterProblem(
        True,
        f"there is no namespace {pulsar.name}/none",
        f"`pulsar-admin namespaces create {pulsar.name}/none`, "
        "or start the gateway with --pulsar-setup",
    )
    assert metadata.text == "there is no tenant stranger"
    assert (
        "`pulsar-admin tenants create stranger && pulsar-admin namespaces create stranger/"
        in metadata.remedy
    )
    assert allowed.remedy == f"`pulsar-admin namespaces create {pulsar.name}/neither`"
    with pytest.raises(StorageFailed) as failure:
        await preparing(settings)
    assert str(failure.value).splitlines() == [str(own), str(metadata), str(allowed)]


@ensureDeferred
async def test_policies_that_lose_data_or_topics_are_reported(
    pulsar: Tenant, checking: Checking
) -> None:
    settings = pulsar.settings()
    name = f"{settings.tenant}/{settings.namespace}"
    pulsar.admin(
        "POST",
        f"namespaces/{name}/retention",
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
    )
    pulsar.admin(
        "POST",
        f"namespaces/{name}/autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
    )
    idle = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 600,
        "deleteWhileInactive": True,
    }
    pulsar.admin("POST", f"namespaces/{name}/inactiveTopicPolicies", idle)
    lost, made, deleted = await checking(settings)
    assert (lost.is_fatal, made.is_fatal, deleted.is_fatal) == (True, False, True)
    assert f"`pulsar-admin namespaces set-retention {name} --time -1 --size -1`" in lost.remedy
    assert f"`pulsar-admin namespaces set-auto-topic-creation {name} --disable`" in made.remedy
    assert f"set-inactive-topic-policies {name} --disable-delete-while-inactive" in deleted.remedy
    served = replace(settings, namespace=pulsar.namespace(), allowed_namespaces=(name,))
    assert [problem.is_fatal for problem in await checking(served)] == [False, False, False]


@ensureDeferred
async def test_short_namespace_retention_is_a_warning(pulsar: Tenant, checking: Checking) -> None:
    settings = pulsar.settings(retention_ms=2 * 3_600_000)
    name = f"{settings.tenant}/{settings.namespace}"
    pulsar.admin(
        "POST",
        f"namespaces/{name}/retention",
        {"retentionTimeInMinutes": 120, "retentionSizeInMB": -1},
    )
    assert await checking(settings) == []
    problem = only(await checking(replace(settings, retention_ms=2 * 3_600_000 + 1)))
    assert not problem.is_fatal
    assert "(minutes, MB: 120 -1)" in problem.text
    assert "(121 -1)" in problem.text


@ensureDeferred
async def test_message_max_bytes_above_broker_limit_is_a_warning(
    pulsar: Tenant, checking: Checking
) -> None:
    # The default maxMessageSize is 5 MiB.
    assert await checking(pulsar.settings(message_max_bytes=(5 << 20) - 1024)) == []
    problem = only(await checking(pulsar.settings(message_max_bytes=5 << 20)))
    assert not problem.is_fatal
    assert "message_max_bytes=5242880" in problem.text
    assert "maxMessageSize to 5243904 or more" in problem.remedy


@ensureDeferred
async def test_table_rows_above_broker_limit_are_fatal(pulsar: Tenant, checking: Checking) -> None:
    assert await checking(pulsar.settings(table_burst_bytes=(5 << 20) - 1024)) == []
    problem = only(await checking(pulsar.settings(table_burst_bytes=5 << 20)))
    assert problem.is_fatal
    assert "maxMessageSize to 5243904 or more" in problem.remedy


@pytest.mark.parametrize(
    ("batch", "assumed", "least", "most"),
    [
        # The accepted sizes are known: four MiB of rows, or the larger batch.
        (1 << 20, 1 << 20, 4 << 20, 4 << 20),
        ((4 << 20) + 1000, 1 << 20, (4 << 20) + 1000, (4 << 20) + 1000),
        (1 << 20, 5 << 20, (5 << 20) - 1024, (5 << 20) - 1024),
        # A refused size shows the limit: 5 MiB including the metadata besides the payload.
        (9 << 20, 1 << 20, (5 << 20) - 2048, (5 << 20) - 100),
        (9 << 20, 9 << 20, (5 << 20) - 2048, (5 << 20) - 100),
    ],
)
@ensureDeferred
async def test_message_size_limit_is_probed(
    pulsar: Tenant, batch: int, assumed: int, least: int, most: int
) -> None:
    settings = pulsar.settings(message_max_bytes=batch, message_bytes=assumed)
    admin, client = PulsarAdmin(settings, reactor), PulsarClient(settings, reactor)
    await client.open()
    try:
        await check(settings, admin, client)
        assert least <= client.message_bytes - MAX_MESSAGE_OVERHEAD <= most
    finally:
        await client.close()
        await admin.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPulsar]:
    """Pulsar's defaults plus authentication: no retention, automatic topic creation and deletion.

    Entries are not numbered.
    """
    try:
        distribution()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    as_it_comes = {
        "allowAutoTopicCreation": "true",
        "brokerDeleteInactiveTopicsEnabled": "true",
        "brokerEntryMetadataInterceptors": "",
        "defaultRetentionSizeInMB": "0",
        "defaultRetentionTimeInMinutes": "0",
    }
    with secured(tmp_path_factory.mktemp("guarded"), **as_it_comes) as running:
        running.broker.call(
            "PUT", "tenants/acme", {"allowedClusters": ["standalone"], "adminRoles": ["boss"]}
        )
        for namespace in ("acme/shop", "acme/meta"):
            running.broker.call("PUT", f"namespaces/{namespace}")
            running.broker.call(
                "POST", f"namespaces/{namespace}/permissions/worker", ["produce", "consume"]
            )
        yield running


Roles = Callable[..., PulsarSettings]


@pytest.fixture
def roles(guarded: SecuredPulsar, tmp_path: Path) -> Roles:
    """Settings of a gateway with this token."""

    def come(with_token: str | None, **others: Any) -> PulsarSettings:
        file = tmp_path / "token"
        if with_token is not None:
            file.write_text(with_token)
        named = {
            "tenant": "acme",
            "namespace": "shop",
            "metadata_tenant": "acme",
            "metadata_namespace": "meta",
        }
        own = {
            "service_url": guarded.tls_service_url,
            "admin_url": guarded.tls_admin_url,
            "tls_trust_file": guarded.trust_file,
            **named,
        }
        return PulsarSettings(
            **{
                **own,
                "token_file": file if with_token else None,
                "operation_timeout_seconds": 30,
                **others,
            }
        )

    return come


@pytest.mark.parametrize(
    "with_token", [None, "x.y.z", token("super", secret=bytes(32)), expired("super")]
)
@ensureDeferred
async def test_rejected_credentials_are_reported_with_token_remedy(
    roles: Roles, checking: Checking, with_token: str | None
) -> None:
    problem = only(await checking(roles(with_token)))
    assert problem.is_fatal
    assert "rejected the gateway's credentials" in problem.text
    assert "pulsar_token_file" in problem.remedy
    assert with_token is None or with_token not in str(problem)


@ensureDeferred
async def test_missing_permissions_are_reported(roles: Roles, checking: Checking) -> None:
    own, metadata = await checking(roles(token("stranger")))
    assert own.is_fatal
    assert "the topics of acme/shop may not be listed" in own.text
    assert (
        own.remedy == "`pulsar-admin namespaces grant-permission acme/shop --role stranger "
        "--actions produce,consume`"
    )
    assert "acme/meta" in metadata.text


@ensureDeferred
async def test_role_without_admin_rights_cannot_create_tables(
    roles: Roles, checking: Checking
) -> None:
    own, metadata, unknown = await checking(roles(token("worker")))
    assert (own.is_fatal, metadata.is_fatal, unknown.is_fatal) == (False, True, False)
    assert "the gateway may not create topics in acme/shop" in own.text
    assert "the gateway may not create topics in acme/meta" in metadata.text
    assert "`pulsar-admin tenants update acme --admin-roles worker`" in metadata.remedy
    assert (
        "how long acme/shop keeps messages; whether acme/shop creates topics automatically"
        in unknown.text
    )


@ensureDeferred
async def test_tenant_admin_gets_problems_of_default_pulsar(
    roles: Roles, checking: Checking
) -> None:
    problems = await checking(roles(token("boss")))
    stopping = [problem.text for problem in problems if problem.is_fatal]
    assert len(stopping) == 3
    assert stopping[0].startswith("acme/shop keeps only messages")
    assert stopping[1].startswith("inactive topics of acme/shop are deleted")
    assert stopping[2].startswith("inactive topics of acme/meta are deleted")
    numbered, unknown = (problem for problem in problems if not problem.is_fatal)
    assert "AppendIndexMetadataInterceptor" in numbered.remedy
    assert (
        "whether acme/shop creates topics automatically; "
        "whether acme/meta creates topics automatically" in unknown.text
    )
    assert "keeps messages" not in unknown.text


@ensureDeferred
async def test_unnumbered_entries_are_fatal_for_entry_format_pulsar(
    roles: Roles, checking: Checking
) -> None:
    problems = await checking(roles(token("boss"), entry_format="pulsar"))
    assert [
        problem.is_fatal for problem in problems if "do not number their entries" in problem.text
    ] == [True]


@ensureDeferred
async def test_superuser_gets_problems_of_broker_defaults(roles: Roles, checking: Checking) -> None:
    texts = [problem.text for problem in await checking(roles(token("super")))]
    assert any(text.startswith("topics are created automatically in acme/shop") for text in texts)
    assert not any("could not be checked" in text for text in texts)


@ensureDeferred
async def test_setup_by_tenant_admin_leaves_only_broker_problems(
    guarded: SecuredPulsar, roles: Roles, checking: Checking, caplog: pytest.LogCaptureFixture
) -> None:
    settings = roles(token("boss"), namespace="fresh", metadata_namespace="tables", setup=True)
    await preparing(settings)
    said = [record.getMessage() for record in caplog.records]
    for line in (
        "set up in Pulsar: created namespace acme/fresh",
        "set up in Pulsar: set retention of acme/fresh: 10080 minutes",
        "set up in Pulsar: set no automatic topic creation in acme/tables",
        "set up in Pulsar: set no deletion of inactive topics in acme/tables",
    ):
        assert line in said
    left = only(await checking(settings))
    assert "do not number their entries" in left.text
    assert guarded.broker.call("GET", "namespaces/acme/fresh/retention") == {
        "retentionTimeInMinutes": 10080,
        "retentionSizeInMB": -1,
    }
    caplog.clear()
    await preparing(settings)
    assert not [record for record in caplog.records if "set up in Pulsar" in record.getMessage()]


@ensureDeferred
async def test_setup_by_superuser_creates_the_tenant(guarded: SecuredPulsar, roles: Roles) -> None:
    await preparing(roles(token("super"), tenant="newco", metadata_tenant="newco", setup=True))
    assert guarded.broker.call("GET", "tenants/newco")["allowedClusters"] == ["standalone"]
    assert guarded.broker.call("GET", "namespaces/newco") == ["newco/meta", "newco/shop"]


@ensureDeferred
async def test_setup_without_permission_is_reported(
    roles: Roles, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StorageFailed, match="there is no tenant elsewhere"):
        await preparing(roles(token("boss"), tenant="elsewhere", setup=True))
    assert "tenant elsewhere could not be created: Unauthorized" in caplog.text


@ensureDeferred
async def test_broker_with_untrusted_authority_is_refused(roles: Roles, checking: Checking) -> None:
    problem = only(await checking(roles(token("boss"), tls_trust_file=None)))
    assert problem.is_fatal
    assert "certificate verify failed" in problem.text


@ensureDeferred
async def test_token_rejected_only_by_binary_protocol_is_reported(
    guarded: SecuredPulsar, roles: Roles, checking: Checking
) -> None:
    # Here only one side uses TLS, with the same symptom: no answer.
    _, port = guarded.tls_service_url.rsplit(":", 1)
    problems = await checking(
        roles(token("boss"), service_url=f"pulsar://localhost:{port}", operation_timeout_seconds=2)
    )
    produce = next(
        problem for problem in problems if "may not produce in acme/shop" in problem.text
    )
    assert produce.is_fatal
    assert "both sides use TLS" in produce.remedy
