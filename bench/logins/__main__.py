"""`make bench-logins`: log-ins per second and CPU time of a log-in, by SASL mechanism.

Each log-in is a new connection: ApiVersions, SaslHandshake, SaslAuthenticate, close. Several
clients do this at the same time. The first row has connections without a log-in. With --kafka,
Apache Kafka has the same users, and the servers take turns at every step.

- PLAIN, first: the password of this user was not verified recently, so the gateway hashes it.
- PLAIN, again: it was, so the gateway finds it in its cache. Kafka stores passwords in the clear
  and hashes nothing.
- SCRAM: one user, 4096 iterations. The client's own work is cached.

With --guesses N instead, one client sends N wrong user names and N wrong passwords in random order,
and the times until the answers are compared.

With the defaults it takes about two minutes, with --kafka five.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from bench.__main__ import replace_between_marks
from bench.logins.guesses import GuessTimes, measure_guesses
from bench.logins.login_servers import (
    MECHANISMS,
    SCRAM_USERS,
    USERS,
    LoginServer,
    login_servers,
    user_name,
)
from bench.logins.sasl_client import LoginConnection, trusting_context

BEGIN, END = "<!-- logins: begin -->", "<!-- logins: end -->"
GUESSES_BEGIN, GUESSES_END = "<!-- guesses: begin -->", "<!-- guesses: end -->"


class LoginKind(msgspec.Struct, frozen=True):
    """A row of the table. Without `mechanism`, connections are opened and closed.

    With `is_first`, each log-in is that of another user. `share` is the number of log-ins, as a
    part of that of other rows.
    """

    name: str
    listener: str
    mechanism: str | None = None
    is_first: bool = False
    share: float = 1.0


KINDS = [
    kind
    for tls, plain, sasl in (("", "PLAINTEXT", "SASL_PLAINTEXT"), ("TLS, ", "SSL", "SASL_SSL"))
    for kind in (
        LoginKind(f"{tls}no log-in", plain),
        *((LoginKind("PLAIN, first", sasl, "PLAIN", is_first=True, share=0.2),) * (not tls)),
        LoginKind(f"{tls}PLAIN, again", sasl, "PLAIN"),
        *(LoginKind(f"{tls}{name}", sasl, name) for name in MECHANISMS[1:]),
    )
]


class LoginRate(msgspec.Struct, frozen=True):
    """One step: log-ins per second, and the server's CPU milliseconds of each."""

    kind: str
    server: str
    rate: float
    cpu_ms: float


