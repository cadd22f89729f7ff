"""The catalogs of several gateways over one metadata log, with fakes of the log and of Pulsar."""

from __future__ import annotations

from typing import Any, cast

import pytest
from twisted.internet import task
from twisted.internet.defer import Deferred

from storage.log import Fenced, StorageFailed, Topic, UnknownTopic
from storage.pulsar.admin.admin_api import AdminFailed, PulsarAdmin
from storage.pulsar.compaction.trim import CURSOR
from storage.pulsar.log.offset_index import Position
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics import topic_writer
from storage.pulsar.topics.retention_policies import KEEP_NOTHING, retention_of
from storage.pulsar.topics.topic_calls import NotController, RemoteTopics
from storage.pulsar.topics.topic_catalog import TopicCatalog
from storage.pulsar.topics.topic_listing import LOWERED, RETENTION, properties_of
from storage.pulsar.topics.topic_rows import SECTION, SectionRows, deletion_key
from tests.storage.entries import topic
from tests.storage.pulsar.topics.fake_topics import FakeMetadataLog, FakePulsar, LogMember

SETTINGS = PulsarSettings(service_url="pulsar://p:1", admin_url="http://p:2", refresh_topics=2)
THERE = f"persistent://{SETTINGS.tenant}/{SETTINGS.namespace}/"
EMPTY_ROW = b"section without topics\0key"


class GatewayCatalog:
    """A catalog, its log, and its calls to the controller; `told` has the topics at each notice."""

    def __init__(self, cluster: TwoGateways) -> None:
        self.member: LogMember = cluster.log.member()
        self.catalog = TopicCatalog(
            SETTINGS,
            cast(PulsarAdmin, cluster.pulsar),
            cluster.clock,  # type: ignore[arg-type]
            SectionRows(self.member),
            RemoteTopics(cluster.call),
        )
        self.told: list[list[str]] = []
        self.catalog.watch(lambda: self.told.append(sorted(self.catalog.topics)))
        self.deletions: list[str] = []
        self.catalog.watch_deletions(lambda topic: self.deletions.append(topic.name))


class TwoGateways:
    """Two gateways; the first is the controller."""

    def __init__(self) -> None:
        self.pulsar, self.log, self.clock = FakePulsar(), FakeMetadataLog(), task.Clock()
        self.log.rows[EMPTY_ROW] = b"not a topic"
        self.leading, self.following = GatewayCatalog(self), GatewayCatalog(self)
        self.controller = self.leading
        self.replayed: list[Deferred[None]] = []
        self.waits_for_replay = False

    async def call(self, method: str, payload: bytes) -> bytes:
        return await self.controller.catalog.answer(method, payload)

    async def all_replayed(self) -> None:
        if self.waits_for_replay:
            self.replayed.append(Deferred())
            await self.replayed[-1]

    def elect(self, gateway: GatewayCatalog) -> Deferred[None]:
        self.controller = gateway
        self.log.elect(gateway.member)
        return begin(gateway.catalog.lead(self.all_replayed))

    def start_leading(self, gateway: GatewayCatalog) -> None:
        """Make it the controller's catalog instead of the first one's, and start to list topics."""
        self.leading.catalog.follow()
        self.controller = gateway
        self.log.elect(gateway.member)
        gateway.catalog.start_leading(self.all_replayed)
        self.clock.advance(0)

    def make_in_pulsar(self, name: str, partitions: int = 1) -> None:
        """As another program does."""
        self.pulsar.make(THERE + name, partitions, {})

    def refresh(self) -> None:
        get(begin(self.controller.catalog.refresh()))


