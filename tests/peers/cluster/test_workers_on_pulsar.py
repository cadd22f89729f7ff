"""`--workers 2`: two nodes of a cluster on one machine, restarted and stopped by a supervisor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import Gateways, leaders, metadata
from tests.peers.cluster.load import create_topic
from tests.testkit.gateway import Peer
from tests.testkit.kafka import free_ports
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

PARTITIONS = 8


def children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_workers_keep_their_free_ids_after_a_kill_and_a_restart(
    tmp_path: Path, pulsar: Tenant
) -> None:
    """Without `--node-id`, each worker takes a free id, and later the id of its address."""
    (port,) = free_ports(1)
    second = ("--workers", "2", "--listener", f"PLAINTEXT://127.0.0.1:{port}")
    store = (*in_pulsar(pulsar, PARTITIONS), *second)
    with Gateways(tmp_path, store, 1, {"node_id": None}) as gateways:
        supervisor = gateways.nodes[1]
        supervisor.by_fork = False
        gateways.launch()

        def leading() -> set[int]:
            with supervisor.peer() as peer:
                return set(leaders(peer, "orders").values())

        def ids() -> list[dict[int, int]]:
            """Node ids by port, as both workers know them."""
            with supervisor.peer() as one, Peer(("127.0.0.1", port)) as two:
                return [
                    {broker.port: broker.node_id for broker in metadata(peer).brokers}
                    for peer in (one, two)
                ]

        create_topic(supervisor.bootstrap, "orders", PARTITIONS)
        taken = gateways.until(ids, lambda found: found[0] == found[1] and len(found[0]) == 2)
        numbers = set(taken[0].values())
        assert numbers == {0, 1}
        gateways.until(leading, lambda found: found == numbers)
        before = children(supervisor.process.pid)
        assert len(before) == 2
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        workers = gateways.until(
            lambda: children(supervisor.process.pid),
            lambda found: len(found) == 2 and killed not in found,
        )
        gateways.until(ids, lambda found: found == taken)
        gateways.until(leading, lambda found: found == numbers)
        create_topic(f"{supervisor.bootstrap},127.0.0.1:{port}", "later", 1)
        assert supervisor.has_logged("worker ended, restarting it")
        supervisor.end()
        assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
        gateways.launch()
        gateways.until(ids, lambda found: found == taken)
        gateways.until(leading, lambda found: found == numbers)
        assert gateways.unexpected_errors() == []
