"""A gateway on a Pulsar with TLS and token authentication.

The gateway's role has only the permissions that the manual requires. With `authorizer=pulsar` the
permissions of Pulsar's roles apply to Kafka clients.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing, contextmanager, suppress

import kafka
import pulsar
import pytest
from kafka.errors import KafkaError, TopicAuthorizationFailedError
from kafka.protocol.consumer.group import HeartbeatRequest, HeartbeatResponse
from kafka.protocol.sasl import SaslHandshakeRequest, SaslHandshakeResponse

from auth.users import PasswordHash, edit_users
from storage.pulsar.settings import PulsarSettings
from tests.legacy_clients.brokers import FEW_SHARDS, are_required
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
from tests.testkit.gateway import gateway, one_record
from tests.testkit.pulsar import distribution
from tests.testkit.pulsar_relay import AdminRelay
from tests.testkit.tenant import CLUSTER

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

SECONDS = 240
TOPIC = "orders"
TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED = 29, 30
#: A producer whose permission is revoked gets no reply; it fails after this timeout.
SEND_MS = 6_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    try:
        distribution()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    # A role ending with `*` is used by one test only.
    wildcards = {"authorizationAllowWildcardsMatching": "true"}
    with secured(tmp_path_factory.mktemp("guarded"), **wildcards) as running:
        yield running


class Operator:
    """Starts gateways, each with the token of a role, and collects their log lines."""

    def __init__(self, guarded, folder):
        self.folder = folder
        self.guarded = guarded
        self.settings = PulsarSettings(
            guarded.tls_service_url,
            guarded.tls_admin_url,
            tenant="acme",
            metadata_tenant="acme",
            shards=FEW_SHARDS,
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
        folder.mkdir(exist_ok=True)
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
    with operator.runs("service") as running:
        # Nothing is cached, so this is read from Pulsar.
        everything = produce_and_fetch_as_kafka_08(running, b"more", 2)
        assert all(value in everything for value in (b"new", b"old", b"more"))
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
        "offsets_shards": FEW_SHARDS,
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


#: In the namespace, alice may produce, all staff and dave may consume; bob may consume from one
#: topic. boss administers the tenant. Only dave may use the subscription `payroll`. A wildcard on a
#: topic, for all temps, has no effect.
ROLES = ("alice", "bob", "staff-1", "temp-1", "boss", "dave", "carol")
REVOKED_SECONDS = 1.0
MAX_AGE_SECONDS = 5.0


def prepare_roles(guarded, tenant):
    """Create the tenant with namespaces, topics and grants."""
    call = guarded.broker.call
    administrators = {"allowedClusters": [CLUSTER], "adminRoles": ["gateway", "boss"]}
    call("PUT", f"tenants/{tenant}", administrators)
    for namespace in ("topics", "tables"):
        call("PUT", f"namespaces/{tenant}/{namespace}")
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        call("POST", f"namespaces/{tenant}/{namespace}/retention", retention)
    for topic in (TOPIC, "invoices"):
        call("PUT", f"persistent/{tenant}/topics/{topic}/partitions", 1)
    rights = f"namespaces/{tenant}/topics/permissions"
    call("POST", f"{rights}/alice", ["produce"])
    for role in ("dave", "staff-*"):
        call("POST", f"{rights}/{role}", ["consume"])
    call("POST", f"{rights}/subscription/payroll", ["dave"])
    for role in ("bob", "temp-*"):
        call("POST", f"persistent/{tenant}/topics/{TOPIC}/permissions/{role}", ["consume"])


@contextmanager
def authorizing(guarded, tenant, folder, admin_url):
    """A gateway on which the roles can log in; the password is the role's name."""
    (folder / "token").write_text(token("gateway"))
    with edit_users(folder / "users.json") as stored:
        for role in ROLES:
            stored[role] = PasswordHash.of(role, log_cost=8)
    settings = PulsarSettings(
        guarded.broker.service_url,
        admin_url,
        tenant=tenant,
        namespace="topics",
        metadata_tenant=tenant,
        metadata_namespace="tables",
        shards=FEW_SHARDS,
    )
    with gateway(
        folder,
        *gateway_arguments(settings),
        listeners=("SASL_PLAINTEXT",),
        pulsar_token_file=folder / "token",
        users_file=folder / "users.json",
        authorizer="pulsar",
        pulsar_permissions_wildcards=True,
        pulsar_permissions_refresh_ms=round(REVOKED_SECONDS * 1000),
        pulsar_permissions_max_age_ms=round(MAX_AGE_SECONDS * 1000),
    ) as running:
        yield running


