"""One node: lease, shards, and attempts to lead. The session timeout is 3 s."""

from __future__ import annotations

import pytest

from gateway.cluster.cluster_actions import (
    CloseShard,
    CutOff,
    LeaseLost,
    LeaseRegained,
    NodeLeft,
    OpenShard,
    SendMessage,
    TryToLead,
    UnwatchController,
    WatchController,
)
from gateway.cluster.cluster_messages import HeartbeatReply
from gateway.cluster.image import (
    NO_NODE,
    ClusterImage,
    ControllerRow,
    NodeRow,
    ShardRow,
    controller_key,
    encode_row,
    node_key,
    shard_key,
)
from gateway.cluster.member import Member
from gateway.cluster.session_timing import SessionTiming

NODE = NodeRow(1, "p1", 0, {})
CONTROLLER = ControllerRow(9, "c", 4)
JITTER = 0.05
LEASE = 2.0


class Harness:
    """A member whose controller is node 9."""

    def __init__(self, controller: ControllerRow | None = CONTROLLER) -> None:
        self.image = ClusterImage()
        if controller is not None:
            self.image.apply({controller_key(): encode_row(controller)})
        self.member = Member(NODE, self.image, SessionTiming.of(), JITTER, 100.0)

    def rows(self, now, **rows):
        keys = {"node": node_key(1), "shard": shard_key(0), "controller": controller_key()}
        self.image.apply(
            {keys[name]: None if row is None else encode_row(row) for name, row in rows.items()}
        )
        return self.member.on_rows(now)

    def register(self, now, registration=8):
        return self.rows(now, node=NodeRow(1, "p1", registration, {}))

    def reply(self, actions, now, epoch=4, is_known=True):
        (sent,) = (one.message for one in actions if isinstance(one, SendMessage))
        reply = HeartbeatReply("p1", sent.sequence, epoch, is_known, LEASE)
        return self.member.on_reply(reply, now)

    def opened(self, now=100.0):
        """Lead and open shard 0 in epoch 3."""
        self.reply(self.register(now), now)
        assert OpenShard(0, 3) in self.rows(now, shard=ShardRow(1, 8, 3))
        self.member.shard_opened(0, 3, now)
        return self


def run(member, start, end, kind):
    """Tick every 0.1 s. Returns the time and the first action of this kind; None without one."""
    for step in range(round((end - start) * 10) + 1):
        now = start + step / 10
        for action in member.tick(now):
            if isinstance(action, kind):
                return now, action
    return None


def test_lease_counts_from_the_sending_of_the_answered_heartbeat():
    one = Harness()
    assert LeaseRegained() in one.reply(one.register(100.0), 100.5)
    assert one.member.has_lease(101.99)
    assert not one.member.has_lease(102.0)


def test_heartbeat_without_the_registration_gives_no_lease():
    one = Harness()
    first = one.member.tick(100.0)
    one.register(100.1)
    one.reply(first, 100.2)
    assert not one.member.has_lease(100.2)


def test_reply_of_a_former_controller_gives_no_lease():
    one = Harness()
    one.reply(one.register(100.0), 100.1, epoch=3)
    assert not one.member.has_lease(100.1)


@pytest.mark.parametrize("row", [None, NodeRow(1, "p1", 9, {}), NodeRow(1, "p2", 9, {})])
def test_lease_ends_with_the_registration(row):
    one = Harness()
    one.reply(one.register(100.0), 100.1)
    assert LeaseLost() in one.rows(100.2, node=row)


def test_shard_is_not_served_without_a_lease_and_continues_in_the_same_epoch():
    one = Harness().opened()
    assert one.member.leads(0, 101.9)
    assert run(one.member, 100.1, 103, LeaseLost) == (102.0, LeaseLost())
    assert not one.member.leads(0, 102.0)
    heartbeat = run(one.member, 102.1, 103, SendMessage)
    assert one.reply([heartbeat[1]], heartbeat[0]) == [LeaseRegained()]
    assert one.member.leads(0, heartbeat[0])


