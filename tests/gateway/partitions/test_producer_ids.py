"""Producer ids: never the same twice, whatever crashes, fails or is cancelled."""

from __future__ import annotations

import pytest

from gateway.partitions.producer_ids import BLOCK_SIZE, ProducerIds
from storage.log import StorageFailed
from tests.fakes.broker import Started, ended
from tests.fakes.memory_store import Medium, MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return opened(Medium())


def opened(medium: Medium) -> MemoryStore:
    store = MemoryStore(medium)
    ended(store.open())
    return store


def on(store: MemoryStore) -> ProducerIds:
    ids = ProducerIds(ended(store.table("producer-ids")))
    ended(ids.open())
    return ids


def take(ids: ProducerIds, count: int) -> list[int]:
    return [ended(ids.next_id()) for _ in range(count)]


def test_ids_begin_at_zero_and_go_on(store):
    assert take(on(store), 2500) == list(range(2500))


def test_after_a_restart_only_the_rest_of_a_block_is_skipped(store):
    assert take(on(store), 3) == [0, 1, 2]
    ended(store.close())
    again = on(opened(store.medium))
    assert take(again, 1) == [BLOCK_SIZE]


def test_no_id_is_given_out_before_its_block_is_durable(store):
    ids = on(store)
    store.hold()
    waiting = [Started(ids.next_id()) for _ in range(3)]
    assert not any(one.is_done for one in waiting)
    store.release()
    assert [one.result for one in waiting] == [0, 1, 2]


def test_many_that_wait_for_a_block_may_need_the_next_one_too(store):
    ids = on(store)
    store.hold()
    waiting = [Started(ids.next_id()) for _ in range(BLOCK_SIZE + 5)]
    store.release()
    assert [one.result for one in waiting] == list(range(BLOCK_SIZE + 5))


def test_a_client_that_goes_away_takes_the_block_from_nobody(store):
    ids = on(store)
    store.hold()
    gone, second, third = [Started(ids.next_id()) for _ in range(3)]
    gone.cancel()
    store.release()
    assert [second.result, third.result] == [0, 1]
    assert take(ids, 2) == [2, 3]


def test_a_failing_store_is_told_to_all_who_wait_and_tried_again(store):
    ids = on(store)
    store.hold()
    waiting = [Started(ids.next_id()) for _ in range(2)]
    store.refuse_writes = True
    store.release()
    assert [type(one.failure) for one in waiting] == [StorageFailed] * 2
    store.refuse_writes = False
    assert take(ids, 1) == [0]
