from __future__ import annotations

from gateway.cluster.view import UNKNOWN, ClusterView, Node, NodeReplay, ReplayProgress


def view() -> ClusterView:
    made = ClusterView(1, "A" * 22, 8)
    made.set_nodes({2: {"A": ("b", 2), "B": ("b", 3)}, 1: {"A": ("a", 1)}})
    return made


def test_nodes_have_their_addresses_of_the_listener_and_are_sorted():
    assert view().nodes("A") == [Node(1, "a", 1), Node(2, "b", 2)]
    assert view().nodes("B") == [Node(2, "b", 3)]
    assert view().find_node(1, "B") is None


def test_gateway_that_is_cut_off_shows_no_nodes():
    made = view()
    made.set_cut_off(True)
    assert (made.nodes("A"), made.find_node(2, "A")) == ([], None)
    assert made.advertised == {"A": ("a", 1)}
    made.set_cut_off(False)
    assert made.nodes("B") == [Node(2, "b", 3)]


def test_leaders_and_epochs_are_those_of_the_shard():
    made = view()
    made.set_leader(5, 1, 3)
    made.set_leader(6, 2, 4)
    assert [made.leader_of(shard) for shard in (5, 6, 7)] == [1, 2, UNKNOWN]
    assert [made.epoch_of(shard) for shard in (5, 6, 7)] == [3, 4, UNKNOWN]
    # crc32 of the digits modulo 8 is 6: see `tests/storage/test_shards.py`.
    assert made.coordinator_of("123456789") == 2


def test_each_change_raises_the_version():
    made = view()
    versions = [made.version]
    for change in (
        lambda: made.set_leader(0, 1, 1),
        lambda: made.set_controller(2),
        lambda: made.set_nodes({1: {"A": ("c", 9)}}),
        lambda: made.set_cut_off(True),
        lambda: made.set_cut_off(False),
    ):
        change()
        versions.append(made.version)
    assert versions == sorted(set(versions))
    assert made.nodes("A") == [Node(1, "c", 9)]


def test_node_that_has_replayed_everything_is_caught_up():
    replay = ReplayProgress()
    assert replay.of(2) == NodeReplay(2, UNKNOWN, UNKNOWN, None, None)
    replay.heard(2, 7, 7, 1.5)
    assert replay.of(2) == NodeReplay(2, 7, 7, 1.5, 1.5)
    assert replay.of(3).heard is None


def test_node_behind_a_growing_log_was_caught_up_at_its_last_heartbeat():
    replay = ReplayProgress()
    # At 2.0 it had replayed up to the end at 1.0, and so on: always one heartbeat behind.
    for now, revision, end in ((1.0, 5, 7), (2.0, 7, 9), (3.0, 9, 12)):
        replay.heard(2, revision, end, now)
    assert replay.of(2) == NodeReplay(2, 9, 12, 3.0, 2.0)


def test_node_that_replays_nothing_keeps_the_time_when_it_was_caught_up():
    replay = ReplayProgress()
    for now, end in ((1.0, 7), (2.0, 8), (3.0, 8), (4.0, 9)):
        replay.heard(2, 7, end, now)
    assert replay.of(2) == NodeReplay(2, 7, 9, 4.0, 1.0)
