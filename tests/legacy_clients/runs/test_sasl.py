"""Real clients authenticate with SASL/PLAIN, with SaslHandshake v0 and v1, with TLS and without.

After v0 tokens are sent as bare frames, after v1 in SaslAuthenticate.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import RunningBroker, StoreArguments, gateway, reference
from tests.legacy_clients.cases import create_topics_on_kafka
from tests.legacy_clients.clients import Client, DriverFailed, Record, Security, produce, table
from tests.testkit.certificates import Authority
from tests.testkit.kafka import Secured

pytestmark = [pytest.mark.peer]

# A colon, because drivers get `user:password`, and characters common in LDAP passwords.
USER = ("alice", "pass:word with=signs, and;more")
WRONG = (USER[0], "password")
# Clients with SaslHandshake v0 get no error, only a closed connection, and retry until this
# timeout; most others fail with the error at once.
PATIENCE_SECONDS = 6.0
# They mostly wait.
AT_ONCE = 4
RUN_SECONDS = 180.0
LISTENERS = ("PLAINTEXT://127.0.0.1:0", "SASL_PLAINTEXT://127.0.0.1:0", "SASL_SSL://127.0.0.1:0")
CLIENTS = tuple(row.name for row in table().values() if row.sasl_plain)
WITH_TLS = tuple(row.name for row in table().values() if row.sasl_plain and row.tls)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the authority, the server's certificate, its key, and both in one file as Kafka
    requires.
    """

    authority: Path
    certificate: Path
    key: Path
    key_and_certificate: Path


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    certificate, key = authority.sign("127.0.0.1").write(folder, "server")
    both = folder / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return Tls(authority.write(folder), certificate, key, both)


@pytest.fixture(scope="session")
def secured(
    is_reference: bool,
    store_arguments: StoreArguments,
    tls: Tls,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningBroker]:
    """A broker with one user, on a listener with TLS and one without."""
    folder = tmp_path_factory.mktemp("secured")
    if is_reference:
        running = reference(Secured((USER,), tls.key_and_certificate))
    else:
        files = {
            "users_file": users_file(folder),
            "ssl_certificate_file": tls.certificate,
            "ssl_key_file": tls.key,
        }
        running = gateway(
            folder,
            LISTENERS,
            [word for name, file in files.items() for word in ("--set", f"{name}={file}")],
            store_arguments,
        )
    with running as broker:
        yield broker


def users_file(folder: Path) -> Path:
    file = folder / "users"
    add = [
        sys.executable,
        "-m",
        "gateway",
        "users",
        "add",
        USER[0],
        "--file",
        str(file),
        "--password-file",
        "-",
    ]
    subprocess.run(
        add, input=USER[1] + "\n", text=True, check=True, timeout=120, stdout=subprocess.DEVNULL
    )
    return file


@pytest.mark.parametrize("name", CLIENTS)
def test_client_with_the_right_password_produces(
    name: str, secured: RunningBroker, client: Callable[[str], Client]
) -> None:
    assert offsets_of_two(client(name), secured, "SASL_PLAINTEXT", Security(USER)) == [0, 1]


@pytest.mark.parametrize("name", WITH_TLS)
def test_client_with_the_right_password_produces_over_tls(
    name: str, secured: RunningBroker, tls: Tls, client: Callable[[str], Client]
) -> None:
    assert offsets_of_two(client(name), secured, "SASL_SSL", Security(USER, tls.authority)) == [
        0,
        1,
    ]


@pytest.fixture(scope="module")
def refusals(
    request: pytest.FixtureRequest, secured: RunningBroker
) -> Iterator[Mapping[str, Future[list[int | None]]]]:
    """Attempts of all tested clients with a wrong password, which run concurrently."""
    wrong = test_client_with_a_wrong_password_fails_without_hanging
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [item.callspec.params["name"] for item in items if item.function is wrong]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(use_wrong_password, table()[name], secured) for name in names}


def use_wrong_password(row: Client, secured: RunningBroker) -> list[int | None]:
    fails_at_once = row.tells_refusal and not row.retries_refusal
    patience = RUN_SECONDS if fails_at_once else PATIENCE_SECONDS
    return offsets_of_two(row, secured, "SASL_PLAINTEXT", Security(WRONG), patience)


@pytest.mark.parametrize("name", CLIENTS)
def test_client_with_a_wrong_password_fails_without_hanging(
    name: str, refusals: Mapping[str, Future[list[int | None]]], client: Callable[[str], Client]
) -> None:
    row = client(name)
    with pytest.raises(
        DriverFailed, match=r"(?i)authentication|SASL" if row.tells_refusal else "driver: "
    ) as refused:
        refusals[name].result()
    # The client failed by itself; its driver did not have to be killed.
    assert "exit code " in str(refused.value).splitlines()[0]
    assert "driver: " in refused.value.errors


def offsets_of_two(
    client: Client,
    broker: RunningBroker,
    listener: str,
    security: Security,
    timeout: float = RUN_SECONDS,
) -> list[int | None]:
    """Produce two records to a new topic; return their offsets."""
    topic = f"sasl-{client.name}-{uuid.uuid4().hex[:6]}"
    create_topics_on_kafka(broker, [topic])
    records = [Record(topic, 0, b"key", b"value"), Record(topic, 0, None, b"value")]
    answers = produce(
        client, broker.listeners[listener], records, timeout=timeout, security=security
    )
    return [answer.offset for answer in answers]
