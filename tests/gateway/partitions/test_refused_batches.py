"""Batches that an idempotent producer sent before it saw that an earlier one was refused."""

from __future__ import annotations

import pytest

from gateway.partitions import refused_batches
from gateway.partitions.partition import ProducerRecovery
from gateway.partitions.record_batch import check_batch
from gateway.partitions.refused_batches import RETRY_SECONDS, RefusedBatches
from gateway.protocol.errors import ErrorCode, KafkaError
from records import BatchHeader
from storage.log import StorageFailed
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.test_produce import NEW, code
from tests.records.record_sets import batch

#: Seconds after which a partition that could not be opened is opened again.
BACKOFF_SECONDS = 10.0
LATER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def env() -> BrokerEnvironment:
    """A partition whose producer 7 had its first batch of 24 records refused."""
    env = open_environment()
    env.topic("orders", 1)
    env.store.refuse_logs = StorageFailed("the broker is gone")
    assert code(env, NEW, batch(24, producer=(7, 0, 0))) == ErrorCode.KAFKA_STORAGE_ERROR
    env.store.refuse_logs = None
    env.clock.advance(BACKOFF_SECONDS)
    return env


def test_batch_behind_a_refused_one_is_refused_until_that_is_sent_again(env) -> None:
    assert code(env, NEW, batch(8, producer=(7, 0, 24))) == LATER
    assert code(env, NEW, batch(24, producer=(7, 0, 0))) == 0
    assert code(env, NEW, batch(8, producer=(7, 0, 24))) == 0
    assert code(env, NEW, batch(8, producer=(7, 0, 32))) == 0
    assert env.partition("orders").log.end_offset == 40


def test_other_producers_and_epochs_are_not_refused(env) -> None:
    assert code(env, NEW, batch(8, producer=(8, 0, 24))) == 0
    assert code(env, NEW, batch(8, producer=(7, 1, 24))) == 0


def test_producer_that_gives_up_a_refused_batch_can_continue_later(env) -> None:
    env.clock.advance(RETRY_SECONDS)
    assert code(env, NEW, batch(8, producer=(7, 0, 24))) == 0


def test_batch_that_was_refused_by_a_failed_recovery_is_not_overtaken() -> None:
    env = open_environment()
    env.topic("orders", 1)
    assert code(env, NEW, batch(1)) == 0
    partition = env.partition("orders")
    recovery = partition.recovery = ProducerRecovery(0, env.clock.seconds() + 5)
    recovery.finished.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert code(env, NEW, batch(24, producer=(7, 0, 0))) == ErrorCode.KAFKA_STORAGE_ERROR
    partition.recovery = None
    assert code(env, NEW, batch(8, producer=(7, 0, 24))) == LATER
    assert code(env, NEW, batch(24, producer=(7, 0, 0))) == 0


def test_producer_that_does_not_come_back_is_forgotten_by_any_request(env) -> None:
    refused = env.broker.topics.refused_batches
    env.clock.advance(RETRY_SECONDS - BACKOFF_SECONDS - 1)
    assert code(env, NEW, batch(1)) == 0
    assert len(refused) == 1
    env.clock.advance(1)
    assert code(env, NEW, batch(1)) == 0
    assert len(refused) == 0


def test_refused_batch_does_not_concern_a_producer_that_the_partition_knows(env) -> None:
    assert code(env, NEW, batch(24, producer=(7, 0, 0))) == 0
    refused = check_batch(batch(24, producer=(7, 0, 0)), NEW)
    env.broker.topics.refused_batches.add("orders", 0, refused, env.clock.seconds())
    assert code(env, NEW, batch(8, producer=(7, 0, 24))) == 0


def header(producer_id: int, sequence: int, epoch: int = 0) -> BatchHeader:
    return check_batch(batch(1, producer=(producer_id, epoch, sequence)), 11)


def test_lowest_refused_sequence_of_an_epoch_counts() -> None:
    refused = RefusedBatches()
    for sequence in (5, 3, 9):
        refused.add("orders", 0, header(7, sequence), now=0.0)
    assert refused.precede("orders", 0, header(7, 4), now=0.0)
    assert not refused.precede("orders", 1, header(7, 4), now=0.0)
    refused.add("orders", 0, header(7, 8, epoch=1), now=0.0)
    assert not refused.precede("orders", 0, header(7, 8, epoch=1), now=0.0)
    assert len(refused) == 0


def test_oldest_producers_are_forgotten_beyond_the_limit(monkeypatch) -> None:
    monkeypatch.setattr(refused_batches, "MAX_REFUSED", 2)
    refused = RefusedBatches()
    for producer_id in (1, 2, 3):
        refused.add("orders", 0, header(producer_id, 0), now=0.0)
    assert [refused.precede("orders", 0, header(one, 1), now=0.0) for one in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
