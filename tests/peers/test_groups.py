"""Real clients in a group: they share a topic, one leaves, one is killed, the gateway is killed under them; what is committed is not read again
and nothing is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.group_scenario import group_scenario, java_member, python_member

pytestmark = [pytest.mark.peer]

CLIENTS = {
    "kafka-python": python_member("kafka_python.py"),
    "confluent-kafka": python_member("confluent.py"),
    "java-3.9.2": java_member("3.9.2"),
    # By the protocol of KIP-848.
    "confluent-kafka-consumer": python_member("confluent.py", group_protocol="consumer"),
    "java-4.4.0-consumer": java_member("4.4.0", group_protocol="consumer"),
}

#: Of members that speak the new protocol: there, the group says how long they have, and how often they are to be heard of.
SESSIONS = {
    "group_consumer_session_timeout_ms": 10_000,
    "group_consumer_heartbeat_interval_ms": 300,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_a_topic_whoever_leaves_or_is_killed_and_whatever_becomes_of_the_gateway(
    client: str, tmp_path: Path
) -> None:
    with group_scenario(tmp_path, CLIENTS[client], **SESSIONS) as here:
        here.send(40)
        first = here.join()
        here.wait_until_assigned_to(first)
        here.wait_until_all_read()

        second = here.join()
        here.wait_until_assigned_to(first, second)
        here.send(40)
        here.wait_until_all_read()
        assert second.read, "the newcomer reads what is its own"

        second.leave()
        here.wait_until_assigned_to(first)

        third = here.join()
        here.wait_until_assigned_to(first, third)
        third.kill()
        here.wait_until_assigned_to(first)
        here.send(40)
        here.wait_until_all_read()

        here.kill()
        here.start()
        here.send(40)
        here.wait_until_all_read()

        fourth = here.join()
        here.wait_until_assigned_to(first, fourth)
        here.stop()
        here.start()
        here.send(40)
        here.wait_until_all_read()

        # Every record was committed when it was told, and nobody was told one twice.
        assert sorted(here.values_read(), key=int) == here.sent
