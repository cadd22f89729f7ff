"""Real admin clients get the same results from the gateway as from Kafka 3.9.2."""

from __future__ import annotations

import asyncio
import difflib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import TopicAuthorizationFailedError as AioTopicAuthorizationFailedError
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
)
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from tests.legacy_clients.brokers import are_required
from tests.peers.comparison import (
    PROGRAMS,
    CommandOutput,
    ComparedBrokers,
    side_by_side,
    wait_for_offsets_topic,
)
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall, cached, command, maven_jars

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("admin clients"),
]  # one pair of brokers for all of them

CONFLUENT = "confluent-kafka==2.16.1"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedBrokers]:
    with side_by_side(tmp_path_factory.mktemp("gateway")) as both:
        yield both


def java(program: str, clients: str) -> list[str]:
    """The argv of a single-file program, with this version of kafka-clients."""
    jars = maven_jars(
        (
            f"org.apache.kafka:kafka-clients:{clients}",
            "org.slf4j:slf4j-api:1.7.36",
            "org.slf4j:slf4j-simple:1.7.36",
        )
    )
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return jvm.argv([f"{jars}/*"], PROGRAMS / program, "{}", flags=["-Xmx256m", *jvm.CLIENT, quiet])


def argv_or_skip(argv: Callable[[], Sequence[str]]) -> list[str]:
    """The result of `argv`, which may install something. If that fails, the test is skipped, or
    fails in CI.
    """
    try:
        return list(argv())
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


def assert_same_output(ours: CommandOutput, theirs: CommandOutput) -> None:
    assert theirs.code == 0, theirs.output + theirs.errors
    differences = list(
        difflib.unified_diff(
            theirs.output.splitlines(), ours.output.splitlines(), "Kafka", "gateway", n=0
        )
    )
    assert not differences, "\n".join(differences)
    assert ours.code == 0, ours.errors


@pytest.mark.parametrize("clients", ["0.11.0.3", pytest.param("2.8.2", marks=pytest.mark.slow)])
def test_old_java_admin_client_gets_same_results(sides: ComparedBrokers, clients: str) -> None:
    ours, theirs = sides.run(argv_or_skip(lambda: java("OldAdmin.java", clients)))
    assert_same_output(ours, theirs)


@pytest.mark.parametrize("clients", [pytest.param("3.9.2", marks=pytest.mark.slow), "4.4.0"])
def test_new_java_admin_client_gets_same_results(sides: ComparedBrokers, clients: str) -> None:
    ours, theirs = sides.run(argv_or_skip(lambda: java("NewAdmin.java", clients)))
    assert_same_output(ours, theirs)


#: Results of Admin methods that differ from Kafka 3.9.2's. The gateway has no metadata quorum
#: and no transactions. For features, unknown brokers and the list of resources it follows
#: Kafka 4.
DIFFERENT = {
    "updateFeatures": "{nonsense=InvalidUpdateVersionException: The update failed for all features "
    "since the following feature had an error: Invalid update version 1 for feature nonsense. "
    "Local controller 1 does not support this feature.}",
    "updateFeatures metadata.version": "{metadata.version=InvalidUpdateVersionException: "
    "The update failed for all features since the following feature had an error: "
    "Invalid update version 999 for feature metadata.version. "
    "Local controller 1 does not support this feature.}",
    "describeMetadataQuorum": "UnsupportedVersionException: This cluster has no metadata quorum: "
    "its metadata is in its store.",
    "unregisterBroker": "BrokerIdNotRegisteredException: Broker ID 77 is not currently registered",
    "abortTransaction": "ClusterAuthorizationException: WriteTxnMarkers request with "
    "AbortTransactionSpec(topicPartition=every-0, producerId=77, "
    "producerEpoch=1, coordinatorEpoch=0) failed due to cluster authorization error",
    "forceTerminateTransaction": "TransactionalIdAuthorizationException: InitProducerId request "
    "for transactionalId `never` failed due to transactional ID authorization failure",
    "fenceProducers": "{never=TransactionalIdAuthorizationException: InitProducerId request "
    "for transactionalId `never` failed due to transactional ID authorization failure}",
    "listConfigResources all": "[BROKER 1, BROKER_LOGGER 1, TOPIC every]",
}


