"""The state machine of shards: opening, holding, retrying and closing."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from gateway.cluster import shard_leadership
from gateway.cluster.shard_leadership import (
    TRANSITIONS,
    NotLeader,
    ShardLeadership,
    ShardState,
)
from gateway.coroutines import TimeSlices, start
from storage.log import StorageFailed
from tests.fakes.broker import Started, ended
from tests.fakes.memory_store import MemoryStore

CLOSED, OPENING, OPEN, CLOSING = ShardState


class RecordingPart:
    """Records its calls. While `refuses` is set, openings fail."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.refuses = name, log, False

    async def open_shard(self, shard: int, slices: TimeSlices) -> None:
        self.log.append(f"open {self.name} {shard}")
        if self.refuses:
            raise StorageFailed("the test said so")

    async def close_shard(self, shard: int) -> None:
        self.log.append(f"close {self.name} {shard}")


class LeadershipBench:
    def __init__(self, shard_count: int = 8) -> None:
        self.clock = Clock()
        self.store = MemoryStore(shard_count=shard_count)
        ended(self.store.open())
        self.bugs: list[BaseException] = []
        self.log: list[str] = []
        self.changes: list[tuple[int, ShardState]] = []
        self.leadership = ShardLeadership(
            self.store, self.clock, lambda work: start(work, lambda _: None, self.bugs.append)
        )
        self.parts = RecordingPart("a", self.log), RecordingPart("b", self.log)
        self.leadership.parts = self.parts
        self.leadership.watch(lambda shard, state: self.changes.append((shard, state)))

    def slow(self) -> Deferred[None]:
        """Delay the openings that begin from now on."""
        self.store.slow_shards = slow = Deferred()
        return slow

    def wait(self, shard: int, seconds: float = 5) -> Started:
        return Started(self.leadership.wait(shard, seconds))


@pytest.fixture
def bench() -> LeadershipBench:
    return LeadershipBench()


def test_every_state_can_be_left_and_reached():
    assert set(TRANSITIONS) == set().union(*TRANSITIONS.values()) == set(ShardState)


def test_parts_open_in_order_and_close_in_reverse(bench):
    bench.leadership.lead(3, 7)
    bench.leadership.resign(3)
    assert bench.log == ["open a 3", "open b 3", "close b 3", "close a 3"]
    assert bench.store.shards_opened == [(3, 7)]
    assert [state for _, state in bench.changes] == [OPENING, OPEN, CLOSING, CLOSED]


def test_shard_not_led_is_refused_at_once(bench):
    with pytest.raises(NotLeader):
        bench.leadership.require(0)
    assert isinstance(bench.wait(0).failure, NotLeader)


def test_request_for_opening_shard_is_held_until_it_is_open(bench):
    slow = bench.slow()
    bench.leadership.lead(0, 1)
    assert not bench.leadership.require(0)
    waiting = bench.wait(0)
    assert not waiting.is_done
    slow.callback(None)
    assert waiting.is_done
    assert waiting.failure is None
    assert bench.leadership.require(0)


def test_held_request_is_refused_after_its_timeout(bench):
    bench.slow()
    bench.leadership.lead(0, 1)
    waiting = bench.wait(0, 5)
    bench.clock.advance(4.9)
    assert not waiting.is_done
    bench.clock.advance(0.2)
    assert isinstance(waiting.failure, NotLeader)


def test_held_request_is_refused_when_shard_is_resigned(bench):
    slow = bench.slow()
    bench.leadership.lead(0, 1)
    waiting = bench.wait(0)
    bench.leadership.resign(0)
    assert isinstance(waiting.failure, NotLeader)
    assert bench.leadership.state_of(0) is OPENING
    slow.callback(None)
    assert bench.leadership.state_of(0) is CLOSED
    assert bench.log[-2:] == ["close b 0", "close a 0"]


def test_request_held_for_a_handover_is_refused_when_another_gateway_becomes_the_leader(bench):
    bench.leadership.expect({0, 1, 2})
    waiting = [bench.wait(shard) for shard in range(3)]
    bench.leadership.expect({0}, {1})
    bench.leadership.lead(1, 2)
    assert not waiting[0].is_done
    assert waiting[1].result is None
    assert isinstance(waiting[2].failure, NotLeader)


