"""Three gateways as one Kafka cluster: changes made at one are visible at all, and each gateway
serves only the partitions and groups that it leads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse

from gateway.cli.main import main
from gateway.protocol.errors import ErrorCode
from gateway.topics.topic_names import TRAFFIC_TOPIC
from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import (
    Gateways,
    coordinator,
    describe_cluster,
    end_offset,
    leaders,
    metadata,
)
from tests.peers.cluster.load import create_topic
from tests.peers.comparison import TOOL_TIMEOUT_MS, run_tools
from tests.peers.groups.group_setups import commit_offsets
from tests.peers.security.test_quota_clients import QuotaClient
from tests.testkit.gateway import Peer, one_record
from tests.testkit.kafka import MODERN, VERSION
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

SECONDS = 120.0
PARTITIONS = 12
NODES = 3
SHARDS = 12
#: SCRAM credentials can be stored only if a listener uses them.
SASL = ("--listener", "SASL_PLAINTEXT://127.0.0.1:0")
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "authorizer": "acls",
    "super_users": "User:ANONYMOUS",
    "sasl_enabled_mechanisms": "SCRAM-SHA-256",
    "traffic_topic": "true",
    "traffic_log_interval_ms": 1000,
}


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory, pulsar: Tenant) -> Iterator[Gateways]:
    folder = tmp_path_factory.mktemp("gateways")
    with Gateways(folder, (*in_pulsar(pulsar, SHARDS), *SASL), NODES, SETTINGS) as running:
        running.launch()
        create_topic(running.bootstrap, "orders", PARTITIONS)
        running.wait_until_led("orders", [*running.nodes])
        yield running
        running.end()
        assert running.unexpected_errors() == []


@pytest.fixture
def admins(gateways: Gateways) -> dict[int, AdminClient]:
    """An admin client for each node id."""
    return {
        number: AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for number, node in gateways.nodes.items()
    }


def at_each(gateways: Gateways, look: Callable[[Peer], Any]) -> list[Any]:
    """Return the result of `look` at each node."""
    found = []
    for node in gateways.nodes.values():
        with node.peer() as peer:
            found.append(look(peer))
    return found


def becomes(gateways: Gateways, look: Callable[[Peer], Any], expected: Any) -> None:
    """Wait until `look` returns `expected` at every node; each replays changes at its time."""
    gateways.until(lambda: at_each(gateways, look), lambda found: found == [expected] * NODES)


def test_traffic_topic_has_rows_of_all_nodes(gateways: Gateways) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": gateways.bootstrap,
            "group.id": "reports",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.subscribe([TRAFFIC_TOPIC])
    nodes = set()

    def read() -> set[int]:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            nodes.add(msgspec.json.decode(message.value())["node"])
        return nodes

    try:
        gateways.until(read, lambda found: found == {*gateways.nodes})
    finally:
        consumer.close()


def result(futures: Any) -> Any:
    (future,) = futures.values()
    return future.result(SECONDS)


def test_topic_changes_at_one_node_are_seen_at_all(
    gateways: Gateways, admins: dict[int, AdminClient]
) -> None:
    def count(peer: Peer) -> int:
        (topic,) = metadata(peer, "changing").topics
        return 0 if topic.error_code else len(topic.partitions)

    create_topic(gateways.nodes[1].bootstrap, "changing", 2)
    becomes(gateways, count, 2)
    result(admins[2].create_partitions([NewPartitions("changing", 5)]))
    becomes(gateways, count, 5)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "changing")
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ConfigResource.Type.TOPIC, "changing", incremental_configs=[entry])
    result(admins[3].incremental_alter_configs([altered]))
    for admin in admins.values():
        gateways.until(
            lambda admin=admin: result(admin.describe_configs([topic]))["retention.ms"].value,
            lambda value: value == "5000",
        )
    result(admins[1].delete_topics(["changing"]))
    becomes(gateways, count, 0)


def test_offsets_of_a_deleted_topic_are_deleted_at_their_coordinators(
    gateways: Gateways, admins: dict[int, AdminClient]
) -> None:
    create_topic(gateways.nodes[1].bootstrap, "leaving", 1)
    groups = [f"leaving-{number}" for number in range(6)]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": gateways.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition("leaving", 0, 5)], asynchronous=False)
        consumer.close()

    def listed() -> set[str]:
        found = admins[1].list_consumer_groups().result(SECONDS).valid
        return {one.group_id for one in found} & {*groups}

    assert listed() == {*groups}
    result(admins[2].delete_topics(["leaving"]))
    gateways.until(listed, lambda found: not found)


def test_a_node_knows_what_it_has_changed_when_it_answers(gateways: Gateways) -> None:
    # Clients send such requests to the controller, so this one is no client of a library.
    for number, node in gateways.nodes.items():
        name = f"known-{number}"
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        asked = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
        with node.peer() as peer:
            created = peer.request(asked, CreateTopicsResponse, 4)
            assert [one.error_code for one in created.topics] == [0]
            assert [one.error_code for one in metadata(peer, name).topics] == [0]


def test_acls_credentials_and_quotas_set_at_one_node_are_seen_at_all(
    gateways: Gateways, admins: dict[int, AdminClient]
) -> None:
    rule = ("User:app", "*", AclOperation.READ, AclPermissionType.ALLOW)
    topic = (ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL)
    result(admins[1].create_acls([AclBinding(*topic, *rule)]))
    wanted = AclBindingFilter(*topic, *rule)
    for admin in admins.values():
        gateways.until(
            lambda admin=admin: len(admin.describe_acls(wanted).result(SECONDS)),
            lambda count: count == 1,
        )
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upserted = UserScramCredentialUpsertion("app", credential, b"secret")
    result(admins[2].alter_user_scram_credentials([upserted]))
    for admin in admins.values():
        gateways.until(
            lambda admin=admin: [*admin.describe_user_scram_credentials().result(SECONDS)],
            lambda users: users == ["app"],
        )
    with QuotaClient(gateways.nodes[3].bootstrap) as client:
        client.alter(([("user", "app")], {"producer_byte_rate": 1e6}))
        expected = client.describe(("user", 0, "app"))
    assert expected
    for node in gateways.nodes.values():
        with QuotaClient(node.bootstrap) as client:
            gateways.until(
                lambda client=client: client.describe(("user", 0, "app")),
                lambda found: found == expected,
            )


def test_all_nodes_describe_the_same_cluster(gateways: Gateways) -> None:
    def described(peer: Peer) -> Any:
        found = describe_cluster(peer)
        brokers = sorted((one.broker_id, one.host, one.port) for one in found.brokers)
        return found.cluster_id, found.controller_id, brokers

    def listed(peer: Peer) -> Any:
        found = metadata(peer, "orders")
        brokers = sorted((one.node_id, one.host, one.port) for one in found.brokers)
        return found.cluster_id, found.controller_id, brokers

    found = at_each(gateways, described)
    assert found == [found[0]] * NODES
    assert found[0][1] in gateways.nodes
    addresses = [(number, "127.0.0.1", node.port) for number, node in gateways.nodes.items()]
    assert found[0][2] == addresses
    assert at_each(gateways, listed) == found
    # No group has been used yet.
    internal = at_each(
        gateways, lambda peer: [one.name for one in metadata(peer).topics if one.is_internal]
    )
    assert internal == [["__consumer_offsets"]] * NODES


def committed(peer: Peer, group: str) -> int:
    """The error code."""
    row = OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    request = OffsetFetchRequest(group_id=group, topics=[row])
    return peer.request(request, OffsetFetchResponse, 2).error_code


def test_each_group_is_served_by_its_coordinator_only(gateways: Gateways) -> None:
    groups = [f"group-{number}" for number in range(30)]
    found = at_each(gateways, lambda peer: [coordinator(peer, group) for group in groups])
    assert found == [found[0]] * NODES
    assert set(found[0]) == set(gateways.nodes)
    for number, node in gateways.nodes.items():
        with node.peer() as peer:
            codes = {group: committed(peer, group) for group in groups}
        assert codes == {
            group: 0 if led_by == number else ErrorCode.NOT_COORDINATOR
            for group, led_by in zip(groups, found[0], strict=True)
        }


def test_each_gateway_answers_old_offset_fetch_for_all_groups(gateways: Gateways) -> None:
    """Old librdkafka ignores the errors of OffsetFetch 1, and loses its position."""
    groups = [f"old-{number}" for number in range(2 * NODES)]
    for offset, group in enumerate(groups):
        commit_offsets(gateways.bootstrap, group, {("orders", 0): offset})
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])

    def offsets(peer: Peer) -> list[tuple[int, int]]:
        found = []
        for group in groups:
            asked = OffsetFetchRequest(group_id=group, topics=[topic])
            ((row,),) = [
                one.partitions for one in peer.request(asked, OffsetFetchResponse, 1).topics
            ]
            found.append((row.committed_offset, row.error_code))
        return found

    assert at_each(gateways, offsets) == [[(offset, 0) for offset in range(2 * NODES)]] * NODES


def test_each_partition_is_served_by_its_leader_only(gateways: Gateways) -> None:
    found = at_each(gateways, lambda peer: leaders(peer, "orders"))
    assert found == [found[0]] * NODES
    for number, node in gateways.nodes.items():
        with node.peer() as peer:
            for index, leader in found[0].items():
                refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
                expected = 0 if leader == number else refused
                assert end_offset(peer, "orders", index)[0] == expected
            expected = 0 if found[0][0] == number else ErrorCode.NOT_LEADER_OR_FOLLOWER
            for version, code in ((10, expected), (7, 0)):
                # Version 7 does not name the leader, so its records are passed on.
                row = peer.produce("orders", one_record(b"value"), version)
                assert row.error_code == code
            assert peer.fetch("orders", 0).error_code == expected


def test_clients_of_one_address_reach_all_leaders(gateways: Gateways) -> None:
    create_topic(gateways.bootstrap, "whole", PARTITIONS)
    failed: list[Any] = []
    config = {"bootstrap.servers": gateways.nodes[1].bootstrap, "log_level": 0}
    producer = Producer(config)
    for number in range(PARTITIONS):
        producer.produce(
            "whole",
            f"{number}",
            partition=number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert failed == []
    consumer = Consumer({**config, "group.id": "whole", "auto.offset.reset": "earliest"})
    consumer.subscribe(["whole"])
    values = []
    while len(values) < PARTITIONS and (message := consumer.poll(SECONDS)) is not None:
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    assert sorted(values, key=int) == [b"%d" % number for number in range(PARTITIONS)]


def columns(output: str) -> list[list[str]]:
    """The words of each line of a tool's output."""
    return [line.split() for line in output.splitlines() if line.strip()]


