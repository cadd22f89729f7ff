"""Real clients share a topic in a group while members and the gateway leave, die and restart.

No record is lost, and none that was committed is read again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.groups.group_scenario import group_scenario, java_member, python_member

pytestmark = [pytest.mark.peer]

CLIENTS = {
    "kafka-python": python_member("kafka_python_member.py"),
    "confluent-kafka": python_member("confluent_member.py"),
    "java-3.9.2": java_member("3.9.2"),
    # The consumer group protocol (KIP-848).
    "confluent-kafka-consumer": python_member("confluent_member.py", group_protocol="consumer"),
    "java-4.4.0-consumer": java_member("4.4.0", group_protocol="consumer"),
}

#: With KIP-848 the group's configuration sets the session timeout and the heartbeat interval.
SESSION_SETTINGS = {
    "group_consumer_session_timeout_ms": 10_000,
    "group_consumer_heartbeat_interval_ms": 300,
}


#: In `make slow` only: `tests/legacy_clients/runs/test_pairs.py` and
#: `test_consumer_protocol_clients.py` have groups of these clients.
SLOW = frozenset({"kafka-python", "confluent-kafka", "java-4.4.0-consumer"})


@pytest.mark.parametrize(
    "client",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CLIENTS],
)
def test_group_reads_each_record_once_across_leaves_kills_and_gateway_restarts(
    client: str, tmp_path: Path
) -> None:
    with group_scenario(tmp_path, CLIENTS[client], **SESSION_SETTINGS) as here:
        here.send(40)
        first = here.join()
        here.wait_until_assigned_to(first)
        here.wait_until_all_read()

        second = here.join()
        here.wait_until_assigned_to(first, second)
        here.send(40)
        here.wait_until_all_read()
        assert second.read, "the new member reads its partitions"

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

        # Members report a record once it is committed; none is reported twice.
        assert sorted(here.values_read(), key=int) == here.sent
