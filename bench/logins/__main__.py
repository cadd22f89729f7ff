"""`make bench-logins`: log-ins per second and CPU time of a log-in, by SASL mechanism.

Each log-in is a new connection: ApiVersions, SaslHandshake, SaslAuthenticate, close. Several
clients do this at the same time. The first row has connections without a log-in. With --kafka,
Apache Kafka has the same users, and the servers take turns at every step. GSSAPI is measured where
python-gssapi and a KDC are installed. The work of clients and of the KDC is not measured.

- PLAIN, first: the password of this user was not verified recently, so the gateway hashes it.
- PLAIN, again: it was, so the gateway finds it in its cache. Kafka stores passwords in the clear
  and hashes nothing.
- PLAIN, token: the password is a JWT of KoP, signed with HS256. Kafka has no such password.
- OAUTHBEARER: a JWT, signed with RS256 by a key of a local key set.
- SCRAM: one user, 4096 iterations. The client's own work is cached.
- GSSAPI: a Kerberos ticket, without mutual authentication as in Java's client.
- client certificate: no SASL; the server verifies a certificate in the TLS handshake.

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
    SCRAM_USERS,
    USERS,
    WITH_PASSWORDS,
    Credentials,
    LoginServer,
    login_servers,
    user_name,
)
from bench.logins.sasl_client import PASSWORD, LoginConnection, trusting_context
from bench.servers import BenchGateway

BEGIN, END = "<!-- logins: begin -->", "<!-- logins: end -->"
GUESSES_BEGIN, GUESSES_END = "<!-- guesses: begin -->", "<!-- guesses: end -->"


class LoginKind(msgspec.Struct, frozen=True):
    """A row of the table. Without `mechanism`, connections are opened and closed.

    With `is_first`, each log-in is that of another user. `share` is the number of log-ins, as a
    part of that of other rows. With `is_token`, the password is a token of KoP.
    """

    name: str
    listener: str
    mechanism: str | None = None
    is_first: bool = False
    is_token: bool = False
    share: float = 1.0


KINDS = [
    LoginKind("no log-in", "PLAINTEXT"),
    LoginKind("PLAIN, first", "SASL_PLAINTEXT", "PLAIN", is_first=True, share=0.2),
    LoginKind("PLAIN, again", "SASL_PLAINTEXT", "PLAIN"),
    LoginKind("PLAIN, token", "SASL_PLAINTEXT", "PLAIN", is_token=True),
    LoginKind("OAUTHBEARER", "SASL_PLAINTEXT", "OAUTHBEARER"),
    LoginKind("SCRAM-SHA-256", "SASL_PLAINTEXT", "SCRAM-SHA-256"),
    LoginKind("SCRAM-SHA-512", "SASL_PLAINTEXT", "SCRAM-SHA-512"),
    LoginKind("GSSAPI", "SASL_PLAINTEXT", "GSSAPI"),
    LoginKind("TLS, no log-in", "SASL_SSL"),
    LoginKind("TLS, client certificate", "SSL"),
    LoginKind("TLS, PLAIN, again", "SASL_SSL", "PLAIN"),
    LoginKind("TLS, OAUTHBEARER", "SASL_SSL", "OAUTHBEARER"),
    LoginKind("TLS, SCRAM-SHA-256", "SASL_SSL", "SCRAM-SHA-256"),
    LoginKind("TLS, SCRAM-SHA-512", "SASL_SSL", "SCRAM-SHA-512"),
    LoginKind("TLS, GSSAPI", "SASL_SSL", "GSSAPI"),
]


class LoginRate(msgspec.Struct, frozen=True):
    """One step: log-ins per second, and the server's CPU milliseconds of each."""

    kind: str
    server: str
    rate: float
    cpu_ms: float


class LoginLoad:
    """Logs in `count` times from `clients` threads."""

    def __init__(self, count: int, clients: int, credentials: Credentials) -> None:
        self._count = count
        self._clients = clients
        self._credentials = credentials
        self._contexts = {
            "SSL": trusting_context(credentials.client_certificate),
            "SASL_SSL": trusting_context(),
        }
        self._steps = 0
        self._next_user = 0

    def includes(self, server: LoginServer, kind: LoginKind) -> bool:
        """Whether the server supports this kind here."""
        if kind.is_token and server.name != BenchGateway.name:
            return False
        return kind.mechanism is None or kind.mechanism in self._credentials.mechanisms

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
        context = self._contexts.get(kind.listener)
        with LoginConnection(server.addresses[kind.listener], context) as connection:
            if kind.mechanism is not None:
                connection.log_in(kind.mechanism, user, self._password(kind))

    def _password(self, kind: LoginKind) -> str:
        if kind.is_token:
            return f"token:{self._credentials.secret_token}"
        if kind.mechanism == "OAUTHBEARER":
            return self._credentials.bearer_token
        if kind.mechanism == "GSSAPI":
            return str(self._credentials.ticket_cache)
        return PASSWORD


def main() -> int:
    options = _options()
    load = " ".join(f"{figure:.2f}" for figure in os.getloadavg())
    if options.guesses:
        with login_servers(has_kafka=False) as ((server,), _):
            times = [
                measure_guesses(server, name, options.guesses, random.Random(1))
                for name in WITH_PASSWORDS
            ]
        _write(options, _conditions(options, load), guess_table(times), GUESSES_BEGIN, GUESSES_END)
        return 0
    found: list[LoginRate] = []
    with login_servers(has_kafka=options.kafka) as (servers, credentials):
        logins = LoginLoad(options.logins, options.clients, credentials)
        pairs = [(server, kind) for kind in KINDS for server in servers]
        steps = [pair for pair in pairs if logins.includes(*pair)]
        for number in range(-options.warm_up, options.rounds):
            for server, kind in steps:
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
    if not values:
        return ""
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
