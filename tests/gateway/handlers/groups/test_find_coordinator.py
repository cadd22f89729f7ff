"""FindCoordinator."""

import pytest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call


@pytest.mark.parametrize("version", range(4))
def test_coordinator_is_the_advertised_address(version):
    reply = call(open_environment(node_id=5), FindCoordinatorRequest(key="g", key_type=0), version)
    assert (reply.error_code, reply.node_id, reply.host, reply.port) == (0, 5, "127.0.0.1", 9092)


@pytest.mark.parametrize("version", range(4, 7))
def test_each_key_has_a_reply(version):
    reply = call(
        open_environment(), FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b"]), version
    )
    assert [(row.key, row.error_code, row.node_id, row.port) for row in reply.coordinators] == [
        ("a", 0, 0, 9092),
        ("b", 0, 0, 9092),
    ]


@pytest.mark.parametrize("version", range(4))
def test_gateway_that_is_cut_off_knows_no_coordinator(version):
    env = open_environment()
    env.broker.cluster.set_cut_off(True)
    reply = call(env, FindCoordinatorRequest(key="g", key_type=0), version)
    assert (reply.error_code, reply.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_transactional_id_has_coordinator_that_refuses_it():
    reply = call(open_environment(node_id=5), FindCoordinatorRequest(key="t", key_type=1), 2)
    assert (reply.error_code, reply.node_id, reply.port) == (0, 5, 9092)


@pytest.mark.parametrize("key_type", [-1, 2, 3])
def test_other_key_types_have_no_coordinator(key_type):
    (row,) = call(
        open_environment(), FindCoordinatorRequest(key_type=key_type, coordinator_keys=["t"]), 6
    ).coordinators
    assert (row.error_code, row.node_id) == (ErrorCode.INVALID_REQUEST, -1)