@contextmanager
def logged_in(running, role):
    """A connection that has logged in as clients before Kafka 1.0 do, with SaslHandshake v0."""
    with running.peer() as peer:
        handshake = SaslHandshakeRequest(mechanism="PLAIN")
        assert peer.request(handshake, SaslHandshakeResponse, 0).error_code == 0
        peer.send(f"\0{role}\0{role}".encode())
        assert peer.receive() == b""
        yield peer


def may_use_group(peer, group):
    """Whether the heartbeat of an unknown member is not refused for lack of permission."""
    request = HeartbeatRequest(group_id=group, generation_id=1, member_id="unknown")
    return peer.request(request, HeartbeatResponse, 0).error_code != GROUP_AUTHORIZATION_FAILED


def allowed_by_kopgate(running, role):
    """What a client of Kafka 0.8 may do: produce and fetch by topic, and use a group."""
    with logged_in(running, role) as peer:
        old_set = message_set([Sample(0, -1, None, b"old")], magic=0)
        codes = {}
        for topic in (TOPIC, "invoices"):
            codes["produce", topic] = peer.produce(topic, old_set, version=0).error_code
            codes["consume", topic] = peer.fetch(topic, 0, version=0).error_code
        assert set(codes.values()) <= {0, TOPIC_AUTHORIZATION_FAILED}
        found = {what for what, code in codes.items() if code == 0}
        if ("consume", TOPIC) in found and may_use_group(peer, "payroll"):
            found.add(("consume as payroll", TOPIC))
        return found


def allowed_by_pulsar(guarded, role, tenant):
    """The same with Pulsar's own client, which logs each refusal."""
    found = set()
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    authentication = pulsar.AuthenticationToken(token(role))
    with closing(
        pulsar.Client(guarded.broker.service_url, authentication=authentication, logger=quiet)
    ) as client:
        for topic in (TOPIC, "invoices"):
            full_name = f"persistent://{tenant}/topics/{topic}"
            for what, use in (
                ("produce", lambda name=full_name: client.create_producer(name)),
                ("consume", lambda name=full_name: client.subscribe(name, "any")),
                ("consume as payroll", lambda name=full_name: client.subscribe(name, "payroll")),
            ):
                if (what, topic) == ("consume as payroll", "invoices"):
                    continue
                with suppress(pulsar.AuthorizationError):
                    use().close()
                    found.add((what, topic))
    return found


def login(running, role, **others):
    return {
        "bootstrap_servers": bootstrap(running),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": role,
        "sasl_plain_password": role,
        **others,
    }


def send(running, role, **others):
    """Produce with a current client, or as an older one with `api_version`."""
    with closing(kafka.KafkaProducer(**login(running, role, **others))) as producer:
        return producer.send(TOPIC, b"value").get(SECONDS).offset


def read(running, role, **others):
    own = {"auto_offset_reset": "earliest", "consumer_timeout_ms": SECONDS * 1000}
    with closing(kafka.KafkaConsumer(TOPIC, **login(running, role, **own, **others))) as consumer:
        return next(consumer).value


def listed(running, role):
    with closing(kafka.KafkaConsumer(**login(running, role))) as consumer:
        return consumer.topics()


