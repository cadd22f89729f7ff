"""The controller's decisions. The session timeout is 3 s, the role's lease 0.6 s."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cluster.cluster_actions import (
    ConfirmRole,
    SendMessage,
    UnwatchPresence,
    WatchPresence,
    WriteRows,
)
from gateway.cluster.cluster_messages import NodeHeartbeat
from gateway.cluster.controller import Controller
from gateway.cluster.image import (
    NO_NODE,
    ClusterImage,
    ClusterRow,
    ControllerRow,
    LastAddresses,
    NodeRow,
    ShardRow,
    addresses_key,
    cluster_key,
    encode_row,
    node_key,
    shard_key,
)
from gateway.cluster.placement import place
from gateway.cluster.session_timing import SessionTiming

NODE = NodeRow(1, "p1", 0, {})
UNREADABLE = b"\xc1"


class Harness:
    """A controller on node 1 with shards 0 to 3. Writes are stored at once unless `holds_writes`;
    the lock is confirmed each time.
    """

    def __init__(
        self,
        image: ClusterImage | None = None,
        node: NodeRow = NODE,
        replaced: ControllerRow | None = None,
    ) -> None:
        self.image = image or ClusterImage()
        self.now = 100.0
        self.holds_writes = False
        self.confirms = True
        self.sequence = 0
        self.actions: list[Any] = []
        self.controller = Controller(
            node,
            ClusterRow("id", 4),
            self.image,
            SessionTiming.of(),
            self.now,
            self.now,
            replaced=replaced,
        )
        self.perform(self.controller.tick(self.now))

    def perform(self, actions):
        self.actions += actions
        for action in actions:
            if isinstance(action, WriteRows) and not self.holds_writes:
                self.image.apply(action.rows)
                self.perform(self.controller.on_rows(self.now))
                self.perform(self.controller.on_put_done(self.now))
            elif isinstance(action, ConfirmRole) and self.confirms:
                self.perform(self.controller.on_confirmed(self.now, self.now))

    def beat(self, node_id=1, incarnation=None, registration=None, **state):
        """Send a heartbeat. Returns `is_known` of the reply, None without a reply."""
        row = self.image.nodes.get(node_id)
        incarnation = incarnation or f"p{node_id}"
        if registration is None:
            registration = row.registration if row and row.incarnation == incarnation else 0
        self.sequence += 1
        node = NodeRow(node_id, incarnation, registration, {})
        actions = self.controller.on_heartbeat(
            NodeHeartbeat(node, self.sequence, **state), self.now
        )
        self.perform(actions)
        return next((a.message.is_known for a in actions if isinstance(a, SendMessage)), None)

    def ready(self, node_id=1, **state):
        led = [
            (shard, row.epoch) for shard, row in self.image.shards.items() if row.leader == node_id
        ]
        return self.beat(node_id, ready=tuple(led), **state)

    def wait(self, seconds, *nodes):
        """Let time pass. These nodes send heartbeats."""
        for _ in range(round(seconds * 10)):
            self.now = round(self.now + 0.1, 1)
            self.perform(self.controller.tick(self.now))
            for node_id in nodes:
                self.ready(node_id)

    def end_session(self, node_id):
        """Report the loss of the node's presence. No heartbeat follows."""
        self.perform(self.controller.on_gone(node_id, self.now))
        self.now += 0.25
        self.perform(self.controller.tick(self.now))
        self.now += 0.25
        self.perform(self.controller.tick(self.now))

    @property
    def leaders(self):
        return [self.image.shards[shard].leader for shard in sorted(self.image.shards)]

    @property
    def epochs(self):
        return [self.image.shards[shard].epoch for shard in sorted(self.image.shards)]

    @property
    def successors(self):
        return [self.image.shards[shard].successor for shard in sorted(self.image.shards)]

    def written(self):
        return sum(isinstance(action, WriteRows) for action in self.actions)


def test_first_node_is_registered_and_leads_all_shards_in_three_writes():
    one = Harness()
    assert one.beat() is False
    assert one.beat() is True
    assert (one.leaders, one.epochs, one.written()) == ([1] * 4, [1] * 4, 3)
    assert one.image.controller == ControllerRow(1, "p1", 1)


