"""Logs of led shards whose topic is deleted by the controller while they are being opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from storage.log import StorageFailed, UnknownTopic
from storage.pulsar.led_shards import LedShards
from storage.pulsar.settings import PulsarSettings
from tests.fakes.broker import Started
from tests.storage.entries import topic

SETTINGS = PulsarSettings("pulsar://nowhere", "http://nowhere")


class OpenedLog:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class SlowLedShards:
    """Leads the only shard, at a revision of the metadata log; `producer` fires for all logs."""

    def __init__(self) -> None:
        self.revision = 7
        self.topics = {name: topic(name) for name in ("orders", "bills")}
        self.producer: Deferred[None] = Deferred()
        self.opened: list[OpenedLog] = []
        catalog = SimpleNamespace(
            topics=self.topics,
            topic_ids=set(),
            full_name=lambda name, index: f"{name}-{index}",
            entry_format=lambda name: "mixed_kafka",
        )
        unused: Any = None
        self.led = LedShards(
            SETTINGS,
            cast(Any, SimpleNamespace(properties=unused)),
            cast(Any, Clock()),
            cast(Any, catalog),
            cast(Any, self),
            unused,
            unused,
            shard_count=lambda: 1,
            revision=lambda: self.revision,
            may_write=lambda: True,
            check_open=lambda: None,
            within=unused,
        )
        self.led._shards[0] = cast(
            Any, SimpleNamespace(number=0, leader_epoch=1, rows=None, partitions={})
        )

    async def open(self, *_: object) -> OpenedLog:
        """`PulsarLogOpener.open`."""
        await self.producer
        self.opened.append(OpenedLog())
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