def test_every_java_admin_method_gets_a_reply(sides: ComparedBrokers) -> None:
    ours, theirs = sides.run(argv_or_skip(lambda: java("EveryMethod.java", "4.4.0")))
    lines = theirs.output.splitlines()
    names = {line.partition(": ")[0] for line in lines}
    assert set(DIFFERENT) < names
    expected = [
        f"{name}: {DIFFERENT[name]}" if (name := line.partition(": ")[0]) in DIFFERENT else line
        for line in lines
    ]
    assert_same_output(ours, CommandOutput(theirs.code, "\n".join(expected), theirs.errors))
    # Calls that timed out, closed connections, and methods that the program does not call.
    assert [line for line in lines if line.startswith("!")] == []


def test_confluent_admin_client_gets_same_results(sides: ComparedBrokers) -> None:
    def argv() -> list[str]:
        build = ["-m", "pip", "install", "-q", "--no-warn-script-location", "--target"]
        site = cached(
            f"tools/{CONFLUENT}-py{sys.version_info.major}.{sys.version_info.minor}",
            lambda folder: _done(command([sys.executable, *build, folder, CONFLUENT])),
        )
        return [
            "env",
            f"PYTHONPATH={site}",
            "PYTHONDONTWRITEBYTECODE=1",
            sys.executable,
            str(PROGRAMS / "confluent_admin.py"),
            "{}",
        ]

    ours, theirs = sides.run(argv_or_skip(argv))
    assert_same_output(ours, theirs)


def _done(_: str) -> None:
    return None


def test_kafka_python_admin_client_changes_topics(sides: ComparedBrokers) -> None:
    admin = KafkaAdminClient(bootstrap_servers=sides.gateway)
    topic = ConfigResource(ConfigResourceType.TOPIC, "python", {"max.message.bytes": "2000"})
    try:
        admin.create_topics([NewTopic("python", 2, 1, topic_configs={"retention.ms": "5000"})])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic("python", 2, 1)])
        admin.create_partitions({"python": NewPartitions(3)})
        (described,) = admin.describe_topics(["python"])
        assert [row["partition_index"] for row in described["partitions"]] == [0, 1, 2]
        admin.alter_configs([topic])
        admin.delete_topics(["python"])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics(["python"])
    finally:
        admin.close()


def test_kcat_lists_same_cluster(sides: ComparedBrokers) -> None:
    kcat = shutil.which("kcat") or shutil.which("kafkacat")
    if kcat is None:
        (pytest.fail if are_required() else pytest.skip)(
            "kcat is not on this machine: install Debian's `kafkacat`"
        )
    for at in (sides.gateway, sides.kafka):
        admin = KafkaAdminClient(bootstrap_servers=at)
        admin.create_topics([NewTopic("listed", 3, 1)], wait_for_metadata=True)
        admin.close()
    ours, theirs = sides.run([str(kcat), "-b", "{}", "-L", "-m", "120", "-J", "-t", "listed"])
    assert (ours.code, theirs.code) == (0, 0), ours.errors + theirs.errors
    lists = [json.loads(one.output) for one in (ours, theirs)]
    for one in lists:
        del one["originating_broker"]
        one["topics"][0]["partitions"].sort(key=lambda row: row["partition"])
    assert lists[0] == lists[1]


def test_aiokafka_treats_offsets_topic_as_internal(sides: ComparedBrokers) -> None:
    """`exclude_internal_topics` relies on this. A consumer that reads the topic anyway gets an
    authorization error.
    """

    async def look(address: str) -> tuple[bool, bool]:
        client = AIOKafkaClient(bootstrap_servers=address)
        await client.bootstrap()
        try:
            cluster = await client.fetch_all_metadata()
            return "__consumer_offsets" in cluster.topics(
                exclude_internal_topics=False
            ), "__consumer_offsets" in cluster.topics()
        finally:
            await client.close()

    for address in (sides.gateway, sides.kafka):
        wait_for_offsets_topic(address)
    assert [asyncio.run(look(address)) for address in (sides.gateway, sides.kafka)] == [
        (True, False)
    ] * 2

    async def read(address: str) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([AioPartition("__consumer_offsets", 0)])
            await asyncio.wait_for(consumer.getone(), 60)
        finally:
            await consumer.stop()

    with pytest.raises(AioTopicAuthorizationFailedError):
        asyncio.run(read(sides.gateway))
