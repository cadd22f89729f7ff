"""Node ids in use on Pulsar, between processes and after the topic was taken away."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pulsar as client_library
import pytest
from msgspec.structs import replace
from pytest_twisted import ensureDeferred
from twisted.internet import threads
from twisted.internet.defer import Deferred, fail

from storage.cluster import NodeIdInUse
from storage.log import LogClosed
from storage.pulsar.cluster import presence
from storage.pulsar.cluster.presence import NodeHolder, PulsarPresence
from storage.pulsar.cluster.presence_watch import node_topic
from storage.pulsar.topics.pulsar_names import path_of
from tests.storage.pulsar.cluster.member_processes import MemberProcesses
from tests.storage.pulsar.cluster.pulsar_bench import PulsarClusterBench
from tests.testkit.settle import until
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

Access = client_library.ProducerAccessMode


@pytest.fixture
def bench(pulsar: Tenant, monkeypatch: pytest.MonkeyPatch) -> Iterator[PulsarClusterBench]:
    monkeypatch.setattr(presence, "CLAIM_SECONDS", 0.5)
    made = PulsarClusterBench(pulsar.settings(lock_beat_seconds=0.2))
    yield made
    made.close()


@ensureDeferred
async def test_killed_process_is_noticed_and_its_id_is_free(bench: PulsarClusterBench) -> None:
    members = MemberProcesses(bench.settings)
    try:
        process = members.start(5)
        await members.event(5, "ready")
        watcher = await bench.process("watcher")
        gone: list[int] = []
        watcher.presence.watch(5, lambda: gone.append(5))
        with pytest.raises(NodeIdInUse) as caught:
            await watcher.presence.claim(5, "watcher")
        assert (
            f"node id 5 is in use by node 5 (process {process.pid} on {socket.gethostname()}, "
        ) in str(caught.value)
        assert "--node-id" in str(caught.value)
        assert gone == []
        members.kill(5)
        await until(lambda: gone)
        await watcher.presence.claim(5, "watcher")
    finally:
        members.close()


@ensureDeferred
async def test_id_is_claimed_again_after_the_topic_was_taken_for_a_moment(
    bench: PulsarClusterBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the broker, if the controller connects before the node.

    An unexpected error does not end the attempts.
    """
    failures: list[Exception] = [LogClosed("set by the test"), RuntimeError("a bug")]
    open_producer = PulsarPresence._open

    def fail_first(own: PulsarPresence, holder: NodeHolder) -> Deferred[Any]:
        if own is one.presence and "node id lost" in caplog.text and failures:
            return fail(failures.pop())
        return open_producer(own, holder)

    monkeypatch.setattr(PulsarPresence, "_open", fail_first)
    one, two = await bench.process("one"), await bench.process("two")
    taken: list[str] = []
    one.presence.when_taken(taken.append)
    await one.presence.claim(1, "one")
    client = client_library.Client(bench.settings.service_url)
    topic = node_topic(bench.settings, 1)
    await threads.deferToThread(
        client.create_producer, topic, access_mode=Access.ExclusiveWithFencing
    )
    await until(lambda: "node id lost in Pulsar" in caplog.text)
    await threads.deferToThread(client.close)
    await until(lambda: "node id claimed again" in caplog.text)
    assert failures == []
    with pytest.raises(NodeIdInUse, match=rf"in use by one \(process {os.getpid()} "):
        await two.presence.claim(1, "two")
    assert taken == []


@ensureDeferred
async def test_loss_of_the_id_to_another_process_is_reported(bench: PulsarClusterBench) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    taken: list[str] = []
    one.presence.when_taken(taken.append)
    await one.presence.claim(1, "one")
    client = client_library.Client(bench.settings.service_url)
    topic = node_topic(bench.settings, 1)
    producer = await threads.deferToThread(
        client.create_producer, topic, access_mode=Access.ExclusiveWithFencing
    )
    client_of_two = two.presence._client
    holder = await client_of_two.run(lambda: client_of_two.last_json(topic, NodeHolder))
    assert holder
    other = replace(holder, description="other", incarnation="0" + holder.incarnation)
    await threads.deferToThread(producer.send, msgspec.json.encode(other))
    await until(lambda: taken)
    assert "other (process" in taken[0]
    await threads.deferToThread(client.close)
    await two.presence.claim(1, "two")
    assert len(taken) == 1


@ensureDeferred
async def test_holder_keeps_its_id_when_the_topic_moves(
    bench: PulsarClusterBench, pulsar: Tenant
) -> None:
    one, two = await bench.process("one"), await bench.process("two")
    await one.presence.claim(1, "one")
    path = path_of(node_topic(bench.settings, 1)).lstrip("/")
    two.presence.watch(1, lambda: None)
    await threads.deferToThread(pulsar.admin, "PUT", f"{path}/unload")

    def is_held() -> bool:
        """The watcher may be served first; the holder then claims its id with a new producer."""
        stats = pulsar.admin("GET", f"{path}/stats")
        names = [publisher["producerName"] for publisher in stats["publishers"]]
        producer = one.presence._producer
        return producer is not None and producer.producer_name() in names

    await until(lambda: threads.deferToThread(is_held))
    with pytest.raises(NodeIdInUse, match="in use by one"):
        await two.presence.claim(1, "two")
