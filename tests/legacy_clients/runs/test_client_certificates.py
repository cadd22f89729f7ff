"""Real clients log in with a client certificate, and are refused without one and with an
untrusted one; none sends anything to a server that it does not trust.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from tests.legacy_clients.clients import Client, Security, ends_of_libraries, table
from tests.legacy_clients.logins.attempts import (
    PATIENCE_SECONDS,
    RUN_SECONDS,
    RefusedRun,
    concurrent_runs,
    run_refused,
    wait_until,
    write_two_records,
)
from tests.legacy_clients.logins.secured_brokers import SUBJECT, SecuredBroker
from tests.used_peers import uses

pytestmark = [pytest.mark.peer]

#: One row of each version of a library.
ROWS = {(row.library, row.version): row for row in reversed(table().values()) if row.tls}
CLIENTS = tuple(sorted((row.name for row in ROWS.values()), key=list(table()).index))
#: Refused in CI without a certificate: the newest of each library, and the oldest Java client.
IN_CI = {"java-0.9.0.1", *{table()[name].library: name for name in CLIENTS}.values()}
#: Refused in CI for each mistake: one client per implementation of TLS.
FOR_EACH_MISTAKE = {
    "java-4.4.0",
    "confluent-2.16.1",
    "kafka-python-3.0.12",
    "kafkajs-2.2.4",
    "franz-go-1.22.2",
}
#: Accepted in CI.
ENDS = ends_of_libraries(table()[name] for name in CLIENTS)
MISTAKES = ("no-certificate", "strange-certificate", "untrusted-server")
Runs = Mapping[str, Future[Any]]


def refused_cases() -> Iterator[Any]:
    for name in CLIENTS:
        for mistake in MISTAKES:
            in_ci = IN_CI if mistake == MISTAKES[0] else FOR_EACH_MISTAKE
            marks = () if name in in_ci else (pytest.mark.slow,)
            yield pytest.param(name, mistake, id=f"{name}+{mistake}", marks=marks)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, secured: SecuredBroker) -> Iterator[Runs]:
    works: dict[Callable[..., None], Callable[..., Any]] = {
        test_client_with_a_wrong_certificate_is_refused: partial(be_refused, secured),
        test_client_with_a_certificate_is_its_subject: partial(write, secured),
    }
    with concurrent_runs(request, works) as started:
        yield started


def write(secured: SecuredBroker, name: str) -> None:
    security = Security(authority=secured.tls.authority, certificate=secured.tls.client)
    write_two_records(table()[name], secured, secured.address("SSL"), security, RUN_SECONDS)


def be_refused(secured: SecuredBroker, name: str, mistake: str) -> RefusedRun:
    tls = secured.tls
    security = {
        "no-certificate": Security(authority=tls.authority),
        "strange-certificate": Security(authority=tls.authority, certificate=tls.strange_client),
        "untrusted-server": Security(authority=tls.strange_authority, certificate=tls.client),
    }[mistake]
    return run_refused(table()[name], secured, "SSL", security, PATIENCE_SECONDS)


@pytest.mark.parametrize(("name", "mistake"), tuple(refused_cases()))
def test_client_with_a_wrong_certificate_is_refused(
    name: str,
    mistake: str,
    secured: SecuredBroker,
    runs: Runs,
    client: Callable[[str], Client],
    request: pytest.FixtureRequest,
) -> None:
    row = client(name)
    uses(row.library, row.version)
    refused: RefusedRun = runs[request.node.name].result()
    assert refused.is_by_itself
    assert refused.error
    if secured.broker.is_reference:
        return
    # A port may have been used twice.
    opened = Counter(one.peer for one in refused.connections)

    def logged() -> list[tuple[str, str]]:
        return [(peer, line) for peer, line in secured.warnings() if peer in opened]

    # A client that does not trust the server may close without saying why.
    if mistake != "untrusted-server":
        assert wait_until(lambda: bool(logged()))
        assert all("certificate" in line for _, line in logged())
    assert Counter(peer for peer, _ in logged()) <= opened


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ENDS else (pytest.mark.slow,)) for name in CLIENTS],
)
def test_client_with_a_certificate_is_its_subject(
    name: str,
    secured: SecuredBroker,
    runs: Runs,
    client: Callable[[str], Client],
    request: pytest.FixtureRequest,
) -> None:
    row = client(name)
    uses(row.library, row.version)
    runs[request.node.name].result()
    if secured.broker.is_reference:
        return

    def principals() -> set[str]:
        """Who the producer is in the traffic log."""
        return {
            row["principal"]
            for row in secured.traffic_rows()
            if row["kind"] == "usage"
            and (row["listener"], row["api_key"], row.get("client_id")) == ("SSL", 0, name)
        }

    assert wait_until(lambda: principals() == {f"User:{SUBJECT}"})
    logged_in = [
        row for row in secured.audit_rows() if (row["listener"], row["event"]) == ("SSL", "login")
    ]
    assert {(row["mechanism"], row["principal"]) for row in logged_in} == {
        ("SSL", f"User:{SUBJECT}")
    }
