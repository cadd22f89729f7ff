"""The admin API of a real broker, through PulsarAdmin."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.pulsar.admin.admin_api import (
    PARTITIONED,
    Conflict,
    LastMessageId,
    NotFound,
    PreconditionFailed,
    PulsarAdmin,
)
from storage.pulsar.admin.http import _listed_hosts
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import path_of
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer


@pytest.fixture
def settings(pulsar: Tenant) -> PulsarSettings:
    return pulsar.settings()


@pytest.fixture
def topic(settings: PulsarSettings) -> str:
    return f"persistent://{settings.tenant}/{settings.namespace}/orders"


@pytest.fixture
def admin(settings: PulsarSettings) -> Iterator[PulsarAdmin]:
    made = PulsarAdmin(settings, reactor)
    yield made
    settle(made.close())


@ensureDeferred
async def test_put_value_is_returned_until_deleted(admin: PulsarAdmin, topic: str) -> None:
    path = f"{path_of(topic)}/partitions"
    await admin.put(path, {"partitions": 2, "properties": {"a": "b"}}, PARTITIONED)
    assert await admin.properties(topic) == {"a": "b"}
    await admin.delete(f"{path}?force=true")
    with pytest.raises(NotFound):
        await admin.properties(topic)


@ensureDeferred
async def test_creating_existing_topic_is_a_conflict(admin: PulsarAdmin, topic: str) -> None:
    await admin.put(path_of(topic))
    with pytest.raises(Conflict):
        await admin.put(path_of(topic))


@ensureDeferred
async def test_precondition_failure_includes_pulsars_reason(admin: PulsarAdmin, topic: str) -> None:
    with pytest.raises(
        PreconditionFailed, match=re.escape(f"PUT {path_of(topic)}-partition-3 at ")
    ) as caught:
        await admin.put(f"{path_of(topic)}-partition-3")
    assert caught.value.status == 412
    assert "if there isn't a partitioned topic orders created" in caught.value.reason


@ensureDeferred
async def test_empty_topic_has_no_last_message(admin: PulsarAdmin, topic: str) -> None:
    await admin.put(path_of(topic))
    stats = await admin.internal_stats(topic)
    assert await admin.last_message_id(topic) == LastMessageId(stats.ledgers[-1].ledger_id, -1)
    assert (stats.number_of_entries, stats.current_ledger_entries, stats.total_size) == (0, 0, 0)


@ensureDeferred
async def test_brokers_list_the_allowed_redirect_hosts(
    admin: PulsarAdmin, settings: PulsarSettings
) -> None:
    listed = await admin.get("/brokers", list[str])
    assert listed == [settings.admin_url.removeprefix("http://")]
    assert _listed_hosts(msgspec.json.encode(listed)) == {"127.0.0.1"}
