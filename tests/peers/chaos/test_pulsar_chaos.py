"""Clients of three generations on gateways with Pulsar while both are killed, paused and restarted.

A run takes five minutes; `make chaos` starts one manually. It prints the seed's faults and each
recovery time; TESTS_CHAOS_SEED selects another seed. A slow machine runs fewer faults.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import are_required
from tests.peers.chaos.client_processes import FEW_CLIENTS, install_clients
from tests.peers.chaos.faults import Action, ServerFault, Target, plan_faults
from tests.peers.chaos.report import summary
from tests.peers.chaos.run import MIN_FAULTS
from tests.peers.chaos.setups import SETUPS, RunProcesses
from tests.testkit.cache import CannotInstall
from tests.testkit.pulsar import Pulsar, distribution

#: In CI, and in `make slow`. A short run is the beginning of the long one with the same seed.
SHORT_SECONDS, SECONDS = 38.0, 300.0

#: Starts, the slowest accepted recovery, and the readers of the whole log, on a busy machine.
pytestmark = [pytest.mark.peer, pytest.mark.timeout(SECONDS + 2400)]

#: Its first MIN_FAULTS take 34 s, kill each server and pause the broker for longer than the send
#: timeout.
SEED = 35678
DEFAULT = RunProcesses()


@pytest.fixture(autouse=True)
def clients() -> None:
    try:
        distribution()
        install_clients()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


def run_faults(
    folder: Path,
    store: str,
    seed: int,
    seconds: float = SECONDS,
    processes: RunProcesses = DEFAULT,
) -> None:
    stage, gateways = SETUPS[store], processes.gateways
    seed = int(os.environ.get("TESTS_CHAOS_SEED", seed))
    faults = plan_faults(seed, seconds, stage.kinds_for(gateways), gateways)
    print(f"seed {seed}, {seconds:g} s on {store}, gateways: {gateways}", *faults, sep="\n")
    outcome = stage.run(folder, faults, seconds, print, processes)
    print(summary(outcome))
    assert outcome.complaints == [], "\n".join(outcome.complaints)
    assert len(outcome.recoveries) >= MIN_FAULTS


def test_acknowledged_records_survive_kills_and_a_pause_of_gateway_and_pulsar(
    tmp_path: Path, restartable_pulsar: Pulsar
) -> None:
    """A short run with few clients, for CI."""
    run_faults(
        tmp_path,
        "pulsar",
        SEED,
        SHORT_SECONDS,
        RunProcesses(clients=FEW_CLIENTS, broker=restartable_pulsar),
    )


@pytest.mark.slow
def test_guarantees_hold_while_gateway_and_pulsar_fail(tmp_path: Path) -> None:
    run_faults(tmp_path, "pulsar", SEED)


@pytest.mark.slow
def test_guarantees_hold_while_gateways_of_a_cluster_fail(tmp_path: Path) -> None:
    run_faults(tmp_path, "pulsar", 44, processes=RunProcesses(gateways=3))


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


def test_faults_of_the_short_run_kill_each_server_and_pause_the_broker() -> None:
    """The pause is longer than the send timeout. A slow machine runs only the first faults."""
    kinds = SETUPS["pulsar"].kinds
    first = plan_faults(SEED, SHORT_SECONDS, kinds)
    assert len(first) == MIN_FAULTS
    assert {(one.target, one.action) for one in first} == {
        (Target.GATEWAY, Action.KILL),
        (Target.BROKER, Action.KILL),
        (Target.BROKER, Action.PAUSE),
    }
    assert longest(first, Action.PAUSE) > 8
    assert plan_faults(SEED, SECONDS, kinds)[:MIN_FAULTS] == first


def longest(faults: list[ServerFault], action: Action) -> float:
    return max(one.duration for one in faults if one.action is action)
