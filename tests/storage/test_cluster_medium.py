"""What gateways of a cluster share: the same rules in memory and on Pulsar."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import suppress
from typing import Protocol

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, LoopingCall, deferLater

from storage.cluster import MAX_CALL_BYTES, ClusterMedium, NodeIdInUse, OtherController, Rows
from storage.log import EntryTooLarge, Fenced, LogClosed
from tests.fakes.cluster_medium import MemoryProcess, SharedMedium
from tests.testkit.settle import until

BENCHES = ["memory", pytest.param("pulsar", marks=pytest.mark.peer)]


class ClusterBench(Protocol):
    """One medium and its processes."""

    async def process(self, name: str) -> ClusterMedium: ...
    def kill(self, process: ClusterMedium) -> None: ...
    def close(self) -> None: ...


class MemoryClusterBench:
    """The clock runs by itself, as fast as the reactor allows."""

    def __init__(self) -> None:
        clock = Clock()
        self._medium = SharedMedium(clock)
        self._running = LoopingCall(clock.advance, 0.001)
        self._running.start(0)

    async def process(self, name: str) -> ClusterMedium:
        made = self._medium.process(name)
        await made.log.open()
        return made

    def kill(self, process: ClusterMedium) -> None:
        assert isinstance(process, MemoryProcess)
        process.kill()

    def close(self) -> None:
        self._running.stop()


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Iterator[ClusterBench]:
    made: ClusterBench
    if request.param == "memory":
        made = MemoryClusterBench()
    else:
        # Imported only for tests that need the client library.
        from tests.storage.pulsar.cluster.pulsar_bench import PulsarClusterBench

        made = PulsarClusterBench(request.getfixturevalue("pulsar").settings())
    yield made
    made.close()


def changes_of(process: ClusterMedium) -> list[Rows]:
    """The changes that a watcher of the log gets from now on."""
    changes: list[Rows] = []
    process.log.watch(lambda rows: changes.append(dict(rows)))
    return changes


def sent(awaitable: Awaitable[None]) -> Deferred[None]:
    """Begin to wait for a put."""

    async def wait() -> None:
        await awaitable

    return Deferred.fromCoroutine(wait())


async def acquired(process: ClusterMedium) -> None:
    """Become the writer once the medium has noticed the end of the one before."""

    async def is_acquired() -> bool:
        with suppress(OtherController):
            await process.log.acquire(force=False)
        return process.log.is_writer

    await until(is_acquired)


@ensureDeferred
async def test_follower_replays_puts_in_order(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    changes = changes_of(two)
    await one.log.acquire(force=False)
    puts: list[Rows] = [{b"a": b"1", b"b": b"1"}, {b"a": None, b"c": b""}, {b"b": b"\xff\x00"}]
    for number, rows in enumerate(puts, 1):
        await one.log.put(rows)
        assert one.log.revision == number
    await two.log.wait_for(3)
    assert changes == puts
    assert dict(two.log.rows) == dict(one.log.rows) == {b"b": b"\xff\x00", b"c": b""}


@ensureDeferred
async def test_puts_made_together_are_replayed_in_their_order(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.log.acquire(force=False)
    changes = changes_of(two)
    for put in [sent(one.log.put({b"n": b"%d" % n, b"k%d" % n: b""})) for n in range(100)]:
        await put
    await two.log.wait_for(one.log.revision)
    values = [int(rows[b"n"] or b"") for rows in changes]
    assert values == sorted(values)
    assert values[-1] == 99
    assert len(two.log.rows) == 101


@ensureDeferred
async def test_late_process_loads_rows_with_one_call(bench: ClusterBench) -> None:
    one = await bench.process("one")
    await one.log.acquire(force=False)
    for number in range(10):
        await one.log.put({b"a": b"%d" % number, b"b%d" % number: b"x"})
    await one.log.put({b"b3": None})
    two = await bench.process("two")
    assert dict(two.log.rows) == dict(one.log.rows)
    assert two.log.revision == one.log.revision == 11
    assert b"b3" not in two.log.rows


@ensureDeferred
async def test_own_put_is_replayed_before_it_fires(bench: ClusterBench) -> None:
    one = await bench.process("one")
    await one.log.acquire(force=False)
    changes = changes_of(one)
    await one.log.put({b"a": b"1"})
    assert changes == [{b"a": b"1"}]
    assert one.log.rows[b"a"] == b"1"


@ensureDeferred
async def test_second_writer_is_refused_until_first_releases(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.log.acquire(force=False)
    await one.log.acquire(force=False)
    for _ in range(3):
        with pytest.raises(OtherController, match="another controller: one"):
            await two.log.acquire(force=False)
    assert (one.log.is_writer, two.log.is_writer) == (True, False)
    await one.log.put({b"a": b"1"})
    await one.log.release()
    assert not one.log.is_writer
    await acquired(two)
    assert two.log.rows == {b"a": b"1"}
    await two.log.put({b"a": b"2"})
    await one.log.wait_for(two.log.revision)
    assert one.log.rows == {b"a": b"2"}


@ensureDeferred
async def test_forced_writer_fences_the_other(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    reasons: list[str] = []
    one.log.when_lost(reasons.append)
    await one.log.acquire(force=False)
    await one.log.put({b"a": b"1"})
    await two.log.acquire(force=True)
    assert two.log.rows == {b"a": b"1"}
    with pytest.raises(Fenced):
        await one.log.put({b"a": b"stale"})
    await until(lambda: reasons)
    assert not one.log.is_writer
    with pytest.raises(Fenced):
        await one.log.put({b"a": b"stale"})
    await two.log.put({b"a": b"2"})
    await one.log.wait_for(two.log.revision)
    assert one.log.rows == {b"a": b"2"}
    assert len(reasons) == 1
    await one.log.acquire(force=True)
    await one.log.put({b"a": b"3"})
    await two.log.wait_for(one.log.revision)
    assert two.log.rows == {b"a": b"3"}


@ensureDeferred
async def test_force_does_not_replace_a_writer_that_has_just_replaced_another(
    bench: ClusterBench,
) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    three = await bench.process("three")
    await one.log.acquire(force=False)
    with pytest.raises(OtherController):
        await two.log.acquire(force=False)
    await three.log.acquire(force=True)
    with pytest.raises(OtherController):
        await two.log.acquire(force=True)
    await three.log.confirm()
    await two.log.acquire(force=True)
    with pytest.raises(Fenced):
        await three.log.confirm()


@ensureDeferred
async def test_confirm_fails_once_another_is_the_writer(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    with pytest.raises(Fenced):
        await one.log.confirm()
    await one.log.acquire(force=False)
    await one.log.confirm()
    await two.log.acquire(force=True)
    with pytest.raises(Fenced):
        await one.log.confirm()
    await two.log.confirm()


@ensureDeferred
async def test_killed_writer_loses_no_acknowledged_put(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.log.acquire(force=False)
    for number in range(20):
        await one.log.put({b"a%d" % number: b"%d" % number})
    bench.kill(one)
    await acquired(two)
    assert len(two.log.rows) == two.log.revision == 20
    await two.log.put({b"b": b"1"})
    assert two.log.revision == 21


@ensureDeferred
async def test_invalid_puts_are_refused(bench: ClusterBench) -> None:
    one = await bench.process("one")
    with pytest.raises(Fenced):
        await one.log.put({b"a": b"1"})
    await one.log.acquire(force=False)
    for key in (b"", b"k" * 513, b"revision"):
        with pytest.raises(ValueError, match="key"):
            await one.log.put({key: b""})
    with pytest.raises(EntryTooLarge):
        await one.log.put({b"a": bytes(5 << 20)})
    await one.log.put({b"a": b"1"})
    assert (one.log.rows, one.log.revision) == ({b"a": b"1"}, 1)


@ensureDeferred
async def test_waiting_ends_when_log_is_closed(bench: ClusterBench) -> None:
    one = await bench.process("one")
    waiting = sent(one.log.wait_for(1))
    await one.log.close()
    with pytest.raises(LogClosed):
        await waiting


@ensureDeferred
async def test_node_id_is_used_once_and_error_names_its_holder(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.presence.claim(3, "gateway one")
    with pytest.raises(NodeIdInUse, match=r"node id 3 is in use by gateway one.*--node-id"):
        await two.presence.claim(3, "gateway two")
    await two.presence.claim(4, "gateway two")
    await one.presence.release()
    three = await bench.process("three")
    await three.presence.claim(3, "gateway three")


@pytest.mark.parametrize("is_killed", [True, False])
@ensureDeferred
async def test_watch_reports_end_of_node_once(bench: ClusterBench, is_killed: bool) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.presence.claim(1, "one")
    gone: list[str] = []
    two.presence.watch(1, lambda: gone.append("one"))
    await deferLater(reactor, 0.1)
    assert gone == []
    if is_killed:
        bench.kill(one)
    else:
        await one.presence.release()
    await until(lambda: gone)
    three = await bench.process("three")
    await three.presence.claim(1, "three")
    assert gone == ["one"]


@ensureDeferred
async def test_stopped_watch_reports_nothing(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.presence.claim(1, "one")
    gone: list[int] = []
    two.presence.watch(1, lambda: gone.append(1))()
    two.presence.watch(1, lambda: gone.append(2))
    await deferLater(reactor, 0.05)
    bench.kill(one)
    await until(lambda: gone)
    assert gone == [2]


@ensureDeferred
async def test_watch_of_absent_node_reports_at_once(bench: ClusterBench) -> None:
    one = await bench.process("one")
    gone: list[int] = []
    one.presence.watch(9, lambda: gone.append(9))
    await until(lambda: gone)


@ensureDeferred
async def test_messages_arrive_in_order_and_are_answered(bench: ClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    requests: list[bytes] = []
    replies: list[bytes] = []

    def answer(message: bytes) -> None:
        requests.append(message)
        two.inbox.send(1, message)

    await one.inbox.open(1, replies.append)
    await two.inbox.open(2, answer)
    wanted = [b"%d" % number for number in range(200)] + [b"x" * MAX_CALL_BYTES]
    for message in wanted:
        one.inbox.send(2, message)
    await until(lambda: len(replies) == len(wanted))
    assert requests == replies == wanted


@ensureDeferred
async def test_oversized_message_is_refused_and_one_to_unknown_node_is_dropped(
    bench: ClusterBench,
) -> None:
    one = await bench.process("one")
    own: list[bytes] = []
    await one.inbox.open(1, own.append)
    with pytest.raises(ValueError, match="limit"):
        one.inbox.send(1, bytes(MAX_CALL_BYTES + 1))
    one.inbox.send(7, b"to a node that never existed")
    one.inbox.send(1, b"to itself")
    await until(lambda: own)
    assert own == [b"to itself"]