def test_addresses_of_nodes_are_kept_when_they_leave():
    one = two_nodes()
    one.end_session(2)
    assert 2 not in one.image.nodes
    assert one.image.last_addresses == {1: LastAddresses({}), 2: LastAddresses({})}


def test_addresses_of_at_most_64_nodes_that_left_are_kept():
    image = ClusterImage()
    image.apply({addresses_key(10 + one): encode_row(LastAddresses({})) for one in range(70)})
    one = Harness(image)
    one.beat()
    assert sorted(one.image.last_addresses) == [1, *range(10, 74)]


def test_nothing_is_decided_before_a_write_is_replayed():
    one = Harness()
    one.holds_writes = True
    one.beat()
    one.beat(2)
    assert (one.written(), one.image.nodes) == (3, {})


def two_nodes():
    """Shards are balanced and ready on the nodes 1 and 2; nothing was disturbed for a session."""
    one = Harness()
    one.beat()
    one.ready()
    one.beat(2)
    one.wait(0.2, 1, 2)
    one.beat(
        1,
        ready=tuple((s, 1) for s, to in enumerate(one.successors) if to == NO_NODE),
        released=tuple((s, 1) for s, to in enumerate(one.successors) if to != NO_NODE),
    )
    one.wait(0.2, 1, 2)
    assert sorted(one.leaders) == [1, 1, 2, 2]
    assert sorted(one.epochs) == [1, 1, 2, 2]
    one.wait(3, 1, 2)
    return one


def test_shard_moves_after_its_leader_has_released_it():
    one = two_nodes()
    assert one.successors == [NO_NODE] * 4
    assert WatchPresence(2) in one.actions


def test_shard_that_is_not_ready_does_not_move():
    one = Harness()
    one.beat()
    one.beat(2)
    assert one.successors == [NO_NODE] * 4
    one.beat(1, ready=((0, 1), (1, 1)))
    assert one.successors[2:] == [NO_NODE] * 2
    one.ready()
    assert one.successors.count(2) == 2


def test_shard_that_is_not_ready_counts_as_moving_and_stops_no_other():
    one = Harness()
    one.controller._timing = SessionTiming.of(moves_at_once=2)
    one.beat()
    one.beat(2)
    targets = place(range(4), (1, 2), dict.fromkeys(range(4), 1))
    stays = next(shard for shard, node_id in targets.items() if node_id == 1)
    one.beat(1, ready=tuple((shard, 1) for shard in range(4) if shard != stays))
    assert one.successors.count(2) == 1


def test_leaving_node_hands_over_its_shards_although_others_are_not_ready():
    """It hands over one at a time, because more shards of node 1 are not ready than may move."""
    one = two_nodes()
    one.controller._timing = SessionTiming.of(moves_at_once=1)
    mine = [shard for shard, leader in enumerate(one.leaders) if leader == 2]
    one.beat(1)
    one.ready(2, is_leaving=True)
    assert [one.successors[shard] for shard in mine] == [1, NO_NODE]
    one.beat(2, is_leaving=True, ready=((mine[1], 2),), released=((mine[0], 2),))
    assert [one.leaders[shard] for shard in mine] == [1, 2]
    assert one.successors[mine[1]] == 1


def test_leaving_node_hands_over_ready_shards_before_those_that_it_cannot_open():
    one = two_nodes()
    one.controller._timing = SessionTiming.of(moves_at_once=1)
    first, second = (shard for shard, leader in enumerate(one.leaders) if leader == 2)
    one.beat(2, is_leaving=True, ready=((second, one.epochs[second]),))
    assert one.successors[second] == 1
    one.ready(1)
    one.beat(2, is_leaving=True, released=((second, one.epochs[second]),))
    one.ready(1)
    assert one.successors[first] == 1


def test_node_loses_its_shards_when_its_session_ends_and_not_before():
    one = two_nodes()
    one.wait(2.9, 1)
    assert 2 in one.leaders
    one.wait(0.2, 1)
    assert (one.leaders, sorted(one.epochs)) == ([1] * 4, [1, 1, 3, 3])
    assert 2 not in one.image.nodes
    assert UnwatchPresence(2) in one.actions


