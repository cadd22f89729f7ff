"""Led shards whose topics are deleted by the controller, also while their logs are being opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from storage.log import Fenced, LogClosed, LogStatus, StorageFailed, UnknownTopic
from storage.pulsar import led_shards
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges
from storage.pulsar.led_shards import LedShards
from storage.pulsar.log.partition_rows import (
    PartitionRow,
    PartitionState,
    partition_key,
    replaced_range_row,
)
from storage.pulsar.settings import PulsarSettings
from tests.fakes.broker import Started
from tests.storage.entries import topic

SETTINGS = PulsarSettings("pulsar://nowhere", "http://nowhere")

GONE = topic("gone", 2)
"""A topic that was deleted before the test begins."""


async def within(what: str, step: Deferred[Any]) -> None:
    await step


class OpenedLog:
    is_closed = False
    bug: Exception | None = None

    def __init__(self) -> None:
        self.status = LogStatus()
        self.disconnected: Deferred[None] = succeed(None)

    def disconnect(self) -> Deferred[None]:
        self.is_closed = True
        if self.bug is not None:
            raise self.bug
        return self.disconnected


class SlowLedShards:
    """Leads the only shard, at a revision of the metadata log; `producer` fires for all logs."""

    def __init__(self) -> None:
        self.revision = 7
        self.topics = {name: topic(name) for name in ("orders", "bills")}
        self.producer: Deferred[None] = Deferred()
        self.opened: list[OpenedLog] = []
        self.format = "mixed_kafka"
        self.ends_early = False
        """Whether logs end while they are opened."""
        self.reloads: list[Deferred[None]] = []
        """The next calls of `TopicCatalog.reload`."""
        self.side_topics: list[tuple[bytes, int]] = []
        """Deleted side topics: key of the partition and generation."""
        self.side_topic_deleted: Deferred[None] = succeed(None)
        self.is_created_again = False
        """Whether another program has created `gone` again, with the same id."""
        catalog = SimpleNamespace(
            topics=self.topics,
            topic_ids=set(),
            full_name=lambda name, index: f"{name}-{index}",
            entry_format=lambda name: self.format,
            reload=self.reload,
            is_deleted=lambda topic_id: topic_id == GONE.topic_id and not self.is_created_again,
        )
        unused: Any = None
        self.led = LedShards(
            SETTINGS,
            cast(Any, SimpleNamespace(properties=unused)),
            cast(Any, Clock()),
            cast(Any, catalog),
            cast(Any, self),
            cast(Any, SimpleNamespace(delete=self.delete_side_topic)),
            unused,
            shard_count=lambda: 1,
            revision=lambda: self.revision,
            may_write=lambda: True,
            check_open=lambda: None,
            within=within,
        )
        self.led._shards[0] = cast(
            Any, SimpleNamespace(number=0, leader_epoch=1, rows=None, partitions={})
        )

    async def reload(self, name: str) -> None:
        await self.reloads.pop(0)

    async def delete_side_topic(self, key: bytes, generation: int) -> None:
        self.side_topics.append((key, generation))
        await self.side_topic_deleted

    async def open(self, *_: object) -> OpenedLog:
        """`PulsarLogOpener.open`."""
        await self.producer
        self.opened.append(OpenedLog())
        if self.ends_early:
            self.opened[-1].status.end(Fenced("an entry cannot be read"))
        return self.opened[-1]

    def begin(self, name: str) -> Started:
        return Started(self.led.log(name, 0))

    def delete(self, name: str) -> None:
        """Delete the topic in the metadata log."""
        del self.topics[name]
        self.revision += 1


@pytest.fixture
def shards() -> SlowLedShards:
    return SlowLedShards()


def test_deletion_is_applied_once_no_log_of_the_topic_is_being_opened(
    shards: SlowLedShards,
) -> None:
    opening = shards.begin("orders")
    shards.revision = 9
    assert shards.led.applied_revision == 9
    shards.delete("orders")
    assert shards.led.applied_revision < shards.revision == 10
    shards.producer.callback(None)
    assert isinstance(opening.failure, UnknownTopic)
    assert shards.opened[0].is_closed
    assert shards.led.applied_revision == 10


def test_failed_opening_no_longer_delays_a_deletion(shards: SlowLedShards) -> None:
    shards.begin("orders")
    shards.delete("orders")
    shards.producer.errback(StorageFailed("no answer"))
    assert shards.led.applied_revision == 8


def test_opening_of_another_topic_does_not_delay_a_deletion(shards: SlowLedShards) -> None:
    shards.begin("bills")
    shards.delete("orders")
    assert shards.led.applied_revision == 8


class PartitionTable:
    """The table of partitions of a shard."""

    def __init__(self) -> None:
        self.puts: list[list[bytes]] = []
        self.failure: StorageFailed | None = None

    async def put(self, rows: Any) -> None:
        if self.failure is not None:
            raise self.failure
        assert set(rows.values()) == {None}
        self.puts.append(list(rows))


def loaded_shard(rows: PartitionTable, number: int = 0) -> Any:
    """A shard with the partition 0 of `gone`, which has a side topic, and one of `orders`."""
    gone, kept = (partition_key(one.topic_id, 0) for one in (GONE, topic("orders")))
    table = cast(Any, rows)
    replaced = ReplacedRange(5, 9, 0, 0, 10, 3)
    return SimpleNamespace(
        number=number,
        leader_epoch=2,
        rows=rows,
        partitions={
            gone: PartitionState(
                table, gone, PartitionRow(generation=3, written=10), ReplacedRanges([replaced])
            ),
            kept: PartitionState(table, kept, PartitionRow()),
        },
    )


def test_opened_shard_drops_what_deleted_topics_left(
    shards: SlowLedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were deleted while no gateway had the shard open."""
    rows = PartitionTable()
    made = loaded_shard(rows)
    state = made.partitions[partition_key(GONE.topic_id, 0)]

    async def opened(*_: object) -> Any:
        return made

    monkeypatch.setattr(led_shards, "open_shard", opened)
    shards.led._shards.clear()
    assert Started(shards.led.open_shard(0, 2)).failure is None
    assert list(made.partitions) == [partition_key(topic("orders").topic_id, 0)]
    assert shards.side_topics == [(state.key, 3)]
    # The partition's own row comes last: the others are found by it.
    (put,) = rows.puts
    replaced, _ = replaced_range_row(state.key, next(iter(state.replaced_ranges)))
    assert put == [replaced, state.key]
    # A compaction in progress does not bring the row back.
    assert isinstance(Started(state.change(written=20)).failure, LogClosed)