def begin(coroutine: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(coroutine)


def get(deferred: Deferred[Any]) -> Any:
    """The result, which must be there. Raises the failure."""
    results: list[Any] = []
    failures: list[Any] = []
    deferred.addCallbacks(results.append, failures.append)
    if failures:
        failures[0].raiseException()
    assert results, "still waiting"
    return results[0]


@pytest.fixture
def cluster() -> TwoGateways:
    made = TwoGateways()
    get(made.elect(made.leading))
    return made


def names(gateway: GatewayCatalog) -> list[str]:
    return sorted(gateway.catalog.topics)


def test_follower_sees_changes_of_controller_without_calls_to_pulsar(cluster: TwoGateways) -> None:
    leading, following = cluster.leading.catalog, cluster.following
    get(begin(leading.create(topic("orders", 2, {"a": "b"}))))
    assert dict(following.catalog.topics) == {"orders": topic("orders", 2, {"a": "b"})}
    assert following.catalog.full_name("orders", 1) == f"{THERE}orders-partition-1"
    assert following.catalog.entry_format("orders") == SETTINGS.entry_format
    get(begin(leading.alter(topic("orders", 3, {"c": "d"}))))
    assert dict(following.catalog.topics) == {"orders": topic("orders", 3, {"c": "d"})}
    get(begin(leading.delete("orders")))
    assert dict(following.catalog.topics) == {}
    assert following.told == [["orders"], ["orders"], [], []]
    assert cluster.leading.told == []
    cluster.pulsar.calls.clear()
    cluster.following.catalog.follow()
    cluster.clock.advance(0)
    assert cluster.pulsar.calls == []


def test_created_topic_needs_one_put(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    assert len(cluster.log.puts) == 1


def test_topic_made_by_other_program_appears_everywhere(cluster: TwoGateways) -> None:
    cluster.make_in_pulsar("theirs", 3)
    cluster.clock.advance(SETTINGS.refresh_seconds)
    assert names(cluster.leading) == names(cluster.following) == ["theirs"]
    assert cluster.leading.told == cluster.following.told == [["theirs"]]
    assert cluster.following.catalog.topics["theirs"].partitions == 3


def test_refresh_without_changes_writes_nothing(cluster: TwoGateways) -> None:
    for name in ("a", "b", "c"):
        get(begin(cluster.leading.catalog.create(topic(name))))
    cluster.make_in_pulsar("theirs")
    cluster.refresh()
    written = len(cluster.log.puts)
    for _ in range(4):
        cluster.refresh()
    assert len(cluster.log.puts) == written
    assert cluster.following.told[-1] == ["a", "b", "c", "theirs"]


def test_view_is_complete_when_log_is_loaded(cluster: TwoGateways) -> None:
    long_name = "é" * 400
    for name in ("orders", long_name):
        get(begin(cluster.leading.catalog.create(topic(name))))
    assert all(len(key) <= 480 for key in cluster.log.rows)
    calls = len(cluster.pulsar.calls)
    third = GatewayCatalog(cluster)
    assert third.catalog.topics == cluster.leading.catalog.topics
    assert len(cluster.pulsar.calls) == calls
    get(begin(cluster.leading.catalog.delete(long_name)))
    assert names(third) == ["orders"]


def test_unreadable_row_does_not_hide_others(
    cluster: TwoGateways, caplog: pytest.LogCaptureFixture
) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    good = cluster.log.rows[SECTION + b"orders"]
    cluster.log.put({SECTION + b"a": b"\xc1", SECTION + b"b": good})
    assert names(cluster.following) == ["orders"]
    assert "cannot be read" in caplog.text


def test_fields_of_later_versions_are_ignored(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    row = cluster.log.rows[SECTION + b"orders"]
    assert row[:1] == b"\x99"
    cluster.log.put({SECTION + b"orders": b"\x9a" + row[1:] + b"\xa3new"})
    assert dict(cluster.following.catalog.topics) == {"orders": topic("orders")}


def test_changes_at_follower_are_refused(cluster: TwoGateways) -> None:
    catalog = cluster.following.catalog
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.pulsar.calls.clear()
    for change in (
        catalog.create(topic("bills")),
        catalog.alter(topic("orders", 2)),
        catalog.delete("orders"),
        catalog.refresh(),
    ):
        with pytest.raises(NotController, match="not the controller"):
            get(begin(change))
    assert cluster.pulsar.calls == []


def test_change_that_cannot_be_logged_fails_and_next_refresh_writes_it(
    cluster: TwoGateways,
) -> None:
    catalog = cluster.leading.catalog
    for name in ("altered", "deleted", "other", "more"):
        get(begin(catalog.create(topic(name))))
    cluster.log.fails = StorageFailed("no quorum")
    for change in (catalog.create(topic("made")), catalog.alter(topic("altered", 2))):
        with pytest.raises(StorageFailed, match=r"could not be written.*no quorum"):
            get(begin(change))
    assert catalog.topics["altered"].partitions == 1
    assert "made" not in catalog.topics
    with pytest.raises(StorageFailed, match="no quorum"):
        cluster.refresh()
    cluster.log.fails = None
    # Two of five topics are read in turn: those that failed are read in addition.
    cluster.refresh()
    for gateway in (cluster.leading, cluster.following):
        assert names(gateway) == ["altered", "deleted", "made", "more", "other"]
        assert gateway.catalog.topics["altered"].partitions == 2
        assert gateway.told[-1] == names(gateway)


def test_deleted_topic_whose_row_stays_is_removed_by_refresh(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.pulsar.held["DELETE"] = Deferred()
    deleting = begin(cluster.leading.catalog.delete("orders"))
    cluster.log.fails = StorageFailed("no quorum")
    cluster.pulsar.held["DELETE"].callback(None)
    with pytest.raises(StorageFailed, match="no quorum"):
        get(deleting)
    cluster.log.fails = None
    cluster.refresh()
    assert SECTION + b"orders" not in cluster.log.rows
    assert cluster.following.catalog.topic_ids == set()


def test_topic_is_deleted_after_all_gateways_closed_its_logs(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.waits_for_replay = True
    deleting = begin(cluster.leading.catalog.delete("orders"))
    assert names(cluster.leading) == names(cluster.following) == []
    assert cluster.following.told[-1] == []
    assert cluster.following.catalog.topic_ids == {topic("orders").topic_id}
    with pytest.raises(UnknownTopic):
        cluster.following.catalog.full_name("orders", 0)
    # A refresh meanwhile does not bring it back.
    cluster.refresh()
    assert names(cluster.following) == []
    assert not cluster.pulsar.called("DELETE")
    cluster.replayed[0].callback(None)
    get(deleting)
    assert cluster.pulsar.partitions == {}
    assert cluster.following.catalog.topic_ids == set()
    assert list(cluster.log.rows) == [
        EMPTY_ROW,
        SECTION + deletion_key(topic("orders").topic_id),
    ]


def test_followers_notice_deletions_once_they_are_final(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.waits_for_replay = True
    deleting = begin(cluster.leading.catalog.delete("orders"))
    assert cluster.following.deletions == []
    cluster.replayed[0].callback(None)
    get(deleting)
    assert cluster.following.deletions == ["orders"]
    assert cluster.leading.deletions == []


def test_watcher_that_raises_does_not_stop_the_others(
    cluster: TwoGateways, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    catalog = cluster.following.catalog
    catalog.watch(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    catalog.watch(lambda: told.append("changed"))
    catalog.watch_deletions(lambda topic: 1 // 0)  # type: ignore[arg-type,return-value]
    catalog.watch_deletions(lambda topic: told.append(topic.name))
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    get(begin(cluster.leading.catalog.delete("orders")))
    assert told[0] == "changed"
    assert told[-1] == "orders"
    assert "bug: a watcher of topics raised" in caplog.text


def test_deletions_by_other_programs_are_not_final(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    del cluster.pulsar.partitions[THERE + "orders"]
    cluster.refresh()
    assert names(cluster.following) == []
    assert cluster.following.deletions == []
    assert not cluster.following.catalog.is_deleted(topic("orders").topic_id)


def test_topic_that_a_list_leaves_out_is_not_gone(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.pulsar.unlisted.add(THERE + "orders")
    cluster.refresh()
    assert names(cluster.following) == ["orders"]


def test_missing_topic_that_cannot_be_looked_up_is_not_gone(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.pulsar.unlisted.add(THERE + "orders")
    cluster.pulsar.fails["orders/partitions"] = AdminFailed("overloaded", 503, "overloaded")
    cluster.refresh()
    assert names(cluster.following) == ["orders"]


def test_interrupted_deletion_is_not_final_if_a_list_leaves_the_topic_out(
    cluster: TwoGateways,
) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.waits_for_replay = True
    begin(cluster.leading.catalog.delete("orders"))
    cluster.pulsar.unlisted.add(THERE + "orders")
    get(cluster.elect(cluster.following))
    assert names(cluster.leading) == ["orders"]
    assert not cluster.leading.catalog.is_deleted(topic("orders").topic_id)


def test_every_gateway_knows_which_topics_were_deleted_also_after_its_start(
    cluster: TwoGateways,
) -> None:
    first, again = topic("orders"), Topic("orders", b"again" + bytes(11), 1)
    get(begin(cluster.leading.catalog.create(first)))
    get(begin(cluster.leading.catalog.delete("orders")))
    get(begin(cluster.leading.catalog.create(again)))
    for gateway in (cluster.leading, cluster.following, GatewayCatalog(cluster)):
        assert gateway.catalog.is_deleted(first.topic_id)
        assert not gateway.catalog.is_deleted(again.topic_id)
    assert cluster.following.deletions == ["orders"]


def test_deletion_that_the_next_controller_notices_is_final(cluster: TwoGateways) -> None:
    """Another program has created a topic of the same name by then."""
    for name in ("orders", "bills"):
        get(begin(cluster.leading.catalog.create(topic(name))))
    cluster.waits_for_replay = True
    for name in ("orders", "bills"):
        begin(cluster.leading.catalog.delete(name))
    del cluster.pulsar.partitions[THERE + "orders"]
    cluster.make_in_pulsar("bills")
    get(cluster.elect(cluster.following))
    assert names(cluster.leading) == ["bills"]
    assert sorted(cluster.leading.deletions) == ["bills", "orders"]
    for name in ("orders", "bills"):
        assert cluster.leading.catalog.is_deleted(topic(name).topic_id)


def test_topic_that_another_program_creates_again_is_not_deleted(cluster: TwoGateways) -> None:
    """Its id follows from its name."""
    cluster.make_in_pulsar("theirs")
    cluster.refresh()
    topic_id = cluster.following.catalog.topics["theirs"].topic_id
    get(begin(cluster.leading.catalog.delete("theirs")))
    assert cluster.following.catalog.is_deleted(topic_id)
    cluster.make_in_pulsar("theirs")
    cluster.refresh()
    assert cluster.following.catalog.topics["theirs"].topic_id == topic_id
    assert not cluster.following.catalog.is_deleted(topic_id)


def test_number_of_deleted_topics_in_the_log_is_limited(
    cluster: TwoGateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_writer, "MAX_DELETED", 2)
    for name in ("c", "b", "a"):
        get(begin(cluster.leading.catalog.create(topic(name))))
        get(begin(cluster.leading.catalog.delete(name)))
    known = cluster.following.catalog.is_deleted
    assert [known(topic(name).topic_id) for name in ("c", "b", "a")] == [False, True, True]
    assert len(cluster.log.rows) == 3


def test_topic_returns_if_a_gateway_does_not_close_its_logs(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.waits_for_replay = True
    deleting = begin(cluster.leading.catalog.delete("orders"))
    cluster.clock.advance(SETTINGS.operation_timeout_seconds)
    with pytest.raises(StorageFailed, match="operation_timeout_seconds"):
        get(deleting)
    assert not cluster.pulsar.called("DELETE")
    assert names(cluster.leading) == names(cluster.following) == ["orders"]


def test_former_controller_does_not_delete(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.waits_for_replay = True
    deleting = begin(cluster.leading.catalog.delete("orders"))
    get(cluster.elect(cluster.following))
    cluster.replayed[0].callback(None)
    with pytest.raises(StorageFailed, match="another process is the writer"):
        get(deleting)
    assert not cluster.pulsar.called("DELETE")
    assert names(cluster.leading) == names(cluster.following) == ["orders"]


def test_topic_that_pulsar_does_not_delete_returns(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.pulsar.fails["force=true"] = AdminFailed("refused", 500, "refused")
    with pytest.raises(StorageFailed, match="refused"):
        get(begin(cluster.leading.catalog.delete("orders")))
    assert names(cluster.leading) == names(cluster.following) == ["orders"]
    assert cluster.following.told[-1] == ["orders"]


def test_next_controller_restores_topic_whose_deletion_was_interrupted(
    cluster: TwoGateways,
) -> None:
    # More topics than one refresh reads in turn are before them.
    others = ["a", "b", "c"]
    for name in (*others, "here", "gone"):
        get(begin(cluster.leading.catalog.create(topic(name))))
    cluster.waits_for_replay = True
    for name in ("here", "gone"):
        begin(cluster.leading.catalog.delete(name))
    del cluster.pulsar.partitions[THERE + "gone"]
    get(cluster.elect(cluster.following))
    for gateway in (cluster.leading, cluster.following):
        assert names(gateway) == [*others, "here"]
        assert topic("gone").topic_id not in gateway.catalog.topic_ids


def test_changed_entry_format_waits_for_other_gateways(
    cluster: TwoGateways, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = cluster.leading.catalog
    get(begin(catalog.create(topic("orders"))))
    cluster.waits_for_replay = True
    get(begin(catalog.alter(topic("orders", 2))))
    altering = begin(catalog.alter(topic("orders", 2, {"entry.format": "kafka"})))
    assert cluster.following.catalog.entry_format("orders") == "kafka"
    assert not altering.called
    cluster.replayed[0].callback(None)
    get(altering)
    # The change cannot be undone, so a slow gateway does not make it fail.
    altering = begin(catalog.alter(topic("orders", 2, {"entry.format": "pulsar"})))
    cluster.clock.advance(SETTINGS.operation_timeout_seconds)
    get(altering)
    assert "other gateways may use the former one" in caplog.text


def test_new_controller_lists_and_former_one_stops(
    cluster: TwoGateways, caplog: pytest.LogCaptureFixture
) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.make_in_pulsar("theirs")
    cluster.leading.catalog.follow()
    cluster.pulsar.calls.clear()
    get(cluster.elect(cluster.following))
    assert names(cluster.leading) == names(cluster.following) == ["orders", "theirs"]
    assert cluster.leading.told[-1] == ["orders", "theirs"]
    # One list of topics and one of partitioned ones; known topics are read in turn.
    lists = cluster.pulsar.calls
    cluster.pulsar.calls = []
    cluster.clock.advance(SETTINGS.refresh_seconds)
    assert len(lists) == len(cluster.pulsar.calls) == 4
    cluster.following.catalog.close()
    cluster.clock.advance(10 * SETTINGS.refresh_seconds)
    assert len(cluster.pulsar.calls) == 4
    assert not caplog.records


def test_new_controller_changes_topics_before_they_are_listed(cluster: TwoGateways) -> None:
    cluster.make_in_pulsar("theirs")
    listed = cluster.pulsar.held["/partitioned"] = Deferred()
    cluster.start_leading(cluster.following)
    get(begin(cluster.following.catalog.create(topic("orders"))))
    assert names(cluster.leading) == names(cluster.following) == ["orders"]
    listed.callback(None)
    assert names(cluster.leading) == names(cluster.following) == ["orders", "theirs"]


def test_new_controller_lists_topics_again_after_a_failure(cluster: TwoGateways) -> None:
    cluster.make_in_pulsar("theirs")
    cluster.pulsar.fails["/partitioned"] = StorageFailed("no broker")
    cluster.start_leading(cluster.following)
    assert cluster.following.catalog.is_leading
    assert names(cluster.following) == []
    del cluster.pulsar.fails["/partitioned"]
    cluster.clock.advance(SETTINGS.refresh_seconds)
    assert names(cluster.leading) == names(cluster.following) == ["theirs"]


def test_first_list_of_a_controller_ends_with_its_role(
    cluster: TwoGateways, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.make_in_pulsar("theirs")
    listed = cluster.pulsar.held["/partitioned"] = Deferred()
    cluster.start_leading(cluster.following)
    cluster.following.catalog.follow()
    cluster.pulsar.calls.clear()
    listed.callback(None)
    cluster.clock.advance(10 * SETTINGS.refresh_seconds)
    assert cluster.pulsar.calls == []
    assert names(cluster.following) == []
    assert not caplog.records


def test_new_controller_keeps_topics_of_namespace_that_it_cannot_list(
    cluster: TwoGateways,
) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    cluster.pulsar.fails["/partitioned"] = AdminFailed("refused", 403, "refused")
    get(cluster.elect(cluster.following))
    assert names(cluster.leading) == names(cluster.following) == ["orders"]


def test_results_of_refresh_are_dropped_after_role_change(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders"))))
    answered = cluster.pulsar.held["/orders/partitions"] = Deferred()
    cluster.clock.advance(SETTINGS.refresh_seconds)
    explicit = begin(cluster.leading.catalog.refresh())
    cluster.leading.catalog.follow()
    cluster.pulsar.held.clear()
    get(cluster.elect(cluster.following))
    get(begin(cluster.following.catalog.alter(topic("orders", 2))))
    cluster.following.catalog.follow()
    get(cluster.elect(cluster.leading))
    answered.callback(None)
    with pytest.raises(NotController, match="no longer"):
        get(explicit)
    assert cluster.leading.catalog.topics["orders"].partitions == 2


def test_lead_is_given_up_if_role_changes_meanwhile(cluster: TwoGateways) -> None:
    listed = cluster.pulsar.held["/partitioned"] = Deferred()
    leading = cluster.elect(cluster.following)
    cluster.following.catalog.follow()
    cluster.make_in_pulsar("theirs")
    listed.callback(None)
    with pytest.raises(NotController):
        get(leading)
    assert not cluster.following.catalog.is_leading
    cluster.pulsar.calls.clear()
    cluster.clock.advance(SETTINGS.refresh_seconds)
    # Only the former controller still refreshes.
    assert len(cluster.pulsar.called("GET")) == 3


def test_lead_that_fails_leaves_a_follower(cluster: TwoGateways) -> None:
    cluster.pulsar.fails["/partitioned"] = StorageFailed("no broker")
    with pytest.raises(StorageFailed, match="no broker"):
        get(cluster.elect(cluster.following))
    assert not cluster.following.catalog.is_leading
    del cluster.pulsar.fails["/partitioned"]
    get(cluster.elect(cluster.following))
    assert cluster.following.catalog.is_leading


def test_former_controller_cannot_write_and_new_one_finds_its_change(cluster: TwoGateways) -> None:
    created = cluster.pulsar.held["PUT"] = Deferred()
    creating = begin(cluster.leading.catalog.create(topic("orders")))
    get(cluster.elect(cluster.following))
    created.callback(None)
    with pytest.raises(StorageFailed, match="another process is the writer"):
        get(creating)
    assert names(cluster.leading) == names(cluster.following) == ["orders"]


def test_change_while_rows_of_refresh_are_written_is_not_undone(cluster: TwoGateways) -> None:
    catalog = cluster.leading.catalog
    get(begin(catalog.create(topic("orders"))))
    cluster.make_in_pulsar("theirs")
    cluster.log.is_held = True
    refreshing = begin(catalog.refresh())
    altering = begin(catalog.alter(topic("orders", 2)))
    cluster.log.release()
    get(refreshing)
    get(altering)
    assert cluster.following.catalog.topics["orders"].partitions == 2


def test_follower_asks_controller(cluster: TwoGateways) -> None:
    get(begin(cluster.leading.catalog.create(topic("orders", 2))))
    cluster.pulsar.partitions[THERE + "orders"] = 5
    following = cluster.following.catalog
    assert get(begin(following.reload("orders"))) == topic("orders", 5)
    assert following.topics["orders"].partitions == 5
    get(begin(following.create_missing_partitions("orders")))
    assert cluster.pulsar.calls[-1].endswith("orders/createMissedPartitions")
    with pytest.raises(UnknownTopic, match="there is no topic bills"):
        get(begin(following.create_missing_partitions("bills")))
    assert get(begin(following.reload("bills"))) is None
    with pytest.raises(StorageFailed, match="namespace a/b is not served"):
        get(begin(following.reload("a/b/c")))
    # A gateway that is not the controller does not pass the call on.
    cluster.controller = cluster.following
    with pytest.raises(NotController):
        get(begin(following.reload("orders")))


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x91\x01", b"\x93\xa1a\xa1b\xa1c", b"\xa1a"])
def test_garbage_between_gateways_is_a_storage_failure(
    cluster: TwoGateways, garbage: bytes
) -> None:
    async def answer(method: str, payload: bytes) -> bytes:
        return garbage

    with pytest.raises(StorageFailed, match="invalid answer"):
        get(begin(RemoteTopics(answer).can_trim("t", Position(1, 2))))

    async def distort(method: str, payload: bytes) -> bytes:
        return await cluster.call(method, garbage)

    with pytest.raises(StorageFailed, match="invalid arguments"):
        get(begin(RemoteTopics(distort).trim("t", Position(1, 2))))

    async def rename(method: str, payload: bytes) -> bytes:
        return await cluster.call(f"{method}-2", payload)

    with pytest.raises(StorageFailed, match="has no method"):
        get(begin(RemoteTopics(rename).reload("t")))


class TrimmedTopic:
    """A topic that a follower trims; `steps` tells what happened in which order."""

    def __init__(self, cluster: TwoGateways) -> None:
        self.cluster = cluster
        get(begin(cluster.leading.catalog.create(topic("orders", 2))))
        self.name = THERE + "orders"
        self.partition = f"{self.name}-partition-0"
        self.confirmed = 0
        cluster.pulsar.calls.clear()
        cluster.log.puts.clear()

    async def confirm(self) -> None:
        self.confirmed += 1

    def start(self, gateway: GatewayCatalog | None = None) -> Deferred[None]:
        catalog = (gateway or self.cluster.following).catalog
        return begin(catalog.trim(self.partition, Position(5, 0), self.confirm))

    def retention(self) -> str:
        return self.cluster.pulsar.properties_of[self.name][RETENTION]

    def logged_retention(self) -> str | None:
        return self.cluster.following.catalog._view.by_name["orders"].retention


@pytest.fixture
def trim(cluster: TwoGateways) -> TrimmedTopic:
    return TrimmedTopic(cluster)


def test_controller_trims_for_leader_and_logs_it_first(trim: TrimmedTopic) -> None:
    pulsar = trim.cluster.pulsar
    assert get(begin(trim.cluster.following.catalog.can_trim(trim.partition, Position(5, 0))))
    assert not get(begin(trim.cluster.following.catalog.can_trim(trim.partition, Position(0, 0))))
    pulsar.calls.clear()
    lowering = pulsar.held["PUT"] = Deferred()
    trimming = trim.start()
    assert trim.confirmed == 1
    assert trim.logged_retention() is not None
    assert str(trim.logged_retention()).startswith(LOWERED)
    assert pulsar.retention[trim.name] == retention_of({}, SETTINGS)
    lowering.callback(None)
    get(trimming)
    steps = [call.rpartition("/")[2] for call in pulsar.called("POST")]
    assert [step for step in steps if step in ("retention", "trim")] == [
        "retention",
        "trim",
        "retention",
    ]
    assert pulsar.first_ledger == {trim.partition: 5}
    assert pulsar.retention[trim.name] == retention_of({}, SETTINGS)


def test_trim_that_cannot_be_logged_changes_nothing(trim: TrimmedTopic) -> None:
    trim.cluster.log.fails = StorageFailed("no quorum")
    with pytest.raises(StorageFailed, match="no quorum"):
        get(trim.start())
    assert not trim.cluster.pulsar.called("PUT", "POST", "DELETE")


def test_former_controller_does_not_trim(trim: TrimmedTopic) -> None:
    trim.cluster.log.elect(trim.cluster.following.member)
    with pytest.raises(StorageFailed, match="another process is the writer"):
        get(trim.start(trim.cluster.leading))
    assert not trim.cluster.pulsar.called("PUT", "POST", "DELETE")


def test_former_leader_does_not_ask_for_trim(trim: TrimmedTopic) -> None:
    async def refuse() -> None:
        raise Fenced("another process leads the partition")

    for gateway in (trim.cluster.leading, trim.cluster.following):
        with pytest.raises(Fenced):
            get(begin(gateway.catalog.trim(trim.partition, Position(5, 0), refuse)))
    assert not trim.cluster.pulsar.called("PUT", "POST", "DELETE")
    assert not trim.cluster.log.puts


def test_next_controller_restores_retention(trim: TrimmedTopic) -> None:
    """The former one stops after it has lowered the retention."""
    pulsar = trim.cluster.pulsar
    pulsar.held["/trim"] = Deferred()
    trim.start(trim.cluster.leading)
    assert pulsar.retention[trim.name] == KEEP_NOTHING
    assert CURSOR in pulsar.cursors[trim.partition]
    get(trim.cluster.elect(trim.cluster.following))
    assert pulsar.retention[trim.name] == retention_of({}, SETTINGS)
    # The subscription stays until every broker has applied the policy.
    assert not pulsar.called("DELETE")
    assert trim.retention() == trim.logged_retention()
    assert trim.retention().startswith(LOWERED)


def test_trims_are_refused_once_the_store_closes(trim: TrimmedTopic) -> None:
    get(begin(trim.cluster.leading.catalog.end_trims()))
    trimming = trim.start(trim.cluster.leading)
    assert not trimming.called
    assert not trim.cluster.pulsar.calls


def test_topic_without_log_row_is_read_by_every_new_controller(cluster: TwoGateways) -> None:
    made = Topic("orders", b"i" * 16, 2, {"a": "b"})
    cluster.pulsar.make(THERE + "orders", 2, properties_of(made, "kafka"))
    get(cluster.elect(cluster.following))
    assert dict(cluster.leading.catalog.topics) == {"orders": made}