def test_node_loses_its_shards_when_its_presence_is_lost_and_no_heartbeat_follows():
    one = two_nodes()
    one.perform(one.controller.on_gone(2, one.now))
    one.wait(0.4, 1)
    assert 2 in one.leaders
    one.wait(0.1, 1)
    assert one.leaders == [1] * 4


def test_heartbeat_after_the_loss_of_a_presence_restores_session_and_watch():
    one = two_nodes()
    watches = one.actions.count(WatchPresence(2))
    one.perform(one.controller.on_gone(2, one.now))
    one.wait(0.3, 1)
    one.ready(2)
    assert one.actions.count(WatchPresence(2)) == watches + 1
    one.wait(2.9, 1)
    assert 2 in one.leaders
    one.wait(0.1, 1)
    assert one.leaders == [1] * 4


def role_acquired():
    return Harness(two_nodes().image)


def role_unconfirmed():
    one = two_nodes()
    one.confirms = False
    one.wait(0.7, 1, 2)
    one.confirms = True
    one.wait(0.3, 1)
    return one


def process_paused():
    one = two_nodes()
    one.now += 0.7
    # This heartbeat was received during the pause.
    one.ready(2)
    return one


DISTURBED = pytest.mark.parametrize("disturbed", [role_acquired, role_unconfirmed, process_paused])


@DISTURBED
def test_loss_of_a_presence_has_no_effect_before_a_heartbeat_after_a_disturbance(disturbed):
    one = disturbed()
    one.perform(one.controller.on_gone(2, one.now))
    one.wait(2.5, 1)
    assert 2 in one.leaders
    one.wait(0.6, 1)
    assert one.leaders == [1] * 4


@DISTURBED
def test_loss_of_a_presence_counts_at_once_after_a_heartbeat_after_a_disturbance(disturbed):
    one = disturbed()
    one.ready(2)
    one.perform(one.controller.on_gone(2, one.now))
    one.wait(0.4, 1)
    assert 2 in one.leaders
    one.wait(0.1, 1)
    assert one.leaders == [1] * 4


def successor_of(one, image_row):
    """Node 2 becomes the controller after node 1. By force, it replaced `image_row` if not None."""
    return Harness(one.image, NodeRow(2, "p2", 0, {}), image_row)


def test_presence_of_the_previous_controllers_node_counts_at_once():
    one = successor_of(two_nodes(), None)
    one.perform(one.controller.on_gone(1, one.now))
    one.wait(0.5, 2)
    assert one.leaders == [2] * 4


@pytest.mark.parametrize(
    ("replaced", "seconds"),
    [
        (ControllerRow(1, "p1", 1), 1.5),
        (None, 3.0),
        # The silent controller was not the last one in the log.
        (ControllerRow(3, "p3", 0), 3.0),
    ],
)
def test_session_of_a_controller_that_was_replaced_by_force_is_shorter(replaced, seconds):
    one = successor_of(two_nodes(), replaced)
    one.wait(seconds - 0.1, 2)
    assert 1 in one.leaders
    one.wait(0.1, 2)
    assert one.leaders == [2] * 4


def test_replaced_controllers_node_has_a_full_session_after_a_heartbeat():
    one = successor_of(two_nodes(), ControllerRow(1, "p1", 1))
    one.ready(1)
    one.wait(2.9, 2)
    assert 1 in one.leaders


@pytest.mark.parametrize(("node_id", "lease"), [(1, 1.2), (2, 2.55)])
def test_lease_counts_from_the_last_confirmation_of_the_role(node_id, lease):
    one = two_nodes()
    one.perform(one.controller.on_confirmed(one.now, one.now))
    one.confirms = False
    one.now += 0.3
    one.perform(one.controller.tick(one.now))
    one.now += 0.2
    one.ready(node_id)
    reply = next(a.message for a in reversed(one.actions) if isinstance(a, SendMessage))
    assert reply.lease == pytest.approx(lease - 0.5)


