"""Space reclaimed after compaction on a real broker, and safety of all other data in a crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.log import StorageError, StorageFailed
from storage.pulsar.compaction.trim import CURSOR, RetentionTrimmer
from storage.pulsar.log.offset_index import Position
from storage.pulsar.store import PulsarStore
from storage.pulsar.topics import topic_changes
from storage.pulsar.topics.retention_policies import Retention
from storage.pulsar.topics.topic_calls import RemoteTopics
from storage.pulsar.topics.topic_catalog import TopicCatalog
from storage.pulsar.topics.topic_changes import TopicChanges
from tests.storage.entries import bases, everything, plain, sized, topic
from tests.storage.open_shards import open_with_shards
from tests.storage.pulsar.topic_ledgers import COMPACT, SIZE, CompactedTopic
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

EVER = (-1, -1)
LONGER_THAN_A_TEST = Retention(1000, 1000)
#: Lowers a retention for as long as a slow broker needs, and trims soon after.
TIMES = {"refresh_seconds": 0.3, "settling_seconds": 0.5, "lowered_seconds": 300.0}


@pytest.fixture
def compacted(pulsar: Tenant) -> Iterator[CompactedTopic]:
    made = CompactedTopic(pulsar, pulsar.settings(**TIMES))
    settle(made.make())
    yield made
    settle(made.store.close())


@ensureDeferred
async def test_fully_replaced_ledgers_are_trimmed_without_visible_change(compacted):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [sized(7, 100, time=7)])
    await log.reclaim()
    assert 2 * 10 * SIZE < compacted.size() < 2 * 10 * SIZE + 5000
    assert compacted.retention() == EVER
    await compacted.wait_until_settled()
    expected = plain([sized(7, 100, time=7), *entries[28:]])
    for _ in range(2):
        log = await compacted.log()
        assert plain(await everything(log)) == expected
        assert (log.start_offset, log.end_offset, log.size) == (0, 40, 100 + 12 * SIZE)
        assert bases([await log.entry_for_time(time) for time in (0, 7, 8, 30)]) == [7, 7, 28, 30]
        assert bases([await log.latest_by_time()]) == [39]
        await compacted.restart()


@ensureDeferred
async def test_ledgers_before_log_start_are_trimmed(compacted):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 9, [])
    await log.delete_before(25)
    await log.reclaim()
    assert compacted.size() < 2 * 10 * SIZE + 5000
    await compacted.restart()
    log = await compacted.log()
    assert plain(await everything(log)) == plain(entries[25:])
    assert (log.start_offset, log.size) == (25, 15 * SIZE)


@ensureDeferred
async def test_last_message_is_never_trimmed(compacted):
    await compacted.fill(2)
    log = await compacted.log()
    await log.delete_before(20)
    await log.reclaim()
    assert compacted.size() < 10 * SIZE + 5000
    await compacted.restart()
    log = await compacted.log()
    assert (log.start_offset, log.end_offset, log.next_offset, log.size) == (20, 20, 20, 0)


@ensureDeferred
async def test_replacements_are_compacted_and_trimmed_again(compacted):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 28, entries[25:29])
    await log.reclaim()
    entries += await compacted.fill(2)
    await log.replace(25, 48, [entries[27], *entries[45:49]])
    await log.reclaim()
    assert compacted.size() < 2 * 10 * SIZE + 5000
    await compacted.restart()
    assert plain(await everything(await compacted.log())) == plain([entries[27], *entries[45:]])


@ensureDeferred
async def test_trim_does_not_affect_other_partitions(pulsar):
    compacted = CompactedTopic(pulsar, pulsar.settings(**TIMES))
    await compacted.make(partitions=2)
    try:
        await compacted.fill(3)
        others = await compacted.fill(3, partition=1)
        size = compacted.size(1)
        log = await compacted.log()
        await log.replace(0, 28, [])
        await log.reclaim()
        assert compacted.size() < 10 * SIZE + 5000
        await compacted.wait_until_settled()
        assert compacted.size(1) == size
        assert plain(await everything(await compacted.log(1))) == plain(others)
        # The second partition is trimmed at once, although the topic has not settled since the
        # first.
        await (await compacted.log(1)).replace(0, 28, [])
        await log.delete_before(29)
        await (await compacted.log(1)).reclaim()
        assert compacted.size(1) < 10 * SIZE + 5000
    finally:
        await compacted.store.close()


@ensureDeferred
async def test_gateway_that_is_not_controller_trims_through_it(compacted, monkeypatch):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [])
    store, controller = compacted.store, compacted.store._catalog
    calls = []

    async def call(method, payload):
        calls.append(method)
        return await controller.answer(method, payload)

    follower = TopicCatalog(
        compacted.settings, store._admin, reactor, controller._writer._rows, RemoteTopics(call)
    )
    with monkeypatch.context() as patched:
        patched.setattr(store, "_catalog", follower)
        await log.reclaim()
    assert calls == ["topics.can_trim", "topics.trim"]
    assert compacted.size() < 2 * 10 * SIZE + 5000
    assert compacted.retention() == EVER
    await compacted.wait_until_settled()
    assert plain(await everything(log)) == plain(entries[28:])


class SimulatedCrash(Exception):
    """Simulates the end of the process."""


@ensureDeferred
async def test_crash_during_trim_loses_nothing_and_restart_restores_retention(
    compacted, monkeypatch
):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [])

    async def killed(*arguments):
        raise SimulatedCrash

    async def not_retained(changes, found):
        return found

    # A killed process does not refresh topics.
    compacted.store._catalog._refresher.stop()
    with monkeypatch.context() as patched:
        patched.setattr(RetentionTrimmer, "trim", killed)
        patched.setattr(TopicChanges, "retain", not_retained)
        with pytest.raises(SimulatedCrash):
            await log.reclaim()
        assert compacted.retention() == (0, 0)
        # Without the store: add a partition and end ledgers.
        compacted.tenant.admin("POST", f"{compacted.path}/partitions", 2)
        entries += await compacted.fill(2)
        for partition in (0, 1):
            compacted.tenant.admin("POST", f"{compacted.path}-partition-{partition}/trim")
            assert CURSOR in compacted.stats(partition)["cursors"]
        await compacted.store.close()
    await compacted.open()
    assert plain(await everything(await compacted.log())) == plain(entries[28:])
    await compacted.wait_until_settled()
    assert compacted.retention() == EVER
    assert plain(await everything(await compacted.log())) == plain(entries[28:])


@ensureDeferred
async def test_process_suspended_during_trim_aborts_it(pulsar):
    compacted = CompactedTopic(pulsar, pulsar.settings(**{**TIMES, "lowered_seconds": 0.0}))
    await compacted.make()
    try:
        await compacted.fill()
        size = compacted.size()
        log = await compacted.log()
        await log.replace(0, 27, [])
        with pytest.raises(StorageFailed, match="trim aborted"):
            await log.reclaim()
        assert (compacted.size(), compacted.retention()) == (size, EVER)
        await compacted.wait_until_settled()
    finally:
        await compacted.store.close()


@ensureDeferred
async def test_close_during_trim_restores_retention_first(pulsar, monkeypatch):
    compacted = CompactedTopic(pulsar, pulsar.settings(lowered_seconds=TIMES["lowered_seconds"]))
    await compacted.make()
    await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [])
    closing = []
    trim = RetentionTrimmer.trim

    async def trim_meanwhile(*arguments):
        closing.append(Deferred.fromCoroutine(compacted.store.close()))
        assert compacted.retention() == (0, 0)
        await trim(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RetentionTrimmer, "trim", trim_meanwhile)
        await log.reclaim()
    await closing[0]
    assert compacted.size() < 2 * 10 * SIZE + 5000
    assert compacted.retention() == EVER


@ensureDeferred
async def test_removed_subscription_aborts_trim_and_restores_retention(compacted, monkeypatch):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [])
    lower = TopicChanges.lower

    async def lower_and_lose(changes, found):
        compacted.tenant.admin("DELETE", f"{compacted.path}-partition-0/subscription/{CURSOR}")
        return await lower(changes, found)

    with monkeypatch.context() as patched:
        patched.setattr(TopicChanges, "lower", lower_and_lose)
        # Pulsar trims the topic in the background when a subscription is deleted, and could do so
        # after the retention has been lowered.
        patched.setattr(topic_changes, "KEEP_NOTHING", LONGER_THAN_A_TEST)
        with pytest.raises(StorageFailed, match="was removed or moved"):
            await log.reclaim()
    assert compacted.retention() == EVER
    await log.reclaim()
    await compacted.restart()
    assert plain(await everything(await compacted.log())) == plain(entries[28:])


@ensureDeferred
async def test_store_that_lost_its_lock_does_not_trim(compacted):
    entries = await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [])
    other = PulsarStore(compacted.settings, reactor=reactor)
    await open_with_shards(other, takeover=True)
    try:
        with pytest.raises(StorageError):
            await compacted.store.trim(
                f"persistent://{compacted.path.removeprefix('persistent/')}-partition-0",
                Position(1 << 40, 0),
            )
        with pytest.raises(StorageError):
            await log.reclaim()
        assert not compacted.temporary_settings()
        assert compacted.retention() == EVER
        assert plain(await everything(await other.log("orders", 0))) == plain(entries[28:])
    finally:
        await other.close()


@ensureDeferred
async def test_topic_retention_is_restored_after_trim(pulsar):
    compacted = CompactedTopic(pulsar, pulsar.settings(**TIMES))
    await compacted.make(configs={"cleanup.policy": "compact,delete", "retention.ms": "7200000"})
    try:
        entries = await compacted.fill()
        assert compacted.retention() == (120, -1)
        log = await compacted.log()
        await log.replace(0, 27, [])
        await log.reclaim()
        assert compacted.retention() == (120, -1)
        assert compacted.size() < 2 * 10 * SIZE + 5000
        # Retention by time also deletes replacement entries.
        await log.retain(since=35, at_most_bytes=None)
        assert plain(await everything(log)) == plain(entries[35:])
    finally:
        await compacted.store.close()


@ensureDeferred
async def test_messages_needed_by_subscription_are_not_trimmed(
    compacted,
):
    entries = await compacted.fill()
    compacted.tenant.admin(
        "PUT", f"{compacted.path}-partition-0/subscription/slow", {"ledgerId": -1, "entryId": -1}
    )
    size = compacted.size()
    log = await compacted.log()
    await log.replace(0, 27, [])
    await log.reclaim()
    assert compacted.size() == size
    assert not compacted.temporary_settings()
    assert plain(await everything(log)) == plain(entries[28:])


@ensureDeferred
async def test_subscription_expiration_prevents_trim_and_is_logged_once(compacted, caplog):
    await compacted.fill()
    namespace = f"{compacted.settings.tenant}/{compacted.settings.namespace}"
    compacted.tenant.admin("POST", f"namespaces/{namespace}/subscriptionExpirationTime", 1)
    size = compacted.size()
    log = await compacted.log()
    await log.replace(0, 27, [])
    for _ in range(2):
        await log.reclaim()
    assert compacted.size() == size
    assert not compacted.temporary_settings()
    assert caplog.text.count("compaction cannot free the space of orders") == 1
    assert "remove-subscription-expiration-time" in caplog.text


@ensureDeferred
async def test_operator_policies_are_unchanged_by_trim(compacted, caplog):
    await compacted.fill()
    compacted.tenant.admin("POST", f"{compacted.path}/messageTTL?messageTTL=3600")
    size = compacted.size()
    log = await compacted.log()
    await log.replace(0, 27, [])
    await log.reclaim()
    assert compacted.size() == size
    assert "remove-message-ttl" in caplog.text
    compacted.tenant.admin("POST", f"{compacted.path}/messageTTL?messageTTL=0")
    await log.reclaim()
    assert compacted.size() < size
    while compacted.stats()["cursors"].get(CURSOR):
        await compacted.pause()
    assert compacted.tenant.admin("GET", f"{compacted.path}/messageTTL") == 0


@ensureDeferred
async def test_deleting_topic_deletes_side_topics(compacted):
    await compacted.fill()
    log = await compacted.log()
    await log.replace(0, 27, [sized(3, 100)])
    await log.reclaim()
    assert compacted.side_topics()
    await compacted.store.delete_topic("orders")
    assert not compacted.side_topics()
    await compacted.store.create_topic(topic(configs=COMPACT))
    entries = await compacted.fill(1)
    assert plain(await everything(await compacted.log())) == plain(entries)


@ensureDeferred
async def test_side_topics_are_deleted_after_foreign_topic_deletion(compacted):
    await compacted.fill(1)
    await (await compacted.log()).replace(0, 8, [sized(3, 100)])
    assert compacted.side_topics()
    compacted.tenant.admin("DELETE", f"{compacted.path}/partitions?force=true")
    while compacted.side_topics():
        await compacted.pause()
    assert "orders" not in compacted.store.topics
