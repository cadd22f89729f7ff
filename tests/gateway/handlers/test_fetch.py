"""Long polls, fetch sessions and cleanup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from auth.mechanism import Principal
from gateway.handlers import fetch as handler
from gateway.protocol.errors import ErrorCode
from gateway.protocol.long_poll import LongPoll, acknowledge_nothing
from gateway.protocol.session import LoginSession
from gateway.protocol.wire.fetch_codec import FetchPartition
from storage.log import StorageFailed
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment
from tests.gateway.handlers.fetch_requests import (
    batch_entry,
    consume,
    encoded,
    from_offset,
    payload,
    request,
    rows,
    start_fetch,
    stored_entry,
)
from tests.records.sample_records import ZSTD, Sample, batch

NEW = 12
WAIT = 500


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 3)
    return env


def put(env: BrokerEnvironment, index: int = 0, size: int = 20, count: int = 1) -> int:
    """Store a batch of `count` records; return its bytes."""
    log = env.partition("orders", index).log
    added = batch_entry(log.next_offset, count, size)

    async def append() -> None:
        await log.append([added])

    ended(append())
    return len(added.payload)


def poll(env: BrokerEnvironment, *partitions: Any, version: int = NEW, **more: Any) -> Started:
    return start_fetch(env, request(version, partitions, max_wait_ms=WAIT, **more))


def watchers(env: BrokerEnvironment) -> list[int]:
    return [len(env.partition("orders", index).log.status.watchers) for index in range(3)]


def indexes(response: Any) -> list[int]:
    return [index for _, index in rows(response)]


def nothing_left(env: BrokerEnvironment) -> bool:
    return watchers(env) == [0, 0, 0] and not env.clock.getDelayedCalls()


# Long polls


def test_response_with_min_bytes_does_not_wait(env):
    put(env)
    assert poll(env, from_offset(0)).is_done
    assert nothing_left(env)


@pytest.mark.parametrize(
    "more", [{"max_wait_ms": 0}, {"min_bytes": 0, "max_wait_ms": WAIT}], ids=["no wait", "no bytes"]
)
def test_zero_max_wait_does_not_wait(env, more):
    assert start_fetch(env, request(NEW, [from_offset(0)], **more)).is_done


def test_empty_poll_ends_at_max_wait(env):
    polling = poll(env, from_offset(0))
    env.clock.advance(0.499)
    assert not polling.is_done
    env.clock.advance(0.001)
    assert list(rows(polling.result)["orders", 0].records) == []
    assert nothing_left(env)


def test_fetch_is_acknowledged_when_it_begins_to_wait_for_data(env, monkeypatch):
    acknowledged: list[float] = []
    monkeypatch.setattr(
        env.long_poll, "acknowledge", lambda: acknowledged.append(env.clock.seconds())
    )
    log = env.partition("orders", 0).log
    real = log.read

    async def slow(offset: int, max_bytes: int) -> Any:
        await env.threads.run(lambda: None)
        return await real(offset, max_bytes)

    put(env)
    env.threads.hold()
    with monkeypatch.context() as patch:
        patch.setattr(
            log, "read_resident", lambda offset, _: None if offset < log.end_offset else []
        )
        patch.setattr(log, "read", slow)
        reading = poll(env, from_offset(0))
        assert not reading.is_done
    env.threads.release()
    assert reading.is_done
    assert acknowledged == []
    waiting = poll(env, from_offset(1))
    assert acknowledged == [0]
    env.clock.advance(0.5)
    assert waiting.is_done


def test_append_wakes_poll(env):
    polling = poll(env, from_offset(0))
    size = put(env)
    assert len(payload(rows(polling.result)["orders", 0])) == size
    assert env.clock.seconds() == 0
    assert nothing_left(env)


@pytest.mark.parametrize("version", [0, 2, 4, 7, 18])
def test_append_wakes_consumers_of_every_version(env, version):
    topic = env.broker.topics.require("orders").topic.topic_id if version >= 13 else "orders"
    polling = start_fetch(env, request(version, [from_offset(0)], topic=topic, max_wait_ms=WAIT))
    put(env)
    assert consume(payload(rows(polling.result)[topic, 0]), 0).records[0][0] == 0


def test_poll_waits_for_min_bytes_over_all_partitions(env):
    size = len(batch_entry(0, 1).payload)
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), min_bytes=2 * size + 1)
    put(env, 0)
    put(env, 1)
    assert not polling.is_done
    put(env, 0)
    assert [len(payload(row)) for row in rows(polling.result).values()] == [2 * size, size]


def test_existing_bytes_count_towards_min_bytes(env):
    size = put(env, 0)
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), min_bytes=2 * size)
    assert not polling.is_done
    put(env, 1)
    assert polling.is_done


def test_min_bytes_above_max_bytes_is_capped(env):
    """With fetch.min.bytes above fetch.max.bytes every fetch would wait for max_wait_ms."""
    size = put(env)
    put(env)
    assert poll(env, from_offset(0), min_bytes=100 * size, max_bytes=2 * size).is_done


def test_fewer_than_min_bytes_are_returned_at_max_wait(env):
    put(env)
    polling = poll(env, from_offset(0), min_bytes=100_000)
    env.clock.advance(0.5)
    assert len(rows(polling.result)["orders", 0].records) == 1


def test_full_response_after_wait_has_every_partition(env):
    """The Java client checks this, and Sarama fails if a partition is missing."""
    woken, waited = (
        poll(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2)),
        poll(env, from_offset(0, 0), from_offset(0, 2)),
    )
    put(env, 1)
    assert sorted(indexes(woken.result)) == [0, 1, 2]
    env.clock.advance(0.5)
    assert sorted(indexes(waited.result)) == [0, 2]


def test_append_during_read_of_other_partition_is_noticed(env, monkeypatch):
    """Partition 0 is read and empty; while partition 1 is read from disk, records are appended to
    0.
    """
    put(env, 1)
    log = env.partition("orders", 1).log
    real = log.read

    async def slow(offset: int, max_bytes: int) -> Any:
        await env.threads.run(lambda: None)
        return await real(offset, max_bytes)

    size = len(batch_entry(0, 1).payload)
    monkeypatch.setattr(
        log, "read_resident", lambda offset, max_bytes: None if offset < log.end_offset else []
    )
    monkeypatch.setattr(log, "read", slow)
    env.threads.hold()
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), min_bytes=2 * size)
    put(env, 0)
    monkeypatch.undo()
    env.threads.release()
    assert polling.is_done


def test_append_wakes_poll_while_retention_deletes(env):
    put(env, size=5000)
    polling = poll(env, from_offset(1))
    log = env.partition("orders", 0).log

    async def cut_and_append() -> None:
        await log.delete_before(1)

    ended(cut_and_append())
    assert not polling.is_done
    put(env)
    assert polling.is_done


def test_log_start_past_fetch_offset_wakes_poll(env):
    put(env)
    put(env)
    polling = poll(env, from_offset(1), min_bytes=100_000)

    async def cut() -> None:
        await env.partition("orders", 0).log.delete_before(2)

    ended(cut())
    assert rows(polling.result)["orders", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_topic_deletion_wakes_poll(env):
    polling = poll(env, from_offset(0))
    logs = [env.partition("orders", index).log for index in range(3)]
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    assert rows(polling.result)["orders", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [len(log.status.watchers) for log in logs] == [0, 0, 0]


def test_partition_error_ends_poll(env):
    assert poll(env, from_offset(0, 0), from_offset(0, 9)).is_done


def test_diverging_epoch_ends_poll(env):
    put(env)
    assert poll(env, FetchPartition(0, 5, 1000, -1, 0)).is_done


@pytest.mark.parametrize("version", [1, 3])
def test_old_consumer_waits_at_unreadable_batch(env, version):
    log = env.partition("orders").log
    broken = stored_entry(
        0, 2, batch([Sample(n, 5, b"k", b"v") for n in range(3)], content=b"nonsense")
    )

    async def append() -> None:
        await log.append([broken])

    ended(append())
    polling = poll(env, from_offset(0), version=version)
    assert not polling.is_done
    put(env)
    row = rows(polling.result)["orders", 0]
    assert (row.error_code, consume(payload(row), 0).records[0][0]) == (0, 3)
    assert nothing_left(env)


def test_longest_wait_costs_one_timer(env):
    """Kafka has no limit either. Idle time does not count during the wait."""
    polling = start_fetch(env, request(NEW, [from_offset(0)], max_wait_ms=2**31 - 1))
    assert len(env.clock.getDelayedCalls()) == 1
    env.clock.advance(3_600)
    assert not polling.is_done
    put(env)
    assert polling.is_done
    assert nothing_left(env)


def test_fetch_of_no_partitions_is_answered_at_once(env):
    assert poll(env).is_done


def test_shutdown_ends_every_poll(env):
    polling = poll(env, from_offset(0))
    env.broker.interruptible_waits.end()
    assert polling.is_done
    assert poll(env, from_offset(0)).is_done


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_closed_connection_removes_waits(env, session):
    polling = poll(env, from_offset(0), session=session)
    polling.cancel()
    assert polling.failure is not None
    assert not env.clock.getDelayedCalls()
    if session == (0, -1):
        assert nothing_left(env)


def test_store_failure_is_partition_error(env, monkeypatch):
    put(env)
    log = env.partition("orders", 0).log

    async def failing(offset: int, max_bytes: int) -> Any:
        raise StorageFailed("the test said so")

    monkeypatch.setattr(log, "read_resident", lambda offset, max_bytes: None)
    monkeypatch.setattr(log, "read", failing)
    assert (
        rows(poll(env, from_offset(0)).result)["orders", 0].error_code
        == ErrorCode.KAFKA_STORAGE_ERROR
    )
    monkeypatch.undo()
    assert nothing_left(env)


@pytest.mark.parametrize("version", range(19))
def test_every_version_is_encodable_without_negative_record_size(env, version):
    topic: str | bytes = (
        env.broker.topics.require("orders").topic.topic_id if version >= 13 else "orders"
    )
    put(env)
    response = start_fetch(
        env,
        request(version, [from_offset(0, 0), from_offset(0, 1), from_offset(99, 2)], topic=topic),
    ).result
    raw = encoded(response, version)
    assert payload(rows(response)[topic, 0]) in raw
    if version < 12:
        # Empty partitions end with a record size of 0, never -1.
        assert raw.endswith(b"\0\0\0\0")


# Fetch sessions


class Consumer:
    """A client with a session; after its first fetch it sends only changes."""

    def __init__(
        self,
        env: BrokerEnvironment,
        *partitions: Any,
        version: int = NEW,
        topic: str | bytes = "orders",
    ) -> None:
        self.env = env
        self.version = version
        self.topic = topic
        self.id, self.epoch = 0, 0
        self.first = self.fetch(*partitions)
        self.id = self.first.session_id

    def start(self, *changed: Any, **more: Any) -> Started:
        asked = request(
            self.version, changed, topic=self.topic, session=(self.id, self.epoch), **more
        )
        self.epoch += 1
        return start_fetch(self.env, asked)

    def fetch(self, *changed: Any, **more: Any) -> Any:
        started = self.start(*changed, **more)
        # Many partitions need more than one reactor turn.
        self.env.clock.advance(0)
        return started.result


def test_first_fetch_starts_session_with_all_partitions(env):
    put(env, 1)
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2))
    assert consumer.id > 0
    assert indexes(consumer.first) == [0, 1, 2]
    assert len(env.broker.fetch_sessions) == 1


def test_unchanged_partitions_are_omitted(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    answer = consumer.fetch()
    assert (answer.session_id, indexes(answer)) == (consumer.id, [])


def test_only_changed_partitions_are_returned(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2))
    put(env, 1)
    assert indexes(consumer.fetch()) == [1]
    assert indexes(consumer.fetch(from_offset(1, 1))) == []


def test_unfetched_records_are_returned_again(env):
    put(env, 0)
    consumer = Consumer(env, from_offset(0, 0))
    assert payload(rows(consumer.fetch())["orders", 0]) == payload(
        rows(consumer.first)["orders", 0]
    )


def test_new_high_watermark_is_returned_without_records(env):
    """The response has no space for records of partition 2, but the consumer may need its lag."""
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2))
    put(env, 1)
    put(env, 2)
    told = rows(consumer.fetch(max_bytes=1))
    assert [(index, row.high_watermark, len(row.records)) for (_, index), row in told.items()] == [
        (1, 1, 1),
        (2, 1, 0),
    ]


def test_new_log_start_offset_is_returned(env):
    put(env, 0)
    put(env, 0)
    consumer = Consumer(env, from_offset(2, 0))

    async def cut() -> None:
        await env.partition("orders", 0).log.delete_before(1)

    ended(cut())
    assert rows(consumer.fetch())["orders", 0].log_start_offset == 1
    assert indexes(consumer.fetch()) == []


def test_changes_during_wait_are_returned_at_its_end(env):
    put(env, 0)
    put(env, 0)
    consumer = Consumer(env, from_offset(2, 0))

    async def cut() -> None:
        await env.partition("orders", 0).log.delete_before(1)

    ended(cut())
    polling = consumer.start(max_wait_ms=WAIT)
    env.clock.advance(0.5)
    assert rows(polling.result)["orders", 0].log_start_offset == 1


def test_error_is_returned_until_resolved(env):
    consumer = Consumer(env, from_offset(5, 0))
    assert [rows(consumer.fetch())["orders", 0].error_code for _ in range(2)] == [
        ErrorCode.OFFSET_OUT_OF_RANGE
    ] * 2
    assert rows(consumer.fetch(from_offset(0, 0)))["orders", 0].error_code == 0
    assert indexes(consumer.fetch()) == []


def test_deleted_and_recreated_topic_are_reported_in_session(env):
    consumer = Consumer(env, from_offset(0, 0))
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    assert rows(consumer.fetch())["orders", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    env.topic("orders", 3)
    put(env, 0)
    assert len(rows(consumer.fetch())["orders", 0].records) == 1


def test_forgotten_partitions_are_omitted(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    consumer.fetch(forgotten=[0])
    put(env, 0)
    put(env, 1)
    assert indexes(consumer.fetch()) == [1]
    assert watchers(env) == [0, 1, 0]


def test_partition_forgotten_and_added_in_one_request_is_kept(env):
    consumer = Consumer(env, from_offset(0, 0))
    put(env, 0)
    assert indexes(consumer.fetch(from_offset(0, 0), forgotten=[0])) == [0]
    assert watchers(env) == [1, 0, 0]


def test_session_waits_like_any_poll(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    polling = consumer.start(max_wait_ms=WAIT)
    put(env, 1)
    assert indexes(polling.result) == [1]


def test_unknown_session_is_rejected(env):
    assert (
        start_fetch(env, request(NEW, session=(77, 1))).result.error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert (
        start_fetch(env, request(NEW, session=(0, 1))).result.error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


@pytest.mark.parametrize("epoch", [1, 0, -1])
def test_session_of_another_principal_is_unknown_and_continues(env, epoch):
    consumer = Consumer(env, from_offset(0, 0))
    session = LoginSession(None)
    session.identify(Principal("User", "mallory"))
    other = replace(env, session=session, long_poll=LongPoll(acknowledge_nothing))
    answer = start_fetch(other, request(NEW, session=(consumer.id, epoch))).result
    assert list(answer.topics) == []
    if epoch == 1:
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert consumer.fetch().error_code == 0


@pytest.mark.parametrize("epoch", [2, 3, 77])
def test_wrong_session_epoch_is_rejected_and_session_continues(env, epoch):
    consumer = Consumer(env, from_offset(0, 0))
    answer = start_fetch(env, request(NEW, session=(consumer.id, epoch))).result
    assert (answer.error_code, answer.session_id, list(answer.topics)) == (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        0,
        [],
    )
    assert consumer.fetch().error_code == 0


def test_repeated_session_epoch_is_rejected(env):
    consumer = Consumer(env, from_offset(0, 0))
    consumer.fetch()
    consumer.epoch -= 1
    assert consumer.fetch().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_session_serves_one_request_at_a_time(env):
    consumer = Consumer(env, from_offset(0, 0))
    polling = consumer.start(max_wait_ms=WAIT)
    assert consumer.fetch().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    put(env, 0)
    assert polling.result.error_code == 0


@pytest.mark.parametrize(("first", "then"), [(12, 13), (13, 12)])
def test_session_cannot_switch_between_names_and_ids(env, first, then):
    topic_id = env.broker.topics.require("orders").topic.topic_id
    consumer = Consumer(
        env, from_offset(0, 0), version=first, topic=topic_id if first >= 13 else "orders"
    )
    answer = start_fetch(env, request(then, session=(consumer.id, 1))).result
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_final_epoch_closes_session_with_full_fetch(env):
    consumer = Consumer(env, from_offset(0, 0))
    answer = start_fetch(env, request(NEW, [from_offset(0, 1)], session=(consumer.id, -1))).result
    assert (answer.session_id, indexes(answer), len(env.broker.fetch_sessions)) == (0, [1], 0)
    assert nothing_left(env)


def test_epoch_0_with_old_id_replaces_session(env):
    consumer = Consumer(env, from_offset(0, 0))
    answer = start_fetch(env, request(NEW, [from_offset(0, 1)], session=(consumer.id, 0))).result
    assert answer.session_id not in (0, consumer.id)
    assert len(env.broker.fetch_sessions) == 1
    assert watchers(env) == [0, 1, 0]


def test_full_session_cache_means_full_fetch():
    env = open_environment(max_incremental_fetch_session_cache_slots=0)
    env.topic("orders", 3)
    answer = start_fetch(env, request(NEW, [from_offset(0, 0)], session=(0, 0))).result
    assert (answer.session_id, indexes(answer)) == (0, [0])
    assert nothing_left(env)


def test_too_many_partitions_are_fetched_without_session(env):
    env.broker.fetch_sessions.max_partitions = 2
    answer = start_fetch(
        env, request(NEW, [from_offset(0, n) for n in range(3)], session=(0, 0))
    ).result
    assert (answer.session_id, indexes(answer)) == (0, [0, 1, 2])


def test_session_growing_too_large_is_closed(env):
    env.broker.fetch_sessions.max_partitions = 2
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    assert consumer.fetch(from_offset(0, 2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(env.broker.fetch_sessions) == 0
    assert nothing_left(env)


def test_session_of_closed_connection_is_reusable(env):
    consumer = Consumer(env, from_offset(0, 0))
    consumer.start(max_wait_ms=WAIT).cancel()
    assert consumer.fetch().error_code == 0
    env.broker.fetch_sessions.remove(consumer.id)
    assert nothing_left(env)


def test_session_closed_while_waiting_is_cleaned_up(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    polling = consumer.start(max_wait_ms=WAIT)
    env.broker.fetch_sessions.remove(consumer.id)
    env.clock.advance(0.5)
    assert polling.result.error_code == 0
    assert nothing_left(env)


def test_session_closed_while_reading_is_cleaned_up(env):
    """Otherwise it would watch the next partition after the first one is read."""
    for index in range(2):

        async def append(index: int = index) -> None:
            await env.partition("orders", index).log.append(
                [stored_entry(0, 0, batch([Sample(0, 5, b"k", b"v")], codec=ZSTD))]
            )

        ended(append())
    env.threads.hold()
    reading = start_fetch(env, request(3, [from_offset(0, 0), from_offset(0, 1)], session=(0, 0)))
    assert not reading.is_done
    (session_id,) = env.broker.fetch_sessions._sessions
    env.broker.fetch_sessions.remove(session_id)
    env.threads.release()
    assert reading.is_done
    assert nothing_left(env)


def test_busy_partition_does_not_starve_others(env):
    """A response has space for one batch, and each partition always has one."""
    for index in range(3):
        for _ in range(4):
            put(env, index)
    limit = len(batch_entry(0, 1).payload)
    consumer = Consumer(env)
    offsets = [0, 0, 0]
    changed = [from_offset(0, n) for n in range(3)]
    for _ in range(6):
        answer = consumer.fetch(*changed, max_bytes=limit)
        changed = []
        for (_, index), row in rows(answer).items():
            if row.records:
                offsets[index] += 1
                changed.append(from_offset(offsets[index], index))
    assert offsets == [2, 2, 2]


def test_idle_partitions_are_not_read_in_session(env, monkeypatch):
    env.topic("wide", 400)
    consumer = Consumer(env, *[from_offset(0, n) for n in range(400)], topic="wide")
    looked = []
    monkeypatch.setattr(handler.FetchReader, "_read_one", lambda *_: looked.append(1))
    for index in range(400):
        log = env.broker.topics.get_open_partition("wide", index).log
        monkeypatch.setattr(log, "watch", lambda *_: looked.append(1))
        monkeypatch.setattr(log, "read_resident", lambda *_: looked.append(1))
    polling = consumer.start(max_wait_ms=WAIT)
    env.clock.advance(0.5)
    assert (list(polling.result.topics), looked) == ([], [])


def test_only_changed_partition_of_many_is_read(env):
    env.topic("wide", 400)
    consumer = Consumer(env, *[from_offset(0, n) for n in range(400)], topic="wide")
    polling = consumer.start(max_wait_ms=WAIT)

    async def append() -> None:
        await env.partition("wide", 378).log.append([batch_entry(0, 1)])

    ended(append())
    assert indexes(polling.result) == [378]


@pytest.mark.parametrize(
    ("version", "told"), [(5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_store_failure_is_retriable_for_every_version(env, version, told):
    """FetchResponse of Kafka 1.0 to 3.9: clients up to v5 may not know KafkaStorageException."""
    env.store.refuse_logs = StorageFailed("unreachable")
    assert rows(poll(env, from_offset(0), version=version).result)["orders", 0].error_code == told


def test_unopened_partitions_open_concurrently(env):
    env.store.slow_logs = Deferred()
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2), min_bytes=0)
    assert env.store.logs_asked == 3
    env.store.slow_logs.callback(None)
    assert sorted(rows(polling.result)) == [("orders", 0), ("orders", 1), ("orders", 2)]


def test_missing_partition_is_not_kept_in_session(env):
    sessions = env.broker.fetch_sessions
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 7))
    assert (consumer.id, len(sessions), sessions.partition_count) == (0, 0, 0)
    consumer = Consumer(env, from_offset(0, 0))
    assert (len(sessions), sessions.partition_count) == (1, 1)
    assert (
        rows(consumer.fetch(from_offset(0, 7)))["orders", 7].error_code
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert (len(sessions), sessions.partition_count) == (0, 0)
    assert consumer.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
