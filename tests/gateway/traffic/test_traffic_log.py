from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from auth.mechanism import ANONYMOUS
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from gateway.traffic.traffic_log import (
    MAX_ROWS_PER_TURN,
    NO_TRAFFIC_LOG,
    SLOTS,
    TrafficLog,
    read_salt,
)
from tests.fakes.broker import ended
from tests.fakes.traffic import START, RecordedRows

PEER = PeerAddress("192.0.2.1", 5000, "PLAINTEXT", "PLAINTEXT")
COLLIDING = PeerAddress("192.0.2.2", 5000, "PLAINTEXT", "PLAINTEXT")


def opened(clock=None, salt=None, max_keys=10, max_rows=100):
    kept = RecordedRows()
    log = TrafficLog(
        [kept],
        7,
        "cluster",
        start=START,
        now=lambda: 1000,
        clock=clock or Clock(),
        interval=60,
        max_keys=max_keys,
        max_rows=max_rows,
        salt=salt,
        topic_name=str,
    )
    return log, kept


def connect(log, peer=PEER):
    return log.connection(peer, ANONYMOUS)


def test_rows_are_numbered_without_gaps():
    log, kept = opened()
    connections = [connect(log) for _ in range(3)]
    for number, connection in enumerate(connections):
        connection.topic_accessed(3, 1, f"t{number}")
        connection.closed("client")
    assert [row["sequence"] for row in kept.rows] == list(range(9))
    assert [row["connection"] for row in kept.rows[:3]] == ["7-1000-0", "7-1000-1", "7-1000-2"]


def test_salted_address_depends_on_secret():
    seen = {}
    for salt in (b"one", b"two", b"x" * 500):
        log, kept = opened(salt=salt)
        for peer in (PEER, PEER, COLLIDING):
            connect(log, peer)
        first, again, other = (row["peer"] for row in kept.rows)
        used = connect(log, PEER)
        used.topic_accessed(3, 1, "t")
        assert [row.peer for row in used.take_usage_rows()] == [first]
        assert first == again != other
        assert first.startswith("h:")
        assert len(first) == 2 + 16
        assert b"192.0.2" not in kept.text
        seen[salt] = first
    assert len(set(seen.values())) == 3


def test_connections_are_written_in_slots():
    clock = Clock()
    log, kept = opened(clock)
    log.start()
    for connection in [connect(log) for _ in range(10 * SLOTS)]:
        connection.topic_accessed(3, 1, "t")
    told = []
    for _ in range(SLOTS):
        before = len(kept.rows)
        clock.advance(60 / SLOTS)
        told.append(len(kept.rows) - before)
    assert told == [10] * SLOTS


def crowded(log, rows):
    """Open connections of one slot with `rows` rows each; close those of other slots."""
    connections = [connect(log) for _ in range(6 * SLOTS)]
    for number, connection in enumerate(connections):
        if number % SLOTS:
            connection.closed("client")
    kept = connections[::SLOTS]
    for connection in kept:
        for version in range(rows):
            connection.topic_accessed(3, version, None)
    return kept


def test_crowded_slot_is_written_in_several_turns():
    clock = Clock()
    log, kept = opened(clock, max_keys=200, max_rows=1200)
    log.start()
    crowded(log, 200)
    kept.blocks.clear()
    clock.advance(60 / SLOTS)
    assert sum(kept.blocks) == 6 * 200
    assert max(kept.blocks) <= MAX_ROWS_PER_TURN + 200
    clock.advance(60)
    assert (sum(kept.blocks), len(clock.getDelayedCalls())) == (6 * 200, 1)


def test_closing_before_slot_writes_rows_once():
    clock = Clock()
    log, kept = opened(clock, max_keys=200, max_rows=1200)
    log.start()
    first, *_, last = crowded(log, 200)
    kept.blocks.clear()
    # The rest waits for the next reactor turn.
    clock.rightNow += 60 / SLOTS
    clock.calls.pop(0).func()
    assert len(clock.getDelayedCalls()) == 2
    told = sum(kept.blocks)
    last.closed("client")
    assert sum(kept.blocks) - told == 201
    ended(log.close(1))
    assert clock.getDelayedCalls() == []
    numbers = [row["sequence"] for row in kept.rows]
    assert numbers == list(range(len(numbers)))
    assert len([row for row in kept.rows if row["kind"] == "usage"]) == 6 * 200
    first.closed("client")


def test_due_slot_waits_for_slot_being_written():
    clock = Clock()
    log, kept = opened(clock, max_keys=200, max_rows=1300)
    log.start()
    *_, last = crowded(log, 200)
    _, of_the_next_step = connect(log), connect(log)
    of_the_next_step.topic_accessed(3, 1, "t")
    kept.blocks.clear()
    clock.rightNow += 60 / SLOTS
    clock.calls.pop(0).func()
    first = sum(kept.blocks)
    assert MAX_ROWS_PER_TURN <= first < 6 * 200
    # The next slot is due before the rest of this one is written.
    _, step = clock.calls
    clock.calls.remove(step)
    clock.rightNow += 60 / SLOTS
    step.func()
    assert (sum(kept.blocks), len(clock.getDelayedCalls())) == (first, 2)
    last.closed("client")
    last.topic_accessed(3, 1, "t")
    clock.advance(0)
    assert sum(kept.blocks) == 6 * 200 + 1 + 1
    assert [row["connection"] for row in kept.rows if "topic" in row] == [f"7-1000-{6 * SLOTS + 1}"]


@pytest.mark.parametrize(("late", "rows"), [(0.0, 0), (20.0, 10), (60.0, 10), (6000.0, 10)])
def test_late_reactor_catches_up_without_duplicates(late, rows):
    clock = Clock()
    log, kept = opened(clock)
    log.start()
    connections = [connect(log) for _ in range(10)]
    before = len(kept.rows)
    for connection in connections:
        connection.topic_accessed(3, 1, "t")
    clock.advance(late)
    assert len(kept.rows) - before == rows
    assert len(clock.getDelayedCalls()) == 1


def test_long_pause_is_caught_up_for_one_interval():
    clock = Clock()
    log, _ = opened(clock)
    log.start()
    clock.rightNow += 6000
    steps = 0
    while clock.calls[0].getTime() <= clock.seconds():
        clock.calls.pop(0).func()
        steps += 1
    assert SLOTS <= steps <= SLOTS + 1


def test_close_ends_open_connections_and_stops_writer():
    clock = Clock()
    log, kept = opened(clock)
    log.start()
    connect(log).topic_accessed(3, 1, "t")
    ended(log.close(1))
    assert [row["kind"] for row in kept.rows] == ["connection", "usage", "connection"]
    assert kept.rows[-1]["reason"] == "drain"
    assert kept.is_stopped
    assert clock.getDelayedCalls() == []


def test_null_recorder_ignores_everything():
    recorder = NO_TRAFFIC_LOG.connection(PEER, ANONYMOUS)
    assert recorder is NULL_RECORDER
    assert type(recorder) is Recorder
    recorder.topic_accessed(3, 1, "t", [1])
    recorder.closed("client")
    ended(NO_TRAFFIC_LOG.close(1))


def test_salt_is_first_line_of_file(tmp_path):
    path = tmp_path / "salt"
    path.write_bytes(b"  secret \nnot this\n")
    assert read_salt(path) == b"secret"


@pytest.mark.parametrize("content", [b"", b"\nsecret\n"])
def test_empty_salt_is_rejected(tmp_path, content):
    path = tmp_path / "salt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="first line is empty"):
        read_salt(path)
    with pytest.raises(ValueError, match="No such file"):
        read_salt(tmp_path / "none")
