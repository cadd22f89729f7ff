"""Periodic jobs: retention, and expiry of producers, committed offsets and fetch sessions."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from compat.message_sets import check_message_set
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.housekeeping import Housekeeping
from gateway.partitions.record_batch import check_batch
from storage.log import StorageFailed
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.records.record_sets import batch, old_set

INTERVAL = 300
HOUR = 3600 * 1000


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment(log_retention_check_interval_ms=INTERVAL * 1000)
    env.topic("orders", retention_ms=str(HOUR))
    return env


@pytest.fixture
def keeping(env: BrokerEnvironment) -> Housekeeping:
    keeping = Housekeeping(env.broker, env.background)
    keeping.start()
    return keeping


def put(
    env: BrokerEnvironment,
    age_ms: int | None,
    topic: str = "orders",
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> None:
    """Append a batch of the given age, or with None a format 0 set, which has no timestamps."""
    partition = env.partition(topic)
    if age_ms is None:
        records = old_set(1, magic=0)
        ended(
            partition.append_message_set(
                records, check_message_set(records, max_decompressed_bytes=1 << 20), env.now()
            )
        )
    else:
        records = batch(1, timestamp=env.now() - age_ms, producer=producer)
        ended(partition.append_batch(records, check_batch(records, 11), env.now()))


def starts(env: BrokerEnvironment, *topics: str) -> list[int]:
    return [env.partition(topic).log.start_offset for topic in topics or ["orders"]]


def test_retention_waits_for_interval(env, keeping):
    put(env, 2 * HOUR)
    env.clock.advance(INTERVAL - 1)
    assert starts(env) == [0]
    env.clock.advance(1)
    assert starts(env) == [1]


def test_records_older_than_retention_time_are_deleted(env, keeping):
    for age in (3 * HOUR, 2 * HOUR, HOUR - 2 * INTERVAL * 1000, 0):
        put(env, age)
    env.clock.advance(INTERVAL)
    assert starts(env) == [2]


def test_records_without_timestamps_expire_by_arrival_time(env, keeping):
    """Kafka uses the time of the segment's file."""
    put(env, None)
    env.clock.advance(INTERVAL)
    assert starts(env) == [0]
    for _ in range(HOUR // 1000 // INTERVAL):
        env.clock.advance(INTERVAL)
    assert starts(env) == [1]


def test_retention_time_is_per_topic(env, keeping):
    env.topic("for-ever", retention_ms="-1")
    for topic in ("orders", "for-ever"):
        put(env, 2 * HOUR, topic)
    env.clock.advance(INTERVAL)
    assert starts(env, "orders", "for-ever") == [1, 0]


def test_retention_bytes_limits_topic_size(env, keeping):
    size = len(batch(1))
    env.topic("narrow", retention_ms="-1", retention_bytes=str(2 * size))
    for _ in range(5):
        put(env, 0, "narrow")
    env.clock.advance(INTERVAL)
    assert starts(env, "narrow") == [3]


def test_compacted_topic_ignores_retention_time(env, keeping):
    env.topic("table", cleanup_policy="compact", retention_ms=str(HOUR))
    env.topic("both", cleanup_policy="compact,delete", retention_ms=str(HOUR))
    for topic in ("table", "both"):
        put(env, 2 * HOUR, topic)
    env.clock.advance(INTERVAL)
    assert starts(env, "table", "both") == [0, 1]


def test_changed_config_applies_at_next_run(env, keeping):
    env.topic("late", retention_ms="-1")
    put(env, 2 * HOUR, "late")
    env.clock.advance(INTERVAL)

    def shorten(topic: Any) -> Any:
        return replace(topic, configs={"retention.ms": "1000"})

    ended(env.broker.topics.alter(env.broker.topics.require("late"), shorten))
    env.clock.advance(INTERVAL)
    assert starts(env, "late") == [1]


def test_idle_idempotent_producers_expire():
    env = open_environment(
        log_retention_check_interval_ms=INTERVAL * 1000,
        producer_id_expiration_ms=2 * INTERVAL * 1000,
    )
    env.topic("orders")
    Housekeeping(env.broker, env.background).start()
    put(env, 0, producer=(1, 0, 0))
    env.clock.advance(INTERVAL)
    put(env, 0, producer=(2, 0, 0))
    env.clock.advance(INTERVAL)
    assert [producer for producer, _ in env.partition().producers] == [1, 2]
    env.clock.advance(INTERVAL)
    assert [producer for producer, _ in env.partition().producers] == [2]


def test_offsets_expire_at_separate_interval():
    """Retention is one minute, checked every 40 seconds: expired at the second check."""
    env = open_environment(offsets_retention_minutes=1, offsets_retention_check_interval_ms=40_000)
    env.topic("orders")
    keeping = Housekeeping(env.broker, env.background)
    keeping.start()
    ended(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(1, -1, "", env.now())}))
    env.clock.advance(40)
    assert env.broker.offsets.has("g")
    env.clock.advance(40)
    assert not env.broker.offsets.has("g")
    keeping.stop()
    ended(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(1, -1, "", 0)}))
    env.clock.advance(400)
    assert env.broker.offsets.has("g")
    assert env.bugs == []


