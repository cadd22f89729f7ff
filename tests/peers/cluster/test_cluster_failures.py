"""Three gateways under load while one of them is killed, suspended or restarted: no acknowledged
record is lost or duplicated, and no client reports an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import are_required, in_pulsar
from tests.peers.chaos.client_processes import install_clients
from tests.peers.cluster.gateways import Gateways
from tests.peers.cluster.load import LIBRARIES, ROUND_SECONDS, ClusterLoad
from tests.testkit.cache import CannotInstall
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: Seconds, longer than a session.
SUSPENDED_SECONDS = 5.0
#: For a short run: Java 0.9.0.1 and the protocol of KIP-848, and a third of the records.
FEW_LIBRARIES = (LIBRARIES[0], LIBRARIES[-1])
SHORT_ROUND_SECONDS = 3 * ROUND_SECONDS
SHARDS = 12
SETTINGS = {"group_initial_rebalance_delay_ms": 0}


@pytest.fixture
def gateways(tmp_path: Path, pulsar: Tenant) -> Iterator[Gateways]:
    try:
        install_clients()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with Gateways(tmp_path, in_pulsar(pulsar, SHARDS), 3, SETTINGS) as running:
        running.launch()
        yield running


@pytest.mark.parametrize(
    "is_short",
    [pytest.param(True, id="short"), pytest.param(False, id="long", marks=pytest.mark.slow)],
)
def test_no_record_is_lost_or_duplicated_while_gateways_fail(
    gateways: Gateways, tmp_path: Path, is_short: bool
) -> None:
    """A short run kills the controller, suspends a second node and restarts the third."""
    nodes = gateways.nodes

    def shows(event: str) -> None:
        seconds = load.wait_for_progress()
        gateways.wait_until_led(TOPIC, [*nodes])
        print(
            f"{event}: longest time without acknowledgement {load.producer.longest_gap():.2f} s, "
            f"{seconds:.1f} s until all clients made progress"
        )

    load_of = (FEW_LIBRARIES, SHORT_ROUND_SECONDS) if is_short else (LIBRARIES, ROUND_SECONDS)
    with ClusterLoad(tmp_path, gateways, *load_of) as load:
        load.start()
        gateways.wait_until_led(TOPIC, [*nodes])
        controller = gateways.controller()
        other, third = (number for number in nodes if number != controller)
        shows("start")
        victims = {} if is_short else {"member": other}
        for name, victim in {**victims, "controller": controller}.items():
            nodes[victim].kill()
            load.wait_for_progress()
            nodes[victim].launch()
            shows(f"{name} killed")
        nodes[other].pause()
        time.sleep(SUSPENDED_SECONDS)
        nodes[other].resume()
        shows("suspended")
        for number in [third] if is_short else nodes:
            nodes[number].end()
            nodes[number].launch()
            gateways.wait_until_led(TOPIC, [*nodes])
        shows("restarted")
        assert load.finish() == []
    assert load.queries
