"""Verdicts of a Kafka broker: which scenarios of each real client work there.

Predictions made from a traffic log are compared with them.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.legacy_clients.brokers import RunningBroker, reference
from tests.legacy_clients.clients import Client, DriverFailed
from tests.legacy_clients.fingerprints.scenarios import (
    PreparedRun,
    connect,
    run_scenario,
    scenarios_of,
)
from tests.legacy_clients.install import install
from tests.legacy_clients.logins.users import USER
from tests.testkit.certificates import Authority
from tests.testkit.kafka import Secured

#: A refused client retries until its timeout, so that most of a run is waiting.
AT_ONCE = 4
SECONDS = 20.0
#: Failed runs are repeated when fewer run at once: on a busy machine the timeout may be too short.
ATTEMPTS = 2

ProgressCallback = Callable[[int, int, str], None]
"""Called with the number of completed runs, the total, and the last run."""


class Verdict(msgspec.Struct, frozen=True):
    client: str
    scenario: str
    works: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.client, self.scenario


def read(file: Path) -> dict[tuple[str, str], Verdict]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return {one.key: one for one in (msgspec.json.decode(line, type=Verdict) for line in lines)}


def encode(verdicts: Iterable[Verdict]) -> bytes:
    return b"".join(
        msgspec.json.encode(one) + b"\n" for one in sorted(verdicts, key=lambda one: one.key)
    )


def write_verdicts(
    clients: Sequence[Client],
    version: str,
    out: Path,
    show_progress: ProgressCallback,
    only: Sequence[str] = (),
) -> int:
    """Update the verdicts of these clients in the file; others stay.

    `only` selects scenarios. Raises CannotInstall.
    """
    for client in clients:
        install(client)
    works = {
        (client, scenario): False for client in clients for scenario in scenarios_of(client, only)
    }
    with _kafka(version) as broker:
        for _ in range(ATTEMPTS):
            again = [run for run, does in works.items() if not does]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                under_way = {pool.submit(_works, *run, broker): run for run in again}
                for number, done in enumerate(as_completed(under_way)):
                    works[under_way[done]] = done.result()
                    show_progress(number + 1, len(again), " ".join(map(str, under_way[done])))
    verdicts = {
        (str(client), scenario): Verdict(str(client), scenario, does)
        for (client, scenario), does in works.items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(encode((read(out) | verdicts).values()))
    return 0


def _works(client: Client, scenario: str, broker: RunningBroker) -> bool:
    with connect(broker) as peer:
        prepared = PreparedRun(peer, f"judged-{uuid.uuid4().hex}", scenario)
        try:
            run_scenario(client, scenario, broker, prepared, SECONDS)
        except DriverFailed:
            return False
    return True


@contextmanager
def _kafka(version: str) -> Iterator[RunningBroker]:
    with tempfile.TemporaryDirectory(prefix="kopgate-verdicts-") as name:
        folder = Path(name)
        certificate, key = Authority().sign("127.0.0.1").write(folder, "server")
        both = folder / "both.pem"
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        with reference(Secured((USER,), both), version=version) as broker:
            yield broker
