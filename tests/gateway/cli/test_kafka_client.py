from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from kafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    NotControllerError,
)

from gateway.cli.kafka_client import RETRY_SECONDS, AdminClient, retry

CLIENT = SimpleNamespace(config={"request_timeout_ms": 1000})


class FakeTime:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def calling(*outcomes):
    """Return a call with these results and exceptions, and the list of its calls."""
    left = list(outcomes)

    def call():
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    return call


def test_retriable_error_is_retried():
    clock = FakeTime()
    call = calling(CoordinatorNotAvailableError(), CoordinatorNotAvailableError(), "here")
    assert retry(CLIENT, call, clock, clock.sleep) == "here"
    assert clock.now == 2 * RETRY_SECONDS


def test_retries_end_at_request_timeout():
    clock = FakeTime()
    with pytest.raises(CoordinatorNotAvailableError):
        retry(CLIENT, calling(CoordinatorNotAvailableError()), clock, clock.sleep)
    assert 1.0 <= clock.now < 1.0 + 2 * RETRY_SECONDS


def test_fatal_error_is_raised_at_once():
    clock = FakeTime()
    with pytest.raises(GroupAuthorizationFailedError):
        retry(CLIENT, calling(GroupAuthorizationFailedError()), clock, clock.sleep)
    assert clock.now == 0


@pytest.mark.parametrize(
    "failure", [KafkaConnectionError("DNS Resolution failure"), NodeNotReadyError(5)]
)
def test_node_that_cannot_be_reached_is_named(failure):
    async def send(request, node_id):
        raise failure

    client = AdminClient.__new__(AdminClient)
    node = SimpleNamespace(host="kafka-5.example", port=9092)
    client._manager = SimpleNamespace(
        run=lambda call, *arguments: asyncio.run(call(*arguments)),
        send=send,
        cluster=SimpleNamespace(broker_metadata={5: node}.get),
    )
    where = r"node 5 at its advertised address kafka-5\.example:9092"
    with pytest.raises(type(failure), match=where):
        client.send(object(), 5)


def test_request_is_sent_again_if_the_controller_has_changed():
    controllers, asked = iter([1, 2]), []

    async def find(timeout_ms=0):
        return next(controllers)

    async def send(request, node_id):
        asked.append(node_id)
        return SimpleNamespace(codes=[NotControllerError.errno if node_id == 1 else 0])

    client = AdminClient.__new__(AdminClient)
    client._controller_id = None
    client._refresh_controller_id = find
    client._manager = SimpleNamespace(send=send, run=lambda call: asyncio.run(call()))
    response = client.send_to_controller("request", lambda response: response.codes)
    assert (response.codes, asked) == ([0], [1, 2])
