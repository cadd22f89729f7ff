"""The topic catalog on a real broker, with concurrent changes by other clients."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, task
from twisted.internet.defer import Deferred, gatherResults

from storage.log import StorageFailed, Topic, TopicExists, UnknownTopic
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.topic_catalog import TopicCatalog
from storage.pulsar.topics.topic_rows import SectionRows
from tests.storage.entries import topic
from tests.storage.pulsar.topics.fake_topics import FakeMetadataLog, alone_in_cluster
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

Catalogues = Callable[..., Awaitable[TopicCatalog]]


@pytest.fixture
def settings(pulsar: Tenant) -> PulsarSettings:
    return pulsar.settings()


@pytest.fixture
def admin(settings: PulsarSettings) -> Iterator[PulsarAdmin]:
    made = PulsarAdmin(settings, reactor)
    yield made
    settle(made.close())


@pytest.fixture
def clock() -> task.Clock:
    """Refreshes run when a test advances the clock."""
    return task.Clock()


@pytest.fixture
def catalogues(
    settings: PulsarSettings, admin: PulsarAdmin, clock: task.Clock
) -> Iterator[Catalogues]:
    """Opens catalogs; a second one sees the changes of the first as another process would."""
    opened: list[TopicCatalog] = []

    async def open_one(own: PulsarSettings = settings) -> TopicCatalog:
        opened.append(TopicCatalog(own, admin, clock, alone_in_cluster()))
        await opened[-1].lead()
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def catalogue(catalogues: Catalogues) -> TopicCatalog:
    return settle(catalogues())


class Native:
    """Another client that changes the default namespace through the admin API."""

    def __init__(self, pulsar: Tenant, settings: PulsarSettings) -> None:
        self._pulsar = pulsar
        self.namespace = f"{settings.tenant}/{settings.namespace}"

    def call(
        self, method: str, path: str, body: object = None, namespace: str | None = None
    ) -> Any:
        return self._pulsar.admin(method, f"persistent/{namespace or self.namespace}/{path}", body)

    def names(self) -> list[str]:
        full = self._pulsar.admin("GET", f"persistent/{self.namespace}")
        return sorted(name.removeprefix(f"persistent://{self.namespace}/") for name in full)


@pytest.fixture
def native(pulsar: Tenant, settings: PulsarSettings) -> Native:
    return Native(pulsar, settings)


@ensureDeferred
async def test_created_topic_is_listed_here_and_by_next_process(
    catalogue: TopicCatalog, catalogues: Catalogues
) -> None:
    made = topic("orders", 3, {"retention.ms": "1000", "x": "", "odd key &=%/?é": " a\nb "})
    await catalogue.create(made)
    assert dict(catalogue.topics) == {"orders": made}
    again = await catalogues()
    assert dict(again.topics) == {"orders": made}
    assert again.entry_format("orders") == "mixed_kafka"


@ensureDeferred
async def test_gateways_over_one_log_know_the_same_topics(
    settings: PulsarSettings, admin: PulsarAdmin, clock: task.Clock, native: Native
) -> None:
    metadata = FakeMetadataLog()
    leading, following = (
        TopicCatalog(settings, admin, clock, SectionRows(metadata.member(is_writer=is_writer)))
        for is_writer in (True, False)
    )
    native.call("PUT", "theirs/partitions", 3)
    await leading.lead()
    assert following.topics["theirs"].partitions == 3
    await leading.create(topic("orders", 2, {"a": "b"}))
    assert following.topics["orders"] == topic("orders", 2, {"a": "b"})
    await leading.alter(topic("orders", 4))
    await leading.delete("theirs")
    native.call("PUT", "plain")
    await leading.refresh()
    assert sorted(following.topics) == ["orders", "plain"]
    assert following.topics["orders"] == topic("orders", 4)
    written = len(metadata.puts)
    await leading.refresh()
    assert len(metadata.puts) == written
    leading.close()
    metadata.elect(metadata.members[1])
    await following.lead()
    assert len(metadata.puts) == written
    await following.delete("orders")
    assert list(leading.topics) == ["plain"]
    following.close()


@ensureDeferred
async def test_partitions_are_not_listed_as_topics(catalogue: TopicCatalog, native: Native) -> None:
    await catalogue.create(topic("orders", 2))
    assert native.names() == ["orders-partition-0", "orders-partition-1"]
    await catalogue.refresh()
    assert list(catalogue.topics) == ["orders"]
    assert catalogue.full_name("orders", 1) == f"persistent://{native.namespace}/orders-partition-1"
    for partition in (-1, 2):
        with pytest.raises(UnknownTopic):
            catalogue.full_name("orders", partition)
    with pytest.raises(UnknownTopic):
        catalogue.full_name("nothing", 0)


@ensureDeferred
async def test_non_partitioned_topic_has_one_partition(
    catalogue: TopicCatalog, catalogues: Catalogues, native: Native
) -> None:
    native.call("PUT", "plain")
    native.call("PUT", "odd-partition-x")
    opened = await catalogues()
    await catalogue.refresh()
    assert dict(catalogue.topics) == dict(opened.topics)
    full = f"persistent://{native.namespace}/plain"
    assert catalogue.topics["plain"] == Topic(
        "plain", uuid.uuid5(uuid.NAMESPACE_URL, full).bytes, 1
    )
    assert catalogue.full_name("plain", 0) == full
    assert catalogue.full_name("odd-partition-x", 0) == f"{full[:-5]}odd-partition-x"
    assert catalogue.entry_format("plain") is None


@ensureDeferred
async def test_non_partitioned_topic_cannot_get_more_partitions(
    catalogue: TopicCatalog, catalogues: Catalogues, native: Native
) -> None:
    native.call("PUT", "plain")
    await catalogue.refresh()
    plain = catalogue.topics["plain"]
    with pytest.raises(ValueError, match="is not partitioned in Pulsar"):
        await catalogue.alter(Topic("plain", plain.topic_id, 2))
    changed = Topic("plain", plain.topic_id, 1, {"retention.ms": "60000", "a": "b"})
    await catalogue.alter(changed)
    assert dict((await catalogues()).topics) == {"plain": changed}
    assert native.call("GET", "plain/retention") == {
        "retentionTimeInMinutes": 1,
        "retentionSizeInMB": -1,
    }
    await catalogue.delete("plain")
    assert (native.names(), dict(catalogue.topics)) == ([], {})


@ensureDeferred
async def test_foreign_changes_appear_with_refresh_and_call_watchers(
    catalogue: TopicCatalog, catalogues: Catalogues
) -> None:
    told: list[list[str]] = []
    catalogue.watch(lambda: told.append(sorted(catalogue.topics)))
    other = await catalogues()
    await other.create(topic("orders", 1, {"a": "b"}))
    await other.create(topic("bills"))
    await catalogue.refresh()
    assert told == [["bills", "orders"]]
    await other.alter(topic("orders", 2, {"c": "d"}))
    await other.delete("bills")
    await catalogue.refresh()
    assert told == [["bills", "orders"], ["orders"]]
    assert catalogue.topics["orders"] == topic("orders", 2, {"c": "d"})
    await catalogue.refresh()
    assert len(told) == 2


@ensureDeferred
async def test_own_changes_do_not_call_watchers(catalogue: TopicCatalog) -> None:
    told: list[int] = []
    catalogue.watch(lambda: told.append(1))
    await catalogue.create(topic("orders"))
    await catalogue.alter(topic("orders", 2))
    await catalogue.create(topic("bills"))
    await catalogue.delete("bills")
    await catalogue.refresh()
    assert told == []


@ensureDeferred
async def test_change_during_refresh_is_not_undone(catalogue: TopicCatalog, native: Native) -> None:
    for name in ("deleted", "altered"):
        await catalogue.create(topic(name))
    refreshing = Deferred.fromCoroutine(catalogue.refresh())
    changes = (
        catalogue.create(topic("made")),
        catalogue.delete("deleted"),
        catalogue.alter(topic("altered", 2)),
    )
    await gatherResults([refreshing, *map(Deferred.fromCoroutine, changes)])
    assert dict(catalogue.topics) == {"made": topic("made"), "altered": topic("altered", 2)}


@ensureDeferred
async def test_alter_replaces_configs_and_keeps_other_properties(
    catalogue: TopicCatalog, catalogues: Catalogues, native: Native
) -> None:
    await catalogue.create(topic("orders", 1, {"a": "1", "b": "2", "c&d": "3"}))
    native.call("PUT", "orders/properties", {"theirs": "x"})
    await catalogue.alter(topic("orders", 1, {"b": "3", "e": ""}))
    assert dict((await catalogues()).topics) == {"orders": topic("orders", 1, {"b": "3", "e": ""})}
    properties = native.call("GET", "orders/properties")
    assert properties["theirs"] == "x"
    assert {key for key in properties if key.startswith("kafka.config.")} == {
        "kafka.config.b",
        "kafka.config.e",
    }


@ensureDeferred
async def test_entry_format_is_from_config_or_creation(
    catalogue: TopicCatalog, catalogues: Catalogues, settings: PulsarSettings
) -> None:
    await catalogue.create(topic("default"))
    await catalogue.create(topic("own", 1, {"entry.format": "kafka"}))
    other = await catalogues(replace(settings, entry_format="pulsar"))
    await other.alter(topic("default", 2))
    assert [other.entry_format(name) for name in ("default", "own")] == ["mixed_kafka", "kafka"]
    await other.alter(topic("default", 2, {"entry.format": "kafka"}))
    await other.alter(topic("own"))
    await catalogue.refresh()
    assert [catalogue.entry_format(name) for name in ("default", "own")] == ["kafka", "pulsar"]


@ensureDeferred
async def test_refusals_match_other_stores(catalogue: TopicCatalog) -> None:
    await catalogue.create(topic("orders", 2))
    with pytest.raises(TopicExists):
        await catalogue.create(topic("orders", 5))
    with pytest.raises(ValueError, match="keeps its id and its 2 partitions"):
        await catalogue.alter(topic("orders", 1))
    with pytest.raises(ValueError, match="keeps its id"):
        await catalogue.alter(Topic("orders", b"another id, 16 B", 2))
    for wrong in (
        Topic("short", b"id", 1),
        Topic("none", bytes(16), 0),
        topic("a-partition-1"),
        topic("__change_events"),
        topic("a/b"),
    ):
        with pytest.raises(ValueError):
            await catalogue.create(wrong)
    with pytest.raises(UnknownTopic):
        await catalogue.alter(topic("nothing"))
    with pytest.raises(UnknownTopic):
        await catalogue.delete("nothing")
    assert dict(catalogue.topics) == {"orders": topic("orders", 2)}


@ensureDeferred
async def test_concurrently_created_name_is_refused_and_listed(
    catalogue: TopicCatalog, catalogues: Catalogues, native: Native
) -> None:
    theirs = Topic("orders", b"another creator.", 4)
    await (await catalogues()).create(theirs)
    native.call("PUT", "plain")
    for name in ("orders", "plain"):
        with pytest.raises(TopicExists):
            await catalogue.create(topic(name))
    assert catalogue.topics["orders"] == theirs
    assert catalogue.topics["plain"].partitions == 1


@ensureDeferred
async def test_concurrently_deleted_topic_is_unknown_to_alter(
    catalogue: TopicCatalog, catalogues: Catalogues
) -> None:
    told: list[list[str]] = []
    catalogue.watch(lambda: told.append(list(catalogue.topics)))
    await catalogue.create(topic("orders"))
    await catalogue.create(topic("bills"))
    other = await catalogues()
    await other.delete("orders")
    await other.delete("bills")
    await other.create(Topic("bills", b"of the same name", 1))
    with pytest.raises(UnknownTopic):
        await catalogue.alter(topic("bills", 2))
    assert catalogue.topics["bills"].topic_id == b"of the same name"
    await catalogue.delete("orders")
    assert list(catalogue.topics) == ["bills"]
    assert len(told) == 1


@ensureDeferred
async def test_reload_reads_one_topic_again(
    catalogue: TopicCatalog, catalogues: Catalogues
) -> None:
    await catalogue.create(topic("orders"))
    other = await catalogues()
    await other.alter(topic("orders", 3))
    assert await catalogue.reload("orders") == topic("orders", 3)
    await other.delete("orders")
    assert await catalogue.reload("orders") is None
    assert dict(catalogue.topics) == {}


@ensureDeferred
async def test_missing_partitions_are_created(catalogue: TopicCatalog, native: Native) -> None:
    await catalogue.create(topic("orders", 3))
    native.call("DELETE", "orders-partition-1?force=true")
    await catalogue.create_missing_partitions("orders")
    assert native.names() == [f"orders-partition-{n}" for n in range(3)]


@ensureDeferred
async def test_recreated_topic_has_nothing_of_deleted_one(
    catalogue: TopicCatalog, native: Native
) -> None:
    await catalogue.create(topic("orders", 2, {"retention.ms": "-1", "a": "b"}))
    await catalogue.delete("orders")
    assert native.names() == []
    native.call("PUT", "orders/partitions", 1)
    assert native.call("GET", "orders/retention") in (None, "")
    assert not native.call("GET", "orders/properties")


@ensureDeferred
async def test_retention_policy_is_set_in_pulsar(catalogue: TopicCatalog, native: Native) -> None:
    cases: list[tuple[dict[str, str], int, int]] = [
        ({}, 7 * 24 * 60, -1),
        ({"retention.ms": "60001"}, 2, -1),
        ({"retention.ms": "-1", "retention.bytes": str((20 << 30) + 1)}, -1, (20 << 10) + 1),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, -1, -1),
        ({"retention.ms": "60000", "cleanup.policy": "compact,delete"}, 1, -1),
    ]
    for number, (configs, minutes, megabytes) in enumerate(cases):
        made, altered = f"made-{number}", f"altered-{number}"
        await catalogue.create(topic(made, 1, configs))
        await catalogue.create(topic(altered, 1, {"retention.ms": "120000"}))
        await catalogue.alter(topic(altered, 1, configs))
        wanted = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        for name in (made, altered):
            assert native.call("GET", f"{name}/retention") == wanted, configs


@ensureDeferred
async def test_pulsar_compaction_is_enabled_for_native_topics_only(
    catalogue: TopicCatalog, native: Native, settings: PulsarSettings
) -> None:
    compact = {"cleanup.policy": "compact"}
    both = {"cleanup.policy": "compact,delete", "entry.format": "pulsar"}
    await catalogue.create(topic("shared", 1, {**compact, "entry.format": "pulsar"}))
    await catalogue.create(topic("kafkas", 1, compact))
    await catalogue.create(topic("both", 1, both))
    await catalogue.create(topic("deleted", 1, {"entry.format": "pulsar"}))

    def thresholds() -> list[int | None]:
        return [
            native.call("GET", f"{name}/compactionThreshold") or None
            for name in ("shared", "kafkas", "both", "deleted")
        ]

    size = settings.native_compaction_bytes
    assert thresholds() == [size, None, size, None]
    await catalogue.alter(topic("shared", 1, {"entry.format": "pulsar"}))
    await catalogue.alter(topic("kafkas", 1, {**compact, "entry.format": "pulsar"}))
    await catalogue.alter(topic("both", 1, {**both, "entry.format": "kafka"}))
    assert thresholds() == [None, size, None, None]


@ensureDeferred
async def test_changed_default_retention_applies_to_existing_topics(
    catalogue: TopicCatalog, catalogues: Catalogues, settings: PulsarSettings, native: Native
) -> None:
    await catalogue.create(topic("default"))
    await catalogue.create(topic("own", 1, {"retention.ms": "60000"}))
    native.call("PUT", "theirs/partitions", 1)
    await (await catalogues(replace(settings, retention_ms=3_600_000))).refresh()
    kept = [native.call("GET", f"{name}/retention") for name in ("default", "own", "theirs")]
    assert [policy and policy["retentionTimeInMinutes"] for policy in kept] == [60, 1, kept[2]]
    assert not kept[2]


@ensureDeferred
async def test_retention_below_backlog_quota_is_logged_once(
    catalogue: TopicCatalog, native: Native, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "bills"):
        await catalogue.create(topic(name, 1, {"retention.bytes": "1000"}))
        await catalogue.refresh()
    assert not native.call("GET", "orders/retention")
    (said,) = [
        record.getMessage() for record in caplog.records if record.name.startswith("storage.")
    ]
    assert "-1 minutes" not in said
    assert "set-backlog-quota" in said
    assert "backlog quota for topic" in said


@ensureDeferred
async def test_topics_of_allowed_namespaces_are_served(
    pulsar: Tenant, settings: PulsarSettings, native: Native, catalogues: Catalogues
) -> None:
    beside = f"{pulsar.name}/{pulsar.namespace()}"
    native.call("PUT", "theirs", namespace=beside)
    catalogue = await catalogues(replace(settings, allowed_namespaces=(beside,)))
    full = f"persistent://{beside}/theirs"
    assert list(catalogue.topics) == [full]
    assert catalogue.canonical(f"{beside}/theirs") == full
    assert catalogue.full_name(full, 0) == full
    await catalogue.create(topic(f"persistent://{beside}/made", 2))
    await catalogue.refresh()
    assert sorted(catalogue.topics) == [f"persistent://{beside}/made", full]
    assert list((await catalogues()).topics) == []


@ensureDeferred
async def test_internal_topics_are_hidden(catalogue: TopicCatalog, native: Native) -> None:
    native.call("PUT", "__kopgate-lock")
    native.call("PUT", "shown")
    native.call(
        "POST",
        "shown/retention",
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        # Creates `__change_events`.
    )
    await catalogue.refresh()
    assert list(catalogue.topics) == ["shown"]


@ensureDeferred
async def test_deleted_namespace_does_not_prevent_listing_others(
    pulsar: Tenant, settings: PulsarSettings, catalogues: Catalogues, native: Native
) -> None:
    going = f"{pulsar.name}/{pulsar.namespace()}"
    native.call("PUT", "theirs", namespace=going)
    catalogue = await catalogues(replace(settings, allowed_namespaces=(going,)))
    native.call("DELETE", "theirs", namespace=going)
    pulsar.admin("DELETE", f"namespaces/{going}")
    native.call("PUT", "ours")
    await catalogue.refresh()
    assert list(catalogue.topics) == ["ours"]


@ensureDeferred
async def test_missing_namespace_is_reported_with_command(
    pulsar: Tenant, settings: PulsarSettings, catalogues: Catalogues
) -> None:
    going = pulsar.namespace()
    catalogue = await catalogues(replace(settings, namespace=going))
    pulsar.admin("DELETE", f"namespaces/{settings.tenant}/{going}")
    with pytest.raises(
        StorageFailed, match=f"pulsar-admin namespaces create {settings.tenant}/{going}"
    ):
        await catalogue.create(topic("orders"))
    with pytest.raises(
        StorageFailed, match=f"pulsar-admin namespaces create {settings.tenant}/{going}"
    ):
        await catalogue.lead()


@ensureDeferred
async def test_topics_with_unusual_names_are_found(catalogue: TopicCatalog, native: Native) -> None:
    native.call("PUT", quote("täst %2F?#&", safe=""))
    await catalogue.refresh()
    assert list(catalogue.topics) == ["täst %2F?#&"]
    await catalogue.delete("täst %2F?#&")
    assert native.names() == []


@ensureDeferred
async def test_hundreds_of_topics_are_listed_within_three_seconds(
    catalogues: Catalogues, native: Native
) -> None:
    """Own CPU time; a broker on a busy machine may take longer, and gets several calls at once."""
    for n in range(300):
        native.call("PUT", f"t{n}/partitions", 1)
    began = time.process_time()
    assert len((await catalogues()).topics) == 300
    assert time.process_time() - began < 3