def test_node_without_a_lease_for_a_session_is_cut_off_once_if_there_are_others():
    one = Harness().opened()
    one.image.apply({node_key(2): encode_row(NodeRow(2, "p2", 9, {}))})
    assert run(one.member, 100.1, 110, CutOff) == (105.0, CutOff())
    assert run(one.member, 105.1, 120, CutOff) is None
    heartbeat = run(one.member, 120.1, 121, SendMessage)
    assert one.reply([heartbeat[1]], heartbeat[0]) == [LeaseRegained()]
    assert run(one.member, 121, 130, CutOff) == (
        pytest.approx(heartbeat[0] + LEASE + 3, abs=0.15),
        CutOff(),
    )


def test_deadline_includes_the_time_when_the_node_is_cut_off():
    one = Harness().opened()
    one.image.apply({node_key(2): encode_row(NodeRow(2, "p2", 9, {}))})
    now = 100.0
    while now < 106 and CutOff() not in one.member.tick(now):
        now = one.member.next_deadline
    assert now == 105.0


def test_lone_node_is_never_cut_off():
    assert run(Harness().opened().member, 100.1, 200, CutOff) is None


def test_shard_with_a_successor_is_closed_and_reported_as_released():
    one = Harness().opened()
    assert CloseShard(0, 3) in one.rows(100.1, shard=ShardRow(1, 8, 3, 2))
    assert not one.member.leads(0, 100.1)
    one.member.shard_closed(0, 3, 100.2)
    _, sent = run(one.member, 100.2, 101, SendMessage)
    assert (sent.message.ready, sent.message.released) == ((), ((0, 3),))
    assert not any(isinstance(a, OpenShard) for a in one.rows(100.4, shard=ShardRow(1, 8, 3)))


def test_shard_of_another_epoch_is_opened_after_the_former_is_closed():
    one = Harness().opened()
    actions = one.rows(100.1, shard=ShardRow(1, 8, 4))
    assert CloseShard(0, 3) in actions
    assert OpenShard(0, 4) not in actions
    assert OpenShard(0, 4) in one.member.shard_closed(0, 3, 100.2)


def test_shard_that_failed_to_open_is_tried_again():
    one = Harness().opened()
    one.member.shard_failed(0, 3, 100.1)
    assert run(one.member, 100.2, 101, OpenShard)[0] == pytest.approx(100.4)


def test_node_without_a_controller_tries_to_lead_at_once():
    assert Harness(None).member.tick(100.0) == [TryToLead(False)]


def test_node_of_the_former_controller_process_tries_to_lead_at_once():
    assert TryToLead(False) in Harness(ControllerRow(1, "p0", 4)).member.tick(100.0)


def attempts(member, now):
    """Tick at each deadline and refuse all attempts to lead.

    Returns the times of the attempts, up to the first one by force.
    """
    found = []
    while True:
        for action in member.tick(now):
            if isinstance(action, TryToLead):
                found.append(round(now, 3))
                if action.force:
                    return found
                now += 0.01
                member.lead_refused(True, now)
        now = member.next_deadline


def test_node_tries_to_lead_after_three_heartbeats_and_with_force_after_five():
    assert attempts(Harness().member, 100.0) == [100.95, 101.26, 101.57]


@pytest.mark.parametrize(
    ("nodes", "forced_at"),
    # 1.55 s, and 0.6 s more for each node with a lower id, except for the silent controller.
    [((0,), 102.19), ((0, 2), 102.19), ((-4, -3, 0), 103.43)],
)
def test_nodes_use_force_one_after_another(nodes, forced_at):
    one = Harness()
    for node_id in nodes:
        one.image.apply({node_key(node_id): encode_row(NodeRow(node_id, "p", 9, {}))})
    assert attempts(one.member, 100.0)[-1] == forced_at


