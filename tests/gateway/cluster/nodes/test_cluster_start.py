"""How a gateway joins a cluster: its node id, a new store, and reasons to refuse the start."""

from __future__ import annotations

import pytest

from storage.cluster import MAX_NODES, NodeIdInUse
from storage.log import StoreInUse
from tests.fakes.broker import Started
from tests.gateway.cluster.nodes.node_group import NodeGroup


@pytest.fixture
def group() -> NodeGroup:
    return NodeGroup()


def test_nodes_that_start_together_agree_on_one_cluster(group):
    processes = [group.join(number, seconds=0) for number in (1, 2, 3)]
    group.run(8)
    assert {process.membership.view.cluster_id for process in processes} == {"A" * 22}
    assert sum(process.node.is_controller for process in processes) == 1
    assert sorted(len(process.open_shards) for process in processes) == [2, 3, 3]


def test_single_gateway_lists_the_topics_before_it_takes_part(group):
    group.listing_seconds = 5
    for _ in range(2):
        process = group.join(1, seconds=4.9)
        assert process.joining is not None
        assert not process.joining.is_done
        group.run(1)
        assert process.node.is_controller
        process.kill()


def test_gateway_that_becomes_controller_while_it_starts_answers_the_others_at_once(group):
    one, two = group.join(1), group.join(2)
    group.listing_seconds = 5
    # Otherwise this node notices the end of the controller and takes the role first.
    two.medium.suspend()
    one.kill()
    again = group.join(1, "again", seconds=0.1)
    two.medium.resume()
    for _ in range(60):
        group.run(0.1)
        assert two.node.has_lease
    assert again.node.is_controller


def test_gateway_that_loses_the_role_while_it_starts_follows_the_other(group):
    group.listing_seconds = 5
    process = group.join(1, seconds=1)
    other = group.medium.process("other")
    Started(other.log.acquire(True))
    group.run(0.1)
    Started(other.log.put({b"cluster\0cluster.id": b"B" * 22}))
    group.run(4.2)
    assert process.membership.view.cluster_id == "B" * 22
    assert not process.node.is_controller
    assert not process.store.is_leading


def test_node_waits_while_another_gateway_prepares_the_store(group):
    other = group.medium.process("other")
    Started(other.log.acquire(False))
    group.run(0.1)
    process = group.join(1, seconds=1)
    assert process.joining is not None
    assert not process.joining.is_done
    Started(other.log.put({b"layout\0shards": b"8", b"cluster\0cluster.id": b"B" * 22}))
    group.run(1)
    assert process.membership.view.cluster_id == "B" * 22
    assert not process.node.is_controller


def test_node_waits_until_the_controller_has_stored_the_cluster_id(group):
    other = group.medium.process("other")
    Started(other.log.acquire(False))
    group.run(0.1)
    Started(other.log.put({b"layout\0shards": b"8"}))
    process = group.join(1, seconds=1)
    assert process.joining is not None
    assert not process.joining.is_done
    Started(other.log.put({b"cluster\0cluster.id": b"B" * 22}))
    group.run(1)
    assert process.membership.view.cluster_id == "B" * 22


def test_node_stores_a_cluster_id_if_the_controller_ended_before_it_did(group):
    other = group.medium.process("other")
    Started(other.log.acquire(False))
    group.run(0.1)
    Started(other.log.put({b"layout\0shards": b"8"}))
    process = group.join(1, seconds=1)
    other.kill()
    group.run(5)
    assert process.membership.view.cluster_id == "A" * 22
    assert process.node.is_controller


def test_node_id_in_use_is_refused_and_names_the_holder(group):
    group.join(1)
    second = group.join(1, "second")
    with pytest.raises(NodeIdInUse, match="node id 1 is in use by node 1"):
        assert second.membership


def test_store_of_an_older_gateway_is_refused(group):
    group.medium.held_alone = "gateway two"
    with pytest.raises(StoreInUse, match="in use by gateway two"):
        assert group.join(1).membership


def test_loss_of_the_node_id_is_reported(group):
    one = group.join(1)
    one.medium.presence.take_away("node id 1 is in use by another process")
    group.run(0.1)
    assert one.failures == ["node id 1 is in use by another process"]


def test_lowest_free_node_id_is_taken_without_a_configured_one(group):
    assert [group.join(wanted, f"host {wanted}").node.node_id for wanted in (0, 2)] == [0, 2]
    assert [group.join(None, name).node.node_id for name in ("a", "b")] == [1, 3]


def test_node_ids_taken_at_the_same_time_differ(group):
    processes = [group.join(None, name, seconds=0) for name in "abc"]
    group.run(8)
    assert sorted(process.node.node_id for process in processes) == [0, 1, 2]


@pytest.mark.parametrize("is_killed", [True, False])
def test_restarted_gateways_take_the_ids_of_their_addresses(group, is_killed):
    before = [group.join(None, name) for name in "abc"]
    for process in before[:2]:
        process.kill() if is_killed else process.stop()
    assert [group.join(None, name).node.node_id for name in "ba"] == [1, 0]


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_controller", [True, False])
def test_id_of_a_gateway_that_restarts_is_not_taken_by_another(group, is_killed, is_controller):
    before = [group.join(None, name) for name in "ab"]
    restarted = before[0 if is_controller else 1]
    node_id = restarted.node.node_id
    restarted.kill() if is_killed else restarted.stop()
    assert group.join(None, "c").node.node_id == 2
    assert group.join(None, restarted.medium.name).node.node_id == node_id


def test_id_of_a_gateway_that_left_is_taken_when_no_other_is_free(group):
    group.join(0, "a")
    group.join(1, "b").stop()
    for node_id in range(2, MAX_NODES):
        Started(group.medium.process("other").presence.claim(node_id, "other"))
    assert group.join(None, "c").node.node_id == 1


@pytest.mark.parametrize("is_killed", [True, False])
def test_single_gateway_keeps_its_id_when_its_address_changes(group, is_killed):
    before = group.join(3, "a")
    before.kill() if is_killed else before.stop()
    assert group.join(None, "b").node.node_id == 3


def test_id_of_a_live_gateway_with_the_same_address_is_not_taken(group):
    group.join(None, "a")
    assert group.join(None, "a").node.node_id == 1


def test_id_of_a_registered_node_is_not_taken_while_its_presence_is_lost(group):
    group.join(None, "a").medium.presence.drop()
    process = group.join(None, "b", seconds=0.1)
    assert list(group.medium.holders) == [1]
    group.run(5)
    assert process.node.node_id == 1


def test_gateway_without_a_free_node_id_is_refused(group):
    for node_id in range(MAX_NODES):
        Started(group.medium.process("other").presence.claim(node_id, "other"))
    with pytest.raises(NodeIdInUse, match="no node id below 64 is free: stop a gateway"):
        assert group.join(None, "a").membership
