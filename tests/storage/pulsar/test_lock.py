"""The store's lock: one holder; other processes are refused, a fenced holder is notified."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pulsar as client_library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from storage.cluster import OtherController
from storage.log import Fenced, StaleStoreLock, StoreInUse
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.lock import LockHolder, StoreLock, appears_dead
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import path_of
from tests.storage.pulsar.lock_holder import lock_topic
from tests.testkit.pulsar import suspend
from tests.testkit.settle import settle, until
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

BEAT_SECONDS = 0.2
#: Age of the last message after which a holder appears dead; no busy process stalls this long.
SILENT_SECONDS = 1000.0
HERE = socket.gethostname()


class Locks:
    """Locks of one store, each held as by a separate process."""

    def __init__(self, settings: PulsarSettings) -> None:
        self.settings = replace(settings, lock_beat_seconds=BEAT_SECONDS)
        self.topic = lock_topic(settings)
        self.reasons: list[str] = []
        self._opened: list[tuple[StoreLock, PulsarAdmin, PulsarClient]] = []
        self._processes: list[subprocess.Popen[str]] = []

    async def make(self, lost: Deferred[str] | None = None, **settings: float) -> StoreLock:
        chosen = replace(self.settings, **settings)
        client, admin = PulsarClient(chosen, reactor), PulsarAdmin(chosen, reactor)
        await client.open()
        lock = StoreLock(client, admin, chosen, reactor)
        lock.when_lost(lost.callback if lost else self.reasons.append)
        self._opened.append((lock, admin, client))
        return lock

    async def taken(
        self,
        node: str = "one",
        *,
        takeover: bool = False,
        lost: Deferred[str] | None = None,
        **settings: float,
    ) -> StoreLock:
        lock = await self.make(lost, **settings)
        await lock.take(node, takeover, replace_controller=takeover)
        return lock

    def process(self, node: str) -> subprocess.Popen[str]:
        """A gateway of an older version that has taken the lock."""
        names = ("service_url", "admin_url", "metadata_tenant", "metadata_namespace")
        command = [
            sys.executable,
            "-m",
            "tests.storage.pulsar.lock_holder",
            node,
            *(getattr(self.settings, name) for name in names),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout
        assert process.stdout.readline() == "taken\n"
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
        for lock, admin, client in self._opened:
            settle(lock.release())
            settle(admin.close())
            settle(client.close())


@pytest.fixture
def locks(pulsar: Tenant) -> Iterator[Locks]:
    made = Locks(pulsar.settings())
    yield made
    made.close()


def after(seconds: float) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    reactor.callLater(seconds, over.callback, None)
    return over


@ensureDeferred
async def test_second_controller_is_refused_with_holder(locks: Locks) -> None:
    await locks.taken("one")
    await after(BEAT_SECONDS * 2)
    second = await locks.make()
    with pytest.raises(OtherController) as caught:
        await second.take("two", False)
    said = str(caught.value)
    assert f"another controller: one (process {os.getpid()} on " in said
    assert locks.settings.metadata_namespace in said


@ensureDeferred
async def test_gateway_is_refused_by_an_older_one_with_remedy(locks: Locks) -> None:
    locks.process("old")
    # It considers the holder, with its usual heartbeat, dead only after this time.
    second = await locks.make(lock_beat_seconds=5.0)
    for replace_controller in (False, True):
        with pytest.raises(StoreInUse) as caught:
            await second.take("two", False, replace_controller=replace_controller)
        assert type(caught.value) is StoreInUse, "its holder lives"
        said = str(caught.value)
        assert "in use by old (process " in said
        assert "--pulsar-takeover" in said


@ensureDeferred
async def test_released_lock_can_be_taken(locks: Locks) -> None:
    first = await locks.taken("one")
    await first.release()
    await first.release()
    second = await locks.taken("two")
    with pytest.raises(OtherController, match="controller: two "):
        await first.take("one", False)
    await second.release()
    await first.take("one", False)


@ensureDeferred
async def test_undisturbed_holder_keeps_lock(locks: Locks) -> None:
    await locks.taken("one")
    await after(BEAT_SECONDS * 10)
    assert locks.reasons == []


@ensureDeferred
async def test_holder_keeps_lock_when_its_topic_moves(locks: Locks, pulsar: Tenant) -> None:
    await locks.taken("one")
    for _ in range(3):
        pulsar.admin("PUT", f"{path_of(locks.topic).lstrip('/')}/unload")
        # The lock is free until its holder's client has noticed and reconnected.
        await until(lambda: is_held(locks, pulsar))
        await after(BEAT_SECONDS * 3)
    with pytest.raises(OtherController, match="controller: one "):
        await locks.taken("two")
    assert locks.reasons == []


@ensureDeferred
async def test_holder_is_notified_once_of_takeover_and_new_holder(locks: Locks) -> None:
    lost: Deferred[str] = Deferred()
    old = await locks.taken("old", lost=lost)
    await locks.taken("new", takeover=True)
    lost.addTimeout(60, reactor)
    assert "new (process" in await lost
    await after(BEAT_SECONDS * 5)
    await old.release()
    assert locks.reasons == []


@pytest.mark.parametrize(("host", "process", "since", "said", "is_gone"), [
    pytest.param(HERE, os.getppid(), 0.0, 0.0, False, id="another process here"),
    pytest.param("another", 1 << 30, 0.0, 0.0, False, id="a process elsewhere"),
    pytest.param("another", 1 << 30, 0.0, -2 * SILENT_SECONDS, True, id="one that is silent"),
    pytest.param(HERE, 1 << 30, 0.0, 0.0, True, id="one that has ended here"),
    pytest.param(HERE, os.getpid(), 0.0, 0.0, False, id="this one"),
    pytest.param(HERE, os.getpid(), -86_400.0, 0.0, True, id="one that had this number before"),
])  # fmt: skip
def test_holder_appears_dead_without_process_or_recent_heartbeat(
    host: str, process: int, since: float, said: float, is_gone: bool
) -> None:
    now = time.time()
    assert (
        appears_dead(LockHolder("t", "one", host, process, now + since, now + said), SILENT_SECONDS)
        == is_gone
    )


@ensureDeferred
async def test_lock_of_killed_holder_is_free_once_broker_has_noticed(
    locks: Locks, pulsar: Tenant
) -> None:
    process = locks.process("killed")
    with pytest.raises(StoreInUse, match="by killed "):
        await locks.taken("next")
    process.kill()
    process.wait()
    await until(lambda: not is_held(locks, pulsar))
    await locks.taken("next")


@ensureDeferred
async def test_suspended_holder_keeps_lock_until_takeover_and_then_notices(
    locks: Locks,
) -> None:
    process = locks.process("paused")
    suspend(process)
    with pytest.raises(StoreInUse, match=r"by paused .* last heartbeat \d+ s ago"):
        await locks.taken("next")
    await after(BEAT_SECONDS * 3)
    with pytest.raises(StaleStoreLock, match="by paused "):
        await locks.taken("next")
    await locks.taken("next", takeover=True)
    process.send_signal(signal.SIGCONT)
    assert process.stdout
    assert "next (process" in process.stdout.readline()


@ensureDeferred
async def test_refused_holder_reacquires_lock_if_no_other_process_took_it(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    await locks.taken("one")
    await after(BEAT_SECONDS)
    with foreign_producer(locks):
        await until(lambda: "store lock refused by Pulsar" in caplog.text)
    await until(lambda: "store lock reacquired" in caplog.text)
    with pytest.raises(OtherController, match="controller: one "):
        await locks.taken("two")
    assert locks.reasons == []


@ensureDeferred
async def test_lock_is_lost_if_refused_for_contest_time(locks: Locks) -> None:
    lost: Deferred[str] = Deferred()
    await locks.taken("one", lost=lost, lock_contest_seconds=1)
    await after(BEAT_SECONDS)
    with foreign_producer(locks):
        lost.addTimeout(60, reactor)
        assert "has not announced itself" in await lost


@ensureDeferred
async def test_lock_with_invalid_last_message_names_no_holder(locks: Locks) -> None:
    lock = await locks.taken("one", lock_beat_seconds=1000)
    await lock.release()
    with foreign_producer(locks) as producer:
        producer.send(b"no holder")
        with pytest.raises(OtherController, match="has not announced itself"):
            await locks.taken("two")


class foreign_producer:
    """Takes over the lock's topic without announcing itself."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    def __enter__(self) -> client_library.Producer:
        self._client = client_library.Client(self._locks.settings.service_url)
        access = client_library.ProducerAccessMode.ExclusiveWithFencing
        return self._client.create_producer(self._locks.topic, access_mode=access)

    def __exit__(self, *_: object) -> None:
        self._client.close()


def is_held(locks: Locks, pulsar: Tenant) -> bool:
    """Whether the broker has a producer that holds the lock."""
    return bool(pulsar.admin("GET", f"{path_of(locks.topic).lstrip('/')}/stats")["publishers"])


@ensureDeferred
async def test_confirm_succeeds_at_once_for_holder(locks: Locks) -> None:
    lock = await locks.taken(lock_beat_seconds=60)
    await lock.confirm()
    await gatherResults([lock.confirm(), lock.confirm()])


@ensureDeferred
async def test_confirm_after_takeover_fails_at_once(locks: Locks) -> None:
    lost: Deferred[str] = Deferred()
    lock = await locks.taken("one", lost=lost, lock_beat_seconds=60)
    await locks.taken("two", takeover=True)
    with pytest.raises(Fenced):
        await lock.confirm()
    assert "two" in await lost
    with pytest.raises(Fenced):
        await lock.confirm()


@ensureDeferred
async def test_release_fails_pending_confirmations(locks: Locks) -> None:
    lock = await locks.taken()
    waiting = lock.confirm()
    await lock.release()
    with suppress(Fenced):
        await waiting
    assert waiting.called
