"""Runs every real client against a gateway with a traffic log and records what the log shows.

    python -m tests.legacy_clients.fingerprints.record [--clients FILE.toml ...] [--client NAME ...]
        [--scenario NAME ...] [--out FILE] [--runs N] [--add]
    python -m tests.legacy_clients.fingerprints.record --target-broker VERSION --out FILE
        [--clients FILE.toml ...] [--client NAME ...] [--scenario NAME ...]

The first form records the data of `compat/fingerprint`. The second form runs the clients against
that Apache Kafka and records which scenarios work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.legacy_clients.brokers import NO_REBALANCE_DELAY, GatewayFailed, RunningBroker, gateway
from tests.legacy_clients.clients import Client, DriverFailed, table
from tests.legacy_clients.fingerprints.observed import (
    LIBRARIES,
    Observation,
    RunIdentity,
    encode,
    merge,
    observation,
    read,
)
from tests.legacy_clients.fingerprints.scenarios import (
    PATIENCE_SECONDS,
    PreparedRun,
    connect,
    run_scenario,
    scenarios_of,
)
from tests.legacy_clients.fingerprints.verdicts import write_verdicts
from tests.legacy_clients.install import install
from tests.legacy_clients.logins.users import users_file
from tests.testkit.cache import CannotInstall, command
from tests.testkit.traffic_rows import Row, read_rows

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CLIENTS = HERE.parent / "clients.toml"
OBSERVED = ROOT / "compat" / "fingerprint" / "observed.jsonl"

ATTEMPTS = 2

LISTENERS = ("PLAINTEXT://127.0.0.1:0", "SASL_PLAINTEXT://127.0.0.1:0")
#: Options that pin the protocol versions.
PINS = ("--api-version", "--version", "--max-version", "broker.version.fallback")


def pinned_options(client: Client) -> str | None:
    """The options of a row that pin the broker version, or None."""
    text = " ".join(client.options)
    return text if any(word in text for word in PINS) else None


@cache
def library_version(client: Client) -> str:
    """The library's version; for bindings of librdkafka the version of librdkafka."""
    return (
        command([*install(client), "version"]).strip()
        if client.library in ("confluent-kafka", "kcat")
        else client.version
    )


