"""Producer ids are unique in spite of crashes, failures and cancellation."""

from __future__ import annotations

import pytest

from gateway.partitions.producer_ids import BLOCK_SIZE, ProducerIdBlocks, ProducerIds
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
    blocks = ProducerIdBlocks(ended(store.table("producer-ids")))
    ended(blocks.open())
    return ProducerIds(blocks.allocate)


def take(ids: ProducerIds, count: int) -> list[int]:
    return [ended(ids.next_id()) for _ in range(count)]


def test_ids_start_at_zero_and_increase(store):
    assert take(on(store), 2500) == list(range(2500))


def test_restart_skips_only_rest_of_block(store):
    assert take(on(store), 3) == [0, 1, 2]
    ended(store.close())
    again = on(opened(store.medium))
    assert take(again, 1) == [BLOCK_SIZE]


def test_ids_wait_for_durable_block(store):
    ids = on(store)
    store.hold()
    waiting = [Started(ids.next_id()) for _ in range(3)]
    assert not any(one.is_done for one in waiting)
    store.release()
    assert [one.result for one in waiting] == [0, 1, 2]


def test_waiters_beyond_one_block_get_ids_of_next_block(store):
    ids = on(store)
    store.hold()
    waiting = [Started(ids.next_id()) for _ in range(BLOCK_SIZE + 5)]
    store.release()
    assert [one.result for one in waiting] == list(range(BLOCK_SIZE + 5))


def test_cancelled_waiter_does_not_cancel_block(store):
    ids = on(store)
    store.hold()
    gone, second, third = [Started(ids.next_id()) for _ in range(3)]
    gone.cancel()
    store.release()
    assert [second.result, third.result] == [0, 1]
    assert take(ids, 2) == [2, 3]


def test_failed_reservation_fails_waiters_and_is_retried(store):
    ids = on(store)
    store.hold()
    waiting = [Started(ids.next_id()) for _ in range(2)]
    store.refuse_writes = True
    store.release()
    assert [type(one.failure) for one in waiting] == [StorageFailed] * 2
    store.refuse_writes = False
    assert take(ids, 1) == [0]


def test_gateways_that_share_a_counter_get_different_blocks(store):
    blocks = ProducerIdBlocks(ended(store.table("producer-ids")))
    ended(blocks.open())
    first, second = ProducerIds(blocks.allocate), ProducerIds(blocks.allocate)
    store.hold()
    waiting = [Started(one.next_id()) for one in (first, second)]
    store.release()
    assert [one.result for one in waiting] == [0, BLOCK_SIZE]
    assert take(first, BLOCK_SIZE)[-1] == 2 * BLOCK_SIZE


def test_block_follows_the_last_one_of_another_gateway(store):
    ids = on(store)
    table = ended(store.table("producer-ids"))
    table.outside({b"next": (7 * BLOCK_SIZE).to_bytes(8, "big")})
    assert take(ids, 1) == [7 * BLOCK_SIZE]
