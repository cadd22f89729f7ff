"""The stores that a run can be had on, with the servers that can be struck there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers.chaos.evidence import Log
from tests.peers.chaos.faults import GATEWAY_ONLY, WITH_BROKER, Blow, Fault, Target
from tests.peers.chaos.in_pulsar import stored, stored_natively
from tests.peers.chaos.run import PARTITIONS, Outcome, carried_out
from tests.peers.chaos.servers import Gateway, Supervised
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
Stored = Callable[[str, str, int, Log], Log]
"""Reads the topic as it lies in Pulsar: the address, the namespace, how many partitions, and what the gateway has found there."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`kinds` are the faults that there can be."""

    kinds: Sequence[tuple[Target, Blow]]
    plays: Callable[[Path, Sequence[Fault], float, Say], Outcome]


def on_embedded(folder: Path, faults: Sequence[Fault], seconds: float, say: Say) -> Outcome:
    gateway = Gateway(folder, ("--store", f"lmdb:{folder / 'store'}"), SETTINGS)
    return carried_out(
        folder, gateway, {Target.GATEWAY: gateway}, faults, seconds, say, lambda found: []
    )


def on_pulsar(folder: Path, faults: Sequence[Fault], seconds: float, say: Say) -> Outcome:
    """A broker of its own, which nobody else would like to have killed."""
    return _on_pulsar(folder, faults, seconds, say, stored)


def on_native(folder: Path, faults: Sequence[Fault], seconds: float, say: Say) -> Outcome:
    """As before, in the format that native clients share: there it is Pulsar that knows again what its client sends twice."""
    return _on_pulsar(
        folder, faults, seconds, say, stored_natively, deduplicates=True, entry_format="pulsar"
    )


def _on_pulsar(
    folder: Path,
    faults: Sequence[Fault],
    seconds: float,
    say: Say,
    stored: Stored,
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
        gateway = Supervised(
            folder,
            ("--store", broker.service_url, "--set", f"pulsar_admin={broker.admin_url}"),
            {**ON_PULSAR, **names, **tenants, **settings},
        )

        def natively(found: Log) -> list[Log]:
            return [
                stored(
                    broker.service_url,
                    f"persistent://{tenant.name}/{names['pulsar_namespace']}",
                    PARTITIONS,
                    found,
                )
            ]

        servers = {Target.GATEWAY: gateway, Target.BROKER: broker}
        return carried_out(
            folder,
            gateway,
            servers,
            faults,
            seconds,
            say,
            natively,
            may_leave_out=stored is stored_natively,
        )


STAGES: Mapping[str, Stage] = {
    "embedded": Stage(GATEWAY_ONLY, on_embedded),
    "pulsar": Stage(WITH_BROKER, on_pulsar),
    "pulsar-native": Stage(WITH_BROKER, on_native),
}