def test_led_shards_drop_partitions_that_this_process_never_opened(shards: SlowLedShards) -> None:
    rows = PartitionTable()
    shards.led._shards[0] = loaded_shard(rows)
    shards.led.topic_deleted(GONE)
    assert len(rows.puts) == 1
    assert list(shards.led._shards[0].partitions) == [partition_key(topic("orders").topic_id, 0)]


def test_partitions_of_a_topic_that_was_created_again_are_kept(shards: SlowLedShards) -> None:
    """The deletion of the first partition takes long."""
    rows = PartitionTable()
    shard = shards.led._shards[0] = loaded_shard(rows)
    second = partition_key(GONE.topic_id, 1)
    shard.partitions[second] = PartitionState(cast(Any, rows), second, PartitionRow())
    shards.side_topic_deleted = Deferred()
    shards.led.topic_deleted(GONE)
    shards.is_created_again = True
    shards.topics["gone"] = GONE
    early = shards.begin("gone")
    assert isinstance(early.failure, StorageFailed)
    shards.side_topic_deleted.callback(None)
    assert second in shard.partitions
    assert len(rows.puts) == 1
    shards.producer.callback(None)
    assert shards.begin("gone").failure is None


def test_log_whose_state_was_deleted_while_it_was_opened_is_not_used(
    shards: SlowLedShards,
) -> None:
    shard = shards.led._shards[0] = loaded_shard(PartitionTable())
    shards.topics["gone"] = GONE
    opening = shards.begin("gone")
    shards.led.topic_deleted(GONE)
    shards.producer.callback(None)
    assert isinstance(opening.failure, StorageFailed)
    assert partition_key(GONE.topic_id, 0) not in shard.partitions
    assert shards.begin("gone").failure is None


