"""Failures in Pulsar reach a Kafka client as the errors of Apache Kafka 3.9.2, and the gateway
recovers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import for_code
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from tests.legacy_clients.brokers import in_pulsar
from tests.peers.chaos.observers import partitions_of, read_whole_log, reader
from tests.peers.chaos.servers import RestartableGateway
from tests.testkit.gateway import MIB, Peer, one_record
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17

#: Until a change made in Pulsar is visible in all brokers and in the gateway.
NOTICED_SECONDS = 300.0
REFRESH_MS = 500
#: Some requests here are not retried, and Pulsar on a busy machine stalls for seconds.
OPENING_MS = 20_000


class TopicInPulsar:
    """A gateway with a topic of one partition, and the names of both in Pulsar."""

    def __init__(self, gateway: RestartableGateway, tenant: Tenant, store: list[str]) -> None:
        self.gateway = gateway
        self.tenant = tenant
        (namespace,) = [
            word.removeprefix("pulsar_namespace=")
            for word in store
            if word.startswith("pulsar_namespace=")
        ]
        self.namespace = f"{tenant.name}/{namespace}"
        self.topic = f"persistent/{self.namespace}/{TOPIC}"
        self.partition = f"{self.topic}-partition-0"


@pytest.fixture
def starts(tmp_path: Path, pulsar: Tenant) -> Iterator[Callable[..., TopicInPulsar]]:
    with ExitStack() as stack:

        def started(**settings: object) -> TopicInPulsar:
            store = list(in_pulsar(pulsar))
            named = {
                "num_partitions": 1,
                "pulsar_refresh_ms": REFRESH_MS,
                "partition_open_timeout_ms": OPENING_MS,
                **settings,
            }
            gateway = RestartableGateway(tmp_path, store, named)
            stack.callback(gateway.kill)
            gateway.launch()
            with gateway.peer() as peer:
                peer.create_topic(TOPIC)
            return TopicInPulsar(gateway, pulsar, store)

        yield started


@pytest.fixture
def place(starts: Callable[..., TopicInPulsar]) -> TopicInPulsar:
    return starts()


def until(answers: Callable[[], Any], wanted: object) -> None:
    """Wait for this answer; errors before it must be retriable."""
    end = time.monotonic() + NOTICED_SECONDS
    while (answer := answers()) != wanted:
        assert not isinstance(answer, int) or not answer or for_code(answer).retriable, (
            f"error {answer}"
        )
        assert time.monotonic() < end, f"{answer} and not {wanted} after {NOTICED_SECONDS:.0f} s"
        time.sleep(0.1)


def in_metadata(peer: Peer, topic: str, *, makes: bool = False) -> int:
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
    asked = MetadataRequest(version=4, topics=wanted, allow_auto_topic_creation=makes)
    return int(peer.request(asked, MetadataResponse, 4).topics[0].error_code)


def created(peer: Peer, topic: str) -> int:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    reply = peer.request(
        CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False),
        CreateTopicsResponse,
        4,
    )
    return int(reply.topics[0].error_code)


def test_batch_over_pulsars_message_size_is_too_large_and_gets_no_offset(
    starts: Callable[..., TopicInPulsar],
) -> None:
    """Below `max.message.bytes` of the topic, above Pulsar's 5 MiB."""
    place = starts(message_max_bytes=20 * MIB)
    with place.gateway.peer() as peer:
        assert peer.produce(TOPIC, one_record(b"before")).base_offset == 0
        assert peer.produce(TOPIC, one_record(b"." * (4 * MIB))).base_offset == 1
        assert peer.produce(TOPIC, one_record(b"." * (6 * MIB))).error_code == MESSAGE_TOO_LARGE
        assert peer.produce(TOPIC, one_record(b"after")).base_offset == 2
    assert place.gateway.unexpected_errors() == []


def test_topic_in_a_namespace_that_is_not_allowed_is_invalid(place: TopicInPulsar) -> None:
    """As a name with a slash in Kafka, which cannot be created either."""
    names = ["persistent://unknown/nowhere/orders", "unknown/nowhere/orders", "nowhere/orders"]
    with place.gateway.peer() as peer:
        for name in names:
            assert in_metadata(peer, name, makes=True) == INVALID_TOPIC, name
            assert created(peer, name) == INVALID_TOPIC, name
            produced = peer.produce(name, one_record(b"1"))
            assert produced.error_code == UNKNOWN_TOPIC_OR_PARTITION, name
            assert peer.fetch(name, 0).error_code == UNKNOWN_TOPIC_OR_PARTITION, name