class LoginLoad:
    """Logs in `count` times from `clients` threads."""

    def __init__(self, count: int, clients: int) -> None:
        self._count = count
        self._clients = clients
        self._context = trusting_context()
        self._steps = 0
        self._next_user = 0

    def run(self, server: LoginServer, kind: LoginKind) -> LoginRate:
        """Raises the first failure of a log-in."""
        count = max(int(self._count * kind.share), self._clients)
        if kind.is_first:
            # Verified passwords are cached for a minute.
            users = [
                user_name(SCRAM_USERS + (self._next_user + number) % (USERS - SCRAM_USERS))
                for number in range(count)
            ]
            self._next_user += count
        else:
            # PLAIN: another user in each step, verified now and then cached for a minute.
            user = user_name(self._steps % SCRAM_USERS)
            self._steps += 1
            self._log_in(server, kind, user)
            users = [user] * count
        failures: list[Exception] = []
        threads = [
            threading.Thread(target=self._work, args=(server, kind, users, failures))
            for _ in range(self._clients)
        ]
        cpu, began = server.cpu_seconds(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, cpu = time.perf_counter() - began, server.cpu_seconds() - cpu
        if failures:
            raise failures[0]
        return LoginRate(kind.name, server.name, count / seconds, cpu / count * 1000)

    def _work(
        self,
        server: LoginServer,
        kind: LoginKind,
        users: list[str],
        failures: list[Exception],
    ) -> None:
        while not failures:
            try:
                user = users.pop()
            except IndexError:
                return
            try:
                self._log_in(server, kind, user)
            except Exception as failure:  # noqa: BLE001 - raised in the thread that waits
                failures.append(failure)

    def _log_in(self, server: LoginServer, kind: LoginKind, user: str) -> None:
        context = self._context if kind.listener.endswith("SSL") else None
        with LoginConnection(server.addresses[kind.listener], context) as connection:
            if kind.mechanism is not None:
                connection.log_in(kind.mechanism, user)


def main() -> int:
    options = _options()
    load = " ".join(f"{figure:.2f}" for figure in os.getloadavg())
    if options.guesses:
        with login_servers(has_kafka=False) as (server,):
            times = [
                measure_guesses(server, name, options.guesses, random.Random(1))
                for name in MECHANISMS
            ]
        _write(options, _conditions(options, load), guess_table(times), GUESSES_BEGIN, GUESSES_END)
        return 0
    found: list[LoginRate] = []
    with login_servers(has_kafka=options.kafka) as servers:
        logins = LoginLoad(options.logins, options.clients)
        for number in range(-options.warm_up, options.rounds):
            for kind in KINDS:
                for server in servers:
                    rate = logins.run(server, kind)
                    print(f"# round {number}: {rate}", file=sys.stderr)
                    found += [rate] * (number >= 0)
    _write(options, _conditions(options, load), rate_table(found), BEGIN, END)
    return 0


def rate_table(rates: Sequence[LoginRate]) -> str:
    """Markdown with medians and ranges over the rounds."""
    servers = list(dict.fromkeys(rate.server for rate in rates))
    heads = [f"{server} {what}" for what in ("CPU ms", "log-ins/s") for server in servers]
    rows = [["log-in", *heads], ["---"] * (1 + len(heads))]
    for kind in dict.fromkeys(rate.kind for rate in rates):
        of = {
            server: [one for one in rates if (one.kind, one.server) == (kind, server)]
            for server in servers
        }
        rows.append(
            [
                kind,
                *(_figures([one.cpu_ms for one in of[server]], 2) for server in servers),
                *(_figures([one.rate for one in of[server]], 0) for server in servers),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _figures(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def guess_table(times: Sequence[GuessTimes]) -> str:
    """Markdown with the times in ms, and the probability that a wrong user takes longer."""
    rows = [
        "| mechanism | token | wrong user p50 / p90 ms | wrong password p50 / p90 ms "
        "| wrong user is slower (95 % if equal) |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {one.mechanism} | {step + 1} | {_percentiles(user)} | {_percentiles(password)} "
        f"| {one.probability(step):.3f} (0.5 +- {one.margin:.3f}) |"
        for one in times
        for step, (user, password) in enumerate(
            zip(one.wrong_user, one.wrong_password, strict=True)
        )
    ]
    return "\n".join(rows)


def _percentiles(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"{median(ordered) * 1000:.2f} / {ordered[len(ordered) * 9 // 10] * 1000:.2f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-logins",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before these (2)")
    parser.add_argument("--logins", type=int, default=300, help="log-ins of a step (300)")
    parser.add_argument("--clients", type=int, default=8, help="connections at a time (8)")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too")
    parser.add_argument("--guesses", type=int, default=0, metavar="N", help="compare guesses")
    parser.add_argument("--out", type=Path, help="file for the table, such as docs/benchmarks.md")
    options = parser.parse_args()
    if not (options.rounds > 0 and options.clients > 0 and options.logins >= options.clients):
        parser.error("--rounds and --clients must be positive, --logins at least --clients")
    return options


def _conditions(options: argparse.Namespace, load: str) -> str:
    if options.guesses:
        arguments = f"--guesses {options.guesses}"
    else:
        arguments = (
            f"--rounds {options.rounds} --warm-up {options.warm_up} --logins {options.logins} "
            f"--clients {options.clients}{' --kafka' if options.kafka else ''}"
        )
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-logins ARGS="{arguments}"`, '
        f"Python {platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}, load "
        f"average before it {load}."
    )


def _write(options: argparse.Namespace, conditions: str, table: str, begin: str, end: str) -> None:
    print(table)
    if options.out is not None:
        text = options.out.read_text() if options.out.exists() else "# Benchmarks\n\n"
        block = f"{conditions}\n\n{table}"
        options.out.write_text(replace_between_marks(text, block, begin, end))


if __name__ == "__main__":
    sys.exit(main())