def test_failed_opening_is_undone_and_retried_with_backoff(bench):
    bench.parts[1].refuses = True
    bench.leadership.lead(0, 1)
    assert bench.log == ["open a 0", "open b 0", "close b 0", "close a 0"]
    waiting = bench.wait(0, 60)
    # After 0.1, 0.2, 0.4, 0.8, 1.6 s, 3.2 s, and then every five seconds.
    bench.clock.pump([0.1] * 70)
    assert len(bench.store.shards_opened) == 7
    bench.parts[1].refuses = False
    bench.clock.pump([0.1] * 51)
    assert waiting.is_done
    assert bench.leadership.is_open(0)


def test_resigned_shard_is_not_retried(bench):
    bench.parts[0].refuses = True
    bench.leadership.lead(0, 1)
    bench.leadership.resign(0)
    bench.clock.advance(10)
    assert bench.leadership.state_of(0) is CLOSED
    assert len(bench.store.shards_opened) == 1
    assert bench.clock.getDelayedCalls() == []


def test_few_shards_open_at_a_time_and_awaited_ones_first(bench, monkeypatch):
    monkeypatch.setattr(shard_leadership, "MAX_OPENING", 4)
    slow = bench.slow()
    for shard in range(8):
        bench.leadership.lead(shard, 1)
    waiting = bench.wait(7)
    assert bench.store.shards_opened == []
    bench.store.slow_shards = None
    slow.callback(None)
    assert [shard for shard, _ in bench.store.shards_opened][:5] == [0, 7, 4, 5, 6]
    assert waiting.is_done
    assert all(bench.leadership.is_open(shard) for shard in range(8))


def test_shard_led_again_while_closing_is_reopened_with_new_epoch(bench):
    bench.leadership.lead(0, 1)
    bench.store.hold()
    bench.leadership.resign(0)
    bench.leadership.lead(0, 3)
    assert bench.leadership.state_of(0) is CLOSING
    waiting = bench.wait(0)
    bench.store.release()
    assert waiting.is_done
    assert bench.store.shards_opened == [(0, 1), (0, 3)]


def test_new_epoch_reopens_open_shard(bench):
    bench.leadership.lead(0, 1)
    bench.leadership.lead(0, 2)
    assert bench.store.shards_opened == [(0, 1), (0, 2)]
    assert (bench.leadership.epoch_of(0), bench.leadership.is_open(0)) == (2, True)
    assert bench.wait(0).failure is None


def test_lost_shard_is_closed_and_no_longer_led(bench):
    bench.leadership.lead(0, 1)
    bench.store.lose_shard(0)
    assert bench.leadership.state_of(0) is CLOSED
    assert not bench.leadership.leads(0)
    assert bench.log[-2:] == ["close b 0", "close a 0"]


def test_close_waits_until_all_shards_are_closed(bench):
    bench.leadership.lead(0, 1)
    bench.leadership.lead(1, 1)
    bench.store.hold()
    closing = Started(bench.leadership.close())
    assert not closing.is_done
    bench.store.release()
    assert closing.is_done
    assert {bench.leadership.state_of(shard) for shard in range(8)} == {CLOSED}
    assert bench.bugs == []


def test_waiting_for_all_includes_only_led_shards(bench):
    bench.leadership.lead(2, 1)
    assert Started(bench.leadership.wait_for_all(1)).failure is None
    bench.slow()
    bench.leadership.lead(3, 1)
    waiting = Started(bench.leadership.wait_for_all(1))
    bench.clock.advance(1)
    assert isinstance(waiting.failure, NotLeader)


def test_start_waits_until_the_gateway_may_serve(bench):
    is_permitted = False
    bench.leadership.may_serve = lambda: is_permitted
    waiting = Started(bench.leadership.wait_until_serving(5))
    bench.clock.advance(4)
    assert not waiting.is_done
    is_permitted = True
    bench.leadership.resume()
    assert waiting.is_done
    assert Started(bench.leadership.wait_until_serving(5)).is_done


