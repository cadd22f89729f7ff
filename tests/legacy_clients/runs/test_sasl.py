"""Real clients log in with each SASL mechanism that they know, with TLS and without.

With SaslHandshake v0 tokens are sent as bare frames, and a refused client only sees a closed
connection; with v1 they are sent in SaslAuthenticate, which answers with error 58.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.legacy_clients.clients import Client, Security, table
from tests.legacy_clients.grid import Refusal
from tests.legacy_clients.logins.attempts import (
    PATIENCE_SECONDS,
    RUN_SECONDS,
    RefusedRun,
    concurrent_runs,
    read_two_records,
    run_refused,
    wait_until,
    write_two_records,
)
from tests.legacy_clients.logins.secured_brokers import (
    WRONG_PASSWORD,
    SecuredBroker,
    mechanisms_of,
)
from tests.legacy_clients.logins.users import PASSWORD
from tests.used_peers import uses

pytestmark = [pytest.mark.peer]


@dataclass(frozen=True, slots=True)
class Login:
    client: str
    mechanism: str

    def __str__(self) -> str:
        return f"{self.client}+{self.mechanism}"


def logins() -> Iterator[Login]:
    """Each client with PLAIN, each version of a library with all its mechanisms."""
    seen = set()
    for row in table().values():
        is_new = (row.library, row.version) not in seen
        seen.add((row.library, row.version))
        for mechanism in mechanisms_of(row):
            if is_new or mechanism == "PLAIN":
                yield Login(row.name, mechanism)


#: The clients of a library that run in CI: the first is the oldest, the last the newest.
RIGHT_IN_CI = {"PLAIN": (0, -1), "SCRAM-SHA-256": (0,), "SCRAM-SHA-512": (-1,)}
WRONG_IN_CI = {"PLAIN": (0,), "SCRAM-SHA-256": (), "SCRAM-SHA-512": (-1,)}


def login_cases(in_ci: Mapping[str, tuple[int, ...]]) -> Iterator[Any]:
    names: dict[tuple[str, str], list[str]] = {}
    for login in logins():
        names.setdefault((login.mechanism, table()[login.client].library), []).append(login.client)
    chosen = {
        (mechanism, found[index])
        for (mechanism, _), found in names.items()
        for index in in_ci[mechanism]
    }
    for login in logins():
        is_slow = (login.mechanism, login.client) not in chosen
        yield pytest.param(login, id=str(login), marks=(pytest.mark.slow,) if is_slow else ())


Runs = Mapping[str, Future[Any]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, secured: SecuredBroker) -> Iterator[Runs]:
    works: dict[Callable[..., None], Callable[..., Any]] = {
        test_client_with_a_wrong_password_fails_without_hanging: partial(be_refused, secured),
        test_client_with_the_right_password_writes_and_reads: partial(write_and_read, secured),
    }
    with concurrent_runs(request, works) as started:
        yield started


def write_and_read(secured: SecuredBroker, login: Login) -> list[tuple[bytes | None, bytes | None]]:
    """Write without TLS, read with it."""
    row = table()[login.client]
    user = (row.name, PASSWORD)
    topic = write_two_records(
        row,
        secured,
        secured.address("SASL_PLAINTEXT"),
        Security(user, mechanism=login.mechanism),
        RUN_SECONDS,
    )
    over_tls = Security(user, secured.tls.authority, login.mechanism)
    return read_two_records(row, secured.address("SASL_SSL"), topic, over_tls)


def be_refused(secured: SecuredBroker, login: Login) -> RefusedRun:
    """SCRAM-SHA-512 with TLS, the others without."""
    row = table()[login.client]
    uses_tls = login.mechanism == "SCRAM-SHA-512"
    fails_at_once = row.tells_refusal and not row.retries_refusal
    return run_refused(
        row,
        secured,
        "SASL_SSL" if uses_tls else "SASL_PLAINTEXT",
        Security(
            (row.name, WRONG_PASSWORD),
            secured.tls.authority if uses_tls else None,
            login.mechanism,
        ),
        RUN_SECONDS if fails_at_once else PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("login", tuple(login_cases(WRONG_IN_CI)))
def test_client_with_a_wrong_password_fails_without_hanging(
    login: Login,
    secured: SecuredBroker,
    runs: Runs,
    client: Callable[[str], Client],
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    row = client(login.client)
    uses(row.library, row.version)
    refused: RefusedRun = runs[request.node.name].result()
    record_property("refused", refusal_of(refused, login.mechanism))
    assert refused.is_by_itself
    assert refused.error
    if row.tells_refusal:
        assert re.search(r"(?i)authentication|SASL", str(refused.failure))
    if not secured.broker.is_reference:
        check_failures_are_logged_once(secured, refused, login.mechanism)


def refusal_of(refused: RefusedRun, mechanism: str) -> Refusal:
    versions = [one.handshake for one in refused.connections if one.handshake is not None]
    return {
        "mechanism": mechanism,
        "seconds": refused.seconds,
        # Not seen with TLS.
        "handshake": max(versions, default=-1),
        "connections": len(refused.connections),
        "error": refused.error,
    }


def check_failures_are_logged_once(
    secured: SecuredBroker, refused: RefusedRun, mechanism: str
) -> None:
    """The gateway's log and the audit log have one line for each attempt that was refused.

    With TLS the relay cannot count the tokens, and so does not know which connections were.
    """
    # A port may have been used twice.
    opened = Counter(one.peer for one in refused.connections)
    decided = Counter(one.peer for one in refused.connections if one.has_decided(mechanism))

    def audited() -> Counter[str]:
        return Counter(
            row["peer"]
            for row in secured.audit_rows()
            if row["peer"] in opened
            and (row["event"], row["mechanism"]) == ("login-failed", mechanism)
            and row["reason"] == "wrong user name or password"
        )

    def logged() -> Counter[str]:
        return Counter(peer for peer, _ in secured.warnings() if peer in opened)

    assert wait_until(lambda: bool(audited()) and decided <= audited() == logged())
    assert audited() <= opened


@pytest.mark.parametrize("login", tuple(login_cases(RIGHT_IN_CI)))
def test_client_with_the_right_password_writes_and_reads(
    login: Login,
    secured: SecuredBroker,
    runs: Runs,
    client: Callable[[str], Client],
    request: pytest.FixtureRequest,
) -> None:
    row = client(login.client)
    uses(row.library, row.version)
    assert runs[request.node.name].result() == [(b"key", b"value"), (None, b"other")]
    if secured.broker.is_reference:
        return

    def listeners() -> set[str]:
        """Where the gateway saw this client with this mechanism."""
        return {
            row["listener"]
            for row in secured.audit_rows()
            if (row["event"], row.get("principal"), row.get("mechanism"))
            == ("login", f"User:{login.client}", login.mechanism)
        }

    assert wait_until(lambda: listeners() == {"SASL_PLAINTEXT", "SASL_SSL"})
