"""What groups have committed: durable when acknowledged, gone with its topic, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.groups.offsets.committed_offsets import MAX_LOGGED_GROUPS, CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode, KafkaError
from storage.log import EntryTooLarge
from tests.fakes.broker import House, Started, ended, open_house
from tests.fakes.memory_store import MemoryStore


@pytest.fixture
def house() -> House:
    house = open_house()
    house.topic("orders", 3)
    house.topic("bills", 1)
    return house


def at(offset: int, metadata: str = "", committed_at: int = 5) -> CommittedOffset:
    return CommittedOffset(offset, -1, metadata, committed_at)


def commit(house: House, group: str, rows: Mapping[tuple[str, int], int]) -> None:
    ended(committing(house, group, rows))


def committing(house: House, group: str, rows: Mapping[tuple[str, int], int]) -> Any:
    return house.broker.offsets.commit(group, {place: at(offset) for place, offset in rows.items()})


def offsets(house: House, group: str = "g") -> dict[tuple[str, int], int]:
    return {
        place: committed.offset for place, committed in house.broker.offsets.of_group(group).items()
    }


def again(house: House, **settings: Any) -> House:
    """The gateway, started anew on what the store has."""
    ended(house.store.close())
    return open_house(house.store.medium, **settings)


def rows_stored(house: House) -> int:
    return len(ended(ended(house.store.table("offsets")).items()))


def delete_topic(house: House, name: str = "orders") -> None:
    topic = house.broker.topics.require(name)
    ended(house.broker.topics.delete(topic))
    ended(house.broker.offsets.delete_topic(topic.topic))


def test_what_is_committed_is_found_by_its_group_alone(house):
    commit(house, "g", {("orders", 0): 7, ("bills", 0): 1})
    commit(house, "other", {("orders", 0): 3})
    assert offsets(house) == {("orders", 0): 7, ("bills", 0): 1}
    assert house.broker.offsets.get("other", "orders", 0) == at(3)
    assert house.broker.offsets.get("g", "orders", 1) is None
    assert sorted(house.broker.offsets.groups()) == ["g", "other"]


def test_a_later_commit_takes_the_place_of_an_earlier_one_even_if_it_goes_back(house):
    for offset in (7, 9, 2):
        commit(house, "g", {("orders", 0): offset})
    assert offsets(house) == {("orders", 0): 2}
    assert offsets(again(house)) == {("orders", 0): 2}


def test_everything_said_with_an_offset_survives_a_restart(house):
    rows = {
        ("orders", 2): CommittedOffset(
            12, 4, "bei mir, früh", 1_700_000_000_000, 1_700_000_600_000
        ),
        ("bills", 0): at(-1),
    }
    ended(house.broker.offsets.commit("grüppe", rows))
    ended(house.broker.offsets.commit("", {("orders", 0): at(1)}))
    reopened = again(house)
    assert reopened.broker.offsets.of_group("grüppe") == rows
    assert offsets(reopened, "") == {("orders", 0): 1}
    assert len(reopened.broker.offsets) == 3


def test_nobody_sees_an_offset_before_it_is_durable(house):
    commit(house, "g", {("orders", 0): 1})
    house.store.hold()
    waiting = Started(committing(house, "g", {("orders", 0): 2}))
    assert not waiting.is_done
    assert offsets(house) == {("orders", 0): 1}
    house.store.release()
    assert waiting.is_done
    assert offsets(house) == {("orders", 0): 2}


def test_a_client_that_goes_away_meanwhile_changes_nothing(house):
    house.store.hold()
    waiting = Started(committing(house, "g", {("orders", 0): 2}))
    waiting.cancel()
    house.store.release()
    assert offsets(house) == offsets(again(house)) == {("orders", 0): 2}


def test_a_store_that_fails_lets_clients_ask_again_and_nothing_changes(house):
    commit(house, "g", {("orders", 0): 1})
    house.store.refuse_writes = True
    for work in (committing(house, "g", {("orders", 0): 2}), house.broker.offsets.delete("g")):
        with pytest.raises(KafkaError) as refused:
            ended(work)
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offsets(house) == {("orders", 0): 1}


def test_a_commit_is_for_all_of_its_partitions_or_for_none(house):
    for place in (("orders", 3), ("orders", -1), ("nowhere", 0)):
        with pytest.raises(KafkaError) as refused:
            commit(house, "g", {("bills", 0): 1, place: 1})
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(house) == {}
    assert rows_stored(house) == 0


def test_a_group_is_deleted_with_all_that_it_has_committed(house):
    commit(house, "g", {("orders", 0): 7, ("orders", 1): 8, ("bills", 0): 1})
    commit(house, "other", {("orders", 0): 3})
    ended(house.broker.offsets.delete("g"))
    assert list(house.broker.offsets.groups()) == ["other"]
    assert list(again(house).broker.offsets.groups()) == ["other"]


def test_single_partitions_are_deleted_and_those_that_are_not_there_are_no_error(house):
    commit(house, "g", {("orders", 0): 7, ("orders", 1): 8})
    ended(
        house.broker.offsets.delete(
            "g", [("orders", 0), ("orders", 2), ("orders", 9), ("nowhere", 0)]
        )
    )
    assert offsets(house) == offsets(again(house)) == {("orders", 1): 8}


def test_a_deleted_topic_takes_its_offsets_out_of_every_group(house):
    commit(house, "g", {("orders", 0): 7, ("orders", 1): 7, ("bills", 0): 1})
    commit(house, "other", {("orders", 0): 3})
    delete_topic(house)
    assert offsets(house) == {("bills", 0): 1}
    assert list(house.broker.offsets.groups()) == ["g"]
    assert len(house.broker.offsets) == rows_stored(house) == 1


def test_a_topic_of_the_same_name_begins_without_offsets(house):
    commit(house, "g", {("orders", 0): 7})
    ended(house.broker.topics.delete(house.broker.topics.require("orders")))
    house.topic("orders")
    # The old ones are still there, for nobody has said yet that they may go.
    assert rows_stored(house) == 1
    assert offsets(house) == {}
    assert house.broker.offsets.get("g", "orders", 0) is None


def test_what_a_crash_left_of_a_deleted_topic_goes_at_the_next_start(house):
    commit(house, "g", {("orders", 0): 7, ("bills", 0): 1})
    ended(house.broker.topics.delete(house.broker.topics.require("orders")))
    reopened = again(house)
    assert offsets(reopened) == {("bills", 0): 1}
    assert len(reopened.broker.offsets) == rows_stored(reopened) == 1


def test_a_disk_that_takes_nothing_is_no_reason_not_to_start(house, caplog):
    commit(house, "g", {("orders", 0): 7, ("bills", 0): 1})
    ended(house.broker.topics.delete(house.broker.topics.require("orders")))
    house.store.refuse_writes = True
    started = CommittedOffsets(
        ended(house.store.table("offsets")), house.broker.topics, house.broker.settings, house.clock
    )
    ended(started.open())
    assert list(started.of_group("g")) == [("bills", 0)]
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of a deleted topic are still stored"
    ]


def test_a_store_that_fails_keeps_no_offset_of_a_deleted_topic_alive(house, caplog):
    commit(house, "g", {("orders", 0): 7})
    topic = house.broker.topics.require("orders")
    ended(house.broker.topics.delete(topic))
    house.store.refuse_writes = True
    ended(house.broker.offsets.delete_topic(topic.topic))
    assert [record.getMessage() for record in caplog.records] == [
        "offsets of a deleted topic are still stored"
    ]
    assert len(house.broker.offsets) == 0


def test_a_commit_that_its_topic_s_deletion_overtakes_leaves_nothing(house):
    """As where tables and topics are stored in different places, so that neither waits for the other."""
    slow = MemoryStore()
    ended(slow.open())
    offsets = CommittedOffsets(
        ended(slow.table("offsets")), house.broker.topics, house.broker.settings, house.clock
    )
    slow.hold()
    waiting = Started(offsets.commit("g", {("orders", 0): at(7)}))
    live = house.broker.topics.require("orders")
    ended(house.broker.topics.delete(live))
    ended(offsets.delete_topic(live.topic))
    slow.release()
    assert waiting.failure is None
    assert list(offsets.groups()) == []
    assert ended(ended(slow.table("offsets")).items()) == []


def test_a_commit_after_its_topic_is_gone_is_refused(house):
    delete_topic(house)
    with pytest.raises(KafkaError) as refused:
        commit(house, "g", {("orders", 0): 1})
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_row_that_cannot_be_read_is_said_and_the_others_are_there(house, caplog):
    commit(house, "g", {("orders", 0): 7})

    async def spoil() -> None:
        table = await house.store.table("offsets")
        await table.put(
            {
                b"short": b"\x90",
                bytes(20) + b"\xff": b"\x95\1\1\xa0\1\xc0",
                bytes(20) + b"g": b"nothing of the kind",
            }
        )

    ended(spoil())
    reopened = again(house)
    assert offsets(reopened) == {("orders", 0): 7}
    assert len(caplog.records) == 3


def refusal(house: House, group: str, rows: Mapping[tuple[str, int], int]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        commit(house, group, rows)
    return refused.value.code


def test_a_group_commits_no_more_partitions_than_it_may(caplog):
    house = open_house(max_offsets_per_group=2)
    house.topic("orders", 3)
    commit(house, "g", {("orders", 0): 1, ("orders", 1): 1})
    assert refusal(house, "g", {("orders", 2): 1}) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert [record.getMessage() for record in caplog.records] == ["commit refused"]
    # Those that are there move on, and when one goes there is room for another.
    commit(house, "g", {("orders", 0): 2, ("orders", 1): 2})
    ended(house.broker.offsets.delete("g", [("orders", 0)]))
    commit(house, "g", {("orders", 2): 1})


def test_all_groups_together_take_no_more_memory_than_they_may():
    """1 MiB has room for fewer than 1,748 offsets of 600 bytes."""
    house = open_house(committed_offsets_max_bytes=1 << 20)
    house.topic("orders", 1000)
    commit(house, "a", {("orders", index): 1 for index in range(1000)})
    commit(house, "b", {("orders", index): 1 for index in range(500)})
    assert (
        refusal(house, "c", {("orders", index): 1 for index in range(248)})
        == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    )
    # Those that are there move on, but not to longer notes, and when one group goes there is room for another.
    commit(house, "b", {("orders", index): 2 for index in range(500)})
    with pytest.raises(KafkaError):
        ended(
            house.broker.offsets.commit(
                "b", {("orders", index): at(2, "x" * 600) for index in range(500)}
            )
        )
    ended(house.broker.offsets.delete("b"))
    commit(house, "c", {("orders", index): 1 for index in range(248)})


def test_a_limit_that_many_run_into_is_told_once_until_offsets_go(caplog):
    house = open_house(max_offsets_per_group=1)
    house.topic("orders", 2)
    for number in range(1_000):
        assert (
            refusal(house, f"g{number % 500}", {("orders", 0): 1, ("orders", 1): 1})
            == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        )
    assert len(caplog.records) == MAX_LOGGED_GROUPS
    commit(house, "a", {("orders", 0): 1})
    ended(house.broker.offsets.delete("a"))
    assert (
        refusal(house, "b", {("orders", 0): 1, ("orders", 1): 1})
        == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    )
    assert len(caplog.records) == MAX_LOGGED_GROUPS + 1


def test_names_of_groups_take_room_as_well():
    house = open_house(committed_offsets_max_bytes=1 << 20)
    house.topic("orders", 1)
    names = [f"{'g' * 450}{number}" for number in range(1_100)]
    codes = [Started(committing(house, name, {("orders", 0): 1})).failure for name in names]
    assert 900 < codes.count(None) < 1_000
    for name in names:
        ended(house.broker.offsets.delete(name))
    assert house.broker.offsets._bytes == 0


def test_what_is_on_its_way_to_the_disk_takes_room_already():
    house = open_house(committed_offsets_max_bytes=1 << 20)
    house.topic("orders", 1_000)
    house.store.hold()
    many = {("orders", index): 1 for index in range(1_000)}
    first, second = Started(committing(house, "a", many)), Started(committing(house, "b", many))
    assert (first.is_done, second.failure.code) == (False, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    house.store.release()
    assert first.failure is None
    assert len(offsets(house, "a")) == 1_000


def test_room_is_counted_from_what_a_restart_found():
    house = open_house(committed_offsets_max_bytes=1 << 20)
    house.topic("orders", 100)
    rows = {("orders", index): at(1, "x" * 4096) for index in range(100)}
    ended(house.broker.offsets.commit("a", rows))
    reopened = again(house, committed_offsets_max_bytes=1 << 20)
    ended(reopened.broker.offsets.commit("b", rows))
    with pytest.raises(KafkaError):
        ended(reopened.broker.offsets.commit("c", rows))


def test_a_group_s_name_is_as_long_as_a_key_has_room_for():
    house = open_house()
    house.topic("orders")
    commit(house, "g" * 460, {("orders", 0): 1})
    assert offsets(again(house), "g" * 460) == {("orders", 0): 1}


@pytest.mark.parametrize("group", ["g" * 461, "ü" * 231])
def test_a_longer_name_of_a_group_is_refused(house, group):
    assert refusal(house, group, {("orders", 0): 1}) == ErrorCode.INVALID_GROUP_ID


def test_a_commit_that_is_not_stored_in_time_is_told_so_and_counts_once_it_is_stored(house):
    house.store.hold()
    waiting = Started(house.broker.offsets.commit("g", {("orders", 0): at(7)}))
    house.clock.advance(4.9)
    assert not waiting.is_done
    house.clock.advance(0.2)
    house.clock.advance(0.1)
    assert waiting.failure.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert house.store.committed == {}
    house.store.release()
    assert offsets(house) == {("orders", 0): 7}


def test_what_is_durable_is_noted_with_the_store_and_nothing_else(house):
    house.store.refuse_writes = True
    refused = Started(house.broker.offsets.commit("g", {("orders", 0): at(7)}))
    assert (refused.failure.code, house.store.committed) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        {},
    )
    house.store.refuse_writes = False
    commit(house, "g", {("orders", 0): 8, ("bills", 0): 1})
    assert house.store.committed == {("g", "orders", 0): 8, ("g", "bills", 0): 1}


def test_a_commit_that_the_store_does_not_take_in_one_piece_is_too_large(house, monkeypatch):
    def put(rows):
        raise EntryTooLarge("6000000 bytes where 5000000 are taken")

    monkeypatch.setattr(ended(house.store.table("offsets")), "put", put)
    refused = Started(house.broker.offsets.commit("g", {("orders", 0): at(7)}))
    assert refused.failure.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
