"""Bursts are applied once and in order, and older rows never replace newer ones."""

from __future__ import annotations

import logging

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred

from storage.cluster import Rows
from storage.log import LogClosed
from storage.pulsar.cluster.replay import Replay


def watched() -> tuple[Replay, list[Rows]]:
    replay = Replay()
    changes: list[Rows] = []
    replay.watch(changes.append)
    return replay, changes


def test_burst_that_arrives_again_changes_nothing() -> None:
    replay, changes = watched()
    assert replay.apply(1, {b"a": b"1"})
    assert replay.apply(2, {b"a": b"2"})
    assert replay.apply(1, {b"a": b"1"})
    assert replay.apply(2, {b"a": b"2"})
    assert (replay.rows, replay.revision) == ({b"a": b"2"}, 2)
    assert changes == [{b"a": b"1"}, {b"a": b"2"}]


def test_burst_after_a_missing_one_is_not_applied() -> None:
    replay, changes = watched()
    assert replay.apply(1, {b"a": b"1"})
    assert not replay.apply(3, {b"a": b"3"})
    assert (replay.rows, replay.revision) == ({b"a": b"1"}, 1)
    assert len(changes) == 1


def test_loaded_rows_are_delivered_as_their_difference() -> None:
    replay, changes = watched()
    replay.apply(1, {b"same": b"1", b"changed": b"1", b"deleted": b"1"})
    assert replay.replace(5, {b"same": b"1", b"changed": b"2", b"new": b"1"})
    assert changes[1:] == [{b"changed": b"2", b"new": b"1", b"deleted": None}]
    assert (replay.rows, replay.revision) == ({b"same": b"1", b"changed": b"2", b"new": b"1"}, 5)


def test_loaded_rows_older_than_replayed_ones_are_refused() -> None:
    replay, changes = watched()
    replay.apply(1, {b"a": b"1"})
    replay.apply(2, {b"a": b"2"})
    assert not replay.replace(1, {b"a": b"1"})
    assert replay.replace(2, {b"a": b"2"})
    assert replay.rows == {b"a": b"2"}
    assert len(changes) == 2


def test_watcher_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    replay = Replay()
    changes: list[Rows] = []

    def fail(rows: Rows) -> None:
        raise RuntimeError(rows)

    replay.watch(fail)
    replay.watch(changes.append)
    with caplog.at_level(logging.ERROR):
        replay.apply(1, {b"a": b"1"})
    assert changes == [{b"a": b"1"}]
    assert "a watcher of the metadata log raised" in caplog.text


@ensureDeferred
async def test_wait_for_a_revision_ends_after_the_watchers_were_called() -> None:
    replay, changes = watched()
    seen: list[int] = []
    waiting = Deferred.fromCoroutine(replay.wait_for(2))
    waiting.addCallback(lambda _: seen.append(len(changes)))
    replay.apply(1, {b"a": b"1"})
    assert seen == []
    replay.apply(2, {b"a": b"2"})
    assert seen == [2]
    await replay.wait_for(2)
    late = Deferred.fromCoroutine(replay.wait_for(3))
    replay.close()
    with pytest.raises(LogClosed):
        await late