def test_waiting_until_the_gateway_may_serve_times_out(bench):
    bench.leadership.may_serve = lambda: False
    waiting = Started(bench.leadership.wait_until_serving(5))
    bench.clock.advance(5)
    assert isinstance(waiting.failure, TimeoutError)


def test_failed_opening_is_logged_only_while_the_shard_may_be_led(bench, caplog):
    is_permitted = True
    bench.leadership.may_serve = lambda: is_permitted
    bench.parts[0].refuses = True
    slow = bench.slow()
    bench.leadership.lead(0, 1)
    bench.leadership.resign(0)
    slow.callback(None)
    is_permitted = False
    bench.leadership.lead(1, 1)
    assert "opening a shard failed" not in caplog.text
    is_permitted = True
    bench.leadership.lead(0, 2)
    assert "opening a shard failed" in caplog.text


def test_requests_are_refused_at_once_after_a_long_suspension(bench):
    is_permitted = True
    bench.leadership.may_serve = lambda: is_permitted
    bench.leadership.lead(3, 1)
    is_permitted = False
    bench.leadership.suspend()
    bench.clock.advance(4)
    waiting = bench.wait(3)
    assert not waiting.is_done
    bench.clock.advance(1)
    assert isinstance(waiting.failure, NotLeader)
    assert isinstance(bench.wait(3).failure, NotLeader)
    is_permitted = True
    bench.leadership.resume()
    assert bench.wait(3).is_done


def test_requests_for_shards_that_open_are_refused_after_a_long_suspension(bench):
    slow = bench.slow()
    bench.leadership.lead(3, 1)
    bench.leadership.suspend()
    bench.clock.advance(4)
    waiting = bench.wait(3)
    assert not waiting.is_done
    bench.clock.advance(1)
    assert isinstance(waiting.failure, NotLeader)
    assert isinstance(bench.wait(3).failure, NotLeader)
    bench.leadership.resume()
    waiting = bench.wait(3)
    slow.callback(None)
    assert waiting.failure is None


def test_suspension_and_each_resume_are_reported(bench):
    reported = []
    bench.leadership.watch_serving(reported.append)
    bench.leadership.resume()
    bench.leadership.suspend()
    bench.leadership.suspend()
    bench.leadership.resume()
    assert reported == [True, False, True]


def test_gateway_that_is_cut_off_holds_no_request(bench):
    is_permitted = True
    bench.leadership.may_serve = lambda: is_permitted
    bench.leadership.lead(3, 1)
    is_permitted = False
    bench.leadership.suspend()
    waiting = bench.wait(3)
    bench.leadership.refuse()
    bench.clock.advance(0)
    assert isinstance(waiting.failure, NotLeader)
    later = bench.wait(3)
    bench.clock.advance(0)
    assert isinstance(later.failure, NotLeader)
    bench.leadership.resume()
    bench.leadership.suspend()
    assert not bench.wait(3).is_done


def test_gateway_that_is_cut_off_holds_no_request_for_shards_that_open(bench):
    bench.slow()
    bench.leadership.lead(3, 1)
    bench.leadership.expect({4})
    waiting = [bench.wait(3), bench.wait(4)]
    bench.leadership.refuse()
    assert [type(one.failure) for one in waiting] == [NotLeader, NotLeader]
    assert [type(bench.wait(shard).failure) for shard in (3, 4)] == [NotLeader, NotLeader]
    bench.leadership.resume()
    assert not bench.wait(3).is_done


def test_waiting_until_the_gateway_may_serve_ends_only_then(bench):
    """Requests check again when a shard is resigned."""
    is_permitted = False
    bench.leadership.may_serve = lambda: is_permitted
    bench.leadership.lead(3, 1)
    waiting = Started(bench.leadership.wait_until_serving(5))
    bench.clock.advance(4)
    bench.leadership.resign(3)
    assert not waiting.is_done
    bench.clock.advance(1)
    assert isinstance(waiting.failure, TimeoutError)
