"""Old librdkafka starts at the committed offsets while the coordinator of its group moves.

librdkafka 0.9 to 1.5 ignores errors of OffsetFetch 1 and then applies `auto.offset.reset`
(`gateway.groups.offsets.remote_offsets`). Here a lost position is visible as the first record of
the topic, because the setting is `earliest`. With `latest` it would be lost in the same way, and
the consumer would skip records.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.legacy_clients.brokers import are_required, in_pulsar
from tests.legacy_clients.clients import table
from tests.legacy_clients.install import install
from tests.peers.chaos.servers import GatewayDied
from tests.peers.cluster.gateways import Gateways, coordinator
from tests.peers.cluster.restarts import Restarts
from tests.peers.groups.group_setups import commit_offsets, create_topic
from tests.testkit.cache import CannotInstall
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import ToolProcess

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

CLIENTS = ("confluent-0.11.6", "confluent-1.0.0")
TOPIC = "positions"
PARTITIONS = 2
#: The last record, so that a consumer never reads another one after it.
COMMITTED = 4
#: Seconds within which each group must have a start of each kind, on a busy machine.
START_SECONDS = 300.0


class OldConsumers(ToolProcess):
    """Counts the first records by group, kind of start, partition and offset."""

    def __init__(self, folder: Path, name: str, bootstrap: str, groups: list[str]) -> None:
        *interpreter, _ = install(table()[name])
        program = str(Path(__file__).parent / "old_consumers.py")
        self.first: Counter[tuple[str, str, int, int]] = Counter()
        super().__init__(folder, name, [*interpreter, program, bootstrap, TOPIC, *groups])

    def handle(self, event: Any) -> None:
        place = event["partition"], event["offset"]
        self.first[event["group"], event["how"], *place] += 1

    def starts(self) -> Counter[tuple[str, str]]:
        """The numbers of starts by group and kind."""
        self.receive()
        assert self.process.poll() is None, self.errors()
        found: Counter[tuple[str, str]] = Counter()
        for (group, how, *_), count in self.first.items():
            found[group, how] += count
        return found


@pytest.fixture
def gateways(tmp_path: Path, pulsar: Tenant) -> Iterator[Gateways]:
    try:
        for name in CLIENTS:
            install(table()[name])
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    settings = {"group_initial_rebalance_delay_ms": 0}
    with Gateways(tmp_path, in_pulsar(pulsar, 12), 3, settings) as running:
        running.launch()
        create_topic(running.bootstrap, TOPIC, *[COMMITTED + 1] * PARTITIONS)
        running.wait_until_settled(TOPIC)
        yield running


def groups_of_each_node(gateways: Gateways, prefix: str) -> list[str]:
    """A group for each coordinator, with a committed offset in all partitions."""
    found: dict[int, str] = {}
    with gateways.peer() as peer:
        for number in range(100):
            found.setdefault(coordinator(peer, f"{prefix}-{number}"), f"{prefix}-{number}")
    assert found.keys() == gateways.nodes.keys()
    for group in found.values():
        offsets = {(TOPIC, partition): COMMITTED for partition in range(PARTITIONS)}
        commit_offsets(gateways.bootstrap, group, offsets)
    return list(found.values())


def wait_for_starts(consumers: list[OldConsumers], gateways: Gateways) -> None:
    """Wait until each group has had another start of each kind."""
    # Groups of members have two kinds of starts.
    kinds = 3 * len(gateways.nodes)
    before = [one.starts() for one in consumers]
    end = time.monotonic() + START_SECONDS
    while True:
        new = [one.starts() - old for one, old in zip(consumers, before, strict=True)]
        if all(len(found) == kinds for found in new):
            return
        if time.monotonic() > end:
            raise GatewayDied(f"before: {before}, then only: {new}\n{gateways.log()}")
        time.sleep(0.05)


@pytest.mark.parametrize("restarts", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_old_librdkafka_starts_at_the_committed_offset_while_coordinators_move(
    restarts: int, gateways: Gateways, tmp_path: Path
) -> None:
    consumers: list[OldConsumers] = []
    with ExitStack() as stack:
        for name in CLIENTS:
            groups = [
                group
                for kind in ("members", "assigned")
                for group in groups_of_each_node(gateways, f"{kind}-{name}")
            ]
            consumers.append(OldConsumers(tmp_path, name, gateways.bootstrap, groups))
            stack.callback(consumers[-1].close)
        with Restarts(gateways, TOPIC) as running:
            running.wait_for(restarts)
        wait_for_starts(consumers, gateways)
    for one in consumers:
        found: Counter[tuple[str, int]] = Counter()
        for (_, how, _, offset), count in one.first.items():
            found[how, offset] += count
        print(f"{one.name}: first records by kind of start and offset: {dict(found)}")
        assert {offset for *_, offset in one.first} == {COMMITTED}, one.first
    assert gateways.unexpected_errors() == []