def test_roles_may_do_over_kafka_what_pulsar_permits(guarded, tmp_path):
    tenant = "permitted"
    prepare_roles(guarded, tenant)
    # Before the gateway has producers, which exclude others.
    expected = {role: allowed_by_pulsar(guarded, role, tenant) for role in ROLES}
    assert expected["alice"] == {("produce", TOPIC), ("produce", "invoices")}
    assert expected["staff-1"] == {("consume", TOPIC), ("consume", "invoices")}
    assert expected["bob"] == {("consume", TOPIC)}
    assert expected["dave"] == expected["staff-1"] | {("consume as payroll", TOPIC)}
    assert len(expected["boss"]) == 5
    assert expected["carol"] == expected["temp-1"] == set()
    with authorizing(guarded, tenant, tmp_path, guarded.broker.admin_url) as running:
        assert {role: allowed_by_kopgate(running, role) for role in ROLES} == expected
        for old_or_new in ({"api_version": (0, 10, 0)}, {}):
            assert send(running, "alice", **old_or_new) > 0
            assert read(running, "bob", **old_or_new) == b"old"
            with pytest.raises(TopicAuthorizationFailedError):
                send(running, "bob", enable_idempotence=False, **old_or_new)
            with pytest.raises(TopicAuthorizationFailedError):
                read(running, "alice", **old_or_new)
        with pytest.raises(KafkaError, match="ClusterAuthorizationFailed"):
            # A producer id requires permission to produce to any topic, as in Kafka.
            send(running, "bob")
        assert listed(running, "carol") == set()
        assert listed(running, "bob") == {TOPIC}
        assert running.stop() == 0
        assert [line for line in running.lines() if " critical " in line] == []


def test_revoked_permission_and_lost_admin_api(guarded, tmp_path):
    tenant = "revoked"
    prepare_roles(guarded, tenant)
    call, rights = guarded.broker.call, f"namespaces/{tenant}/topics/permissions"
    with ExitStack() as stack:
        relay = stack.enter_context(AdminRelay(guarded.broker.admin_url))
        running = stack.enter_context(authorizing(guarded, tenant, tmp_path, relay.url))
        alice = stack.enter_context(logged_in(running, "alice"))
        carol = stack.enter_context(logged_in(running, "carol"))
        assert alice.produce(TOPIC, one_record(b"1")).error_code == 0

        def is_refused(peer):
            code = peer.produce(TOPIC, one_record(b"2")).error_code
            assert code in (0, TOPIC_AUTHORIZATION_FAILED)
            return code != 0

        assert is_refused(carol)
        call("POST", f"{rights}/carol", ["produce"])
        within_seconds(SECONDS, lambda: not is_refused(carol))
        call("DELETE", f"{rights}/carol")
        within_seconds(SECONDS, lambda: is_refused(carol))
        assert not is_refused(alice)
        relay.close()
        closed = time.monotonic()
        assert not is_refused(alice)
        within_seconds(SECONDS, lambda: is_refused(alice))
        assert time.monotonic() - closed > MAX_AGE_SECONDS - 2 * REVOKED_SECONDS
        assert len(running.wait_for_lines(1, "permissions cannot be refreshed")) == 1


def within_seconds(seconds, is_so):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_gateway_that_may_not_read_permissions_names_the_remedy(guarded, tmp_path):
    call = guarded.broker.call
    prepare_roles(guarded, "unread")
    call("PUT", "tenants/foreign", {"allowedClusters": [CLUSTER], "adminRoles": []})
    call("PUT", "namespaces/foreign/topics")
    call("POST", "namespaces/foreign/topics/permissions/gateway", ["produce", "consume"])
    (tmp_path / "token").write_text(token("gateway"))
    settings = PulsarSettings(
        guarded.broker.service_url,
        guarded.broker.admin_url,
        tenant="unread",
        namespace="topics",
        metadata_tenant="unread",
        metadata_namespace="tables",
    )
    values = {
        "authorizer": "pulsar",
        "pulsar_token_file": tmp_path / "token",
        "pulsar_allowed_namespaces": "foreign/topics",
    }
    words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    code, log = run_to_exit(*gateway_arguments(settings, *words))
    assert code == 1
    (reason,) = [line for line in log.splitlines() if "cannot start" in line]
    assert "the administrators of tenant foreign" in reason
    assert "pulsar-admin tenants update foreign --admin-roles gateway" in reason
