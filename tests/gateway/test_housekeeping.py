"""What is done at intervals: retention, forgetting idempotent producers that have gone, expiry of committed offsets."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from compat.records import check_message_set
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.housekeeping import Housekeeping
from gateway.partitions.record_batch import check_batch
from storage.log import StorageFailed
from tests.fakes.broker import NOW, House, ended, open_house
from tests.gateway.sets import batch, old_set

INTERVAL = 300
HOUR = 3600 * 1000


@pytest.fixture
def house() -> House:
    house = open_house(log_retention_check_interval_ms=INTERVAL * 1000)
    house.topic("orders", retention_ms=str(HOUR))
    return house


@pytest.fixture
def keeping(house: House) -> Housekeeping:
    keeping = Housekeeping(house.broker, house.background)
    keeping.start()
    return keeping


def put(
    house: House,
    age_ms: int | None,
    topic: str = "orders",
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> None:
    """A batch whose records are so old; None for a format 0 set, which has no times."""
    partition = house.partition(topic)
    if age_ms is None:
        records = old_set(1, magic=0)
        ended(
            partition.append_message_set(
                records, check_message_set(records, max_decompressed_bytes=1 << 20), house.now()
            )
        )
    else:
        records = batch(1, timestamp=house.now() - age_ms, producer=producer)
        ended(partition.append_batch(records, check_batch(records, 11), house.now()))


def starts(house: House, *topics: str) -> list[int]:
    return [house.partition(topic).log.start_offset for topic in topics or ["orders"]]


def test_nothing_is_done_before_the_interval_is_over(house, keeping):
    put(house, 2 * HOUR)
    house.clock.advance(INTERVAL - 1)
    assert starts(house) == [0]
    house.clock.advance(1)
    assert starts(house) == [1]


def test_records_older_than_the_retention_time_go_and_younger_ones_stay(house, keeping):
    for age in (3 * HOUR, 2 * HOUR, HOUR - 2 * INTERVAL * 1000, 0):
        put(house, age)
    house.clock.advance(INTERVAL)
    assert starts(house) == [2]


def test_records_without_times_stay_as_long_as_if_they_had_been_written_when_they_came(
    house, keeping
):
    """Kafka counts them from the time of the segment's file."""
    put(house, None)
    house.clock.advance(INTERVAL)
    assert starts(house) == [0]
    for _ in range(HOUR // 1000 // INTERVAL):
        house.clock.advance(INTERVAL)
    assert starts(house) == [1]


def test_each_topic_keeps_by_its_own_time(house, keeping):
    house.topic("for-ever", retention_ms="-1")
    for topic in ("orders", "for-ever"):
        put(house, 2 * HOUR, topic)
    house.clock.advance(INTERVAL)
    assert starts(house, "orders", "for-ever") == [1, 0]


def test_a_topic_keeps_no_more_bytes_than_it_should(house, keeping):
    size = len(batch(1))
    house.topic("narrow", retention_ms="-1", retention_bytes=str(2 * size))
    for _ in range(5):
        put(house, 0, "narrow")
    house.clock.advance(INTERVAL)
    assert starts(house, "narrow") == [3]


def test_a_compacted_topic_loses_nothing_by_time(house, keeping):
    house.topic("table", cleanup_policy="compact", retention_ms=str(HOUR))
    house.topic("both", cleanup_policy="compact,delete", retention_ms=str(HOUR))
    for topic in ("table", "both"):
        put(house, 2 * HOUR, topic)
    house.clock.advance(INTERVAL)
    assert starts(house, "table", "both") == [0, 1]


def test_a_changed_config_holds_at_the_next_round(house, keeping):
    house.topic("late", retention_ms="-1")
    put(house, 2 * HOUR, "late")
    house.clock.advance(INTERVAL)

    def shorten(topic: Any) -> Any:
        return replace(topic, configs={"retention.ms": "1000"})

    ended(house.broker.topics.alter(house.broker.topics.require("late"), shorten))
    house.clock.advance(INTERVAL)
    assert starts(house, "late") == [1]


def test_idempotent_producers_that_have_gone_are_forgotten():
    house = open_house(
        log_retention_check_interval_ms=INTERVAL * 1000,
        producer_id_expiration_ms=2 * INTERVAL * 1000,
    )
    house.topic("orders")
    Housekeeping(house.broker, house.background).start()
    put(house, 0, producer=(1, 0, 0))
    house.clock.advance(INTERVAL)
    put(house, 0, producer=(2, 0, 0))
    house.clock.advance(INTERVAL)
    assert [producer for producer, _ in house.partition().producers] == [1, 2]
    house.clock.advance(INTERVAL)
    assert [producer for producer, _ in house.partition().producers] == [2]


def test_offsets_expire_at_intervals_of_their_own():
    """A minute of retention, looked at every 40 seconds: gone at the second look."""
    house = open_house(offsets_retention_minutes=1, offsets_retention_check_interval_ms=40_000)
    house.topic("orders")
    keeping = Housekeeping(house.broker, house.background)
    keeping.start()
    ended(
        house.broker.offsets.commit("g", {("orders", 0): CommittedOffset(1, -1, "", house.now())})
    )
    house.clock.advance(40)
    assert house.broker.offsets.has("g")
    house.clock.advance(40)
    assert not house.broker.offsets.has("g")
    keeping.stop()
    ended(house.broker.offsets.commit("g", {("orders", 0): CommittedOffset(1, -1, "", 0)}))
    house.clock.advance(400)
    assert house.broker.offsets.has("g")
    assert house.bugs == []


def test_fetch_sessions_that_are_not_used_expire_without_another_request(house, keeping):
    house.clock.advance(30)
    for _ in range(3):
        house.broker.fetch_sessions.create(house.broker.now())
    polling = house.broker.fetch_sessions.create(house.broker.now())
    polling.is_in_use = True
    house.clock.advance(599)
    assert len(house.broker.fetch_sessions) == 4
    house.clock.advance(61)
    assert len(house.broker.fetch_sessions) == 1
    assert house.broker.fetch_sessions.get(polling.session_id, house.broker.now()) is polling


def test_rounds_follow_one_another_and_never_overlap(house, keeping, monkeypatch):
    put(house, 2 * HOUR)
    log = house.partition().log
    real, calls = log.retain, []

    async def slow(**limits: Any) -> int:
        calls.append(1)
        await house.threads.run(lambda: None)
        return await real(**limits)

    monkeypatch.setattr(log, "retain", slow)
    house.threads.hold()
    for _ in range(5):
        house.clock.advance(INTERVAL)
    assert len(calls) == 1
    house.threads.release()
    house.clock.advance(INTERVAL)
    assert len(calls) == 2


def test_a_failure_in_one_topic_is_said_and_the_others_are_looked_after(house, keeping, caplog):
    house.topic("second", retention_ms=str(HOUR))
    for topic in ("orders", "second"):
        put(house, 2 * HOUR, topic)
    log = house.partition("orders").log

    async def failing(**limits: Any) -> int:
        raise StorageFailed("the test said so")

    log.retain = failing
    with caplog.at_level(logging.WARNING):
        house.clock.advance(INTERVAL)
    assert [record.getMessage() for record in caplog.records] == ["retention failed"]
    assert starts(house, "second") == [1]


def test_a_topic_deleted_meanwhile_is_no_failure(house, keeping, caplog, monkeypatch):
    put(house, 2 * HOUR)
    live = house.broker.topics.require("orders")
    log = house.partition().log
    real = log.retain

    async def deleted_first(**limits: Any) -> int:
        await house.broker.topics.delete(live)
        return await real(**limits)

    monkeypatch.setattr(log, "retain", deleted_first)
    with caplog.at_level(logging.WARNING):
        house.clock.advance(INTERVAL)
    assert caplog.records == []
    house.clock.advance(INTERVAL)
    assert not house.bugs


def test_after_the_stop_nothing_more_happens(house, keeping):
    put(house, 2 * HOUR)
    keeping.stop()
    house.clock.advance(10 * INTERVAL)
    assert starts(house) == [0]
    assert not house.clock.getDelayedCalls()


def test_a_stop_in_the_middle_of_a_round_ends_it_with_the_partition_at_hand(
    house, keeping, monkeypatch
):
    house.topic("second", retention_ms=str(HOUR))
    for topic in ("orders", "second"):
        put(house, 2 * HOUR, topic)
    log = house.partition("orders").log
    real = log.retain

    async def stopped_first(**limits: Any) -> int:
        keeping.stop()
        return await real(**limits)

    monkeypatch.setattr(log, "retain", stopped_first)
    house.clock.advance(INTERVAL)
    assert starts(house, "orders", "second") == [1, 0]
    assert not house.clock.getDelayedCalls()


def test_the_clock_of_the_test_is_the_brokers(house):
    house.clock.advance(1)
    assert house.broker.now() == house.now() == NOW + 1000


def test_logs_that_nobody_has_opened_are_left_to_a_medium_that_retains_by_itself(
    house, keeping, monkeypatch
):
    monkeypatch.setattr(type(house.store), "retains_by_itself", True)
    house.topic("bills", cleanup_policy="compact,delete")
    put(house, 2 * HOUR)
    house.clock.advance(INTERVAL)
    assert starts(house) == [1]
    assert house.broker.topics.opened("bills", 0) is None
    assert house.store.logs_asked == 1


def test_a_log_that_is_found_finished_is_opened_anew_at_the_next_round(house, keeping, caplog):
    put(house, 2 * HOUR)
    house.store.fence("orders")
    house.clock.advance(INTERVAL)
    assert "retention failed" in caplog.text
    house.clock.advance(INTERVAL)
    assert starts(house) == [1]
