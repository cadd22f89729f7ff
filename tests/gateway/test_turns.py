"""A request that asks for very much lets others have their turn."""

from __future__ import annotations

from kafka.protocol.admin.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.group import LeaveGroupRequest, OffsetFetchRequest

from gateway.groups.offset_rows import Committed
from gateway.turns import TURN_ROWS, Turns
from gateway.wire.consumer_groups import ConsumerGroupDescribeRequest
from tests.fakes.broker import Started, ended, open_house
from tests.gateway.handlers.asking import answer, asked

NAMES = [f"g{number}" for number in range(3 * TURN_ROWS + 1)]


def test_a_turn_has_so_many_rows():
    house = open_house()
    turns = Turns(house.clock)
    assert Started(turns.take(TURN_ROWS - 1)).is_done
    assert not (second := Started(turns.take())).is_done
    house.clock.advance(0)
    assert second.is_done
    assert Started(turns.take()).is_done
    assert turns.rows == TURN_ROWS + 1


def test_many_rows_take_more_than_one_turn_and_all_of_them_are_told():
    house = open_house()
    members = [LeaveGroupRequest.MemberIdentity(member_id=name, group_instance_id=None, reason=None) for name in NAMES]
    for request, version, rows in (
        (DescribeGroupsRequest(groups=NAMES, include_authorized_operations=False), 6, "groups"),
        (ConsumerGroupDescribeRequest(group_ids=NAMES, include_authorized_operations=False), 1, "groups"),
        (DeleteGroupsRequest(groups_names=NAMES), 2, "results"),
        (LeaveGroupRequest(group_id="g", members=members), 5, "members"),
    ):
        started = asked(house, request, version)
        assert not started.is_done
        house.clock.advance(0)
        assert len(getattr(answer(request, started.result, version), rows)) == len(NAMES)


def test_all_that_a_group_has_committed_is_told_in_turns():
    house = open_house()
    for name in ("a", "b", "c"):
        house.topic(name, TURN_ROWS)
    rows = {(name, index): Committed(1, -1, "", 5) for name in ("b", "c", "a") for index in reversed(range(TURN_ROWS))}
    ended(house.broker.offsets.commit("g", rows))
    started = asked(house, OffsetFetchRequest(group_id="g", topics=None), 5)
    assert not started.is_done
    # What is deleted meanwhile is not told.
    topic = house.broker.topics.require("b")
    ended(house.broker.topics.delete(topic))
    ended(house.broker.offsets.delete_topic(topic.topic))
    house.clock.advance(0)
    told = answer(OffsetFetchRequest(), started.result, 5).topics
    assert [(topic.name, [row.partition_index for row in topic.partitions]) for topic in told] == [
        ("a", list(range(TURN_ROWS))),
        ("c", list(range(TURN_ROWS))),
    ]


def test_few_rows_are_told_at_once():
    house = open_house()
    assert asked(house, DeleteGroupsRequest(groups_names=NAMES[:50]), 2).is_done
    assert asked(house, ListGroupsRequest(states_filter=[], types_filter=[]), 5).is_done
