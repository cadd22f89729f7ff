"""The tagged fields of Produce and Fetch that name the present leader (KIP-951).

A partition that the asked node does not lead has CurrentLeader, from Produce 10 and Fetch 12 on.
The reply has the addresses of these leaders in NodeEndpoints, from Produce 10 and Fetch 16 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec

from gateway.protocol.wire.primitives import INT32, write_string, write_uvarint

#: Leader id and leader epoch.
CurrentLeader = tuple[int, int]

_LEADER = Struct(">ii")


class NodeEndpoint(msgspec.Struct, frozen=True, gc=False):
    """The address of a node. Nodes have no racks."""

    node_id: int
    host: str
    port: int


def current_leader_field(tag: int, leader: CurrentLeader) -> bytes:
    """The tagged field: its number, its length, and a struct without tagged fields."""
    return bytes((tag, _LEADER.size + 1)) + _LEADER.pack(*leader) + b"\0"


#: Length of `current_leader_field`.
CURRENT_LEADER_SIZE = 2 + _LEADER.size + 1


def node_endpoints_tags(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The tagged fields at the end of a reply: NodeEndpoints as number 0, or none."""
    if not endpoints:
        return b"\0"
    content = [write_uvarint(len(endpoints) + 1)]
    for one in endpoints:
        content += (
            INT32.pack(one.node_id),
            write_string(one.host, compact=True),
            INT32.pack(one.port),
            b"\0\0",  # no rack, no tagged fields
        )
    encoded = b"".join(content)
    return b"\x01\x00" + write_uvarint(len(encoded)) + encoded
