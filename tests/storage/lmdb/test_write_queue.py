"""When bursts are written and what they contain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.task import Clock

from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import Operation, Task
from storage.lmdb.write_queue import WriteQueue

SECONDS = 0.5


class IdleReactor(Clock):
    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        raise AssertionError("nothing here comes from another thread")


class Bursts:
    """A write queue and the bursts it passed on."""

    def __init__(self, **settings: int) -> None:
        self.clock = IdleReactor()
        self.handed: list[list[Operation]] = []
        self.queue = WriteQueue(
            self.clock, LmdbSettings(gathering_seconds=SECONDS, **settings), self.handed.append
        )

    def add(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.queue.add(Task(lambda _: None, size=size))

    def burst_written(self, again: int = 0) -> None:
        """Complete the current burst; `again` of its callers write again immediately."""
        self.queue.burst_written(len(self.handed[-1]))
        self.add(again)
        self.queue.outcomes_delivered()

    @property
    def sizes(self) -> list[int]:
        return [len(burst) for burst in self.handed]


@pytest.fixture
def bursts() -> Bursts:
    return Bursts()


def test_single_write_is_not_delayed(bursts: Bursts) -> None:
    for count in range(1, 4):
        bursts.add(1)
        assert bursts.sizes == [1] * count
        bursts.burst_written()


def test_single_client_writing_again_is_not_delayed(bursts: Bursts) -> None:
    bursts.add(1)
    bursts.burst_written(again=1)
    bursts.burst_written(again=1)
    assert bursts.sizes == [1, 1, 1]


def test_write_queued_during_burst_waits_for_its_callers(bursts: Bursts) -> None:
    bursts.add(4)
    assert bursts.sizes == [1]
    bursts.burst_written()
    assert bursts.sizes == [1]
    bursts.add(1)
    assert bursts.sizes == [1, 4]


def test_burst_waits_for_size_of_previous_burst(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written(again=1)
    bursts.burst_written()
    bursts.add(3)
    assert bursts.sizes == [1, 4]
    bursts.add(1)
    assert bursts.sizes == [1, 4, 4]


def test_burst_waits_at_most_gathering_seconds(bursts: Bursts) -> None:
    bursts.add(4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]


def test_write_after_gathering_time_is_not_delayed(bursts: Bursts) -> None:
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


def test_burst_is_limited_to_burst_operations() -> None:
    bursts = Bursts(burst_operations=3)
    bursts.add(6)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3, 2]


def test_burst_ends_with_operation_reaching_burst_bytes() -> None:
    bursts = Bursts(burst_bytes=10)
    bursts.add(1)
    bursts.add(5, size=4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    assert bursts.sizes == [1, 3]


def test_finish_writes_everything_without_delay(bursts: Bursts) -> None:
    ends: list[bool] = []
    bursts.add(4)
    bursts.burst_written()
    bursts.clock.advance(SECONDS)
    bursts.add(1)
    bursts.queue.finish(lambda: ends.append(True))
    assert not ends
    bursts.burst_written()
    assert bursts.sizes == [1, 3, 1]
    assert not ends
    bursts.burst_written()
    assert ends == [True]


def test_finish_of_empty_queue_is_immediate(bursts: Bursts) -> None:
    ends: list[bool] = []
    bursts.queue.finish(lambda: ends.append(True))
    assert ends == [True]
    assert bursts.sizes == []
