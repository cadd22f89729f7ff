"""The broker that the clients are pointed at: the gateway, or Apache Kafka 3.9.2 to prove the tests and the table themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.peers.kafka import VERSION, Kafka, Secured
from tests.peers.tenant import Tenant

#: Its tables in Pulsar are read first, and others may be busy there.
START_SECONDS = 120.0
STOP_SECONDS = 60.0
#: A group that was empty waits for nobody, as the reference is set, too.
NO_REBALANCE_DELAY = ("--set", "group_initial_rebalance_delay_ms=0")
READY = re.compile(r"^ready listeners=(\S+) store=\S+ node=-?\d+$")


@dataclass(frozen=True, slots=True)
class Broker:
    """Where clients connect, by listener name; `is_reference` when it is Kafka itself."""

    listeners: Mapping[str, str]
    is_reference: bool

    @property
    def bootstrap(self) -> str:
        return self.listeners["PLAINTEXT"]


StoreArguments = Callable[[Path], Sequence[str]]
"""The arguments by which a gateway with that folder has a store that nobody else has."""


def embedded(folder: Path) -> Sequence[str]:
    return ("--store", f"lmdb:{folder / 'store'}")


def in_pulsar(tenant: Tenant) -> Sequence[str]:
    """In two namespaces of the tenant's, which are made for it."""
    places = {f"pulsar_{name}": tenant.namespace() for name in ("namespace", "metadata_namespace")}
    settings = {
        "pulsar_admin": tenant.admin_url,
        "pulsar_tenant": tenant.name,
        "pulsar_metadata_tenant": tenant.name,
        **places,
    }
    # A Pulsar that others keep busy stands still for seconds, and some clients do not repeat the commit with which they leave.
    settings["offsets_commit_timeout_ms"] = "20000"
    return (
        "--store",
        tenant.service_url,
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    )


class GatewayFailed(Exception):
    """The gateway did not start, or did not stop as it should; ends with the tail of its stderr."""


@contextmanager
def reference(
    secured: Secured | None = None, advertised: str | None = None, version: str = VERSION
) -> Iterator[Broker]:
    """`advertised` is an endpoint, NAME://host:port, that clients are told instead of the listener's own."""
    with Kafka.start(
        version=version,
        secured=secured,
        **({"advertised_listeners": advertised} if advertised else {}),
    ) as kafka:
        yield Broker(dict(kafka.listeners), is_reference=True)


@contextmanager
def gateway(
    folder: Path,
    listeners: Sequence[str] = ("PLAINTEXT://127.0.0.1:0",),
    arguments: Sequence[str] = (),
    stored: StoreArguments = embedded,
) -> Iterator[Broker]:
    """`kopgate serve` on free ports with its log in `folder`; SIGTERM at the end must give exit code 0."""
    named = [word for listener in listeners for word in ("--listener", listener)]
    argv = [sys.executable, "-m", "gateway", "serve", *named, *stored(folder), *arguments]
    log = folder / "gateway.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield Broker(_ready_listeners(process, log), is_reference=False)
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
    """In CI a peer that cannot run is a failure; elsewhere its tests are skipped with the reason."""
    return bool(os.environ.get("CI") or os.environ.get("TESTS_REQUIRE_PEERS"))
