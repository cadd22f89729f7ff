"""Fetch as a conversation: long polls, sessions, and what is left behind by those that go."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from gateway.handlers import fetch as handler
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.fetch_codec import FetchPartition
from storage.log import StorageFailed
from tests.compat.records.building import GZIP, Sample, batch
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

NEW = 12
WAIT = 500


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders", 3)
    return env


def put(env: BrokerEnvironment, index: int = 0, size: int = 20, count: int = 1) -> int:
    """Store a batch of `count` records; its bytes."""
    log = env.partition("orders", index).log
    added = batch_entry(log.next_offset, count, size)

    async def append() -> None:
        await log.append([added])

    ended(append())
    return len(added.payload)


def poll(env: BrokerEnvironment, *partitions: Any, version: int = NEW, **more: Any) -> Started:
    return start_fetch(env, request(version, partitions, max_wait_ms=WAIT, **more))


def watchers(env: BrokerEnvironment) -> list[int]:
    return [len(env.partition("orders", index).log._watchers) for index in range(3)]


def indexes(response: Any) -> list[int]:
    return [index for _, index in rows(response)]


def nothing_left(env: BrokerEnvironment) -> bool:
    return watchers(env) == [0, 0, 0] and not env.clock.getDelayedCalls()


# Long polls


def test_an_answer_with_enough_bytes_does_not_wait(env):
    put(env)
    assert poll(env, from_offset(0)).is_done
    assert nothing_left(env)


@pytest.mark.parametrize(
    "more", [{"max_wait_ms": 0}, {"min_bytes": 0, "max_wait_ms": WAIT}], ids=["no wait", "no bytes"]
)
def test_who_wants_no_wait_has_none(env, more):
    assert start_fetch(env, request(NEW, [from_offset(0)], **more)).is_done


def test_a_poll_ends_empty_when_its_time_is_up_and_no_sooner(env):
    polling = poll(env, from_offset(0))
    env.clock.advance(0.499)
    assert not polling.is_done
    env.clock.advance(0.001)
    assert list(rows(polling.result)["orders", 0].records) == []
    assert nothing_left(env)


def test_a_poll_is_woken_by_the_append_itself(env):
    polling = poll(env, from_offset(0))
    size = put(env)
    assert len(payload(rows(polling.result)["orders", 0])) == size
    assert env.clock.seconds() == 0
    assert nothing_left(env)


@pytest.mark.parametrize("version", [0, 2, 4, 7, 18])
def test_consumers_of_every_age_are_woken(env, version):
    topic = env.broker.topics.require("orders").topic.topic_id if version >= 13 else "orders"
    polling = start_fetch(env, request(version, [from_offset(0)], topic=topic, max_wait_ms=WAIT))
    put(env)
    assert consume(payload(rows(polling.result)[topic, 0]), 0).records[0][0] == 0


def test_a_poll_waits_for_min_bytes_over_all_its_partitions(env):
    size = len(batch_entry(0, 1).payload)
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), min_bytes=2 * size + 1)
    put(env, 0)
    put(env, 1)
    assert not polling.is_done
    put(env, 0)
    assert [len(row.records) for row in rows(polling.result).values()] == [2, 1]


def test_bytes_that_were_there_already_count_towards_min_bytes(env):
    size = put(env, 0)
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), min_bytes=2 * size)
    assert not polling.is_done
    put(env, 1)
    assert polling.is_done


def test_more_bytes_than_a_reply_may_have_are_not_waited_for(env):
    """fetch.min.bytes above fetch.max.bytes: the consumer would wait its whole time for every reply."""
    size = put(env)
    put(env)
    assert poll(env, from_offset(0), min_bytes=100 * size, max_bytes=2 * size).is_done


def test_what_is_there_is_given_when_the_time_is_up_although_it_is_less(env):
    put(env)
    polling = poll(env, from_offset(0), min_bytes=100_000)
    env.clock.advance(0.5)
    assert len(rows(polling.result)["orders", 0].records) == 1


def test_a_full_answer_names_every_partition_also_after_a_wait(env):
    """Java checks that, and Sarama fails where one is missing."""
    woken, waited = (
        poll(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2)),
        poll(env, from_offset(0, 0), from_offset(0, 2)),
    )
    put(env, 1)
    assert sorted(indexes(woken.result)) == [0, 1, 2]
    env.clock.advance(0.5)
    assert sorted(indexes(waited.result)) == [0, 2]


def test_what_comes_while_another_partition_is_read_is_not_slept_through(env, monkeypatch):
    """Partition 0 is read and found empty, 1 then waits for the disk: what comes to 0 meanwhile wakes nobody, for nobody waits yet."""
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


def test_bytes_that_come_while_retention_frees_others_still_wake(env):
    put(env, size=5000)
    polling = poll(env, from_offset(1))
    log = env.partition("orders", 0).log

    async def cut_and_append() -> None:
        await log.delete_before(1)

    ended(cut_and_append())
    assert not polling.is_done
    put(env)
    assert polling.is_done


def test_retention_that_moves_the_start_past_a_waiting_consumer_wakes_it(env):
    put(env)
    put(env)
    polling = poll(env, from_offset(1), min_bytes=100_000)

    async def cut() -> None:
        await env.partition("orders", 0).log.delete_before(2)

    ended(cut())
    assert rows(polling.result)["orders", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_deletion_of_the_topic_wakes_a_waiting_consumer(env):
    polling = poll(env, from_offset(0))
    logs = [env.partition("orders", index).log for index in range(3)]
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    assert rows(polling.result)["orders", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [len(log._watchers) for log in logs] == [0, 0, 0]


def test_an_error_in_one_partition_is_told_at_once(env):
    assert poll(env, from_offset(0, 0), from_offset(0, 9)).is_done


def test_a_diverging_log_is_told_at_once(env):
    put(env)
    assert poll(env, FetchPartition(0, 5, 1000, -1, 0)).is_done


@pytest.mark.parametrize("version", [1, 3])
def test_an_old_consumer_waits_at_a_batch_that_cannot_be_read_until_something_follows(env, version):
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


def test_the_longest_wait_there_is_costs_one_timer_and_ends_like_any_other(env):
    """Kafka has no bound for it either; idle time does not count meanwhile."""
    polling = start_fetch(env, request(NEW, [from_offset(0)], max_wait_ms=2**31 - 1))
    assert len(env.clock.getDelayedCalls()) == 1
    env.clock.advance(3_600)
    assert not polling.is_done
    put(env)
    assert polling.is_done
    assert nothing_left(env)


def test_a_fetch_of_nothing_is_answered_at_once(env):
    assert poll(env).is_done


def test_a_shutdown_ends_every_poll(env):
    polling = poll(env, from_offset(0))
    env.broker.interruptible_waits.end()
    assert polling.is_done
    assert poll(env, from_offset(0)).is_done


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_a_consumer_that_goes_away_leaves_nothing_waiting(env, session):
    polling = poll(env, from_offset(0), session=session)
    polling.cancel()
    assert polling.failure is not None
    assert not env.clock.getDelayedCalls()
    if session == (0, -1):
        assert nothing_left(env)


def test_a_failing_store_is_told_in_the_row(env, monkeypatch):
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
def test_every_version_has_an_answer_that_can_be_written_and_no_set_of_length_minus_one(
    env, version
):
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
        # Of the empty ones: a size of 0, never -1, at the end of the row.
        assert raw.endswith(b"\0\0\0\0")


# Sessions


class Consumer:
    """A client in a session: it names its partitions once, then only what changes (Java's FetchSessionHandler)."""

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
        # Many partitions take more than one turn of the reactor.
        self.env.clock.advance(0)
        return started.result


def test_a_first_fetch_names_everything_and_begins_a_session(env):
    put(env, 1)
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2))
    assert consumer.id > 0
    assert indexes(consumer.first) == [0, 1, 2]
    assert len(env.broker.fetch_sessions) == 1


