"""Clients that do not retry, while gateways are restarted and leadership moves: producers as before
Kafka 2.1 (`gateway.topics.remote_appends`), and members with old librdkafka, which reports refused
commits (`gateway.groups.offsets.remote_offsets`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.legacy_clients.brokers import are_required, in_pulsar
from tests.peers.chaos.client_processes import (
    GROUPS,
    ChaosMember,
    ChaosProducer,
    ProducerVersion,
)
from tests.peers.chaos.evidence import Commits, Observations
from tests.peers.cluster.gateways import Gateways
from tests.peers.cluster.load import PARTITIONS
from tests.peers.cluster.restarts import Place, read_log
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

#: Version 1.0.0.
LIBRDKAFKA = GROUPS[1]

#: An error that the library raises by itself when the address of a broker changes.
LOCAL_EVENT = "_NODE_UPDATE"

#: A request that is on its way while the gateway closes the connection.
LOST_REQUEST = "NetworkException"


class CommittingMember(ChaosMember):
    """`refused` has the errors of its commits."""

    def __init__(
        self, folder: Path, gateways: Gateways, observed: Observations, commits: Commits
    ) -> None:
        self.refused: list[str] = []
        super().__init__(folder, gateways.bootstrap, LIBRDKAFKA, 0, observed, commits)

    def handle(self, event: Any) -> None:
        self.refused += event.get("failed", [])
        super().handle(event)


@pytest.fixture
def gateways(tmp_path: Path, pulsar: Tenant) -> Iterator[Gateways]:
    try:
        LIBRDKAFKA.argv()
        for kind in PRODUCERS:
            kind.argv("", 0, tmp_path)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with Gateways(tmp_path, in_pulsar(pulsar, 12), 3, {}) as running:
        running.launch()
        create_topic(running.bootstrap, TOPIC, *[0] * PARTITIONS)
        running.wait_until_settled(TOPIC)
        yield running


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_no_error_reaches_clients_without_retries_while_leadership_moves(
    rounds: int, gateways: Gateways, tmp_path: Path
) -> None:
    observed, commits = Observations(), Commits(LIBRDKAFKA.name)
    with ExitStack() as stack:
        producers = [
            ChaosProducer(tmp_path, gateways.bootstrap, kind, PACE, observed) for kind in PRODUCERS
        ]
        member = CommittingMember(tmp_path, gateways, observed, commits)
        for one in (*producers, member):
            stack.callback(one.close)
        for _ in range(rounds):
            for node in gateways.nodes.values():
                progress(producers, member, gateways)
                node.end()
                progress(producers, member, gateways)
                node.launch()
                gateways.wait_until_settled(TOPIC)
        progress(producers, member, gateways)
    for one in producers:
        lost = [error for error in one.failed if LOST_REQUEST in error]
        print(f"{one.name}: {len(one.sent.stored)} records, {len(lost)} lost with a connection")
        assert one.failed == lost, one.failed[:5]
        # The gateway closes a connection between two requests. Requests that the client sends in
        # the same moment are lost, on a busy machine with many records each. Each end of a gateway
        # is one such moment.
        assert moments(one.failed_ms) <= rounds * len(gateways.nodes), one.failed_ms
    refused = [error for error in member.refused if LOCAL_EVENT not in error]
    print(f"{member.name}: {member.read} records, refused commits: {member.refused}")
    assert refused == []
    log = read_log(gateways.bootstrap, TOPIC, PARTITIONS)
    for one in producers:
        assert {place: log.get(place) for place, _ in one.sent.stored} == dict(one.sent.stored)
        assert_sent_in_order(log, one.sent.prefix)
    assert gateways.unexpected_errors() == []


def moments(times: list[int]) -> int:
    """Count the times, in ms, that are a second or more after the one before."""
    times = sorted(times)
    return sum(not number or time - times[number - 1] >= 1000 for number, time in enumerate(times))


def assert_sent_in_order(log: dict[Place, str], prefix: str) -> None:
    """The values of each producer are numbers, after a prefix and a dot if it has one."""
    for partition in range(PARTITIONS):
        numbers = [
            int(value.rpartition(".")[2])
            for (index, _), value in sorted(log.items())
            if index == partition and value.rpartition(".")[0] == prefix
        ]
        assert numbers == sorted(set(numbers)), f"partition {partition}, producer {prefix!r}"


def progress(producers: list[ChaosProducer], member: CommittingMember, gateways: Gateways) -> None:
    """Wait until each producer has stored a record in each partition, and the member has read and
    committed some.
    """
    counts, read = [len(one.sent.stored) for one in producers], member.read

    def have_progressed() -> bool:
        for one in (*producers, member):
            one.receive()
        return member.read > read and all(
            {partition for (partition, _), _ in one.sent.stored[before:]} == {*range(PARTITIONS)}
            for one, before in zip(producers, counts, strict=True)
        )

    gateways.until(have_progressed, bool)
