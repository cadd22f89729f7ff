"""The broker that the clients use: the gateway, or Apache Kafka 3.9.2 to verify the tests
themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.testkit.forks.prepared_gateway import start_gateway
from tests.testkit.kafka import VERSION, Kafka, Secured
from tests.testkit.tenant import Tenant

#: The gateway reads its tables in Pulsar first, which may be busy with other tests.
START_SECONDS = 120.0
STOP_SECONDS = 60.0
#: An empty group starts its first rebalance at once; the reference has the same setting.
NO_REBALANCE_DELAY = ("--set", "group_initial_rebalance_delay_ms=0")
#: The default of 32 would be most of the work of a gateway that starts on Pulsar.
FEW_SHARDS = 4
READY = re.compile(r"^ready listeners=(\S+) store=\S+ node=-?\d+$")


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Client addresses by listener name; `is_reference` for Kafka itself."""

    listeners: Mapping[str, str]
    is_reference: bool

    @property
    def bootstrap(self) -> str:
        return self.listeners["PLAINTEXT"]


StoreArguments = Callable[[Path], Sequence[str]]
"""Returns the arguments that give the gateway with this folder a separate store."""


def embedded(folder: Path) -> Sequence[str]:
    return ("--store", f"lmdb:{folder / 'store'}")


def in_pulsar(tenant: Tenant, shards: int | None = FEW_SHARDS) -> Sequence[str]:
    """Arguments for two new namespaces of the tenant; None for the default number of shards."""
    places = {f"pulsar_{name}": tenant.namespace() for name in ("namespace", "metadata_namespace")}
    settings = {
        "pulsar_admin": tenant.admin_url,
        "pulsar_tenant": tenant.name,
        "pulsar_metadata_tenant": tenant.name,
        **places,
    }
    # Pulsar on a busy machine stalls for seconds, and some clients do not retry their last commit.
    settings["offsets_commit_timeout_ms"] = "20000"
    if shards is not None:
        settings["offsets_shards"] = str(shards)
    return (
        "--store",
        tenant.service_url,
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    )


class GatewayFailed(Exception):
    """The gateway failed to start or to stop; the message ends with the tail of its stderr."""


@contextmanager
def reference(
    secured: Secured | None = None, advertised: str | None = None, version: str = VERSION
) -> Iterator[RunningBroker]:
    """Apache Kafka. `advertised` is an endpoint, NAME://host:port, to advertise."""
    with Kafka.start(
        version=version,
        secured=secured,
        **({"advertised_listeners": advertised} if advertised else {}),
    ) as kafka:
        yield RunningBroker(dict(kafka.listeners), is_reference=True)


@contextmanager
def gateway(
    folder: Path,
    listeners: Sequence[str] = ("PLAINTEXT://127.0.0.1:0",),
    arguments: Sequence[str] = (),
    stored: StoreArguments = embedded,
    by_fork: bool | None = None,
) -> Iterator[RunningBroker]:
    """Run `kopgate serve` on free ports with its log in `folder`.

    SIGTERM at the end must give exit code 0. `by_fork` is that of `start_gateway`.
    """
    named = [word for listener in listeners for word in ("--listener", listener)]
    words = ["serve", *named, *stored(folder), *arguments]
    log = folder / "gateway.log"
    with (
        log.open("w") as errors,
        start_gateway(words, errors, by_fork=by_fork) as process,
    ):
        try:
            yield RunningBroker(_ready_listeners(process, log), is_reference=False)
            process.terminate()
            code = process.wait(STOP_SECONDS)
        finally:
            process.kill()
    if code:
        raise GatewayFailed(f"exit code {code} after SIGTERM\n{_tail(log)}")


def _ready_listeners(process: subprocess.Popen[str], log: Path) -> dict[str, str]:
    assert process.stdout is not None
    overdue = threading.Timer(START_SECONDS, process.kill)
    overdue.start()
    try:
        line = process.stdout.readline()
    finally:
        overdue.cancel()
    ready = READY.match(line)
    if not ready:
        raise GatewayFailed(
            f"no ready line within {START_SECONDS:.0f} s, but {line!r}\n{_tail(log)}"
        )
    pairs = [one.partition("://") for one in ready[1].split(",")]
    return {name: address for name, _, address in pairs}


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def are_required() -> bool:
    """Whether a peer that cannot run is a failure, as in CI; otherwise its tests are skipped."""
    return bool(os.environ.get("CI") or os.environ.get("TESTS_REQUIRE_PEERS"))
