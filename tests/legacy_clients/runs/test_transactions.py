"""Real transactional producers fail at once, because the gateway refuses transactional ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.clients import Client, run
from tests.testkit.gateway import GatewayProcess, gateway

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

#: Time limit: a client that retries the error takes this long; one that does not takes less than a
#: second.
TIMEOUT_SECONDS = 120.0

ERRORS = {
    "java-0.11.0.3": "TransactionalIdAuthorizationException",
    "java-2.8.2": "TransactionalIdAuthorizationException",
    "java-3.9.2": "TransactionalIdAuthorizationException",
    "java-4.4.0": "TransactionalIdAuthorizationException",
    "confluent-2.8.0": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "confluent-2.16.1": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "aiokafka-0.14.0": "TransactionalIdAuthorizationFailed",
    "sarama-1.61.1": "53",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


#: In `make slow` only: another version of the library runs in CI.
SLOW = {"java-2.8.2", "java-3.9.2", "confluent-2.8.0"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ERRORS]
)
def test_transactional_producer_is_refused_and_does_not_retry(
    request: pytest.FixtureRequest, is_reference: bool, client: Callable[[str], Client], name: str
) -> None:
    row = client(name)
    if is_reference:
        broker: RunningBroker = request.getfixturevalue("broker")
        assert (
            run(row, "transaction", broker.bootstrap, [name], timeout=TIMEOUT_SECONDS) == "ready\n"
        )
        return
    server: GatewayProcess = request.getfixturevalue("server")
    host, port = server.address
    seconds, error = run(
        row, "transaction", f"{host}:{port}", [name], timeout=TIMEOUT_SECONDS
    ).split()
    assert error == ERRORS[name]
    assert float(seconds) < TIMEOUT_SECONDS / 4
    # Log lines are ordered: after this one all lines of the client are present.
    with server.peer() as peer:
        peer.request(
            InitProducerIdRequest(transactional_id=f"after-{name}", transaction_timeout_ms=1000),
            InitProducerIdResponse,
            1,
        )
    assert server.wait_for_lines(1, f"transactional_id=after-{name}")
    (line,) = [line for line in server.lines() if f"transactional_id={name}" in line]
    assert "transactional producer refused" in line
