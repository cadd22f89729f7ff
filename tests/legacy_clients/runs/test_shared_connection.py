"""Real clients that use one connection for several things: no request waits for a long-polling
Fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.cases import create_topics
from tests.legacy_clients.clients import Client, run

# 300 s: the first run on a machine also downloads and builds the clients.
pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

#: Ten times most clients' default, so that a stalled machine is not mistaken for a wait for the
#: Fetch. A round takes milliseconds, or this long if it waits for the Fetch.
FETCH_WAIT_MS = 5000
HALF_FETCH_WAIT_SECONDS = FETCH_WAIT_MS / 2000


@pytest.mark.parametrize("is_grouped", [False, True], ids=["assigned", "group"])
@pytest.mark.parametrize("name", ["sarama-1.19.0-as-2.0.0", "sarama-1.61.1"])
def test_produce_does_not_wait_for_a_fetch_on_its_connection(
    broker: RunningBroker,
    is_reference: bool,
    client: Callable[[str], Client],
    name: str,
    is_grouped: bool,
) -> None:
    """Sarama 1.19 sends its Produce after the Fetch; 1.61 waits for the Fetch response first."""
    row, topic = client(name), f"echo-{name}-{is_grouped}"
    create_topics(broker.bootstrap, [topic], 1)
    words = [
        *(("--group", topic) if is_grouped else ()),
        "--fetch-wait",
        str(FETCH_WAIT_MS),
        f"{topic}:11",
    ]
    rounds = [
        float(line) for line in run(row, "echo", broker.bootstrap, words, timeout=200).splitlines()
    ]
    assert len(rounds) == 11
    if is_reference:
        assert median(rounds) > HALF_FETCH_WAIT_SECONDS
    else:
        assert median(rounds) < HALF_FETCH_WAIT_SECONDS


def test_commit_does_not_wait_for_a_fetch_on_its_connection(
    broker: RunningBroker, is_reference: bool, client: Callable[[str], Client]
) -> None:
    """librdkafka 0.11 sends both on one connection."""
    name = "confluent-0.11.6"
    row, topic = client(name), f"commits-{name}"
    create_topics(broker.bootstrap, [topic], 1)
    words = ["--group", topic, "--fetch-wait", str(FETCH_WAIT_MS), f"{topic}:11"]
    commits = [
        float(line)
        for line in run(row, "commits", broker.bootstrap, words, timeout=200).splitlines()
    ]
    assert len(commits) == 11
    if is_reference:
        assert median(commits) > HALF_FETCH_WAIT_SECONDS
    else:
        assert median(commits) < HALF_FETCH_WAIT_SECONDS
