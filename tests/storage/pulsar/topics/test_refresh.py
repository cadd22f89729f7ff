"""Periodic refresh: one run at a time, failures logged once."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from storage.log import StorageFailed
from storage.pulsar.topics.refresh import Refresher


class ControlledRuns:
    """Counts started runs; the test completes them."""

    def __init__(self) -> None:
        self.begun = 0
        self.ends: list[Deferred[None]] = []

    async def look(self) -> None:
        self.begun += 1
        self.ends.append(Deferred())
        await self.ends[-1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looks() -> ControlledRuns:
    return ControlledRuns()


@pytest.fixture
def refresher(looks: ControlledRuns, clock: Clock) -> Refresher:
    made = Refresher(looks.look, "the list", 30, clock)
    made.start()
    return made


def test_interval_counts_from_end_of_previous_run(
    refresher: Refresher, looks: ControlledRuns, clock: Clock
) -> None:
    clock.advance(29)
    assert looks.begun == 0
    clock.advance(1)
    clock.advance(1000)
    assert looks.begun == 1
    looks.ends[0].callback(None)
    clock.advance(29)
    assert looks.begun == 1
    clock.advance(1)
    assert looks.begun == 2


def test_failure_and_recovery_are_logged_once(
    refresher: Refresher, looks: ControlledRuns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for n, outcome in enumerate([None, "first", "second", None, None, "third"]):
        clock.advance(30)
        looks.ends[n].errback(StorageFailed(outcome)) if outcome else looks.ends[n].callback(None)
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "storage.pulsar.topics.refresh"
    ]
    assert len(said) == 3
    assert "the list cannot be refreshed" in said[0]
    assert "first" in said[0]
    assert said[1] == "the list can be refreshed again"
    assert "third" in said[2]


def test_unexpected_exception_is_logged_and_refresh_continues(
    refresher: Refresher, looks: ControlledRuns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(30)
    looks.ends[0].errback(ZeroDivisionError("a bug"))
    assert "ZeroDivisionError" in caplog.text
    clock.advance(30)
    assert looks.begun == 2


def test_no_run_after_stop(refresher: Refresher, looks: ControlledRuns, clock: Clock) -> None:
    refresher.stop()
    assert clock.getDelayedCalls() == []


def test_stop_cancels_running_refresh(
    refresher: Refresher, looks: ControlledRuns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(30)
    refresher.stop()
    assert looks.ends[0].called
    assert clock.getDelayedCalls() == []
    assert [
        record for record in caplog.records if record.name == "storage.pulsar.topics.refresh"
    ] == []
    refresher.stop()


def test_next_run_can_be_hastened(
    refresher: Refresher, looks: ControlledRuns, clock: Clock
) -> None:
    clock.advance(10)
    refresher.hasten(1)
    clock.advance(0.5)
    refresher.hasten(1)
    assert looks.begun == 0
    clock.advance(0.5)
    assert looks.begun == 1
    refresher.hasten(1)
    clock.advance(100)
    assert looks.begun == 1
    looks.ends[0].callback(None)
    clock.advance(29)
    refresher.hasten(5)
    clock.advance(1)
    assert looks.begun == 2


def test_stopped_refresher_is_not_hastened(
    refresher: Refresher, looks: ControlledRuns, clock: Clock
) -> None:
    refresher.stop()
    refresher.hasten(1)
    clock.advance(100)
    assert looks.begun == 0
