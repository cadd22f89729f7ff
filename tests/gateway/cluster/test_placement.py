"""Placement is balanced, keeps shards where they are, and moves as few as possible."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.placement import place

nodes_of = st.sets(st.integers(0, 50), min_size=1, max_size=9)


@st.composite
def clusters(draw):
    count = draw(st.integers(1, 40))
    places = st.none() | st.integers(0, 50)
    held = draw(st.lists(places, min_size=count, max_size=count))
    current = {shard: node for shard, node in enumerate(held) if node is not None}
    used = sorted(set(current.values()))
    nodes = draw(nodes_of) | (set(draw(st.lists(st.sampled_from(used)))) if used else set())
    return range(count), nodes, current


@given(clusters())
def test_loads_differ_by_at_most_one(cluster):
    shards, nodes, current = cluster
    placed = place(shards, nodes, current)
    loads = Counter(placed.values())
    assert set(placed) == set(shards)
    assert set(loads) <= nodes
    assert max(loads[node] for node in nodes) - min(loads[node] for node in nodes) <= 1


@given(clusters())
def test_as_few_shards_move_as_the_loads_permit(cluster):
    shards, nodes, current = cluster
    placed = place(shards, nodes, current)
    loads = Counter(node for node in current.values() if node in nodes)
    share, remainder = divmod(len(shards), len(nodes))
    # Each node keeps its share, and the `remainder` nodes with more than that one shard more.
    above = sum(load > share for load in loads.values())
    kept = sum(min(load, share) for load in loads.values()) + min(remainder, above)
    stayed = sum(current.get(shard) == node for shard, node in placed.items())
    assert stayed == kept


@given(clusters())
def test_placing_again_moves_nothing(cluster):
    shards, nodes, current = cluster
    placed = place(shards, nodes, current)
    assert place(shards, nodes, placed) == placed


@given(clusters())
def test_result_does_not_depend_on_the_order(cluster):
    shards, nodes, current = cluster
    shuffled = dict(reversed(current.items()))
    assert place(reversed(shards), sorted(nodes, reverse=True), shuffled) == place(
        shards, nodes, current
    )


def test_without_nodes_nothing_is_placed():
    assert place(range(4), (), {0: 1}) == {}