class TrafficLogWatch:
    """A gateway's traffic log, divided by runs.

    It connects to each listener before and after a run. A listener accepts connections in order and
    the log numbers them, so connections with a number in between belong to the run, whatever their
    client id.
    """

    def __init__(self, broker: RunningBroker, log: Path) -> None:
        self.broker = broker
        self._log = log

    def mark(self) -> int:
        """Return the number of the newest connection."""
        return max(self._passed(listener) for listener in self.broker.listeners)

    def between(self, after: int, before: int) -> list[Row]:
        """Return all rows of the connections between two marks, once all are closed."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            rows = [row for row in read_rows(self._log) if after < connection_number(row) < before]
            opened = {row["connection"] for row in rows}
            closed = {row["connection"] for row in rows if row.get("event") == "closed"}
            if opened == closed:
                return rows
            if time.monotonic() > end:
                raise TimeoutError(f"still open: {sorted(opened - closed)}")
            time.sleep(0.05)

    def _passed(self, listener: str) -> int:
        with connect(self.broker, listener) as peer:
            port = peer.socket.getsockname()[1]
            end = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < end:
                # The newest: ports are reused.
                rows = [
                    row
                    for row in read_rows(self._log)
                    if row["kind"] == "connection" and row["peer_port"] == port
                ]
                if rows and rows[-1]["event"] == "opened":
                    return connection_number(rows[-1])
                time.sleep(0.02)
        raise TimeoutError(f"a connection to {listener} is not in the log")


def connection_number(row: Row) -> int:
    return int(row["connection"].rpartition("-")[2])


@contextmanager
def watch_gateway() -> Iterator[TrafficLogWatch]:
    with tempfile.TemporaryDirectory(prefix="kopgate-fingerprints-") as name:
        folder = Path(name)
        arguments = [
            *NO_REBALANCE_DELAY,
            "--traffic-log",
            str(folder / "traffic"),
            "--set",
            f"users_file={users_file(folder)}",
        ]
        with gateway(folder, LISTENERS, arguments) as broker:
            yield TrafficLogWatch(broker, folder / "traffic")


def record_once(client: Client, scenario: str, watch: TrafficLogWatch) -> Observation:
    """Run a client once; return its observation."""
    with connect(watch.broker) as peer:
        prepared = PreparedRun(peer, f"recorded-{uuid.uuid4().hex}", scenario)
        before = watch.mark()
        run_scenario(client, scenario, watch.broker, prepared)
        rows = watch.between(before, watch.mark())
    whose = RunIdentity(
        client=client.name,
        library=LIBRARIES.get(client.library, client.library),
        version=library_version(client),
        pinned=pinned_options(client),
        scenario=scenario,
        # The longer name first: it contains the other.
        names=(prepared.group, prepared.topic),
    )
    return observation(whose, rows)


def record_with_retry(client: Client, scenario: str, watch: TrafficLogWatch) -> Observation:
    """Record a client; repeat a run that timed out on a busy machine."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return record_once(client, scenario, watch)
        except DriverFailed:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.legacy_clients.fingerprints.record",
        description="Record what real clients look like in the traffic log.",
    )
    add = parser.add_argument
    add(
        "--clients",
        action="append",
        type=Path,
        metavar="FILE",
        help="tables of clients; may be repeated (default: clients.toml and recorded.toml)",
    )
    add(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; may be repeated",
    )
    add(
        "--scenario",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; may be repeated",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        default=OBSERVED,
        help="output file; lines of other clients stay (default: %(default)s)",
    )
    add(
        "--runs",
        type=int,
        default=2,
        metavar="N",
        help="number of runs, whose observations are merged (default: %(default)s)",
    )
    add("--add", action="store_true", help="merge with the observations in the file")
    add(
        "--target-broker",
        metavar="VERSION",
        help="run them against this Apache Kafka instead, and record what works",
    )
    wanted = parser.parse_args(words)
    rows = {
        name: row
        for file in wanted.clients or [CLIENTS, HERE / "recorded.toml"]
        for name, row in table(file).items()
    }
    if unknown := set(wanted.client) - set(rows):
        parser.error(f"no table has {', '.join(sorted(unknown))}")
    clients = [row for row in rows.values() if not wanted.client or row.name in wanted.client]
    if wanted.target_broker:
        return write_verdicts(
            clients, wanted.target_broker, wanted.out, show_progress, wanted.scenario
        )
    return record(clients, wanted.out, wanted.runs, wanted.add, wanted.scenario)


def record(
    clients: Sequence[Client], out: Path, runs: int, adds: bool, only: Sequence[str] = ()
) -> int:
    """Record the clients; the file is complete after each client.

    `only` selects scenarios. Returns exit code 1 if a scenario could not be recorded; its old lines
    stay.
    """
    failed: list[str] = []
    todo = [(client, scenarios_of(client, only)) for client in clients]
    total, done = sum(len(scenarios) for _, scenarios in todo), 0
    for client, scenarios in todo:
        known = read(out)
        try:
            install(client)
            with watch_gateway() as watch:
                for scenario in scenarios:
                    show_progress(done, total, f"{client} {scenario}")
                    failed += _record_scenario(client, scenario, watch, runs, known, adds)
                    done += 1
        except (CannotInstall, GatewayFailed, subprocess.SubprocessError) as reason:
            failed.append(f"{client}: {reason}")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(encode(known.values()))
    show_progress(total, total, "done")
    sys.stderr.write("\n" + "".join(f"{one}\n" for one in failed))
    return 1 if failed else 0


def _record_scenario(
    client: Client,
    scenario: str,
    watch: TrafficLogWatch,
    runs: int,
    known: dict[tuple[str, str], Observation],
    adds: bool,
) -> list[str]:
    """Add the observation to `known`; return errors."""
    try:
        seen = [record_with_retry(client, scenario, watch) for _ in range(runs)]
        key = seen[0].key
        known[key] = merge([*seen, *([known[key]] if adds and key in known else [])])
    except (DriverFailed, TimeoutError, ValueError) as failure:
        return [f"{client} {scenario}: {failure}"]
    return []


def show_progress(done: int, total: int, what: str) -> None:
    """Overwrite the progress line."""
    width = 30
    bar = "#" * (width * done // max(total, 1))
    sys.stderr.write(f"\r\x1b[K[{bar:{width}}] {done}/{total} {what}")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
