"""Expected shards are calculated manually: see `tests/storage/test_shards.py`."""

from __future__ import annotations

from gateway.cluster.view import UNKNOWN, ClusterView, Node

NO_ID = bytes(16)


def view() -> ClusterView:
    made = ClusterView(1, "A" * 22, 8)
    made.set_nodes({2: {"A": ("b", 2), "B": ("b", 3)}, 1: {"A": ("a", 1)}})
    return made


def test_nodes_have_their_addresses_of_the_listener_and_are_sorted():
    assert view().nodes("A") == [Node(1, "a", 1), Node(2, "b", 2)]
    assert view().nodes("B") == [Node(2, "b", 3)]
    assert view().find_node(1, "B") is None


def test_leaders_and_epochs_are_those_of_the_shard():
    made = view()
    # crc32 of 16 zero bytes modulo 8 is 5; of the digits modulo 8 it is 6.
    made.set_leader(5, 1, 3)
    made.set_leader(6, 2, 4)
    leaders = [made.leader_of(NO_ID, index) for index in range(4)]
    assert leaders == [1, 2, UNKNOWN, UNKNOWN]
    assert [made.leader_epoch_of(NO_ID, index) for index in range(3)] == [3, 4, UNKNOWN]
    assert (made.coordinator_of("123456789"), made.epoch_of(6)) == (2, 4)


def test_each_change_raises_the_version():
    made = view()
    versions = [made.version]
    for change in (
        lambda: made.set_leader(0, 1, 1),
        lambda: made.set_controller(2),
        lambda: made.set_nodes({1: {"A": ("c", 9)}}),
    ):
        change()
        versions.append(made.version)
    assert versions == sorted(set(versions))
    assert made.nodes("A") == [Node(1, "c", 9)]
