"""Node ids of gateways that join, and starts that are refused: another process has the node id, or
a gateway of an older version uses the store.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.peers.chaos.servers import RetryingGateway
from tests.peers.cluster.gateways import Gateways, describe_cluster
from tests.peers.cluster.load import create_topic
from tests.peers.on_pulsar.pulsar_gateway import gateway_arguments, run_to_exit
from tests.testkit.gateway import one_record
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

TAKEN_SECONDS = 240.0


@pytest.fixture
def gateway_arguments_on(pulsar: Tenant) -> tuple[list[str], list[str]]:
    """Arguments of a gateway, and of a process that only holds the lock, on the same store."""
    settings = pulsar.settings()
    holder = [
        settings.service_url,
        settings.admin_url,
        settings.metadata_tenant,
        settings.metadata_namespace,
    ]
    return gateway_arguments(settings), holder


@pytest.fixture
def started(
    tmp_path: Path, gateway_arguments_on: tuple[list[str], list[str]]
) -> Iterator[Gateways]:
    """One running gateway with the id 1."""
    with Gateways(tmp_path, gateway_arguments_on[0], 1, {}) as running:
        running.launch()
        yield running


def lock_holder(arguments: list[str]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.storage.pulsar.lock_holder", "old", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_gateway_with_a_node_id_in_use_is_refused_naming_the_holder(
    started: Gateways, gateway_arguments_on: tuple[list[str], list[str]]
) -> None:
    code, log = run_to_exit(*gateway_arguments_on[0], "--node-id", "1")
    assert code == 1
    for words in ("node id 1", f"process {started.nodes[1].process.pid}", socket.gethostname()):
        assert words in log, log
    create_topic(started.bootstrap, "still", 1)
    with started.nodes[1].peer() as peer:
        assert peer.produce("still", one_record(b"here")).error_code == 0


def node_ids(gateways: list[RetryingGateway]) -> list[int]:
    """Start all gateways at once; returns their node ids once each knows all of them."""
    with ThreadPoolExecutor(len(gateways)) as threads:
        list(threads.map(RetryingGateway.launch, gateways))
    end = time.monotonic() + TAKEN_SECONDS
    while True:
        ids = {one.port: one.broker_id for one in describe_cluster(gateways[0].peer()).brokers}
        if all(gateway.port in ids for gateway in gateways):
            return [ids[gateway.port] for gateway in gateways]
        assert time.monotonic() < end, (ids, [gateway.log() for gateway in gateways])
        time.sleep(0.1)


def test_gateways_without_configured_ids_take_different_ones_and_keep_them(
    tmp_path: Path, gateway_arguments_on: tuple[list[str], list[str]]
) -> None:
    arguments = gateway_arguments_on[0]
    gateways = [RetryingGateway(tmp_path, arguments, {}, name=name) for name in ("one", "two")]
    try:
        before = node_ids(gateways)
        assert sorted(before) == [0, 1]
        code, log = run_to_exit(*arguments, "--node-id", str(before[1]))
        assert code == 1
        assert f"node id {before[1]} is in use by node {before[1]} (process " in log
        assert "--node-id" in log
        for gateway in gateways:
            gateway.kill()
        assert node_ids(gateways) == before
        for gateway in gateways:
            gateway.end()
        assert node_ids(gateways) == before
        assert [line for gateway in gateways for line in gateway.unexpected_errors()] == []
    finally:
        for gateway in gateways:
            gateway.kill()


def test_older_gateway_is_refused_while_a_cluster_uses_the_store(
    started: Gateways, gateway_arguments_on: tuple[list[str], list[str]]
) -> None:
    holder = lock_holder(gateway_arguments_on[1])
    overdue = threading.Timer(TAKEN_SECONDS, holder.kill)
    overdue.start()
    assert holder.stdout
    with holder:
        said = holder.stdout.readline()
        holder.kill()
    overdue.cancel()
    assert "node 1 (process " in said
    started.assert_running()


def test_gateway_is_refused_while_an_older_one_uses_the_store(
    gateway_arguments_on: tuple[list[str], list[str]],
) -> None:
    with lock_holder(gateway_arguments_on[1]) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "taken\n"
        code, log = run_to_exit(*gateway_arguments_on[0], "--node-id", "2")
        holder.kill()
    assert code == 1
    assert "old" in log, log