def test_unused_fetch_sessions_expire_without_requests(env, keeping):
    env.clock.advance(30)
    for _ in range(3):
        env.broker.fetch_sessions.create(env.broker.now())
    polling = env.broker.fetch_sessions.create(env.broker.now())
    polling.is_in_use = True
    env.clock.advance(599)
    assert len(env.broker.fetch_sessions) == 4
    env.clock.advance(61)
    assert len(env.broker.fetch_sessions) == 1
    assert env.broker.fetch_sessions.get(polling.session_id, env.broker.now()) is polling


def test_runs_of_a_job_never_overlap(env, keeping, monkeypatch):
    put(env, 2 * HOUR)
    log = env.partition().log
    real, calls = log.retain, []

    async def slow(**limits: Any) -> int:
        calls.append(1)
        await env.threads.run(lambda: None)
        return await real(**limits)

    monkeypatch.setattr(log, "retain", slow)
    env.threads.hold()
    for _ in range(5):
        env.clock.advance(INTERVAL)
    assert len(calls) == 1
    env.threads.release()
    env.clock.advance(INTERVAL)
    assert len(calls) == 2


def test_failure_in_one_topic_is_logged_and_others_are_processed(env, keeping, caplog):
    env.topic("second", retention_ms=str(HOUR))
    for topic in ("orders", "second"):
        put(env, 2 * HOUR, topic)
    log = env.partition("orders").log

    async def failing(**limits: Any) -> int:
        raise StorageFailed("the test said so")

    log.retain = failing
    with caplog.at_level(logging.WARNING):
        env.clock.advance(INTERVAL)
    assert [record.getMessage() for record in caplog.records] == [
        "retention failed, retried by the next check"
    ]
    assert starts(env, "second") == [1]


def test_topic_deleted_during_retention_is_not_a_failure(env, keeping, caplog, monkeypatch):
    put(env, 2 * HOUR)
    live = env.broker.topics.require("orders")
    log = env.partition().log
    real = log.retain

    async def deleted_first(**limits: Any) -> int:
        await env.broker.topics.delete(live)
        return await real(**limits)

    monkeypatch.setattr(log, "retain", deleted_first)
    with caplog.at_level(logging.WARNING):
        env.clock.advance(INTERVAL)
    assert caplog.records == []
    env.clock.advance(INTERVAL)
    assert not env.bugs


def test_no_job_runs_after_stop(env, keeping):
    put(env, 2 * HOUR)
    keeping.stop()
    env.clock.advance(10 * INTERVAL)
    assert starts(env) == [0]
    assert not env.clock.getDelayedCalls()


def test_stop_during_retention_ends_after_current_partition(env, keeping, monkeypatch):
    env.topic("second", retention_ms=str(HOUR))
    for topic in ("orders", "second"):
        put(env, 2 * HOUR, topic)
    log = env.partition("orders").log
    real = log.retain

    async def stopped_first(**limits: Any) -> int:
        keeping.stop()
        return await real(**limits)

    monkeypatch.setattr(log, "retain", stopped_first)
    env.clock.advance(INTERVAL)
    assert starts(env, "orders", "second") == [1, 0]
    assert not env.clock.getDelayedCalls()


def test_fake_wall_clock_follows_broker_clock(env):
    env.clock.advance(1)
    assert env.broker.now() == env.now() == NOW + 1000


def test_unopened_logs_are_left_to_store_with_retention(env, keeping, monkeypatch):
    monkeypatch.setattr(type(env.store), "retains_by_itself", True)
    env.topic("bills", cleanup_policy="compact,delete")
    put(env, 2 * HOUR)
    env.clock.advance(INTERVAL)
    assert starts(env) == [1]
    assert env.broker.topics.get_open_partition("bills", 0) is None
    assert env.store.logs_asked == 1


def test_fenced_log_is_reopened_at_next_run(env, keeping, caplog):
    put(env, 2 * HOUR)
    env.store.fence("orders")
    env.clock.advance(INTERVAL)
    assert "retention failed" in caplog.text
    env.clock.advance(INTERVAL)
    assert starts(env) == [1]