def test_what_has_not_changed_is_not_told_again(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    answer = consumer.fetch()
    assert (answer.session_id, indexes(answer)) == (consumer.id, [])


def test_only_partitions_with_news_are_told(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2))
    put(env, 1)
    assert indexes(consumer.fetch()) == [1]
    assert indexes(consumer.fetch(from_offset(1, 1))) == []


def test_what_was_not_fetched_on_is_served_again(env):
    put(env, 0)
    consumer = Consumer(env, from_offset(0, 0))
    assert payload(rows(consumer.fetch())["orders", 0]) == payload(
        rows(consumer.first)["orders", 0]
    )


def test_a_new_high_watermark_is_news_without_records(env):
    """There is no room for records of partition 2, but the consumer may want to know how far it is behind."""
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2))
    put(env, 1)
    put(env, 2)
    told = rows(consumer.fetch(max_bytes=1))
    assert [(index, row.high_watermark, len(row.records)) for (_, index), row in told.items()] == [
        (1, 1, 1),
        (2, 1, 0),
    ]


def test_a_new_start_of_the_log_is_news(env):
    put(env, 0)
    put(env, 0)
    consumer = Consumer(env, from_offset(2, 0))

    async def cut() -> None:
        await env.partition("orders", 0).log.delete_before(1)

    ended(cut())
    assert rows(consumer.fetch())["orders", 0].log_start_offset == 1
    assert indexes(consumer.fetch()) == []


