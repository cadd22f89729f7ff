"""When a burst is handed over, and what is in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.task import Clock

from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Operation, Task
from storage.lmdb.write_queue import WriteQueue

SECONDS = 0.5


class Reactor(Clock):
    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        raise AssertionError("nothing here comes from another thread")


class Bursts:
    """A gathering, and what it handed over."""

    def __init__(self, **settings: int) -> None:
        self.clock = Reactor()
        self.handed: list[list[Operation]] = []
        self.gathering = WriteQueue(
            self.clock, LmdbSettings(gathering_seconds=SECONDS, **settings), self.handed.append
        )

    def add(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.gathering.add(Task(lambda _: None, size=size))

    def burst_written(self, again: int = 0) -> None:
        """The burst under way ends; of those who are told of it so many write again at once."""
        self.gathering.burst_written(len(self.handed[-1]))
        self.add(again)
        self.gathering.outcomes_delivered()

    @property
    def sizes(self) -> list[int]:
        return [len(burst) for burst in self.handed]


@pytest.fixture
def bursts() -> Bursts:
    return Bursts()


def test_who_writes_alone_waits_for_nobody(bursts: Bursts) -> None:
    for count in range(1, 4):
        bursts.add(1)
        assert bursts.sizes == [1] * count
        bursts.burst_written()


def test_who_writes_again_on_being_told_waits_for_nobody(bursts: Bursts) -> None:
    bursts.add(1)
    bursts.burst_written(again=1)
    bursts.burst_written(again=1)
    assert bursts.sizes == [1, 1, 1]


def test_what_came_during_a_burst_waits_for_those_in_it(bursts: Bursts) -> None:
    bursts.add(4)
    assert bursts.sizes == [1]
    bursts.burst_written()
    assert bursts.sizes == [1]
    bursts.add(1)
    assert bursts.sizes == [1, 4]


def test_a_burst_waits_for_as_many_as_the_one_before_had(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written(again=1)
    bursts.burst_written()
    bursts.add(3)
    assert bursts.sizes == [1, 4]
    bursts.add(1)
    assert bursts.sizes == [1, 4, 4]


def test_a_burst_waits_for_the_others_no_longer_than_the_setting_says(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]


def test_who_comes_after_that_time_waits_for_nobody(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written(again=1)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    bursts.add(1)
    assert bursts.sizes == [1, 4, 1]


def test_one_burst_is_written_at_a_time(bursts: Bursts) -> None:
    bursts.add(10)
    bursts.clock.advance(10 * SECONDS)
    assert bursts.sizes == [1]


def test_a_burst_has_no_more_operations_than_the_setting_says() -> None:
    bursts = Bursts(burst_operations=3)
    bursts.add(6)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3, 2]


def test_a_burst_ends_with_the_operation_that_reaches_its_bytes() -> None:
    bursts = Bursts(burst_bytes=10)
    bursts.add(1)
    bursts.add(5, size=4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]


def test_the_end_comes_once_all_is_written_and_waits_for_nobody(bursts: Bursts) -> None:
    ends: list[bool] = []
    bursts.add(4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    bursts.add(1)
    bursts.gathering.finish(lambda: ends.append(True))
    assert not ends
    bursts.burst_written()
    assert bursts.sizes == [1, 3, 1]
    assert not ends
    bursts.burst_written()
    assert ends == [True]


def test_the_end_comes_at_once_where_nothing_is_to_be_written(bursts: Bursts) -> None:
    ends: list[bool] = []
    bursts.gathering.finish(lambda: ends.append(True))
    assert ends == [True]
    assert bursts.sizes == []
