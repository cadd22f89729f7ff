"""Real clients of the consumer protocol (KIP-848) in groups with other clients.

The others use another library, the classic protocol while a group migrates from one protocol to the
other and back, or are Kafka 0.9 clients of another group.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path

import kafka
import pytest
from kafka.protocol.admin.groups import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse

from tests.peers.groups.group_scenario import (
    GROUP,
    PARTITIONS,
    TOPIC,
    GroupMember,
    GroupScenario,
    MemberCommand,
    group_scenario,
    java_member,
    python_member,
)

pytestmark = [pytest.mark.peer]

#: A session timeout longer than any test, so that no member has to rejoin.
LONG_TIMEOUT_MS = "60000"
NEW_JAVA = java_member("4.4.0", group_protocol="consumer")
SETTINGS = {
    "group_consumer_session_timeout_ms": int(LONG_TIMEOUT_MS),
    "group_consumer_heartbeat_interval_ms": 300,
}

NEW_CONFLUENT = python_member("confluent_member.py", group_protocol="consumer")

#: A member of the classic and one of the consumer protocol. Some give up all partitions before they
#: rejoin (eager), others only those that are revoked (cooperative).
MOVES = [
    pytest.param(
        java_member(
            "3.9.2",
            session_timeout_ms=LONG_TIMEOUT_MS,
            partition_assignment_strategy="org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        ),
        NEW_JAVA,
        id="java-3.9.2-cooperative",
    ),
    pytest.param(
        python_member("confluent_member.py", session_timeout_ms=LONG_TIMEOUT_MS),
        NEW_CONFLUENT,
        id="confluent-range",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        java_member("2.8.2", session_timeout_ms=LONG_TIMEOUT_MS),
        NEW_JAVA,
        id="java-2.8.2-range",
        marks=pytest.mark.slow,
    ),
]


def group_type(scenario: GroupScenario) -> str:
    assert scenario.gateway is not None
    with scenario.gateway.peer() as peer:
        rows = peer.request(
            ListGroupsRequest(states_filter=[], types_filter=[]), ListGroupsResponse, 5
        ).groups
    return next(row.group_type for row in rows if row.group_id == GROUP)


def committed_offsets(scenario: GroupScenario, group: str) -> dict[int, int]:
    """The committed offsets of the group."""
    assert scenario.gateway is not None
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=PARTITIONS)
    with scenario.gateway.peer() as peer:
        reply = peer.request(
            OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True),
            OffsetFetchResponse,
            7,
        )
    return {row.partition_index: row.committed_offset for row in reply.topics[0].partitions}


def ownership_periods(member: GroupMember) -> Iterable[tuple[int, int, int]]:
    """Each period in which the member owned a partition: partition, begin and end."""
    moments = [
        *member.assignments,
        (1 << 63, member.assignments[-1][1] if member.assignments else frozenset()),
    ]
    for (begin, has), (end, _) in pairwise(moments):
        for partition in has:
            yield partition, begin, end


def assert_nothing_had_two_owners(members: Iterable[GroupMember]) -> None:
    for one, other in combinations(members, 2):
        for partition, begin, end in ownership_periods(one):
            for same, other_begin, other_end in ownership_periods(other):
                assert partition != same or end <= other_begin or other_end <= begin, (
                    partition,
                    one.assignments,
                    other.assignments,
                )


@pytest.mark.parametrize("assignor", ["uniform", pytest.param("range", marks=pytest.mark.slow)])
def test_members_of_two_libraries_share_topic_next_to_kafka_09_group(
    assignor: str, tmp_path: Path
) -> None:
    ours: list[MemberCommand] = [
        java_member("4.4.0", group_protocol="consumer", group_remote_assignor=assignor),
        python_member(
            "confluent_member.py", group_protocol="consumer", group_remote_assignor=assignor
        ),
    ]
    with group_scenario(tmp_path, NEW_JAVA, **SETTINGS) as scenario:
        scenario.send(40)
        first, second = (scenario.join(client) for client in ours)
        old = scenario.join(java_member("0.9.0.1", session_timeout_ms="30000"), group="old")
        scenario.wait_until_assigned_to(first, second)
        scenario.wait_until_assigned_to(old)
        scenario.wait_until_all_read(GROUP, "old")
        before = {group: committed_offsets(scenario, group) for group in (GROUP, "old")}
        assert before[GROUP] == before["old"] == dict.fromkeys(PARTITIONS, 10)
        assignments = [len(member.assignments) for member in scenario.members]

        scenario.kill()
        scenario.start()
        assert {group: committed_offsets(scenario, group) for group in before} == before
        scenario.send(40)
        scenario.wait_until_all_read(GROUP, "old")
        assert [len(member.assignments) for member in scenario.members] == assignments, (
            "a member had to rejoin"
        )
        assert first.read
        assert second.read

        second.leave()
        scenario.wait_until_assigned_to(first)
        for group in before:
            assert sorted(scenario.values_read(group), key=int) == scenario.sent
        assert_nothing_had_two_owners([first, second])


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_group_migrates_to_consumer_protocol_and_back_member_by_member(
    old: MemberCommand, new: MemberCommand, tmp_path: Path
) -> None:
    with group_scenario(tmp_path, new, **SETTINGS) as scenario:
        scenario.send(40)
        present = [scenario.join(old) for _ in range(2)]
        scenario.wait_until_assigned_to(*present)
        scenario.wait_until_all_read()
        assert group_type(scenario) == "classic"
        for successor, kind in ((new, "consumer"), (old, "classic")):
            for _ in range(2):
                present.append(scenario.join(successor))
                scenario.wait_until_assigned_to(*present)
                scenario.send(12)
                scenario.wait_until_all_read()
                assert group_type(scenario) == "consumer"
                if len(scenario.members) == 3:
                    # Two members of one protocol and one of the other.
                    scenario.kill()
                    scenario.start()
                    scenario.send(12)
                    scenario.wait_until_all_read()
                present.pop(0).leave()
                scenario.wait_until_assigned_to(*present)
                scenario.send(12)
                scenario.wait_until_all_read()
            assert group_type(scenario) == kind
        assert sorted(scenario.values_read(), key=int) == scenario.sent
        assert_nothing_had_two_owners(scenario.members)
        assert committed_offsets(scenario, GROUP) == {
            part: len([one for one in scenario.sent if int(one) % len(PARTITIONS) == part])
            for part in PARTITIONS
        }


def test_regex_subscribers_read_topic_created_later(
    tmp_path: Path,
) -> None:
    clients = {"java": NEW_JAVA, "confluent": NEW_CONFLUENT}
    with group_scenario(tmp_path, NEW_JAVA, **SETTINGS) as scenario:
        scenario.send(4)
        for group, client in clients.items():
            scenario.join(client, group, topic="^or[d]ers(-.*)?")
        scenario.wait_until_all_read(*clients)
        producer = kafka.KafkaProducer(bootstrap_servers=scenario.bootstrap)
        for topic in ("orders-eu", "bills"):
            producer.send(topic, topic.encode()).get(120)
        producer.close()
        scenario.wait_until(
            lambda: all("orders-eu" in scenario.values_read(group) for group in clients),
            "the new topic is read",
        )
        for group in clients:
            assert sorted(scenario.values_read(group)) == [*scenario.sent, "orders-eu"]