def test_news_that_came_with_a_wait_is_told_at_its_end(env):
    put(env, 0)
    put(env, 0)
    consumer = Consumer(env, from_offset(2, 0))

    async def cut() -> None:
        await env.partition("orders", 0).log.delete_before(1)

    ended(cut())
    polling = consumer.start(max_wait_ms=WAIT)
    env.clock.advance(0.5)
    assert rows(polling.result)["orders", 0].log_start_offset == 1


def test_an_error_is_told_in_every_round_until_it_is_gone(env):
    consumer = Consumer(env, from_offset(5, 0))
    assert [rows(consumer.fetch())["orders", 0].error_code for _ in range(2)] == [
        ErrorCode.OFFSET_OUT_OF_RANGE
    ] * 2
    assert rows(consumer.fetch(from_offset(0, 0)))["orders", 0].error_code == 0
    assert indexes(consumer.fetch()) == []


def test_a_deleted_topic_is_told_in_a_session_and_so_is_its_successor(env):
    consumer = Consumer(env, from_offset(0, 0))
    ended(env.broker.topics.delete(env.broker.topics.require("orders")))
    assert rows(consumer.fetch())["orders", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    env.topic("orders", 3)
    put(env, 0)
    assert len(rows(consumer.fetch())["orders", 0].records) == 1


def test_forgotten_partitions_are_told_of_no_more(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    consumer.fetch(forgotten=[0])
    put(env, 0)
    put(env, 1)
    assert indexes(consumer.fetch()) == [1]
    assert watchers(env) == [0, 1, 0]


def test_a_partition_forgotten_and_named_again_in_one_request_stays(env):
    consumer = Consumer(env, from_offset(0, 0))
    put(env, 0)
    assert indexes(consumer.fetch(from_offset(0, 0), forgotten=[0])) == [0]
    assert watchers(env) == [1, 0, 0]


def test_a_session_waits_as_any_poll_does(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    polling = consumer.start(max_wait_ms=WAIT)
    put(env, 1)
    assert indexes(polling.result) == [1]


def test_an_unknown_session_is_told_so(env):
    assert (
        start_fetch(env, request(NEW, session=(77, 1))).result.error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert (
        start_fetch(env, request(NEW, session=(0, 1))).result.error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


@pytest.mark.parametrize("epoch", [2, 3, 77])
def test_a_round_out_of_step_is_told_so_and_the_session_goes_on(env, epoch):
    consumer = Consumer(env, from_offset(0, 0))
    answer = start_fetch(env, request(NEW, session=(consumer.id, epoch))).result
    assert (answer.error_code, answer.session_id, list(answer.topics)) == (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        0,
        [],
    )
    assert consumer.fetch().error_code == 0


def test_a_repeated_round_is_out_of_step(env):
    consumer = Consumer(env, from_offset(0, 0))
    consumer.fetch()
    consumer.epoch -= 1
    assert consumer.fetch().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_serves_one_round_at_a_time(env):
    consumer = Consumer(env, from_offset(0, 0))
    polling = consumer.start(max_wait_ms=WAIT)
    assert consumer.fetch().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    put(env, 0)
    assert polling.result.error_code == 0


@pytest.mark.parametrize(("first", "then"), [(12, 13), (13, 12)])
def test_a_session_does_not_change_between_names_and_ids(env, first, then):
    topic_id = env.broker.topics.require("orders").topic.topic_id
    consumer = Consumer(
        env, from_offset(0, 0), version=first, topic=topic_id if first >= 13 else "orders"
    )
    answer = start_fetch(env, request(then, session=(consumer.id, 1))).result
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_ends_the_session_and_is_a_full_fetch(env):
    consumer = Consumer(env, from_offset(0, 0))
    answer = start_fetch(env, request(NEW, [from_offset(0, 1)], session=(consumer.id, -1))).result
    assert (answer.session_id, indexes(answer), len(env.broker.fetch_sessions)) == (0, [1], 0)
    assert nothing_left(env)


def test_epoch_zero_with_an_old_id_begins_a_new_session_and_ends_the_old_one(env):
    consumer = Consumer(env, from_offset(0, 0))
    answer = start_fetch(env, request(NEW, [from_offset(0, 1)], session=(consumer.id, 0))).result
    assert answer.session_id not in (0, consumer.id)
    assert len(env.broker.fetch_sessions) == 1
    assert watchers(env) == [0, 1, 0]


def test_without_room_for_a_session_it_is_a_full_fetch():
    env = open_environment(max_incremental_fetch_session_cache_slots=0)
    env.topic("orders", 3)
    answer = start_fetch(env, request(NEW, [from_offset(0, 0)], session=(0, 0))).result
    assert (answer.session_id, indexes(answer)) == (0, [0])
    assert nothing_left(env)


def test_more_partitions_than_a_session_may_have_are_fetched_without_one(env):
    env.broker.fetch_sessions.max_partitions = 2
    answer = start_fetch(
        env, request(NEW, [from_offset(0, n) for n in range(3)], session=(0, 0))
    ).result
    assert (answer.session_id, indexes(answer)) == (0, [0, 1, 2])


def test_a_session_that_grows_too_large_is_ended(env):
    env.broker.fetch_sessions.max_partitions = 2
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    assert consumer.fetch(from_offset(0, 2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(env.broker.fetch_sessions) == 0
    assert nothing_left(env)


def test_a_session_whose_consumer_goes_away_can_be_used_again_and_goes_when_it_is_closed(env):
    consumer = Consumer(env, from_offset(0, 0))
    consumer.start(max_wait_ms=WAIT).cancel()
    assert consumer.fetch().error_code == 0
    env.broker.fetch_sessions.remove(consumer.id)
    assert nothing_left(env)


def test_a_session_closed_while_it_waits_leaves_nothing_behind(env):
    consumer = Consumer(env, from_offset(0, 0), from_offset(0, 1))
    polling = consumer.start(max_wait_ms=WAIT)
    env.broker.fetch_sessions.remove(consumer.id)
    env.clock.advance(0.5)
    assert polling.result.error_code == 0
    assert nothing_left(env)


def test_a_session_closed_while_it_reads_leaves_nothing_behind(env):
    """It would follow the next partition when the first has been read."""
    for index in range(2):

        async def append(index: int = index) -> None:
            await env.partition("orders", index).log.append(
                [stored_entry(0, 0, batch([Sample(0, 5, b"k", b"v")], codec=GZIP))]
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


def test_a_busy_partition_does_not_starve_the_others(env):
    """There is room for one batch a round, and each partition has one at any time."""
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


def test_a_round_over_many_idle_partitions_looks_at_none_of_them(env, monkeypatch):
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


def test_of_many_partitions_only_the_one_that_changed_is_read(env):
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
def test_a_store_that_fails_is_told_as_something_that_the_consumer_retries(env, version, told):
    """By FetchResponse of Kafka 1.0 to 3.9: with version 5 and older KafkaStorageException is not sure to be known."""
    env.store.refuse_logs = StorageFailed("unreachable")
    assert rows(poll(env, from_offset(0), version=version).result)["orders", 0].error_code == told


def test_partitions_that_are_not_open_open_together(env):
    env.store.slow_logs = Deferred()
    polling = poll(env, from_offset(0, 0), from_offset(0, 1), from_offset(0, 2), min_bytes=0)
    assert env.store.logs_asked == 3
    env.store.slow_logs.callback(None)
    assert sorted(rows(polling.result)) == [("orders", 0), ("orders", 1), ("orders", 2)]


def test_a_partition_that_does_not_exist_is_kept_in_no_session(env):
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