def test_silent_controller_does_not_delay_the_use_of_force():
    one = Harness(ControllerRow(0, "c", 4))
    one.image.apply({node_key(0): encode_row(NodeRow(0, "c", 9, {}))})
    assert attempts(one.member, 100.0)[-1] == 101.57


def test_force_requires_two_refused_attempts_in_succession():
    one = Harness()
    now, _ = run(one.member, 100.0, 105, TryToLead)
    one.member.lead_refused(False, now)
    now, _ = run(one.member, now, 105, TryToLead)
    for _ in range(40):
        now += 0.1
        one.member.tick(now)
    one.member.lead_refused(True, now)
    assert attempts(one.member, now) == [round(now + 0.3, 3), round(now + 0.61, 3)]


def test_node_that_was_paused_or_disconnected_does_not_lead_by_force():
    one = Harness()
    one.member.tick(100.0)
    assert not any(isinstance(action, TryToLead) for action in one.member.tick(160.0))
    assert run(one.member, 160.1, 165, TryToLead)[1] == TryToLead(False)
    one.member.lead_refused(False, 165.0)
    assert run(one.member, 165.1, 166, TryToLead)[1] == TryToLead(False)


def test_node_tries_to_lead_without_force_as_soon_as_the_controllers_presence_is_lost():
    one = Harness()
    one.reply(one.register(100.0), 100.0)
    assert one.member.controller_gone(100.1) == [TryToLead(False)]
    # Another process holds the lock still; the node does not wait for the silence of 0.9 s.
    one.member.lead_refused(True, 100.11)
    assert run(one.member, 100.2, 101, TryToLead) == (100.5, TryToLead(False))


def test_lost_presence_alone_does_not_lead_to_force():
    """Force needs 1.5 s of silence, as without the loss."""
    one = Harness()
    one.member.tick(100.0)
    one.member.controller_gone(100.0)
    one.member.lead_refused(True, 100.0)
    found = attempts(one.member, 100.0)
    assert found[0] == 100.3
    assert 101.5 < found[-1] < 102


def test_controller_that_answers_after_the_loss_of_its_presence_is_watched_again():
    one = Harness()
    assert WatchController(9) in one.register(100.0)
    sent = one.member.tick(100.3)
    assert not any(isinstance(action, WatchController) for action in sent)
    one.member.controller_gone(100.31)
    one.member.lead_refused(True, 100.32)
    assert WatchController(9) in one.reply(sent, 100.35)
    assert run(one.member, 100.4, 101.1, TryToLead) is None


def test_presence_of_the_present_controller_is_watched():
    one = Harness()
    assert WatchController(9) in one.register(100.0)
    assert WatchController(7) in one.rows(100.1, controller=ControllerRow(7, "d", 5))
    resigned = one.rows(100.2, controller=ControllerRow(NO_NODE, "", 5))
    assert UnwatchController() in resigned
    assert TryToLead(False) in resigned
    assert not any(
        isinstance(action, WatchController | UnwatchController)
        for action in one.member.lead_acquired(100.3)
    )


def test_node_that_becomes_controller_ends_its_watch_of_the_former_one():
    one = Harness()
    one.register(100.0)
    run(one.member, 100.1, 102, TryToLead)
    assert UnwatchController() in one.member.lead_acquired(102.0)
    own = one.rows(102.1, controller=ControllerRow(1, "p1", 5))
    assert not any(isinstance(action, WatchController) for action in own)


def test_leaving_node_reports_it_and_ends_when_its_row_is_deleted():
    one = Harness().opened()
    (sent,) = (a for a in one.member.leave(100.1) if isinstance(a, SendMessage))
    assert sent.message.is_leaving
    assert CloseShard(0, 3) in one.rows(100.2, node=None)
    assert NodeLeft() in one.member.shard_closed(0, 3, 100.3)
