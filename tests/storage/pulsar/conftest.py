"""Fixtures for reading tests: partitions on the broker of the fixture `pulsar`, and readers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pulsar as library
import pytest
from twisted.internet import reactor

from storage.pulsar.client import bulk_client
from storage.pulsar.client.topic_readers import MAX_QUEUE_MESSAGES
from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.partition_topics import PartitionTopic, ReadingStack
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

SideOpener = Callable[..., Awaitable[ReadingStack]]


@pytest.fixture
def compiled() -> Any:
    if bulk_client.compiled is None:
        pytest.skip("the compiled module is not built")
    return bulk_client.compiled


@pytest.fixture(params=["compiled", "binding"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interface of the client library through which clients of the test read and send."""
    if request.param == "binding":
        monkeypatch.setattr(bulk_client, "compiled", None)
    else:
        request.getfixturevalue("compiled")
    return str(request.param)


@pytest.fixture(scope="session")
def reading_settings(pulsar: Tenant) -> PulsarSettings:
    return pulsar.settings()


@pytest.fixture(scope="session")
def writer(pulsar: Tenant) -> Iterator[library.Client]:
    client = library.Client(
        pulsar.service_url, logger=library.ConsoleLogger(library.LoggerLevel.Error)
    )
    yield client
    client.close()


@pytest.fixture
def partition(
    pulsar: Tenant, reading_settings: PulsarSettings, writer: library.Client
) -> PartitionTopic:
    """An empty partition."""
    return PartitionTopic(pulsar, reading_settings, writer)


@pytest.fixture
def open_side(reading_settings: PulsarSettings) -> Iterator[SideOpener]:
    """Opens a reading stack with these settings; closed after the test."""
    sides: list[ReadingStack] = []

    async def open_one(**others: Any) -> ReadingStack:
        names = {name: getattr(reading_settings, name) for name in PulsarSettings.__slots__}
        side = ReadingStack(PulsarSettings(**{**names, **others}), reactor)
        await side.client.open()
        sides.append(side)
        return side

    yield open_one
    for side in sides:
        settle(side.close())


@pytest.fixture
def side(open_side: SideOpener) -> ReadingStack:
    """A reading stack with a large prefetch, as suits the small messages of most tests."""
    return settle(open_side(reader_queue_messages=MAX_QUEUE_MESSAGES))
