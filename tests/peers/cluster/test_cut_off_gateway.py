"""A gateway that is cut off from Pulsar sends its clients to the other gateways.

Appends under way wait for their outcome, also while all gateways are cut off.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.produce import ProduceResponse

from gateway.protocol.errors import ErrorCode
from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import Gateways, end_offset, leaders, metadata
from tests.peers.cluster.load import create_topic
from tests.testkit.gateway import MIB, Peer, encode_request, one_record, produce_request
from tests.testkit.pulsar import Pulsar
from tests.testkit.pulsar_relay import PulsarRelays
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

PARTITIONS = 8
#: Its connection to Pulsar can be cut.
RELAYED, OTHER = 2, 1


def fetch(peer: Peer, session_id: int, session_epoch: int, *indexes: int) -> Any:
    return peer.request(fetch_request(session_id, session_epoch, *indexes), FetchResponse, 7)


def fetch_request(
    session_id: int, session_epoch: int, *indexes: int, max_wait_ms: int = 0
) -> FetchRequest:
    partitions = [
        FetchRequest.FetchTopic.FetchPartition(
            partition=index, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=MIB
        )
        for index in indexes
    ]
    return FetchRequest(
        version=7,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=MIB,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchRequest.FetchTopic(topic="orders", partitions=partitions)] if indexes else [],
    )


def test_clients_leave_a_gateway_that_is_cut_off(tmp_path: Path, pulsar: Tenant) -> None:
    store = in_pulsar(pulsar, PARTITIONS)
    with PulsarRelays(pulsar.settings()) as relays:
        relayed = relays.redirected(store)
        with Gateways(tmp_path, store, 2, {}, {RELAYED: relayed}) as gateways:
            gateways.launch()
            create_topic(gateways.bootstrap, "orders", PARTITIONS)
            led = gateways.wait_until_led("orders", [RELAYED, OTHER])
            indexes = [index for index, leader in led.items() if leader == RELAYED]
            relayed_node = gateways.nodes[RELAYED]
            with relayed_node.peer() as peer, relayed_node.peer() as waiting:
                session_id = fetch(peer, 0, 0, *indexes).session_id
                assert fetch(peer, session_id, 1).error_code == 0
                waiting.send(encode_request(fetch_request(0, 0, *indexes, max_wait_ms=900_000), 7))
                with relays.cut():
                    gateways.until(
                        lambda: metadata(peer, "orders"),
                        lambda found: not found.brokers and not found.topics,
                    )
                    asked = FindCoordinatorRequest(key="group", key_type=0)
                    found = peer.request(asked, FindCoordinatorResponse, 1)
                    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                    refused = fetch(peer, session_id, 2).error_code
                    assert refused == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                    rows = fetch(peer, 0, 0, *indexes).responses[0].partitions
                    assert {row.error_code for row in rows} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
                    assert waiting.is_closed()
                    with gateways.nodes[OTHER].peer() as other:
                        gateways.until(
                            lambda: leaders(other, "orders"),
                            lambda found: set(found.values()) == {OTHER},
                        )
            gateways.wait_until_led("orders", [RELAYED, OTHER])
            assert gateways.unexpected_errors() == []


def test_append_under_way_is_answered_when_pulsar_is_back_for_all_gateways(
    tmp_path: Path, restartable_pulsar: Pulsar
) -> None:
    """A producer that is not idempotent would write it twice if it had to retry."""
    store = in_pulsar(restartable_pulsar.tenant(), 2)
    with Gateways(tmp_path, store, 2, {}) as gateways:
        gateways.launch()
        create_topic(gateways.bootstrap, "orders", 1)
        leader = gateways.nodes[gateways.wait_until_led("orders")[0]]
        with leader.peer() as producer, leader.peer() as consumer:
            # The next one waits for records, instead of for the opening of the partition.
            fetch(consumer, 0, 0, 0)
            consumer.send(encode_request(fetch_request(0, 0, 0, max_wait_ms=900_000), 7))
            request = produce_request("orders", one_record(b"once"))
            request.timeout_ms = 600_000
            restartable_pulsar.pause()
            try:
                producer.send(encode_request(request, 7))
                for node in gateways.nodes.values():
                    with node.peer() as peer:
                        gateways.until(
                            partial(metadata, peer, "orders"),
                            lambda found: not found.brokers and not found.topics,
                        )
                assert consumer.is_closed()
            finally:
                restartable_pulsar.resume()
            frame = producer.receive()
            assert frame is not None
            reply = ProduceResponse.decode(frame[4:], version=7)
            row = reply.responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (0, 0)
        gateways.until(partial(_end_at_the_leader, gateways), lambda found: found == (0, 1))
        assert gateways.unexpected_errors() == []


def _end_at_the_leader(gateways: Gateways) -> tuple[int, int]:
    """Error code and end offset. The other gateway may lead the partition after the outage."""
    with gateways.nodes[gateways.wait_until_led("orders")[0]].peer() as peer:
        return end_offset(peer, "orders", 0)
