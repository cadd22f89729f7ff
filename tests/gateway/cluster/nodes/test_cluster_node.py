"""Nodes on one medium: which node leads which shards, after each kind of failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gateway.cluster import cluster_node, controller
from gateway.cluster.cluster_messages import HeartbeatReply, encode_message
from gateway.cluster.image import node_key, shard_key
from gateway.cluster.member import Member
from gateway.cluster.shard_leadership import NotLeader
from tests.fakes.broker import Started
from tests.gateway.cluster.nodes.node_group import SHARDS, TIMING, NodeGroup, NodeProcess

ALL = set(range(SHARDS))
JOINED = "node joined the cluster"
SAME_ADDRESS = "another node advertises the same address"


@pytest.fixture
def group() -> NodeGroup:
    return NodeGroup()


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    found = [record.__dict__ for record in caplog.records if record.levelno >= logging.INFO]
    return [(one["event"], one["fields"]) for one in found]


def counts(*processes: NodeProcess) -> list[int]:
    """Sorted numbers of open shards. Asserts that each is open once, and that all views agree."""
    led = [process.open_shards for process in processes]
    assert set.union(*led) == ALL
    assert sum(map(len, led)) == SHARDS
    for seen_by in processes:
        view = seen_by.membership.view
        for process, shards in zip(processes, led, strict=True):
            seen = {shard for shard in ALL if view._leaders[shard] == process.node.node_id}
            assert seen == shards
    return sorted(map(len, led))


def test_first_node_is_controller_and_leads_all_shards(group):
    one = group.join(1)
    assert one.node.is_controller
    assert one.store.is_leading
    assert one.open_shards == ALL
    assert group.opened == [(shard, 5) for shard in range(SHARDS)]
    assert one.membership.view.controller_id == 1


def test_shards_are_balanced_when_nodes_join(group):
    one, two = group.join(1), group.join(2)
    assert counts(one, two) == [4, 4]
    three = group.join(3)
    assert counts(one, two, three) == [2, 3, 3]
    assert [process.node.is_controller for process in (one, two, three)] == [True, False, False]
    assert {process.membership.view.controller_id for process in (one, two, three)} == {1}


def test_shards_of_a_killed_member_move_without_waiting_for_its_session(group):
    one, two = group.join(1), group.join(2)
    two.kill()
    group.run(1)
    assert counts(one) == [8]
    assert one.membership.view.nodes("PLAINTEXT") == [one.membership.view.find_node(1, "PLAINTEXT")]


def test_another_node_replaces_a_killed_controller(group):
    one, two, three = group.join(1), group.join(2), group.join(3)
    one.kill()
    group.run(3)
    assert counts(two, three) == [4, 4]
    (controller,) = [process for process in (two, three) if process.node.is_controller]
    assert controller.store.is_leading
    assert controller.membership.view.controller_id == controller.node.node_id


def test_role_is_tried_again_after_an_unexpected_error(group, monkeypatch, caplog):
    one, two = group.join(1), group.join(2)
    acquire, errors = two.medium.log.acquire, [ZeroDivisionError("once")]

    async def fails_once(force: bool) -> None:
        await acquire(force)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(two.medium.log, "acquire", fails_once)
    one.kill()
    group.run(3)
    assert not errors
    assert two.node.is_controller
    assert counts(two) == [8]
    assert [event for event, fields in events(caplog) if "traceback" in fields] == [
        "taking the role of the controller failed"
    ]


def test_lost_shard_is_opened_again_by_its_leader(group):
    one = group.join(1)
    group.opened.clear()
    one.store.lose_shard(3)
    group.run(1)
    assert group.opened == [(3, 5)]
    assert one.open_shards == ALL


def cut_off(group: NodeGroup, process: NodeProcess) -> None:
    """Nothing reaches this process, and its heartbeats are lost."""
    process.medium.suspend()
    group.medium.loses = lambda node_id, message: node_id != process.node.node_id


def connect_again(group: NodeGroup, process: NodeProcess) -> None:
    group.medium.loses = lambda node_id, message: False
    process.medium.resume()


def test_former_leader_closes_shards_that_the_next_leader_opened(group):
    one, two = group.join(1), group.join(2)
    cut_off(group, two)
    group.run(TIMING.session_timeout + 0.1)
    assert one.open_shards == ALL
    assert not two.node.has_lease
    two.medium.resume()
    group.run(0.1)
    assert two.open_shards == set()
    connect_again(group, two)
    group.run(5)
    assert counts(one, two) == [4, 4]


def test_requests_are_held_without_a_lease_and_served_when_it_is_back(group, caplog):
    caplog.set_level(logging.INFO)
    one, two = group.join(1), group.join(2)
    shard = min(two.open_shards)
    # Its heartbeats arrive, their answers do not.
    two.medium.suspend()
    group.run(TIMING.lease - 2 * TIMING.heartbeat_interval)
    assert two.node.has_lease
    group.run(2 * TIMING.heartbeat_interval + 0.1)
    assert not two.node.has_lease
    asking = Started(two.membership.leadership.wait(shard, 30))
    assert not asking.is_done
    assert "lease renewed" not in caplog.text
    two.medium.resume()
    group.run(1)
    assert asking.result is None
    assert counts(one, two) == [4, 4]
    assert caplog.text.count("lease renewed, serving as leader again") == 1


def test_held_request_is_served_when_the_lease_is_renewed_before_its_end_is_noticed(group):
    group.join(1)
    two = group.join(2)
    shard = min(two.open_shards)
    two.medium.suspend()
    group.run(TIMING.heartbeat_interval)
    while two.node.has_lease:
        # No timer fires: the reactor is busy.
        group.clock.rightNow += 0.01
    asking = Started(two.membership.leadership.wait(shard, 5))
    assert not asking.is_done
    sequence, (sent_at, _) = max(two.node._member._sent.items())
    lease = group.clock.seconds() - sent_at + 0.2
    epoch = two.node.image.controller.epoch
    reply = HeartbeatReply(two.node.incarnation, sequence, epoch, True, lease)
    two.node.on_message(b"\1" + encode_message(reply))
    assert two.node.has_lease
    assert asking.result is None
    # When this lease ends, requests are held for as long as after the end of any other.
    group.run(0.3)
    assert not two.node.has_lease
    assert not Started(two.membership.leadership.wait(shard, 0.25)).is_done


def test_held_request_is_refused_when_another_node_leads(group):
    group.join(1)
    two = group.join(2)
    shard = min(two.open_shards)
    cut_off(group, two)
    group.run(TIMING.lease + 0.1)
    asking = Started(two.membership.leadership.wait(shard, 30))
    group.run(TIMING.session_timeout - TIMING.lease)
    assert not asking.is_done
    connect_again(group, two)
    group.run(0.1)
    with pytest.raises(NotLeader, match="does not lead"):
        assert asking.result


def test_controller_without_messages_is_replaced_by_force(group):
    one, two = group.join(1), group.join(2)
    group.medium.loses = lambda node_id, message: True
    group.run(TIMING.force_after - 0.1)
    assert one.node.is_controller
    group.run(2 * TIMING.heartbeat_interval + 0.2)
    assert not one.node.is_controller
    assert two.node.is_controller
    group.medium.loses = lambda node_id, message: False
    group.run(5)
    assert counts(one, two) == [4, 4]


def test_timer_of_a_node_is_at_least_one_millisecond_long(group, monkeypatch):
    one = group.join(1)
    now = group.clock.seconds()
    # A deadline that has passed: without a minimum, the timer would fire again and again.
    monkeypatch.setattr(Member, "next_deadline", property(lambda member: now))
    one.node._on_timer()
    timers = [call.getTime() - now for call in group.clock.getDelayedCalls()]
    assert min(timers) >= 0.001


def test_node_continues_after_a_bug_in_an_action(group, caplog):
    one, two = group.join(1), group.join(2)

    def break_down() -> None:
        raise RuntimeError("a bug")

    two.node.when_cut_off(break_down)
    cut_off(group, two)
    group.run(TIMING.lease + TIMING.session_timeout + 0.1)
    (bug,) = (fields for event, fields in events(caplog) if event == "cluster action failed")
    assert (bug["action"], bug["error"]) == ("CutOff", "RuntimeError: a bug")
    connect_again(group, two)
    group.run(5)
    assert counts(one, two) == [4, 4]


def test_node_continues_after_a_bug_in_a_state_machine(group, monkeypatch, caplog):
    one, two = group.join(1), group.join(2)
    ticks = 0

    def tick(member: Member, now: float) -> list[Any]:
        nonlocal ticks
        ticks += 1
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(Member, "tick", tick)
        # Nothing else wakes the node up.
        group.medium.loses = lambda node_id, message: True
        group.run(2)
    # Both nodes tried again in each interval, not each millisecond. At the controller, the
    # confirmation of its role sets the timer as well.
    assert 4 <= ticks <= 2 * 2 * 2 / TIMING.heartbeat_interval
    assert {event for event, _ in events(caplog)} >= {"cluster timer failed"}
    group.medium.loses = lambda node_id, message: False
    group.run(10)
    assert counts(one, two) == [4, 4]


def test_leaving_hands_over_all_shards_before_it_ends(group):
    one, two = group.join(1), group.join(2)
    leaving = Started(one.membership.leave(10))
    group.run(3)
    assert leaving.result is None
    assert not one.node.is_controller
    assert one.open_shards == set()
    assert two.open_shards == ALL
    assert two.node.is_controller


@pytest.mark.parametrize("victim", [1, 2])
def test_request_held_for_a_handover_is_not_held_longer_if_the_leader_is_killed(group, victim):
    """It is answered by this node, or refused if another node becomes the leader."""
    others = {1: group.join(1), 2: group.join(2)}
    three = group.join(3, seconds=0)
    expected: set[int] = set()
    while not expected:
        group.run(0.01)
        rows = three.node.image.shards if three.joining.is_done else {}
        expected = {shard for shard in rows if rows[shard].successor == 3}
    held = {shard: Started(three.membership.leadership.wait(shard, 60)) for shard in expected}
    assert {rows[shard].leader for shard in expected} == {1, 2}
    assert not any(request.is_done for request in held.values())
    others[victim].kill()
    group.run(5)
    for shard, request in held.items():
        if shard in three.open_shards:
            assert request.result is None
        else:
            assert isinstance(request.failure, NotLeader)


def test_no_epoch_has_two_leaders_in_the_views_of_the_nodes(group):
    """Not even while shards move, when some nodes know the successor and others do not."""
    nodes = [group.join(1), group.join(2), group.join(3, seconds=0)]
    leaders: dict[tuple[int, int], set[int]] = {}
    for _ in range(500):
        group.run(0.01)
        for one in nodes:
            if one.joining.is_done:
                view = one.membership.view
                for shard in range(view.shard_count):
                    known = leaders.setdefault((shard, view.epoch_of(shard)), set())
                    known.add(view.leader_of(shard))
    assert {3} in leaders.values()
    assert all(len(known) == 1 for known in leaders.values())


def test_last_node_leaves_at_once(group):
    one = group.join(1)
    leaving = Started(one.membership.leave(10))
    group.run(1)
    assert leaving.result is None


def test_leaving_without_a_controller_ends_at_its_timeout(group):
    one, two = group.join(1), group.join(2)
    group.medium.loses = lambda node_id, message: True
    leaving = Started(two.membership.leave(1))
    group.run(0.9)
    assert not leaving.is_done
    group.run(0.2)
    assert leaving.result is None
    assert one.node.is_controller


def test_shards_that_were_not_handed_over_in_time_are_closed_and_not_opened_again(group):
    one, two = group.join(1), group.join(2)
    group.medium.loses = lambda node_id, message: True
    leaving = Started(two.membership.leave(1))
    group.run(1.1)
    assert leaving.is_done
    assert two.node.has_lease
    group.opened.clear()
    closing = Started(two.membership.leadership.close())
    group.run(2 * TIMING.heartbeat_interval)
    assert closing.is_done
    assert (two.open_shards, group.opened) == (set(), [])
    assert two.node.has_lease
    # The controller moves the shards once messages arrive again.
    group.medium.loses = lambda node_id, message: False
    group.run(1)
    assert one.open_shards == ALL
    assert two.node._member.has_left


def test_controller_replaced_by_force_stops_acting(group):
    one, two = group.join(1), group.join(2)
    taking = Started(two.medium.log.acquire(True))
    group.run(0.1)
    assert taking.result is None
    assert not one.node.is_controller
    assert not one.store.is_leading


def test_controller_knows_what_the_nodes_have_replayed(group):
    one, two = group.join(1), group.join(2)
    revision = one.medium.log.revision
    group.run(1)
    replayed = {node.node_id: node.revision for node in one.node.describe_replay().nodes}
    assert replayed == {1: revision, 2: revision}
    waiting = Started(one.node.wait_until_replayed())
    assert waiting.result is None
    two.medium.suspend()
    Started(one.medium.log.put({b"acls\0a": b"1"}))
    group.run(0.01)
    waiting = Started(one.node.wait_until_replayed())
    group.run(0.5)
    assert not waiting.is_done
    two.medium.resume()
    group.run(0.5)
    assert waiting.is_done


def test_controller_waits_until_a_node_has_closed_the_logs_of_a_deleted_topic(group):
    one, two = group.join(1), group.join(2)
    two.store.opening_since = two.medium.log.revision
    Started(one.medium.log.put({b"topics\0orders": b"being deleted"}))
    group.run(0.01)
    waiting = Started(one.node.wait_until_replayed())
    group.run(2 * TIMING.session_timeout)
    assert not waiting.is_done
    two.store.opening_since = None
    group.run(2 * TIMING.heartbeat_interval)
    assert waiting.result is None


def test_controller_does_not_wait_for_a_node_whose_session_has_ended(group):
    one, two = group.join(1), group.join(2)
    two.medium.suspend()
    group.medium.loses = lambda node_id, _: node_id == 1
    Started(one.medium.log.put({b"acls\0a": b"1"}))
    group.run(0.01)
    waiting = Started(one.node.wait_until_replayed())
    group.run(TIMING.session_timeout - TIMING.heartbeat_interval)
    assert not waiting.is_done
    group.run(3 * TIMING.heartbeat_interval)
    assert waiting.result is None


def test_controller_that_loses_the_role_stops_waiting_for_replay(group):
    one, two = group.join(1), group.join(2)
    two.store.opening_since = two.medium.log.revision
    Started(one.medium.log.put({b"acls\0a": b"1"}))
    group.run(0.01)
    waiting = Started(one.node.wait_until_replayed())
    Started(two.medium.log.acquire(True))
    group.run(1)
    assert waiting.result is None


def test_address_of_another_node_is_logged_when_a_node_joins(group, caplog):
    group.join(1, "gateway.example")
    assert SAME_ADDRESS not in [event for event, _ in events(caplog)]
    group.join(2, "gateway.example")
    (fields,) = [fields for event, fields in events(caplog) if event == SAME_ADDRESS]
    assert (fields["node"], fields["address"]) == (1, "gateway.example:9092")


def test_changes_of_nodes_are_logged(group, caplog):
    caplog.set_level(logging.INFO)
    one, two = group.join(1), group.join(2)
    group.run(1)
    # Both gateways log node 2, the first one also itself.
    joined = [fields["node"] for event, fields in events(caplog) if event == JOINED]
    assert joined == [1, 2, 2]
    caplog.clear()
    two.kill()
    group.run(2)
    assert events(caplog) == [
        (
            "node left the cluster",
            {"node": 2, "reason": "its process ended or lost its connection to Pulsar"},
        ),
        ("shards led by this gateway", {"count": SHARDS}),
    ]
    assert one.node.is_controller


def test_presence_that_was_lost_for_a_moment_is_not_why_a_node_leaves_later(group, caplog):
    one, two = group.join(1), group.join(2)
    group.run(TIMING.session_timeout)
    group.medium.drop_presence(2)
    group.run(2)
    assert set(one.node.image.nodes) == {1, 2}
    caplog.set_level(logging.INFO)
    caplog.clear()
    cut_off(group, two)
    group.run(TIMING.session_timeout + 1)
    left = [fields["reason"] for event, fields in events(caplog) if "reason" in fields]
    assert "no heartbeat" in left


def test_node_beyond_the_limit_is_refused_and_logged(group, monkeypatch, caplog):
    for module in (controller, cluster_node):
        monkeypatch.setattr(module, "MAX_NODES", 2)
    one, two, three = (group.join(number) for number in (1, 2, 300))
    assert set(one.node.image.nodes) == {1, 2}
    assert three.open_shards == set()
    refused = [fields for event, fields in events(caplog) if event.startswith("node refused")]
    assert [(fields["node"], fields["nodes"]) for fields in refused] == [(300, 2)]
    two.stop()
    group.run(5)
    assert set(one.node.image.nodes) == {1, 300}


def test_unreadable_rows_are_logged_when_they_arrive_and_at_the_start(group, caplog):
    one = group.join(1)
    Started(one.medium.log.put({shard_key(0): b"\xc1", node_key(1): b"\xc1"}))
    group.run(0.1)
    group.join(2)
    logged = [
        (event.partition(",")[0], fields["key"], "remedy" in fields)
        for event, fields in events(caplog)
        if "cannot be read" in event
    ]
    assert sorted(logged) == 2 * [("row of a node cannot be read", node_key(1), False)] + 2 * [
        ("row of the metadata log cannot be read", shard_key(0), True)
    ]


def test_node_whose_row_is_unreadable_registers_again(group):
    one, two = group.join(1), group.join(2)
    registration = two.node.image.nodes[2].registration
    Started(one.medium.log.put({node_key(2): b"\xc1"}))
    group.run(TIMING.session_timeout + 5)
    assert two.node.image.nodes[2].registration > registration
    assert counts(one, two) == [4, 4]


def test_number_of_log_lines_does_not_depend_on_number_of_shards(group, caplog):
    caplog.set_level(logging.INFO)
    group.join(1)
    group.run(1)
    assert sorted(event for event, _ in events(caplog)) == [
        JOINED,
        "shards led by this gateway",
        "this gateway is the controller",
    ]
