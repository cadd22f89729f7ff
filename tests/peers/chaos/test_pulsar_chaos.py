"""Clients of three generations on gateways with Pulsar while both are killed, paused and restarted.

A run takes five minutes; `make chaos` starts one manually. It prints the seed's faults and each
recovery time; TESTS_CHAOS_SEED selects another seed. A slow machine runs fewer faults.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import are_required
from tests.peers.chaos.client_processes import install_clients
from tests.peers.chaos.faults import Action, ServerFault, Target, plan_faults
from tests.peers.chaos.report import summary
from tests.peers.chaos.run import MIN_FAULTS
from tests.peers.chaos.setups import SETUPS
from tests.testkit.cache import CannotInstall
from tests.testkit.pulsar import distribution

#: In CI, and in `make slow`. A short run is the beginning of the long one with the same seed.
SHORT_SECONDS, SECONDS = 50.0, 300.0

#: Starts, the slowest accepted recovery, and the readers of the whole log, on a busy machine.
pytestmark = [pytest.mark.peer, pytest.mark.timeout(SECONDS + 2400)]

#: Its first MIN_FAULTS take 44 s, kill each server and pause the broker for longer than the send
#: timeout.
SEED = 2998


@pytest.fixture(autouse=True)
def clients() -> None:
    try:
        distribution()
        install_clients()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


def run_faults(
    folder: Path, store: str, seed: int, seconds: float = SECONDS, gateways: int = 1
) -> None:
    stage = SETUPS[store]
    seed = int(os.environ.get("TESTS_CHAOS_SEED", seed))
    faults = plan_faults(seed, seconds, stage.kinds_for(gateways), gateways)
    print(f"seed {seed}, {seconds:g} s on {store}, gateways: {gateways}", *faults, sep="\n")
    outcome = stage.run(folder, faults, seconds, print, gateways)
    print(summary(outcome))
    assert outcome.complaints == [], "\n".join(outcome.complaints)
    assert len(outcome.recoveries) >= MIN_FAULTS


@pytest.mark.parametrize("seconds", [SHORT_SECONDS, pytest.param(SECONDS, marks=pytest.mark.slow)])
def test_guarantees_hold_while_gateway_and_pulsar_fail(tmp_path: Path, seconds: float) -> None:
    run_faults(tmp_path, "pulsar", SEED, seconds)


@pytest.mark.slow
def test_guarantees_hold_while_gateways_of_a_cluster_fail(tmp_path: Path) -> None:
    run_faults(tmp_path, "pulsar", 44, gateways=3)


@pytest.mark.slow
def test_guarantees_hold_in_the_native_format_with_pulsar_deduplication(
    tmp_path: Path,
) -> None:
    run_faults(tmp_path, "pulsar-native", 21)


@pytest.mark.slow
def test_guarantees_hold_on_the_embedded_store(
    tmp_path: Path,
) -> None:
    run_faults(tmp_path, "embedded", 22)


def test_first_faults_kill_each_server_and_pause_the_broker() -> None:
    """A slow machine runs only the first faults."""
    first = plan_faults(SEED, SECONDS, SETUPS["pulsar"].kinds)[:MIN_FAULTS]
    assert {
        (Target.GATEWAY, Action.KILL),
        (Target.BROKER, Action.KILL),
        (Target.BROKER, Action.PAUSE),
    } <= {(one.target, one.action) for one in first}
    assert longest(first, Action.PAUSE) > 8


def longest(faults: list[ServerFault], action: Action) -> float:
    return max(one.duration for one in faults if one.action is action)
