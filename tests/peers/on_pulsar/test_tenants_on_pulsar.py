"""Real clients of two tenants, with the same names of topics and groups, on one gateway."""

from __future__ import annotations

import time
from contextlib import closing

import kafka
import pytest
from confluent_kafka import Consumer, Producer
from kafka.admin import KafkaAdminClient, NewTopic

from auth.users import PasswordHash, edit_users
from tests.legacy_clients.clients import Record, Security, consume_in_group, produce, table
from tests.legacy_clients.install import install
from tests.peers.on_pulsar.pulsar_gateway import bootstrap, gateway_arguments
from tests.testkit.gateway import gateway

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

SECONDS = 240
OLD = "kafka-python-2.0.2"
TOPIC_AUTHORIZATION_FAILED = 29


@pytest.fixture(scope="module")
def namespaces(pulsar):
    return [f"{pulsar.name}/{pulsar.namespace()}" for _ in range(2)]


@pytest.fixture(scope="module")
def server(pulsar, namespaces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tenants")
    with edit_users(folder / "users") as stored:
        for user in (*(f"{one}/app" for one in namespaces), f"{pulsar.name}/missing", "plain"):
            # The least cost: these passwords protect nothing.
            stored[user] = PasswordHash.of("secret", 10)
    with gateway(
        folder,
        *gateway_arguments(pulsar.settings()),
        listeners=("SASL_PLAINTEXT",),
        users_file=folder / "users",
        pulsar_multi_tenant_metadata="true",
        pulsar_allowed_namespaces=",".join(namespaces),
        pulsar_mirror_cursors="true",
        group_consumer_assignment_interval_ms=0,
    ) as running:
        yield running


def login(server, user):
    return {
        "bootstrap_servers": bootstrap(server),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": "secret",
    }


def confluent(server, user, **more):
    return {
        "bootstrap.servers": bootstrap(server),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": "secret",
        "log_level": 0,
        **more,
    }


def consume(server, user, topic, group="readers"):
    consumer = kafka.KafkaConsumer(
        topic,
        **login(server, user),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    with closing(consumer):
        found = [one.value for rows in consumer.poll(SECONDS * 1000).values() for one in rows]
        consumer.commit()
    return found


def consume_by_regex(server, user, regex):
    config = {"group.id": "matchers", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    with closing(Consumer(confluent(server, user, **config))) as consumer:
        consumer.subscribe([regex])
        message = consumer.poll(SECONDS)
        assert message.error() is None, message.error()
        return message.topic(), message.value()


def refusal(server, user, topic):
    """The error code of producing to the topic."""
    codes = []
    producer = Producer(confluent(server, user))
    producer.produce(topic, b"", on_delivery=lambda error, _: codes.append(error.code()))
    assert producer.flush(SECONDS) == 0
    return codes[0]


def test_clients_of_two_tenants_share_no_topics_and_groups(server, namespaces):
    client = table()[OLD]
    install(client)
    old_user, new_user = (f"{one}/app" for one in namespaces)
    old = {"security": Security((old_user, "secret")), "timeout": SECONDS}
    # The old client sends bare tokens (SaslHandshake v0).
    sent = [Record("orders", 0, None, b"of the old client")]
    assert [one.offset for one in produce(client, bootstrap(server), sent, **old)] == [0]
    producer = Producer(confluent(server, new_user))
    producer.produce("orders", b"of the new client")
    producer.produce("private", b"of the new client")
    assert producer.flush(SECONDS) == 0

    (read,) = consume_in_group(client, bootstrap(server), "readers", "orders", 1, **old)
    assert (read.topic, read.offset, read.value) == ("orders", 0, b"of the old client")
    assert consume(server, new_user, "orders") == [b"of the new client"]
    assert consume_by_regex(server, new_user, "^o.*") == ("orders", b"of the new client")
    assert consume_by_regex(server, old_user, "^.*") == ("orders", b"of the old client")
    # A topic of another tenant, by its full name.
    for name in ("orders", "missing"):
        assert refusal(server, old_user, f"{namespaces[1]}/{name}") == TOPIC_AUTHORIZATION_FAILED

    seen = {}
    for user in (old_user, new_user, "plain"):
        with closing(KafkaAdminClient(**login(server, user))) as admin:
            groups = {one["group_id"] for one in admin.list_groups()}
            seen[user] = sorted(admin.list_topics()), groups
    full = [
        f"persistent://{namespaces[0]}/orders",
        *(f"persistent://{namespaces[1]}/{name}" for name in ("orders", "private")),
    ]
    assert seen == {
        old_user: (["orders"], {"readers", "matchers"}),
        new_user: (["orders", "private"], {"readers", "matchers"}),
        "plain": (["__consumer_offsets", *sorted(full)], set()),
    }


def test_mirrored_cursor_has_the_plain_name_of_the_group(server, namespaces, pulsar):
    """It is in the tenant's topic. Cursors are moved every ten seconds."""
    producer = Producer(confluent(server, f"{namespaces[0]}/app"))
    producer.produce("mirrored", b"")
    assert producer.flush(SECONDS) == 0
    assert consume(server, f"{namespaces[0]}/app", "mirrored", "copiers") == [b""]
    end = time.monotonic() + SECONDS
    while "copiers" not in (
        seen := pulsar.admin(
            "GET", f"persistent/{namespaces[0]}/mirrored-partition-0/subscriptions"
        )
    ):
        assert time.monotonic() < end, seen
        time.sleep(0.2)
    assert not [name for name in seen if "\0" in name]


def test_admin_client_of_a_tenant_administers_its_topics(server, namespaces):
    user, other = (f"{one}/app" for one in namespaces)
    with closing(KafkaAdminClient(**login(server, user))) as admin:
        admin.create_topics([NewTopic("made", 2, 1)])
        (described,) = admin.describe_topics(["made"])
        assert (described["name"], len(described["partitions"])) == ("made", 2)
        assert admin.describe_cluster()["brokers"]
    with closing(KafkaAdminClient(**login(server, other))) as admin:
        assert "made" not in admin.list_topics()
    with closing(KafkaAdminClient(**login(server, user))) as admin:
        admin.delete_topics(["made"])
        assert "made" not in admin.list_topics()


def test_login_to_a_namespace_that_is_not_served_is_refused(server, pulsar):
    reason = f"namespace {pulsar.name}/missing is not served; add it to pulsar_allowed_namespaces"
    errors = []
    client = Producer(confluent(server, f"{pulsar.name}/missing", error_cb=errors.append))
    end = time.monotonic() + SECONDS
    while not errors:
        assert time.monotonic() < end
        client.poll(0.1)
    assert reason in errors[0].str()
    assert server.wait_for_lines(1, reason)
