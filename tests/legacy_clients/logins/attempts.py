"""Log-ins of real clients: those that work, those that are refused, and what the broker noted.

Refused clients mostly wait, so the runs of a module's tests are concurrent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.legacy_clients.cases import create_topics_on_kafka
from tests.legacy_clients.clients import (
    Client,
    DriverFailed,
    Record,
    Security,
    Span,
    consume,
    consume_in_group,
    produce,
)
from tests.legacy_clients.logins.login_relay import RelayedConnection, login_relay
from tests.legacy_clients.logins.secured_brokers import SecuredBroker

CONCURRENT_RUNS = 6
RUN_SECONDS = 180.0
#: Clients that only see a closed connection retry until this timeout of their driver. A client on a
#: busy machine must have tried at least once by then.
PATIENCE_SECONDS = 8.0
#: The gateway writes its audit log and traffic log in the background.
LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A run that ended with an error, `seconds` after the client first connected."""

    seconds: float
    connections: list[RelayedConnection]
    failure: DriverFailed

    @property
    def error(self) -> str:
        """What the application sees, as the driver prints it."""
        lines = [line for line in self.failure.errors.splitlines() if line.startswith("driver: ")]
        return lines[-1].removeprefix("driver: ") if lines else ""

    @property
    def is_by_itself(self) -> bool:
        """Whether the client ended without being killed."""
        return "exit code " in str(self.failure).splitlines()[0]


def write_two_records(
    client: Client, secured: SecuredBroker, address: str, security: Security, timeout: float
) -> str:
    """Produce two records to a new topic and return its name."""
    topic = f"login-{client.name}-{uuid.uuid4().hex[:6]}"
    create_topics_on_kafka(secured.broker, [topic])
    records = [Record(topic, 0, b"key", b"value"), Record(topic, 0, None, b"other")]
    answers = produce(client, address, records, timeout=timeout, security=security)
    assert [answer.offset for answer in answers] == [0, 1]
    return topic


def read_two_records(
    client: Client, address: str, topic: str, security: Security
) -> list[tuple[bytes | None, bytes | None]]:
    """Read the records of `write_two_records`, in a group if the client knows groups."""
    if client.groups == "none":
        records = consume(
            client, address, [Span(topic, 0, 0, 2)], timeout=RUN_SECONDS, security=security
        )
    else:
        records = consume_in_group(
            client, address, f"of-{topic}", topic, 2, timeout=RUN_SECONDS, security=security
        )
    return [(record.key, record.value) for record in records]


def run_refused(
    client: Client, secured: SecuredBroker, listener: str, security: Security, timeout: float
) -> RefusedRun:
    """Run a producer that the listener must refuse."""
    with login_relay(secured.address(listener)) as relay:
        try:
            write_two_records(client, secured, relay.address, security, timeout)
        except DriverFailed as failure:
            ended = time.monotonic()
            began = ended if relay.began is None else relay.began
            return RefusedRun(ended - began, relay.connections, failure)
    raise AssertionError(f"{client} was not refused")


@contextmanager
def concurrent_runs(
    request: pytest.FixtureRequest, works: Mapping[Callable[..., None], Callable[..., Any]]
) -> Iterator[Mapping[str, Future[Any]]]:
    """Start the work of each selected test of the module; yield the results by test name.

    `works` has the work of each test function, which gets the test's parameters.
    """
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [item for item in items if item.function in works]
    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        try:
            yield {
                item.name: pool.submit(works[item.function], **item.callspec.params)
                for item in chosen
            }
        finally:
            pool.shutdown(cancel_futures=True)


def wait_until(is_so: Callable[[], bool]) -> bool:
    """Whether it is so within LOG_SECONDS."""
    end = time.monotonic() + LOG_SECONDS
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
