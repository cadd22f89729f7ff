"""Loading of stored groups at startup, readable or not."""

from __future__ import annotations

from twisted.internet.task import Clock

from gateway.coroutines import TimeSlices
from gateway.groups.classic import classic_rows
from gateway.groups.classic.classic_rows import GroupRow
from gateway.groups.consumer import consumer_rows
from gateway.groups.consumer.consumer_member import ConsumerGroupMember
from gateway.groups.consumer.consumer_rows import GROUP_ROW, ConsumerGroupRow
from gateway.groups.group_store import GroupStore
from gateway.groups.group_timers import GroupClock
from gateway.settings.model import Settings
from tests.fakes.broker import ended
from tests.fakes.memory_store import MemoryStore
from tests.fakes.topology import FakeTopology, id_of
from tests.gateway.groups.group_harness import START

A = id_of("a")


def start(
    found: dict[bytes, bytes], *, refuses: bool = False
) -> tuple[list[tuple[str, str]], set[bytes]]:
    """Loaded groups with their kinds, and the keys left in the store."""
    store = MemoryStore()
    ended(store.open())
    table = ended(store.table("groups"))

    async def put() -> None:
        await table.put(found)

    ended(put())
    store.refuse_writes = refuses
    clock = Clock()
    stored = GroupStore(store, clock, GroupClock(clock, lambda: START), Settings())
    groups = ended(stored.load(0, FakeTopology(), lambda _: Settings(), TimeSlices(clock)))
    return sorted((group.group_id, group.kind) for group in groups), set(
        store.medium.tables["groups"]
    )


def consumer_group(group_id: str, *members: ConsumerGroupMember) -> dict[bytes, bytes]:
    row = ConsumerGroupRow(3, 3, 9, b"", START)
    found = {consumer_rows.row_key(group_id, GROUP_ROW): consumer_rows.encode(row)}
    return found | {
        consumer_rows.row_key(group_id, one.number): consumer_rows.encode(one) for one in members
    }


def classic_group(group_id: str) -> dict[bytes, bytes]:
    return {
        classic_rows.row_key(group_id): classic_rows.encode(
            GroupRow(3, "consumer", None, None, START)
        )
    }


def test_groups_of_both_protocols_are_restored():
    found = (
        classic_group("c") | consumer_group("n", ConsumerGroupMember(1, "m")) | consumer_group("e")
    )
    assert start(found) == ([("c", "classic"), ("e", "consumer"), ("n", "consumer")], set(found))


def test_rows_of_inconsistent_consumer_group_are_deleted():
    twice = [
        ConsumerGroupMember(number, f"m{number}", epoch=3, assigned={A: {0: 3}})
        for number in (1, 2)
    ]
    namesakes = [ConsumerGroupMember(number, f"m{number}", "i") for number in (1, 2)]
    fine = consumer_group("fine")
    headless = {
        consumer_rows.row_key("headless", 1): consumer_rows.encode(ConsumerGroupMember(1, "m"))
    }
    found = (
        fine | consumer_group("twice", *twice) | consumer_group("namesakes", *namesakes) | headless
    )
    assert start(found) == ([("fine", "consumer")], set(fine))


def test_unreadable_group_does_not_affect_others():
    found = classic_group("c") | {
        b"\xfe": b"?",
        b"\xff\xff": b"?",
        consumer_rows.row_key("x", GROUP_ROW): b"?",
    }
    assert start(found)[0] == [("c", "classic")]


def test_start_succeeds_if_unreadable_rows_cannot_be_deleted():
    found = classic_group("c") | {consumer_rows.row_key("x", GROUP_ROW): b"?"}
    assert start(found, refuses=True) == ([("c", "classic")], set(found))