def test_node_whose_session_ended_is_not_known_although_the_write_is_in_flight():
    one = two_nodes()
    one.holds_writes = True
    one.end_session(2)
    assert 2 in one.image.nodes
    assert one.beat(2) is False


def test_returning_process_needs_its_new_registration_to_be_known():
    one = two_nodes()
    former = one.image.nodes[2].registration
    one.end_session(2)
    one.beat(2, registration=former)
    assert one.image.nodes[2].registration > former
    assert one.beat(2, registration=former) is False
    assert one.beat(2) is True


def test_new_process_of_a_node_waits_for_the_end_of_the_former_ones_session():
    one = two_nodes()
    assert one.beat(2, incarnation="new") is False
    assert one.image.nodes[2].incarnation == "p2"
    one.end_session(2)
    assert one.image.nodes[2].incarnation == "new"


def test_failed_write_is_decided_again_after_the_controllers_row_is_replayed():
    one = two_nodes()
    one.holds_writes = True
    one.end_session(2)
    before = one.written()
    one.perform(one.controller.on_put_failed(one.now))
    assert one.written() == before
    one.holds_writes = False
    one.wait(0.5, 1)
    rows = [action.rows for action in one.actions if isinstance(action, WriteRows)][before:]
    assert list(rows[0]) == [b"controller\0"]
    assert one.leaders == [1] * 4


def test_heartbeats_are_not_answered_and_sessions_do_not_end_without_confirmation():
    one = two_nodes()
    one.confirms = False
    one.wait(0.2)
    assert one.ready(2) is True
    one.wait(0.5)
    assert one.ready(2) is None
    one.wait(5)
    one.confirms = True
    one.wait(2.9, 1)
    assert 2 in one.image.nodes
    one.wait(0.6, 1)
    assert 2 not in one.image.nodes


def test_pause_of_the_controller_ends_no_session():
    one = two_nodes()
    one.now += 60
    one.wait(2.5, 1)
    assert 2 in one.image.nodes


def test_new_controller_gives_registered_nodes_a_new_session():
    former = two_nodes()
    one = Harness(former.image)
    one.wait(2.9, 1)
    assert 2 in one.image.nodes
    assert one.controller.epoch == 2
    one.wait(0.2, 1)
    assert 2 not in one.image.nodes


def test_leaving_node_hands_over_its_shards_before_its_row_is_deleted():
    one = two_nodes()
    mine = [shard for shard, leader in enumerate(one.leaders) if leader == 2]
    one.ready(2, is_leaving=True)
    assert [one.successors[shard] for shard in mine] == [1, 1]
    assert 2 in one.image.nodes
    one.beat(2, is_leaving=True, released=tuple((shard, 2) for shard in mine))
    assert (one.leaders, 2 in one.image.nodes) == ([1] * 4, False)
    one.beat(2, is_leaving=True)
    assert 2 not in one.image.nodes


def test_last_node_may_leave_without_a_successor():
    one = Harness()
    one.beat()
    one.ready(is_leaving=True)
    assert (one.image.nodes, one.leaders) == ({}, [1] * 4)


def test_leaving_node_hands_over_to_a_controller_that_is_not_registered_yet():
    former = Harness()
    former.beat()
    former.ready()
    one = successor_of(former, None)
    one.ready(1, is_leaving=True)
    one.beat(2)
    one.beat(1, is_leaving=True, ready=tuple((shard, 1) for shard in range(4)))
    assert (one.leaders, one.successors) == ([1] * 4, [2] * 4)


@pytest.mark.parametrize("is_released", [True, False])
def test_move_to_a_node_that_is_gone_ends_in_another_epoch_than_was_named(is_released):
    one = Harness()
    one.beat()
    one.wait(3, 1)
    one.beat(2)
    one.ready()
    one.beat(2)
    moving = [shard for shard, to in enumerate(one.successors) if to == 2]
    one.holds_writes = is_released
    one.end_session(2)
    if is_released:
        one.beat(1, released=tuple((shard, 1) for shard in moving))
        one.holds_writes = False
        one.perform([action for action in one.actions if isinstance(action, WriteRows)][-1:])
    assert (one.leaders, one.successors) == ([1] * 4, [NO_NODE] * 4)
    assert [one.epochs[shard] for shard in moving] == [3, 3]


