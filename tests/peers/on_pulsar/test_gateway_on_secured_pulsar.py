"""A gateway on a Pulsar with TLS and token authentication.

The gateway's role has only the permissions that the manual requires.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager

import kafka
import pytest

from storage.pulsar.settings import PulsarSettings
from tests.legacy_clients.brokers import are_required
from tests.peers.chaos.servers import RetryingGateway
from tests.peers.on_pulsar.pulsar_gateway import (
    bootstrap,
    gateway_arguments,
    gateway_on,
    run_to_exit,
)
from tests.peers.on_pulsar.test_pulsar_errors import REFRESH_MS, until
from tests.records.sample_records import Sample, message_set
from tests.storage.pulsar.secured_pulsar import SUPERUSER, secured, token
from tests.testkit.cache import CannotInstall
from tests.testkit.gateway import one_record
from tests.testkit.pulsar import distribution
from tests.testkit.tenant import CLUSTER

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

SECONDS = 240
TOPIC = "orders"
TOPIC_AUTHORIZATION_FAILED = 29
#: A producer whose permission is revoked gets no reply; it fails after this timeout.
SEND_MS = 15_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    try:
        distribution()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with secured(tmp_path_factory.mktemp("guarded")) as running:
        yield running


class Operator:
    """Starts gateways, each with the token of a role, and collects their log lines."""

    def __init__(self, guarded, folder):
        self.folder = folder
        self.guarded = guarded
        self.settings = PulsarSettings(
            guarded.tls_service_url, guarded.tls_admin_url, tenant="acme", metadata_tenant="acme"
        )
        self.lines = []

    def words(self, role):
        file = self.folder / f"{role}.jwt"
        file.write_text(f"{token(role)}\n")
        secrets = {"pulsar_token_file": file, "pulsar_tls_trust_file": self.guarded.trust_file}
        return [
            word for name, value in secrets.items() for word in ("--set", f"{name}={value}")
        ] + ["--log-level", "debug"]

    @contextmanager
    def runs(self, role, *more):
        folder = self.folder / role
        folder.mkdir()
        with gateway_on(self.settings, folder, *self.words(role), *more) as running:
            yield running
            assert running.stop() == 0
            self.lines += running.lines()

    def is_refused(self, role):
        """Start a gateway that must fail, and return its reasons."""
        code, log = run_to_exit(*gateway_arguments(self.settings, *self.words(role)))
        assert code == 1
        self.lines += log.splitlines()
        return [line for line in log.splitlines() if "cannot start" in line]


def produce_and_fetch_as_kafka_08(running, value, offset):
    """Produce and fetch as a Kafka 0.8 client: no version negotiation, message format 0."""
    with running.peer() as peer:
        stored = peer.produce(TOPIC, message_set([Sample(0, -1, None, value)], magic=0), version=0)
        assert (stored.error_code, stored.base_offset) == (0, offset)
        read = peer.fetch(TOPIC, 0, version=0)
        assert read.error_code == 0
        return bytes(read.records)


def produce(running, value):
    with closing(kafka.KafkaProducer(bootstrap_servers=bootstrap(running), acks="all")) as producer:
        return producer.send(TOPIC, value, partition=0).get(SECONDS).offset


def consume_in_group(running, count):
    """Return the values read by a group that commits."""
    own = {
        "group_id": "readers",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "consumer_timeout_ms": SECONDS * 1000,
    }
    with closing(
        kafka.KafkaConsumer(TOPIC, bootstrap_servers=bootstrap(running), **own)
    ) as consumer:
        found = [next(consumer).value for _ in range(count)]
        consumer.commit()
    return found


def test_service_role_serves_old_and_new_clients_after_administrator_setup(guarded, tmp_path):
    operator = Operator(guarded, tmp_path)
    assert "acme" in operator.is_refused("service")[0]
    with operator.runs(SUPERUSER, "--pulsar-setup"):
        pass
    reasons = operator.is_refused("service")
    assert reasons
    assert all("acme" in reason for reason in reasons)
    guarded.broker.call(
        "POST", "tenants/acme", {"allowedClusters": [CLUSTER], "adminRoles": ["service"]}
    )
    with operator.runs("service") as running:
        assert produce(running, b"new") == 0
        old = produce_and_fetch_as_kafka_08(running, b"old", 1)
        assert b"new" in old
        assert b"old" in old
        assert consume_in_group(running, 2) == [b"new", b"old"]
    assert [line for line in operator.lines if " critical " in line] == []
    secrets = [token(role).rpartition(".")[2] for role in ("service", SUPERUSER)]
    assert operator.lines
    assert [
        line
        for line in operator.lines
        if any(secret in line for secret in secrets) or "eyJ" in line
    ] == []


def test_topic_without_pulsar_permission_is_topic_authorization_failed(guarded, tmp_path):
    """The gateway administers one tenant and has permissions in another's namespace until they are
    revoked.
    """
    call = guarded.broker.call
    for tenant, roles in (("ours", ["gateway"]), ("theirs", [])):
        call("PUT", f"tenants/{tenant}", {"allowedClusters": [CLUSTER], "adminRoles": roles})
    for namespace in ("ours/topics", "ours/tables", "theirs/topics"):
        call("PUT", f"namespaces/{namespace}")
    call("PUT", "persistent/theirs/topics/orders/partitions", 1)
    rights = "namespaces/theirs/topics/permissions/gateway"
    call("POST", rights, ["produce", "consume"])
    (tmp_path / "token").write_text(token("gateway"))
    names = {
        "tenant": "ours",
        "namespace": "topics",
        "metadata_tenant": "ours",
        "metadata_namespace": "tables",
    }
    settings = {f"pulsar_{name}": value for name, value in names.items()}
    settings |= {
        "pulsar_allowed_namespaces": "theirs/topics",
        "pulsar_token_file": tmp_path / "token",
        "pulsar_send_timeout_ms": SEND_MS,
    }
    store = ("--store", guarded.broker.service_url, "--pulsar-admin", guarded.broker.admin_url)
    gateway = RetryingGateway(
        tmp_path, store, {"num_partitions": 1, "pulsar_refresh_ms": REFRESH_MS, **settings}
    )
    with ExitStack() as stack:
        stack.callback(gateway.kill)
        gateway.launch()
        peer = stack.enter_context(gateway.peer())
        name = "persistent://theirs/topics/orders"
        until(lambda: peer.produce(name, one_record(b"1")).error_code, 0)
        call("DELETE", rights)
        call("PUT", "namespaces/theirs/topics/unload")
        until(lambda: peer.produce(name, one_record(b"2")).error_code, TOPIC_AUTHORIZATION_FAILED)
        until(lambda: peer.fetch(name, 0).error_code, TOPIC_AUTHORIZATION_FAILED)
        peer.create_topic(TOPIC)
        until(lambda: peer.produce(TOPIC, one_record(b"the others are served")).error_code, 0)
        assert gateway.unexpected_errors() == []
