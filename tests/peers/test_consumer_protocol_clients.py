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

from tests.peers.group_scenario import (
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
PATIENT = "60000"
NEW_JAVA = java_member("4.4.0", group_protocol="consumer")
SETTINGS = {
    "group_consumer_session_timeout_ms": int(PATIENT),
    "group_consumer_heartbeat_interval_ms": 300,
}

NEW_CONFLUENT = python_member("confluent.py", group_protocol="consumer")

#: A member of the classic and one of the consumer protocol. Some give up all partitions before they
#: rejoin (eager), others only those that are revoked (cooperative).
MOVES = [
    pytest.param(
        java_member(
            "3.9.2",
            session_timeout_ms=PATIENT,
            partition_assignment_strategy="org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        ),
        NEW_JAVA,
        id="java-3.9.2-cooperative",
    ),
    pytest.param(
        python_member("confluent.py", session_timeout_ms=PATIENT),
        NEW_CONFLUENT,
        id="confluent-range",
    ),
    pytest.param(
        java_member("2.8.2", session_timeout_ms=PATIENT),
        NEW_JAVA,
        id="java-2.8.2-range",
        marks=pytest.mark.slow,
    ),
]


def kind_of(here: GroupScenario) -> str:
    assert here.gateway is not None
    with here.gateway.peer() as peer:
        rows = peer.request(
            ListGroupsRequest(states_filter=[], types_filter=[]), ListGroupsResponse, 5
        ).groups
    return next(row.group_type for row in rows if row.group_id == GROUP)


def stands(here: GroupScenario, group: str) -> dict[int, int]:
    """The committed offsets of the group."""
    assert here.gateway is not None
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=PARTITIONS)
    with here.gateway.peer() as peer:
        reply = peer.request(
            OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True),
            OffsetFetchResponse,
            7,
        )
    return {row.partition_index: row.committed_offset for row in reply.topics[0].partitions}


def held(member: GroupMember) -> Iterable[tuple[int, int, int]]:
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
        for partition, begin, end in held(one):
            for same, other_begin, other_end in held(other):
                assert partition != same or end <= other_begin or other_end <= begin, (
                    partition,
                    one.assignments,
                    other.assignments,
                )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_of_two_libraries_share_a_topic_beside_a_group_of_kafka_09(
    assignor: str, tmp_path: Path
) -> None:
    ours: list[MemberCommand] = [
        java_member("4.4.0", group_protocol="consumer", group_remote_assignor=assignor),
        python_member("confluent.py", group_protocol="consumer", group_remote_assignor=assignor),
    ]
    with group_scenario(tmp_path, NEW_JAVA, **SETTINGS) as here:
        here.send(40)
        first, second = (here.join(client) for client in ours)
        old = here.join(java_member("0.9.0.1", session_timeout_ms="30000"), group="old")
        here.wait_until_assigned_to(first, second)
        here.wait_until_assigned_to(old)
        here.wait_until_all_read(GROUP, "old")
        before = {group: stands(here, group) for group in (GROUP, "old")}
        assert before[GROUP] == before["old"] == dict.fromkeys(PARTITIONS, 10)
        assignments = [len(member.assignments) for member in here.members]

        here.kill()
        here.start()
        assert {group: stands(here, group) for group in before} == before
        here.send(40)
        here.wait_until_all_read(GROUP, "old")
        assert [len(member.assignments) for member in here.members] == assignments, (
            "somebody had to join again"
        )
        assert first.read
        assert second.read

        second.leave()
        here.wait_until_assigned_to(first)
        for group in before:
            assert sorted(here.values_read(group), key=int) == here.sent
        assert_nothing_had_two_owners([first, second])


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(
    old: MemberCommand, new: MemberCommand, tmp_path: Path
) -> None:
    with group_scenario(tmp_path, new, **SETTINGS) as here:
        here.send(40)
        present = [here.join(old) for _ in range(2)]
        here.wait_until_assigned_to(*present)
        here.wait_until_all_read()
        assert kind_of(here) == "classic"
        for successor, kind in ((new, "consumer"), (old, "classic")):
            for _ in range(2):
                present.append(here.join(successor))
                here.wait_until_assigned_to(*present)
                here.send(12)
                here.wait_until_all_read()
                assert kind_of(here) == "consumer"
                if len(here.members) == 3:
                    # Two members of one protocol and one of the other.
                    here.kill()
                    here.start()
                    here.send(12)
                    here.wait_until_all_read()
                present.pop(0).leave()
                here.wait_until_assigned_to(*present)
                here.send(12)
                here.wait_until_all_read()
            assert kind_of(here) == kind
        assert sorted(here.values_read(), key=int) == here.sent
        assert_nothing_had_two_owners(here.members)
        assert stands(here, GROUP) == {
            part: len([one for one in here.sent if int(one) % len(PARTITIONS) == part])
            for part in PARTITIONS
        }


def test_members_that_subscribe_by_a_regular_expression_read_a_topic_that_comes_later(
    tmp_path: Path,
) -> None:
    clients = {"java": NEW_JAVA, "confluent": NEW_CONFLUENT}
    with group_scenario(tmp_path, NEW_JAVA, **SETTINGS) as here:
        here.send(4)
        for group, client in clients.items():
            here.join(client, group, topic="^or[d]ers(-.*)?")
        here.wait_until_all_read(*clients)
        producer = kafka.KafkaProducer(bootstrap_servers=here.bootstrap)
        for topic in ("orders-eu", "bills"):
            producer.send(topic, topic.encode()).get(120)
        producer.close()
        here.wait_until(
            lambda: all("orders-eu" in here.values_read(group) for group in clients),
            "the new topic is read",
        )
        for group in clients:
            assert sorted(here.values_read(group)) == [*here.sent, "orders-eu"]