def test_topics_of_a_deleted_namespace_are_unknown(
    starts: Callable[..., TopicInPulsar], pulsar: Tenant
) -> None:
    namespace = pulsar.namespace()
    place = starts(pulsar_allowed_namespaces=f"{pulsar.name}/{namespace}")
    name = f"persistent://{pulsar.name}/{namespace}/orders"
    with place.gateway.peer() as peer:
        assert created(peer, name) == 0
        assert peer.produce(name, one_record(b"1")).base_offset == 0
        place.tenant.admin(
            "DELETE", f"persistent/{pulsar.name}/{namespace}/orders/partitions?force=true"
        )
        place.tenant.admin("DELETE", f"namespaces/{pulsar.name}/{namespace}")
        until(lambda: peer.produce(name, one_record(b"2")).error_code, UNKNOWN_TOPIC_OR_PARTITION)
        until(lambda: in_metadata(peer, name), UNKNOWN_TOPIC_OR_PARTITION)
        assert peer.produce(TOPIC, one_record(b"the others are served")).error_code == 0


def test_topic_deleted_in_pulsar_is_unknown_and_can_be_recreated(
    place: TopicInPulsar,
) -> None:
    with place.gateway.peer() as peer:
        assert peer.produce(TOPIC, one_record(b"1")).base_offset == 0
        place.tenant.admin("DELETE", f"{place.topic}/partitions?force=true")
        until(lambda: peer.produce(TOPIC, one_record(b"2")).error_code, UNKNOWN_TOPIC_OR_PARTITION)
        until(lambda: peer.fetch(TOPIC, 0).error_code, UNKNOWN_TOPIC_OR_PARTITION)
        until(lambda: in_metadata(peer, TOPIC), UNKNOWN_TOPIC_OR_PARTITION)
        peer.create_topic(TOPIC)
        stored = peer.produce(TOPIC, one_record(b"3"))
        assert (stored.error_code, stored.base_offset) == (0, 0)
    assert place.gateway.unexpected_errors() == []


@pytest.mark.parametrize("what", ["topic", pytest.param("namespace", marks=pytest.mark.slow)])
def test_unload_causes_only_retriable_errors_and_no_gap_in_offsets(
    place: TopicInPulsar, what: str
) -> None:
    acknowledged: dict[tuple[int, int], str] = {}
    with place.gateway.peer() as peer:
        for number in range(60):
            if number % 20 == 10:
                path = (
                    f"{place.partition}/unload"
                    if what == "topic"
                    else f"namespaces/{place.namespace}/unload"
                )
                place.tenant.admin("PUT", path)
            answer = peer.produce(TOPIC, one_record(b"%d" % number))
            if answer.error_code:
                assert for_code(answer.error_code).retriable, answer
                time.sleep(0.1)
            else:
                acknowledged[0, answer.base_offset] = f"{number}"
        until(lambda: peer.produce(TOPIC, one_record(b"the last")).error_code, 0)
    log = read_whole_log(place.gateway.bootstrap, 1)
    assert {offset for _, offset in log.values} == set(range(log.ends[0]))
    assert {where: log.values.get(where) for where in acknowledged} == acknowledged
    assert place.gateway.unexpected_errors() == []


@pytest.mark.parametrize("is_restarted", [False, True], ids=["while open", "before a restart"])
def test_offsets_trimmed_by_pulsars_retention_are_out_of_range(
    starts: Callable[..., TopicInPulsar], is_restarted: bool
) -> None:
    # Cached records could still be read. The records are from 2023; the gateway's own retention is
    # disabled.
    place = starts(pulsar_resident_bytes=0, log_retention_ms=-1)
    with place.gateway.peer() as peer:
        # The first may meet a gateway that does not lead the partition yet.
        until(lambda: peer.produce(TOPIC, one_record(b"0")).base_offset, 0)
        for number in range(1, 10):
            assert peer.produce(TOPIC, one_record(b"%d" % number)).base_offset == number
        # The next record starts another ledger: Pulsar deletes whole ledgers.
        place.tenant.admin("PUT", f"{place.partition}/unload")
        until(lambda: peer.produce(TOPIC, one_record(b"kept")).error_code, 0)
        trims(place)
        if is_restarted:
            place.gateway.end()
            place.gateway.launch()
    with place.gateway.peer() as peer:
        until(lambda: peer.fetch(TOPIC, 0).error_code, OFFSET_OUT_OF_RANGE)
        with closing(reader(place.gateway.bootstrap)) as consumer:
            (partition,) = partitions_of(1)
            assert consumer.beginning_offsets([partition]) == {partition: 10}
        answer = peer.fetch(TOPIC, 10)
        assert (answer.error_code, bool(answer.records)) == (0, True)
    assert place.gateway.unexpected_errors() == []


def trims(place: TopicInPulsar) -> None:
    """Return once all ledgers except the open one are deleted."""
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    place.tenant.admin("POST", f"{place.topic}/retention", nothing)
    end = time.monotonic() + NOTICED_SECONDS
    while len(place.tenant.admin("GET", f"{place.partition}/internalStats")["ledgers"]) > 1:
        place.tenant.admin("POST", f"{place.partition}/trim")
        assert time.monotonic() < end, "Pulsar does not trim"
        time.sleep(0.3)