@pytest.mark.parametrize("key", [shard_key(0), cluster_key()])
def test_no_decision_while_a_row_of_a_shard_or_the_cluster_is_unreadable(key):
    one = two_nodes()
    one.image.apply({key: UNREADABLE})
    before = one.written()
    one.end_session(2)
    one.wait(10, 1)
    assert one.written() == before


@pytest.mark.parametrize("node_id", [1, 2])
def test_node_whose_row_is_unreadable_registers_again_once_its_lease_has_ended(node_id):
    one = two_nodes()
    former = one.image.nodes[node_id].registration
    one.image.apply({node_key(node_id): UNREADABLE})
    one.perform(one.controller.on_rows(one.now))
    shards, before = dict(one.image.shards), one.written()
    assert one.ready(node_id) is False
    one.wait(2.9, 1, 2)
    assert (one.image.shards, one.written()) == (shards, before)
    assert one.ready(node_id) is False
    one.wait(0.2, 1, 2)
    assert (one.image.unreadable, one.written()) == (set(), before + 1)
    assert one.image.nodes[node_id].registration > former
    assert one.ready(node_id) is True
    for shard, row in one.image.shards.items():
        assert row.is_led_by(one.image.nodes[shards[shard].leader])
        assert row.epoch == shards[shard].epoch + (row.leader == node_id)


def test_shards_of_a_node_whose_row_a_new_controller_cannot_read_wait_for_the_end_of_its_lease():
    image = two_nodes().image
    image.nodes.pop(2)
    image.apply({node_key(2): UNREADABLE})
    one = Harness(image)
    leaders = one.leaders
    one.wait(2.9, 1)
    assert (one.leaders, 2 in leaders) == (leaders, True)
    one.wait(0.2, 1)
    assert (one.leaders, one.image.unreadable) == ([1] * 4, set())


@pytest.mark.parametrize("key", [addresses_key(1), addresses_key(9), b"nodes\0x"])
def test_unreadable_row_without_a_node_is_deleted(key):
    one = two_nodes()
    nodes, shards = dict(one.image.nodes), dict(one.image.shards)
    one.image.apply({key: UNREADABLE})
    one.wait(3.3, 1, 2)
    assert one.image.unreadable == set()
    assert (one.image.nodes, one.image.shards) == (nodes, shards)
    assert one.image.last_addresses == {1: LastAddresses({}), 2: LastAddresses({})}


def test_controller_without_the_role_does_nothing():
    one = two_nodes()
    assert one.controller.on_lost(one.now) == []
    before = len(one.actions)
    one.end_session(2)
    one.wait(10, 1)
    assert len(one.actions) == before


def test_resigning_writes_a_controller_row_without_a_node():
    one = two_nodes()
    one.perform(one.controller.resign(one.now))
    assert one.image.controller == ControllerRow(NO_NODE, "", 1)


def test_at_most_the_allowed_number_of_shards_move_at_once():
    image = ClusterImage()
    one = Harness(image)
    one.controller._timing = SessionTiming.of(moves_at_once=1)
    one.beat()
    one.beat(2)
    one.ready()
    assert one.successors.count(2) == 1
    assert all(isinstance(row, ShardRow) for row in image.shards.values())


class CountedShards(dict):
    """Counts how often all shards are looked at."""

    looks = 0

    def items(self):
        self.looks += 1
        return super().items()


def test_shards_are_looked_at_again_only_after_a_change():
    one = Harness()
    one.beat()
    one.beat()
    one.ready()
    one.image.shards = shards = CountedShards(one.image.shards)
    one.wait(1)
    assert shards.looks == 0
    one.image.apply({shard_key(0): encode_row(one.image.shards[0])})
    one.perform(one.controller.on_rows(one.now))
    assert shards.looks == 1
    # The node reports that it no longer has a shard ready.
    one.beat(ready=((1, 1),))
    assert shards.looks == 2
