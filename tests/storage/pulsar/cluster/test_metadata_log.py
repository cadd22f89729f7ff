"""The metadata log on Pulsar: elections between processes, and followers of a changing topic."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Iterator
from contextlib import suppress

import pulsar as client_library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, threads
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from storage.cluster import OtherController, Rows
from storage.log import Fenced, StorageFailed, StoreInUse
from storage.pulsar.cluster.log_follower import read_log
from storage.pulsar.topics.pulsar_names import path_of
from tests.storage.pulsar.cluster.member_processes import MemberProcesses
from tests.storage.pulsar.cluster.pulsar_bench import PulsarClusterBench
from tests.storage.pulsar.lock_holder import OlderLock
from tests.testkit.pulsar import Pulsar, suspend
from tests.testkit.pulsar_relay import SEND, SEND_RECEIPT, PulsarRelays
from tests.testkit.settle import until
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

SEND_SECONDS = 1.0


@pytest.fixture
def bench(pulsar: Tenant) -> Iterator[PulsarClusterBench]:
    made = PulsarClusterBench(pulsar.settings())
    yield made
    made.close()


@pytest.fixture
def members(pulsar: Tenant) -> Iterator[MemberProcesses]:
    made = MemberProcesses(pulsar.settings())
    yield made
    made.close()


def has_compacted(pulsar: Tenant, topic: str) -> bool:
    return bool(pulsar.admin("GET", f"{topic}/compaction")["status"] == "SUCCESS")


@ensureDeferred
async def test_killed_writer_is_replaced_without_losing_acknowledged_puts(
    members: MemberProcesses,
) -> None:
    for node in (1, 2, 3):
        members.start(node)
    for node in (1, 2, 3):
        await members.event(node, "ready")
    terms = 0
    for _ in range(2):
        terms += 1
        writer = await members.event(None, "writer", lambda one: one.node in members.running)
        await members.event(writer, "put")
        members.kill(writer)
    last = await members.event(None, "writer", lambda one: one.node in members.running)
    await members.event(last, "put")
    puts = [event for event in members.events if event.word == "put"]
    # Each put raises the counter by one: with the revision, if none was lost or stored twice.
    assert all(event.revision == int(event.rest[1]) for event in puts)
    assert len({event.revision for event in puts}) == len(puts)
    starts = [event for event in members.events if event.word == "writer"]
    assert len(starts) == terms + 1
    for number, start in enumerate(starts[1:], 1):
        before = {one.node for one in starts[:number]}
        assert start.revision >= max(put.revision for put in puts if put.node in before)


@ensureDeferred
async def test_resumed_writer_is_refused_and_joins_again(members: MemberProcesses) -> None:
    old, new = 1, 2
    process = members.start(old)
    await members.event(old, "put")
    members.start(new)
    await members.event(new, "ready")
    suspend(process)
    members.force(new)
    await members.event(new, "put")
    process.send_signal(signal.SIGCONT)
    await members.event(old, "refused")
    assert [event.word for event in members.events if event.node == old].count("lost") == 1
    members.kill(new)
    last = max(event.revision for event in members.events if event.word == "put")
    await members.event(old, "put", lambda one: one.revision > last)
    puts = [event for event in members.events if event.word == "put"]
    assert all(event.revision == int(event.rest[1]) for event in puts)
    assert len({event.revision for event in puts}) == len(puts)


@ensureDeferred
async def test_follower_replays_all_bursts_through_compaction_and_moves(
    bench: PulsarClusterBench, pulsar: Tenant
) -> None:
    writer, follower = await bench.process("writer"), await bench.process("follower")
    seen: list[int] = []
    follower.log.watch(lambda rows: seen.append(int(rows.get(b"n") or 0)))
    await writer.log.acquire(force=False)
    topic = path_of(writer.log.topic).lstrip("/")
    number = 0

    async def put(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            await writer.log.put({b"n": b"%d" % number, b"other %d" % (number % 7): b"x" * 100})

    def compact() -> None:
        pulsar.admin("PUT", f"{topic}/compaction")

    async def is_compacted() -> bool:
        await put(1)
        return await threads.deferToThread(has_compacted, pulsar, topic)

    await put(50)
    await threads.deferToThread(compact)
    await until(is_compacted)
    for _ in range(2):
        await put(10)
        await threads.deferToThread(pulsar.admin, "PUT", f"{topic}/unload")
        await put(10)
    await threads.deferToThread(pulsar.admin, "POST", f"{topic}/trim")
    await put(10)
    await follower.log.wait_for(number)
    assert follower.log.rows == writer.log.rows
    assert seen == sorted(set(seen)), "a burst was delivered twice, or an older one after a newer"
    assert seen[-1] == number
    late = await bench.process("late")
    assert late.log.revision == number
    assert late.log.rows == writer.log.rows


@ensureDeferred
async def test_follower_that_missed_bursts_loads_the_difference(
    bench: PulsarClusterBench,
) -> None:
    writer, follower = await bench.process("writer"), await bench.process("follower")
    await writer.log.acquire(force=False)
    await writer.log.put({b"a": b"1", b"b": b"1"})
    await follower.log.wait_for(1)
    changes: list[Rows] = []
    follower.log.watch(lambda rows: changes.append(dict(rows)))
    # Stop the tail, as if its reader missed messages without an error.
    follower.log._follower._stop_tail()
    for number in range(2, 5):
        await writer.log.put({b"a": b"%d" % number})
    await writer.log.put({b"b": None})
    await follower.log._follower.load()
    assert changes == [{b"a": b"4", b"b": None}]
    await writer.log.put({b"c": b"1"})
    await follower.log.wait_for(6)
    assert changes[1:] == [{b"c": b"1"}]


@pytest.mark.parametrize(("dropped", "value", "revision"), [
    pytest.param(SEND, b"1", 2, id="not stored"),
    pytest.param(SEND_RECEIPT, b"unknown", 3, id="stored"),
])  # fmt: skip
@ensureDeferred
async def test_put_after_one_of_unknown_outcome_continues_the_revisions(
    pulsar: Tenant, dropped: int, value: bytes, revision: int
) -> None:
    with PulsarRelays(pulsar.settings(send_timeout_seconds=SEND_SECONDS)) as between:
        bench = PulsarClusterBench(between.settings)
        try:
            writer = await bench.process("writer")
            await writer.log.acquire(force=False)
            await writer.log.put({b"a": b"1"})
            # Otherwise the tail may deliver the burst before its outcome is asked for.
            writer.log._follower._stop_tail()
            with between.dropping(dropped):
                with pytest.raises(StorageFailed, match="unknown"):
                    await writer.log.put({b"a": b"unknown"})
                waiting = writer.log.put({b"b": b"2"})
            await waiting
            assert writer.log.rows == {b"a": value, b"b": b"2"}
            assert writer.log.revision == revision
            late = await bench.process("late")
            assert late.log.rows == writer.log.rows
            assert late.log.revision == revision
            assert writer.log.is_writer
        finally:
            await bench.close_all()


@ensureDeferred
async def test_cluster_and_gateway_outside_it_refuse_each_other(
    bench: PulsarClusterBench,
) -> None:
    member = await bench.process("member")
    await member.log.acquire(force=False)
    with pytest.raises(client_library.ProducerFenced):
        await threads.deferToThread(OlderLock, "old", bench.settings)
    other = await bench.process("other")
    with pytest.raises(OtherController):
        await other.log.acquire(force=False)
    await member.log.release()
    old = await threads.deferToThread(OlderLock, "old", bench.settings)
    try:
        for force in (False, True):
            with pytest.raises(StoreInUse, match=r"in use by old .* does not join clusters") as no:
                await member.log.acquire(force)
            assert not isinstance(no.value, OtherController)
    finally:
        await threads.deferToThread(old.close)


@ensureDeferred
async def test_bug_while_writing_ends_the_role_and_all_puts(
    bench: PulsarClusterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await bench.process("writer")
    await writer.log.acquire(force=False)
    term = writer.log._term
    assert term

    async def fail(rows: Rows) -> None:
        await deferLater(reactor, 0)
        raise RuntimeError("a bug")

    monkeypatch.setattr(term.writer, "put", fail)
    puts = [Deferred.fromCoroutine(awaited(writer.log.put({key: b"1"}))) for key in (b"a", b"b")]
    for put in puts:
        with pytest.raises(Fenced):
            await put
    assert not writer.log.is_writer


async def awaited(put: Awaitable[None]) -> None:
    await put


@ensureDeferred
async def test_writer_that_keeps_the_lock_loses_its_role_when_the_topic_is_taken(
    bench: PulsarClusterBench,
) -> None:
    writer = await bench.process("writer")
    reasons: list[str] = []
    writer.log.when_lost(reasons.append)
    await writer.log.acquire(force=False)
    client = client_library.Client(bench.settings.service_url)
    client.create_producer(
        writer.log.topic, access_mode=client_library.ProducerAccessMode.ExclusiveWithFencing
    )
    with pytest.raises(Fenced):
        await writer.log.put({b"a": b"1"})
    client.close()
    assert len(reasons) == 1

    async def is_writer() -> bool:
        # The library may close the lock's producer before the broker has removed it.
        with suppress(OtherController):
            await writer.log.acquire(force=False)
        return writer.log.is_writer

    await until(is_writer)
    await writer.log.put({b"a": b"2"})
    assert writer.log.rows == {b"a": b"2"}


@ensureDeferred
async def test_rows_left_by_compaction_are_read_with_the_last_revision(
    bench: PulsarClusterBench, pulsar: Tenant
) -> None:
    writer = await bench.process("writer")
    await writer.log.acquire(force=False)
    topic = path_of(writer.log.topic).lstrip("/")
    for number in range(20):
        await writer.log.put({b"k%d" % (number % 5): b"%d" % number, b"gone": b"x"})
    await writer.log.put({b"gone": None})
    await threads.deferToThread(pulsar.admin, "PUT", f"{topic}/compaction")
    await until(lambda: threads.deferToThread(has_compacted, pulsar, topic))
    await threads.deferToThread(pulsar.admin, "PUT", f"{topic}/unload")
    loaded = await writer.log._client.run(
        lambda: read_log(writer.log._client, writer.log.topic, None)
    )
    assert loaded.rows == writer.log.rows
    assert loaded.revision == 21


@pytest.mark.slow
@ensureDeferred
async def test_cluster_continues_after_restart_of_broker(restartable_pulsar: Pulsar) -> None:
    bench = PulsarClusterBench(restartable_pulsar.tenant().settings(send_timeout_seconds=5.0))
    one, two = await bench.process("one"), await bench.process("two")
    await one.log.acquire(force=False)
    received: list[bytes] = []
    await two.inbox.open(2, received.append)
    await one.presence.claim(1, "one")
    seen: list[int] = []
    two.log.watch(lambda rows: seen.append(int(rows[b"n"] or 0)))
    for number in range(1, 11):
        await one.log.put({b"n": b"%d" % number})
    one.inbox.send(2, b"before")
    await until(lambda: received)
    restartable_pulsar.kill()
    await threads.deferToThread(restartable_pulsar.launch)
    numbers = iter(range(11, 21))

    async def has_put_all() -> bool:
        with suppress(StorageFailed, Fenced, OtherController):
            await one.log.acquire(force=False)
            for number in numbers:
                await one.log.put({b"n": b"%d" % number})
            return True
        return False

    await until(has_put_all)
    await two.log.wait_for(one.log.revision)
    assert seen == sorted(set(seen))
    assert two.log.rows == one.log.rows

    async def arrives() -> bool:
        one.inbox.send(2, b"after")
        await deferLater(reactor, 0.1)
        return b"after" in received

    await until(arrives)
    gone: list[int] = []
    two.presence.watch(1, lambda: gone.append(1))
    bench.kill(one)
    await until(lambda: gone)
    await bench.close_all()
