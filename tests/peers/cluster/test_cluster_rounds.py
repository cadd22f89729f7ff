"""Random failures of three gateways and of their Pulsar, in rounds: `test_cluster_failures` states
the guarantees. TESTS_CHAOS_SEED sets the seed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import Gateways
from tests.peers.cluster.load import EXPIRED, NOT_RETRIED, ClusterLoad
from tests.testkit.pulsar import Pulsar
from tests.testkit.pulsar_relay import PulsarRelays
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(3600)]

SEED, ROUNDS = 44, 15
SETTINGS = {"group_initial_rebalance_delay_ms": 0, "offsets_shards": 12}
#: Id of the node whose connections to Pulsar can be cut.
RELAYED = 3


def test_guarantees_hold_in_rounds_of_random_failures(
    tmp_path: Path, restartable_pulsar: Pulsar
) -> None:
    tenant = restartable_pulsar.tenant()
    store = in_pulsar(tenant)
    chance = random.Random(seed := int(os.environ.get("TESTS_CHAOS_SEED", SEED)))
    with PulsarRelays(tenant.settings()) as relays:
        relayed = relays.redirected(store)
        with Gateways(tmp_path, store, 3, SETTINGS, {RELAYED: relayed}) as gateways:
            gateways.launch()
            with ClusterLoad(tmp_path, gateways) as load:
                load.start()
                for number in range(ROUNDS):
                    event = chance.choice(["kill", "suspend", "restart", "cut", "broker"])
                    victim = chance.choice([*gateways.nodes])
                    seconds = chance.uniform(0.1, 8.0)
                    print(
                        f"seed {seed}, round {number + 1} of {ROUNDS}: {event}, "
                        f"node {RELAYED if event == 'cut' else victim}, {seconds:.1f} s",
                        flush=True,
                    )
                    strike(event, gateways, victim, seconds, relays, restartable_pulsar)
                    took = load.wait_for_progress()
                    gateways.wait_until_led(TOPIC, [*gateways.nodes])
                    print(f"{took:.1f} s until all clients made progress", flush=True)
                assert load.finish((*NOT_RETRIED, *EXPIRED)) == []


def strike(
    event: str,
    gateways: Gateways,
    victim: int,
    seconds: float,
    relays: PulsarRelays,
    broker: Pulsar,
) -> None:
    """Cause a failure for some seconds, and undo it."""
    node = gateways.nodes[victim]
    match event:
        case "kill" | "restart":
            (node.kill if event == "kill" else node.end)()
            time.sleep(seconds)
            node.launch()
        case "suspend":
            node.pause()
            time.sleep(seconds)
            node.resume()
        case "cut":
            with relays.cut():
                time.sleep(seconds)
        case "broker":
            broker.restart()
