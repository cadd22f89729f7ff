"""Connections between the gateway and Pulsar that stay open but carry nothing.

Either the gateway is paused for longer than the broker's keep-alive timeout, or the network drops
all bytes. A gateway that lost the topics does no harm; otherwise it recovers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import for_code
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from tests.legacy_clients.brokers import are_required, in_pulsar
from tests.peers.chaos.observers import committed_offsets, read_whole_log
from tests.peers.chaos.servers import RestartableGateway, RetryingGateway
from tests.peers.on_pulsar.writers import (
    GROUP,
    IdempotentProducer,
    Writers,
    assert_queue_not_stale,
    assert_written_once,
    commit,
    commit_error_code,
    commit_once_coordinated,
    paused_with_queue,
)
from tests.testkit.cache import CannotInstall
from tests.testkit.gateway import Stopwatch, one_record
from tests.testkit.pulsar import BROKER_MEMORY, ONE_BOOKIE, Pulsar
from tests.testkit.pulsar_relay import PulsarRelays
from tests.testkit.verifiable import TOPIC

#: `test_pulsar_fencing.py` has the same with gateways that are suspended for a shorter time.
pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1800)]

#: The broker closes a connection after one to two of these without a byte. Its default is 30.
KEEP_ALIVE_SECONDS = 5
DROPPED_SECONDS = 240.0

#: The outcome of a message is unknown after this, so a producer waits at most this long for its
#: response.
SEND_TIMEOUT_MS = 8_000
SILENT_SECONDS = 20.0
#: The request timeout that each Produce contains, and what the gateway may add; shorter than
#: pulsar-client needs to close a connection without responses.
ANSWER_SECONDS = 10.0 + 15.0
#: Limit of a request that does not need Pulsar, by the stopwatch: less than any wait for Pulsar.
AT_ONCE_SECONDS = 4.0
#: pulsar-client closes a connection without responses after one to two times 30 s, which is not
#: configurable, and reconnects.
RECOVER_SECONDS = 300.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Pulsar]:
    try:
        with Pulsar.start(
            memory=BROKER_MEMORY, keepAliveIntervalSeconds=str(KEEP_ALIVE_SECONDS), **ONE_BOOKIE
        ) as started:
            yield started
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


class GatewayStarter:
    """Starts gateways one after the other on the same namespaces."""

    def __init__(self, folder: Path, broker: Pulsar, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._tenant = broker.tenant()
        self._store = in_pulsar(self._tenant)

    def start(self, name: str, *arguments: str) -> RestartableGateway:
        gateway = RestartableGateway(self._folder, self._store, {"num_partitions": 1}, name)
        self._stack.callback(gateway.kill)
        gateway.launch(*arguments)
        return gateway

    def wait_until_dropped(self) -> float:
        """Wait until the broker has no producer of the lock; return the seconds that this took."""
        (metadata,) = [
            word.partition("=")[2]
            for word in self._store
            if word.startswith("pulsar_metadata_namespace=")
        ]
        began = time.monotonic()
        while self._tenant.admin(
            "GET", f"persistent/{self._tenant.name}/{metadata}/__kopgate.lock/stats"
        )["publishers"]:
            assert time.monotonic() - began < DROPPED_SECONDS
            time.sleep(0.1)
        return time.monotonic() - began


@pytest.fixture
def starter(tmp_path: Path, broker: Pulsar) -> Iterator[GatewayStarter]:
    with ExitStack() as stack:
        yield GatewayStarter(tmp_path, broker, stack)


def test_resumed_gateway_stores_nothing_that_it_received_before_another_led(
    starter: GatewayStarter,
) -> None:
    """The broker has closed its connections, and thus released its exclusive producers."""
    gateway = starter.start("first")
    with gateway.peer() as peer:
        peer.create_topic(TOPIC)
        commit(peer, 5)
    first = Writers(gateway, "first")
    first.start()
    first.wait_for_answers()
    with paused_with_queue(gateway, "first") as (writer, committer):
        print(f"dropped after {starter.wait_until_dropped():.1f} s")
        other = starter.start("second", "--node-id", "1")
        second = Writers(other, "second")
        second.start()
        second.wait_for_answers()
        commit_once_coordinated(other, 9)
        second.stop()

        gateway.resume()
        assert_queue_not_stale(writer, committer, second, gateway, other)
    first.stop()
    assert_written_once(read_whole_log(f"{gateway.bootstrap},{other.bootstrap}", 1), first, second)
    for one in (gateway, other):
        one.assert_running()
        assert one.unexpected_errors() == []


def test_paused_gateway_continues_if_no_other_took_over(
    starter: GatewayStarter,
) -> None:
    gateway = starter.start("only")
    with gateway.peer() as peer:
        peer.create_topic(TOPIC)
        commit(peer, 5)
    writers, application = Writers(gateway, "plain"), IdempotentProducer(gateway)
    writers.start()
    writers.wait_for_answers()
    with paused_with_queue(gateway, "plain") as (_, committer):
        starter.wait_until_dropped()
        gateway.resume()
        writers.wait_for_answers()
        assert committer.receive() is not None
    with gateway.peer() as peer:
        assert committed_offsets(peer, GROUP, 1) == {0: 6}, "the commit in its socket was executed"
    check_nothing_is_lost(gateway, writers, application)


def test_gateway_answers_and_recovers_when_the_network_drops_all_bytes(
    tmp_path: Path, broker: Pulsar
) -> None:
    tenant = broker.tenant()
    with PulsarRelays(tenant.settings()) as between, ExitStack() as stack:
        relayed = replace(
            tenant, service_url=between.settings.service_url, admin_url=between.settings.admin_url
        )
        settings: Mapping[str, object] = {
            "num_partitions": 1,
            "pulsar_send_timeout_ms": SEND_TIMEOUT_MS,
        }
        gateway = RetryingGateway(tmp_path, in_pulsar(relayed), settings)
        stack.callback(gateway.kill)
        gateway.launch()
        with gateway.peer() as peer:
            peer.create_topic(TOPIC)
            commit(peer, 5)
        writers, application = Writers(gateway, "plain"), IdempotentProducer(gateway)
        writers.start()
        writers.wait_for_answers()
        with between.cut():
            began = time.monotonic()
            check_answers(gateway)
            while time.monotonic() < began + SILENT_SECONDS:
                gateway.assert_running()
                time.sleep(0.1)
        began = time.monotonic()
        writers.wait_for_answers(seconds=RECOVER_SECONDS)
        print(
            f"written again {time.monotonic() - began:.1f} s after bytes flow; "
            f"refused with {writers.codes}"
        )
        commits_again(gateway, 7)
        print(f"committed again {time.monotonic() - began:.1f} s after bytes flow")
        assert writers.codes, "producers get errors"
        assert not [code for code in writers.codes if not for_code(code).retriable], writers.codes
        assert gateway.has_logged("partition fenced")
        check_nothing_is_lost(gateway, writers, application)


def check_answers(gateway: RestartableGateway) -> None:
    """All requests are answered in time although Pulsar does not respond."""
    with gateway.peer(seconds=ANSWER_SECONDS) as peer:
        began = time.monotonic()
        refused = peer.produce(TOPIC, one_record(b"lost"))
        assert for_code(refused.error_code).retriable, refused
        assert for_code(commit_error_code(peer, 6)).retriable
        print(f"a producer and a committer were answered after {time.monotonic() - began:.1f} s")
    with gateway.peer() as peer:
        watch = Stopwatch(gateway)
        asked = MetadataRequest(
            version=4,
            topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)],
            allow_auto_topic_creation=False,
        )
        assert [topic.error_code for topic in peer.request(asked, MetadataResponse, 4).topics] == [
            0
        ]
        assert committed_offsets(peer, GROUP, 1) in ({0: 5}, None)
        assert watch.seconds() < AT_ONCE_SECONDS


def commits_again(gateway: RestartableGateway, offset: int) -> None:
    """Commit with retries, as clients do."""
    end = time.monotonic() + RECOVER_SECONDS
    with gateway.peer(seconds=ANSWER_SECONDS) as peer:
        while code := commit_error_code(peer, offset):
            assert for_code(code).retriable
            assert time.monotonic() < end, gateway.log()
            time.sleep(0.1)
        assert committed_offsets(peer, GROUP, 1) == {0: offset}


def check_nothing_is_lost(
    gateway: RestartableGateway, writers: Writers, application: IdempotentProducer
) -> None:
    writers.stop()
    application.stop()
    log: dict[int, Any] = {
        offset: value for (_, offset), value in read_whole_log(gateway.bootstrap, 1).values.items()
    }
    assert [*log] == list(range(len(log)))
    assert {offset: log.get(offset) for offset in writers.stored} == writers.stored
    application.assert_all_stored_once(log)
    gateway.assert_running()
    assert gateway.unexpected_errors() == []
