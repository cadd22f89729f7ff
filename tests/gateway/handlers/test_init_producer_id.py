"""InitProducerId: new ids, refused transactions, errors and timeouts."""

from __future__ import annotations

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.api_keys import ApiKey
from tests.fakes.broker import BrokerEnvironment, Started, open_environment
from tests.fakes.connection import events
from tests.gateway.handlers.handler_calls import call


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def test_each_producer_gets_own_id_at_epoch_0(env):
    for version in range(6):
        answer = call(
            env,
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
            ),
            version,
        )
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, version, 0)


def test_idempotent_producer_always_gets_new_id(env):
    """TransactionCoordinator.handleInitProducerId without a transactional id."""
    answer = call(
        env,
        InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1, producer_id=77, producer_epoch=3
        ),
        4,
    )
    assert (answer.producer_id, answer.producer_epoch) == (0, 0)


@pytest.mark.parametrize("version", range(7))
def test_transactional_id_is_rejected_with_one_log_line(env, caplog, version):
    asked = InitProducerIdRequest(
        transactional_id="tx", transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
    )
    answer = call(env, asked, version)
    assert (answer.error_code, answer.producer_id) == (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        -1,
    )
    ((event, fields),) = events(caplog)
    assert event == "transactional producer refused"
    assert (fields["transactional_id"], fields["reason"]) == (
        "tx",
        "transactions are not supported; remove transactional.id",
    )


def test_unreservable_producer_id_is_storage_error(env):
    env.store.refuse_writes = True
    answer = call(
        env,
        InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
        ),
        4,
    )
    assert (answer.error_code, answer.producer_id) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_late_producer_id_is_retriable(env: BrokerEnvironment) -> None:
    env.store.hold()
    asking = Started(
        ROUTES[ApiKey.INIT_PRODUCER_ID, 4].handler(
            InitProducerIdRequest(transactional_id=None), env.caller(4)
        )
    )
    env.clock.advance(5)
    assert asking.result.error_code == ErrorCode.REQUEST_TIMED_OUT
