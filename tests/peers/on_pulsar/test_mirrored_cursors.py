"""`pulsar_mirror_cursors` shows the backlog of Kafka groups in Pulsar's statistics."""

from __future__ import annotations

import time
from contextlib import closing

import pulsar as client_library
import pytest

from tests.peers.on_pulsar.pulsar_gateway import consume, gateway_on, produce

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: Cursors are moved every ten seconds.
SHOWN_SECONDS = 300.0
MIRRORED = ("--set", "pulsar_mirror_cursors=true")


def backlogs(pulsar, settings):
    """Backlog by durable subscription; the gateway's own readers are not durable."""
    stats = pulsar.admin(
        "GET",
        f"persistent/{settings.tenant}/{settings.namespace}/orders-partition-0/stats?getPreciseBacklog=true",
    )
    return {
        name: subscription["msgBacklog"]
        for name, subscription in stats["subscriptions"].items()
        if subscription["isDurable"]
    }


def waits_for(pulsar, settings, group, backlog):
    """Wait until the group has this backlog."""
    end = time.monotonic() + SHOWN_SECONDS
    while (seen := backlogs(pulsar, settings)).get(group) != backlog:
        assert time.monotonic() < end, seen
        time.sleep(0.1)


def produces_one_by_one(running, values):
    """Write each value in its own batch, so that it is a separate entry in Pulsar."""
    for value in values:
        produce(running, "orders", value)


def audits(pulsar, settings, count):
    """Acknowledge `count` messages as a native consumer whose subscription remains."""
    silent = client_library.ConsoleLogger(client_library.LoggerLevel.Error)
    topic = f"persistent://{settings.tenant}/{settings.namespace}/orders-partition-0"
    with closing(client_library.Client(pulsar.service_url, logger=silent)) as client:
        start = client_library.InitialPosition.Earliest
        consumer = client.subscribe(topic, "auditors", initial_position=start)
        for _ in range(count):
            consumer.acknowledge(consumer.receive(60_000))
        consumer.close()


@pytest.fixture
def folder(tmp_path):
    def make(name):
        made = tmp_path / name
        made.mkdir()
        return made

    return make


def test_mirrored_cursor_shows_group_backlog_and_other_subscriptions_stay(pulsar, folder):
    settings = pulsar.settings()
    with gateway_on(settings, folder("gateway"), *MIRRORED) as running:
        produces_one_by_one(running, [b"1", b"2", b"3", b"4", b"5", b"6"])
        audits(pulsar, settings, 1)
        assert len(consume(running, "orders", 4)) == 4
        waits_for(pulsar, settings, "readers", 2)
        produce(running, "orders", b"7")
        waits_for(pulsar, settings, "readers", 3)
        assert backlogs(pulsar, settings) == {"readers": 3, "auditors": 6}
        assert running.stop() == 0


def test_groups_are_not_mirrored_by_default(pulsar, folder):
    without, mirrored = pulsar.settings(), pulsar.settings()
    with gateway_on(without, folder("without")) as quiet:
        produces_one_by_one(quiet, [b"1", b"2"])
        assert len(consume(quiet, "orders", 2)) == 2
        # The first gateway would have mirrored its cursors by the time that the second, started
        # later, has.
        with gateway_on(mirrored, folder("mirrored"), *MIRRORED) as running:
            produces_one_by_one(running, [b"1", b"2"])
            assert len(consume(running, "orders", 2)) == 2
            waits_for(pulsar, mirrored, "readers", 0)
        assert backlogs(pulsar, without) == {}
