"""Places shards on nodes: sticky, balanced rendezvous hashing.

The numbers of shards of two nodes differ by at most one. A shard moves only if its node has left or
has more than its share. No assignment with these numbers moves fewer shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b


def place(
    shards: Iterable[int], nodes: Iterable[int], current: Mapping[int, int]
) -> dict[int, int]:
    """Return the node id of each shard; empty if there are no nodes.

    `current` has the present node of each shard. A shard without one, or whose node is not in
    `nodes`, is placed on a node that has less than its share.
    """
    shards, nodes = sorted(set(shards)), sorted(set(nodes))
    if not nodes:
        return {}
    held: dict[int, list[int]] = {node: [] for node in nodes}
    free: list[int] = []
    for shard in shards:
        held.get(current.get(shard, -1), free).append(shard)
    share, remainder = divmod(len(shards), len(nodes))
    # The nodes with the most shards keep one more, so that fewer shards move.
    by_load = sorted(nodes, key=lambda node: (-len(held[node]), node))
    room = {}
    for rank, node in enumerate(by_load):
        quota = share + (rank < remainder)
        if len(held[node]) > quota:
            held[node].sort(key=lambda shard: _score(shard, node), reverse=True)
            free += held[node][quota:]
            del held[node][quota:]
        room[node] = quota - len(held[node])
    placed = {shard: node for node, kept in held.items() for shard in kept}
    for shard in sorted(free):
        node = max((one for one in nodes if room[one]), key=lambda one: _score(shard, one))
        placed[shard] = node
        room[node] -= 1
    return placed


@lru_cache(maxsize=8192)
def _score(shard: int, node: int) -> bytes:
    return blake2b(b"%d/%d" % (shard, node), digest_size=8).digest()
