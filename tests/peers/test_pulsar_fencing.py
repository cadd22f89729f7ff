"""Two gateways on the same Pulsar: exactly one can write, and the other says so and ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import in_pulsar
from tests.peers.chaos.observers import stands, whole
from tests.peers.chaos.servers import Gateway, GatewayDied
from tests.peers.gateway import one_record
from tests.peers.tenant import Tenant
from tests.peers.verifiable import TOPIC
from tests.peers.writing import GROUP, Writers, commit, queued, taken_in_turn

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: For whoever lost its right to notice it and to end.
END_SECONDS = 240.0
#: Some requests here are not retried, and Pulsar on a busy machine stalls for seconds.
OPENING_MS = 20_000


@pytest.fixture
def starts(tmp_path: Path, pulsar: Tenant) -> Iterator[Callable[..., Gateway]]:
    """Another gateway on the same namespaces each time."""
    store = in_pulsar(pulsar)
    with ExitStack() as stack:

        def started(name: str, *arguments: str) -> Gateway:
            gateway = Gateway(tmp_path, store, {"num_partitions": 1, "partition_open_timeout_ms": OPENING_MS}, name)
            stack.callback(gateway.kill)
            gateway.launch(*arguments)
            return gateway

        yield started


def has_ended(gateway: Gateway) -> None:
    """Wait until the gateway has noticed that it lost the topics."""
    assert gateway.process.wait(END_SECONDS) == 1, gateway.log()


def test_a_second_gateway_is_refused_and_told_who_has_the_topics_and_how_to_take_them(starts: Callable[..., Gateway]) -> None:
    first = starts("first")
    with first.peer() as peer:
        peer.makes(TOPIC)
    with pytest.raises(GatewayDied, match="exit code 1\n") as refused:
        starts("second")
    said = str(refused.value)
    assert {word for word in (socket.gethostname(), str(first.process.pid), "--pulsar-takeover") if word not in said} == set(), said
    with first.peer() as peer:
        assert peer.produces(TOPIC, one_record(b"still here")).error_code == 0


def test_who_takes_the_topics_over_is_the_only_one_that_writes_from_then_on(starts: Callable[..., Gateway]) -> None:
    gateway = starts("first")
    with gateway.peer() as peer:
        peer.makes(TOPIC)
    first = Writers(gateway, "first")
    first.start()
    first.wait_for_answers()

    other = starts("second", "--pulsar-takeover")
    second = Writers(other, "second")
    second.start()
    second.wait_for_answers()

    has_ended(gateway)
    assert gateway.says("taken")
    first.stop()
    second.wait_for_answers()
    second.stop()
    taken_in_turn(whole(other.bootstrap, 1), first, second)
    assert not other.says("given up"), "who lost the topics took one back"
    assert other.bugs() == []


def test_what_waited_in_a_gateway_that_stood_still_appears_nowhere_after_it_lost_the_topics(starts: Callable[..., Gateway]) -> None:
    gateway = starts("first")
    with gateway.peer() as peer:
        peer.makes(TOPIC)
        commit(peer, 5)
    first = Writers(gateway, "first")
    first.start()
    first.wait_for_answers()
    with queued(gateway, "first"):
        other = starts("second", "--pulsar-takeover")
        second = Writers(other, "second")
        second.start()
        second.wait_for_answers()
        with other.peer() as peer:
            commit(peer, 9)

        gateway.resume()
        has_ended(gateway)
    first.stop()
    second.wait_for_answers()
    second.stop()
    taken_in_turn(whole(other.bootstrap, 1), first, second)
    with other.peer() as peer:
        assert stands(peer, GROUP, 1) == {0: 9}