def test_state_that_cannot_be_deleted_is_logged(
    shards: SlowLedShards, caplog: pytest.LogCaptureFixture
) -> None:
    rows = PartitionTable()
    rows.failure = StorageFailed("no answer")
    shards.led._shards[0] = loaded_shard(rows)
    shards.led.topic_deleted(GONE)
    (record,) = caplog.records
    assert "no answer" in record.getMessage()


def test_log_opened_in_a_former_entry_format_is_not_used(shards: SlowLedShards) -> None:
    opening = shards.begin("orders")
    shards.revision = 9
    shards.format = "pulsar"
    # The change is complete once no log is opened in the former format.
    assert shards.led.applied_revision == 7
    shards.producer.callback(None)
    assert isinstance(opening.failure, StorageFailed)
    assert shards.opened[0].is_closed
    assert shards.led.applied_revision == 9


def test_log_that_ended_while_it_was_opened_is_opened_again(shards: SlowLedShards) -> None:
    shards.producer.callback(None)
    shards.ends_early = True
    assert isinstance(shards.begin("orders").failure, Fenced)
    assert shards.opened[0].is_closed
    shards.ends_early = False
    assert shards.begin("orders").result is shards.opened[1]


def test_topic_is_looked_up_once_its_opening_no_longer_delays_a_deletion(
    shards: SlowLedShards,
) -> None:
    """A deletion in progress waits for the opening, and the look-up for the deletion."""
    looked_up: Deferred[None] = Deferred()
    shards.reloads.append(looked_up)
    opening = shards.begin("orders")
    shards.producer.errback(UnknownTopic("no such topic in Pulsar"))
    assert not opening.is_done
    shards.delete("orders")
    assert shards.led.applied_revision == 8
    looked_up.callback(None)
    assert isinstance(opening.failure, UnknownTopic)


def test_topic_that_is_being_deleted_is_not_looked_up(shards: SlowLedShards) -> None:
    opening = shards.begin("orders")
    shards.delete("orders")
    shards.producer.errback(UnknownTopic("no such topic in Pulsar"))
    assert isinstance(opening.failure, UnknownTopic)


def test_deletion_is_applied_once_the_logs_of_the_topic_are_disconnected(
    shards: SlowLedShards,
) -> None:
    shards.producer.callback(None)
    log = shards.begin("orders").result
    log.partition = SimpleNamespace(
        key=partition_key(topic("orders").topic_id, 0), row=PartitionRow()
    )
    log.disconnected = Deferred()
    assert shards.led.applied_revision == 7
    shards.delete("orders")
    shards.led.topics_changed()
    assert log.is_closed
    assert shards.led.applied_revision == 7
    log.disconnected.callback(None)
    assert shards.led.applied_revision == 8


def test_bug_while_a_log_is_closed_does_not_stop_the_others(shards: SlowLedShards) -> None:
    shards.producer.callback(None)
    logs = [shards.begin(name).result for name in ("orders", "bills")]
    for name, log in zip(("orders", "bills"), logs, strict=True):
        log.partition = SimpleNamespace(
            key=partition_key(topic(name).topic_id, 0), row=PartitionRow()
        )
    logs[0].bug = ZeroDivisionError()
    for name in ("orders", "bills"):
        shards.delete(name)
    shards.led.topics_changed()
    assert logs[1].is_closed
    assert shards.led.applied_revision == shards.revision
