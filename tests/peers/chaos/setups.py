"""The stores that a run can use, each with the servers that faults can be injected into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from storage.pulsar.settings import PulsarSettings
from tests.peers.chaos.client_processes import ChaosClients
from tests.peers.chaos.evidence import Log
from tests.peers.chaos.faults import (
    GATEWAY_ONLY,
    IN_CLUSTER,
    WITH_BROKER,
    Action,
    ServerFault,
    Target,
)
from tests.peers.chaos.pulsar_logs import read_log, read_native_log
from tests.peers.chaos.run import Outcome, Stage, run_chaos
from tests.peers.chaos.servers import Link, RestartableGateway, Servers
from tests.peers.cluster.gateways import Gateways
from tests.testkit.pulsar import BROKER_MEMORY, ONE_BOOKIE, Pulsar
from tests.testkit.pulsar_relay import PulsarRelays
from tests.testkit.verifiable import TOPIC

#: Of the topic, with one gateway. In a cluster each shard has one partition, and so all gateways
#: lead some.
PARTITIONS, SHARDS = 4, 12
SETTINGS = {"group_initial_rebalance_delay_ms": 500}
#: Shorter than the longest pause, so that after such a pause partitions are reopened.
ON_PULSAR = {**SETTINGS, "pulsar_send_timeout_ms": 8_000}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """The processes of a run: the number of gateways, the clients, and a running broker that may be
    killed; without one a separate broker is started.
    """

    gateways: int = 1
    clients: ChaosClients = field(default_factory=ChaosClients)
    broker: Pulsar | None = None


Run = Callable[[Path, Sequence[ServerFault], float, Say, RunProcesses], Outcome]
"""Arguments: the folder, the faults, their seconds, what receives a line per event, and the
processes.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """`kinds` are the possible faults of one gateway, `cluster_kinds` those of several."""

    kinds: Sequence[tuple[Target, Action]]
    run: Run
    cluster_kinds: Sequence[tuple[Target, Action]] = ()

    def kinds_for(self, gateways: int) -> Sequence[tuple[Target, Action]]:
        """Empty if a store cannot have that number of gateways."""
        return self.cluster_kinds if gateways > 1 else self.kinds


def on_embedded(
    folder: Path, faults: Sequence[ServerFault], seconds: float, say: Say, processes: RunProcesses
) -> Outcome:
    store = ("--store", f"lmdb:{folder / 'store'}")
    gateway = RestartableGateway(folder, store, SETTINGS)
    stage = Stage(gateway, Servers([gateway]), PARTITIONS)
    return run_chaos(folder, stage, faults, seconds, say, processes.clients)


def on_pulsar(
    folder: Path,
    faults: Sequence[ServerFault],
    seconds: float,
    say: Say,
    processes: RunProcesses,
    *,
    is_native: bool = False,
) -> Outcome:
    """With `is_native`, in the format of native clients, where Pulsar detects duplicate messages of
    its client. Several gateways have a relay each, which can cut their connections to Pulsar.
    """
    count = processes.gateways
    with ExitStack() as stack:
        broker = processes.broker or stack.enter_context(
            Pulsar.start(memory=BROKER_MEMORY, **ONE_BOOKIE)
        )
        tenant = broker.tenant()
        topics, metadata = tenant.namespace(), tenant.namespace()
        if is_native:
            path = f"namespaces/{tenant.name}/{topics}/deduplication"
            tenant.admin("POST", path, True)
        partitions = PARTITIONS if count == 1 else SHARDS
        settings = {
            **ON_PULSAR,
            "pulsar_tenant": tenant.name,
            "pulsar_metadata_tenant": tenant.name,
            "pulsar_namespace": topics,
            "pulsar_metadata_namespace": metadata,
            **({"entry_format": "pulsar"} if is_native else {}),
            "offsets_shards": partitions,
        }
        store = ["--store", broker.service_url, "--set", f"pulsar_admin={broker.admin_url}"]
        places = PulsarSettings(broker.service_url, broker.admin_url)
        relays = {
            node: stack.enter_context(PulsarRelays(places))
            for node in (range(1, count + 1) if count > 1 else ())
        }
        relayed = {node: relay.redirected(store) for node, relay in relays.items()}
        gateways = Gateways(folder, store, count, settings, relayed)

        @cache
        def nodes_of(producer_name: str) -> Sequence[int]:
            if not relays:
                return list(gateways.nodes)
            return [
                node for node, relay in relays.items() if relay.broker.has_opened(producer_name)
            ]

        def natively(found: Log) -> Iterator[Log]:
            where = broker.service_url, f"persistent://{tenant.name}/{topics}", partitions
            yield read_native_log(*where, found) if is_native else read_log(*where, nodes_of)

        stage = Stage(
            gateways,
            Servers([*gateways.nodes.values()], broker, [Link(one) for one in relays.values()]),
            partitions,
            natively,
            lambda: gateways.wait_until_led(TOPIC, [*gateways.nodes]),
            allows_gaps=is_native,
        )
        return run_chaos(folder, stage, faults, seconds, say, processes.clients)


SETUPS: Mapping[str, Setup] = {
    "embedded": Setup(GATEWAY_ONLY, on_embedded),
    "pulsar": Setup(WITH_BROKER, on_pulsar, IN_CLUSTER),
    "pulsar-native": Setup(WITH_BROKER, partial(on_pulsar, is_native=True), IN_CLUSTER),
}
