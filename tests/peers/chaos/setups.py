"""The stores that a run can use, each with the servers that faults can be injected into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers.chaos.evidence import Log
from tests.peers.chaos.faults import GATEWAY_ONLY, WITH_BROKER, Action, ServerFault, Target
from tests.peers.chaos.pulsar_logs import read_log, read_native_log
from tests.peers.chaos.run import PARTITIONS, Outcome, run_chaos
from tests.peers.chaos.servers import RestartableGateway, RetryingGateway
from tests.testkit.pulsar import BROKER_MEMORY, ONE_BOOKIE, Pulsar

SETTINGS = {"num_partitions": PARTITIONS, "group_initial_rebalance_delay_ms": 500}
#: Shorter than the longest pause, so that after such a pause partitions are reopened.
ON_PULSAR = {**SETTINGS, "pulsar_send_timeout_ms": 8_000}

Say = Callable[[str], None]
LogReader = Callable[[str, str, int, Log], Log]
"""Reads the topic from Pulsar, given the address, the namespace, the number of partitions, and what
was read through the gateway.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """`kinds` are the possible faults."""

    kinds: Sequence[tuple[Target, Action]]
    run: Callable[[Path, Sequence[ServerFault], float, Say], Outcome]


def on_embedded(folder: Path, faults: Sequence[ServerFault], seconds: float, say: Say) -> Outcome:
    gateway = RestartableGateway(folder, ("--store", f"lmdb:{folder / 'store'}"), SETTINGS)
    return run_chaos(
        folder, gateway, {Target.GATEWAY: gateway}, faults, seconds, say, lambda found: []
    )


def on_pulsar(folder: Path, faults: Sequence[ServerFault], seconds: float, say: Say) -> Outcome:
    """Use a separate broker, since it is killed."""
    return _on_pulsar(folder, faults, seconds, say, read_log)


def on_native(folder: Path, faults: Sequence[ServerFault], seconds: float, say: Say) -> Outcome:
    """The same in the format of native clients, where Pulsar detects duplicate messages of its
    client.
    """
    return _on_pulsar(
        folder, faults, seconds, say, read_native_log, deduplicates=True, entry_format="pulsar"
    )


def _on_pulsar(
    folder: Path,
    faults: Sequence[ServerFault],
    seconds: float,
    say: Say,
    read_log: LogReader,
    *,
    deduplicates: bool = False,
    **settings: str,
) -> Outcome:
    with Pulsar.start(memory=BROKER_MEMORY, **ONE_BOOKIE) as broker:
        tenant = broker.tenant()
        names = {
            f"pulsar_{name}": tenant.namespace() for name in ("namespace", "metadata_namespace")
        }
        if deduplicates:
            tenant.admin(
                "POST", f"namespaces/{tenant.name}/{names['pulsar_namespace']}/deduplication", True
            )
        tenants = {"pulsar_tenant": tenant.name, "pulsar_metadata_tenant": tenant.name}
        gateway = RetryingGateway(
            folder,
            ("--store", broker.service_url, "--set", f"pulsar_admin={broker.admin_url}"),
            {**ON_PULSAR, **names, **tenants, **settings},
        )

        def natively(found: Log) -> list[Log]:
            return [
                read_log(
                    broker.service_url,
                    f"persistent://{tenant.name}/{names['pulsar_namespace']}",
                    PARTITIONS,
                    found,
                )
            ]

        servers = {Target.GATEWAY: gateway, Target.BROKER: broker}
        return run_chaos(
            folder,
            gateway,
            servers,
            faults,
            seconds,
            say,
            natively,
            allows_gaps=read_log is read_native_log,
        )


SETUPS: Mapping[str, Setup] = {
    "embedded": Setup(GATEWAY_ONLY, on_embedded),
    "pulsar": Setup(WITH_BROKER, on_pulsar),
    "pulsar-native": Setup(WITH_BROKER, on_native),
}
