"""Producers that do not retry, as before Kafka 2.1 by default, while gateways are restarted and
leadership moves (`gateway.topics.remote_appends`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import are_required, in_pulsar
from tests.peers.chaos.client_processes import ChaosProducer, ProducerVersion
from tests.peers.chaos.evidence import Observations
from tests.peers.cluster.gateways import Gateways
from tests.peers.cluster.load import PARTITIONS
from tests.peers.groups.group_setups import create_topic
from tests.testkit.cache import CannotInstall
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: Records per second of each producer.
PACE = 40

PRODUCERS = (
    ProducerVersion("0.9.0.1", {"request.timeout.ms": "300000"}),
    ProducerVersion("1.1.1", {"request.timeout.ms": "300000"}, prefix="1"),
)

#: A request that is on its way while the gateway closes the connection.
LOST_REQUEST = "NetworkException"


@pytest.fixture
def gateways(tmp_path: Path, pulsar: Tenant) -> Iterator[Gateways]:
    try:
        for kind in PRODUCERS:
            kind.argv("", 0, tmp_path)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with Gateways(tmp_path, in_pulsar(pulsar), 3, {"offsets_shards": 12}) as running:
        running.launch()
        create_topic(running.bootstrap, TOPIC, *[0] * PARTITIONS)
        running.wait_until_settled(TOPIC)
        yield running


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_no_error_reaches_producers_without_retries_while_leadership_moves(
    rounds: int, gateways: Gateways, tmp_path: Path
) -> None:
    observed = Observations()
    with ExitStack() as stack:
        producers = [
            ChaosProducer(tmp_path, gateways.bootstrap, kind, PACE, observed) for kind in PRODUCERS
        ]
        for one in producers:
            stack.callback(one.close)
        for _ in range(rounds):
            for node in gateways.nodes.values():
                progress(producers, gateways)
                node.end()
                progress(producers, gateways)
                node.launch()
                gateways.wait_until_settled(TOPIC)
        progress(producers, gateways)
    for one in producers:
        lost = [error for error in one.failed if LOST_REQUEST in error]
        print(f"{one.name}: {len(one.sent.stored)} records, {len(lost)} lost with a connection")
        assert one.failed == lost, one.failed[:5]
        # The gateway closes a connection between two requests. Only a request that the client
        # sends in the same moment is lost.
        assert len(lost) <= rounds, lost
    assert gateways.unexpected_errors() == []


def progress(producers: list[ChaosProducer], gateways: Gateways) -> None:
    """Wait until each producer has stored a record in each partition."""
    counts = [len(one.sent.stored) for one in producers]

    def stored() -> bool:
        for one in producers:
            one.receive()
        return all(
            {partition for (partition, _), _ in one.sent.stored[before:]} == {*range(PARTITIONS)}
            for one, before in zip(producers, counts, strict=True)
        )

    gateways.until(stored, bool)
