"""Real clients in a group: they share a topic, one leaves, one is killed, the gateway is killed under them; what is committed is not read again
and nothing is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.scene import java, python, scene

pytestmark = [pytest.mark.peer]

CLIENTS = {
    "kafka-python": python("kafka_python.py"),
    "confluent-kafka": python("confluent.py"),
    "java-3.9.2": java("3.9.2"),
    # By the protocol of KIP-848.
    "confluent-kafka-consumer": python("confluent.py", group_protocol="consumer"),
    "java-4.4.0-consumer": java("4.4.0", group_protocol="consumer"),
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
    with scene(tmp_path, CLIENTS[client], **SESSIONS) as here:
        here.sends(40)
        first = here.joins()
        here.until_shared_by(first)
        here.until_all_is_read()

        second = here.joins()
        here.until_shared_by(first, second)
        here.sends(40)
        here.until_all_is_read()
        assert second.read, "the newcomer reads what is its own"

        second.leaves()
        here.until_shared_by(first)

        third = here.joins()
        here.until_shared_by(first, third)
        third.is_killed()
        here.until_shared_by(first)
        here.sends(40)
        here.until_all_is_read()

        here.is_killed()
        here.starts()
        here.sends(40)
        here.until_all_is_read()

        fourth = here.joins()
        here.until_shared_by(first, fourth)
        here.stops()
        here.starts()
        here.sends(40)
        here.until_all_is_read()

        # Every record was committed when it was told, and nobody was told one twice.
        assert sorted(here.told(), key=int) == here.sent
