"""The stores that a run can be had on, with the servers that can be struck there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers.chaos.evidence import Log
from tests.peers.chaos.faults import GATEWAY_ONLY, WITH_BROKER, Action, Fault, Target
from tests.peers.chaos.pulsar_logs import read_log, read_native_log
from tests.peers.chaos.run import PARTITIONS, Outcome, run_chaos
from tests.peers.chaos.servers import RestartableGateway, RetryingGateway
from tests.peers.pulsar import Pulsar
from tests.peers.tenant import Tenant

SETTINGS = {"num_partitions": PARTITIONS, "group_initial_rebalance_delay_ms": 500}
#: Shorter than the longest pause, so that such a one ends with partitions that begin anew.
ON_PULSAR = {**SETTINGS, "pulsar_send_timeout_ms": 8_000}
#: A broker that holds less than half of this machine's smallest peers.
BROKER_MEMORY = "400m"
#: Its only bookie would be left alone for half an hour after a pause, for the writes that failed in it: nothing could be made any more.
ONE_BOOKIE = {"bookkeeperClientHealthCheckEnabled": "false"}

Say = Callable[[str], None]
LogReader = Callable[[str, str, int, Log], Log]
"""Reads the topic as it lies in Pulsar: the address, the namespace, how many partitions, and what the gateway has found there."""


@dataclass(frozen=True, slots=True)
class Setup:
    """`kinds` are the faults that there can be."""

    kinds: Sequence[tuple[Target, Action]]
    run: Callable[[Path, Sequence[Fault], float, Say], Outcome]


def on_embedded(folder: Path, faults: Sequence[Fault], seconds: float, say: Say) -> Outcome:
    gateway = RestartableGateway(folder, ("--store", f"lmdb:{folder / 'store'}"), SETTINGS)
    return run_chaos(
        folder, gateway, {Target.GATEWAY: gateway}, faults, seconds, say, lambda found: []
    )


def on_pulsar(folder: Path, faults: Sequence[Fault], seconds: float, say: Say) -> Outcome:
    """A broker of its own, which nobody else would like to have killed."""
    return _on_pulsar(folder, faults, seconds, say, read_log)


def on_native(folder: Path, faults: Sequence[Fault], seconds: float, say: Say) -> Outcome:
    """As before, in the format that native clients share: there it is Pulsar that knows again what its client sends twice."""
    return _on_pulsar(
        folder, faults, seconds, say, read_native_log, deduplicates=True, entry_format="pulsar"
    )


def _on_pulsar(
    folder: Path,
    faults: Sequence[Fault],
    seconds: float,
    say: Say,
    read_log: LogReader,
    *,
    deduplicates: bool = False,
    **settings: str,
) -> Outcome:
    with Pulsar.start(memory=BROKER_MEMORY, **ONE_BOOKIE) as broker:
        tenant = Tenant.make(broker.service_url, broker.admin_url)
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