@pytest.mark.parametrize("version", [pytest.param(VERSION, marks=pytest.mark.slow), MODERN])
def test_kafkas_tools_describe_the_metadata_log(gateways: Gateways, version: str) -> None:
    controller = gateways.controller()
    # Each node is asked in turn; only the controller knows the answer.
    other = next(number for number in gateways.nodes if number != controller)
    printed = run_tools(
        gateways.nodes[other].bootstrap,
        ("kafka-metadata-quorum", "describe", "--status"),
        ("kafka-metadata-quorum", "describe", "--replication"),
        version=version,
    )
    assert [one.code for one in printed] == [0, 0], printed
    status = dict(line.split(":", 1) for line in printed[0].output.splitlines() if line)
    assert int(status["LeaderId"]) == controller
    assert int(status["LeaderEpoch"]) >= 1
    head, *rows = columns(printed[1].output)
    assert head[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    assert {int(row[0]): row[-1] for row in rows} == {
        number: "Leader" if number == controller else "Observer" for number in gateways.nodes
    }
    ends = {int(row[0]): (int(row[2]), int(row[3])) for row in rows}
    end = ends[controller][0]
    assert end >= int(status["HighWatermark"]) > 0
    assert all(reached > 0 and lag == end - reached for reached, lag in ends.values())


def test_kafkas_tools_show_who_coordinates_which_groups(gateways: Gateways) -> None:
    # They are in 11 of the 12 shards, and each node leads 4.
    groups = sorted(f"tools-{number}" for number in range(20))
    for group in groups:
        commit_offsets(gateways.bootstrap, group, {("orders", 0): 0})
    with gateways.nodes[1].peer() as peer:
        coordinators = {group: coordinator(peer, group) for group in groups}
        shards = leaders(peer, "__consumer_offsets")
    assert set(coordinators.values()) == set(gateways.nodes)
    timeout = ("--timeout", str(TOOL_TIMEOUT_MS))
    listed, described, topic, configs = run_tools(
        gateways.nodes[1].bootstrap,
        ("kafka-consumer-groups", "--list", *timeout),
        ("kafka-consumer-groups", "--describe", "--all-groups", "--state", *timeout),
        ("kafka-topics", "--describe", "--topic", "__consumer_offsets"),
        ("kafka-configs", "--describe", "--all", "--entity-type", "brokers"),
    )
    names = sorted(name for name in listed.output.split() if name.startswith("tools-"))
    assert names == groups
    rows = {row[0]: row for row in columns(described.output) if row[0] in coordinators}
    assert sorted(rows) == groups
    assert len([row for row in columns(described.output) if row[0] in coordinators]) == len(groups)
    # COORDINATOR (ID) is an address and the id in parentheses.
    assert {group: int(row[2].strip("()")) for group, row in rows.items()} == coordinators
    led = [line.split("Leader: ") for line in topic.output.splitlines() if "Leader: " in line]
    assert {index: int(line[1].split()[0]) for index, line in enumerate(led)} == shards
    assert sorted(shards) == list(range(SHARDS))
    assert set(shards.values()) == set(gateways.nodes)
    # Kafka's tool sends the request for the configs of a broker to that broker.
    assert configs.output.count(f"offsets.topic.num.partitions={SHARDS} ") == NODES


def test_description_of_the_cluster_has_all_shards_and_the_replay_of_all_nodes(
    gateways: Gateways,
) -> None:
    def describe() -> Any:
        address = ("--bootstrap-server", gateways.nodes[1].bootstrap, "--timeout", "60")
        result = CliRunner().invoke(main, ["cluster", "describe", *address, "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def lags(found: Any) -> list[int | None]:
        return [one["lag"] for one in found["metadata_log"]["replicas"]]

    found = gateways.until(describe, lambda it: lags(it) == [0] * NODES)
    assert found["controller"] == found["metadata_log"]["leader"] == gateways.controller()
    assert [one["node"] for one in found["metadata_log"]["replicas"]] == [*gateways.nodes]
    assert [one["shard"] for one in found["shards"]] == list(range(SHARDS))
    assert sum(node["shards"] for node in found["nodes"]) == SHARDS
    with gateways.nodes[1].peer() as peer:
        led = leaders(peer, "__consumer_offsets")
    assert {one["shard"]: one["leader"] for one in found["shards"]} == led
